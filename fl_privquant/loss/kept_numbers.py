"""Numbers that take long to compute, kept on disk so that the same search is quick the next time.

No guarantee is read from disk: the result of a search is certified in the process that states it. The numbers
kept here, such as the clip with about the least error, only say where to search.

A number is kept under everything that it follows from: its arguments, and the source of the rooms ``law``,
``loss``, ``design`` and ``mechanisms``, so that no number outlives the code that computed it. A file is read
only if its digest fits (:class:`~fl_privquant.cache.DesignCache`), which shows damage, not forgery. A file
that was forged in the user's own cache directory can therefore mislead a search, but no statement.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fl_privquant.array_types import Floats
from fl_privquant.cache import DesignCache
from fl_privquant.errors import CertificationError

__all__ = ["kept_numbers"]

# Numbers that take less processor time than this are not kept.
_SECONDS = 0.03
_PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True, eq=False)
class _Numbers:
    values: Floats
    seconds: float

    def to_bytes(self) -> bytes:
        return self.values.astype("<f8").tobytes()


def kept_numbers(name: str, arguments: str, compute: Callable[[], Floats], least: Floats) -> Floats:
    """The numbers that ``compute`` gives, from disk if they are kept there.

    ``name`` and ``arguments`` say what is computed, and everything that it depends on besides the code, as
    one line of text. A file with numbers below ``least``, which they never are, is refused.
    """

    def computed() -> _Numbers:
        started = time.process_time()
        values = compute()
        return _Numbers(values, time.process_time() - started)

    def parsed(blob: bytes) -> _Numbers:
        if len(blob) != least.nbytes:
            raise CertificationError(f"it has {len(blob)} bytes, expected {least.nbytes}")
        values = np.frombuffer(blob, "<f8").astype(np.float64)
        if not np.all(values >= least):
            raise CertificationError(f"{name}: it claims {values.min():g}, below {least.max():g}")
        return _Numbers(values, 0.0)

    spec = f"{name} of code {_code()}: {arguments}"
    return (
        DesignCache.default()
        .fetch(spec, computed, parsed, lambda numbers: numbers.seconds >= _SECONDS)
        .values
    )


@lru_cache(maxsize=1)
def _code() -> str:
    """A digest of the source that numbers follow from."""
    digest = hashlib.sha256()
    for room in ("law", "loss", "design", "mechanisms"):
        for path in sorted((_PACKAGE / room).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
