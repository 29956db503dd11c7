"""How much memory a block takes."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator


@contextlib.contextmanager
def assert_fewer_bytes(limit: int) -> Iterator[None]:
    """Check that what Python and numpy allocate in the ``with`` block stays below a limit at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit
