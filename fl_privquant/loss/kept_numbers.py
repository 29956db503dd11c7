"""Numbers that take long to compute, kept on disk so that the same search is quick the next time.

No guarantee is read from disk: the result of a search is certified in the process that states it. The numbers
kept here, such as the clip with about the least error, only say where to search.

The key of a number is everything that it depends on: its arguments, and the source code of the packages
``law``, ``loss``, ``design`` and ``mechanisms``, so that no number outlives the code that computed it. A file
is read only if its digest fits (:class:`~fl_privquant.cache.DesignCache`), which detects damage, but not
forgery. A file that was forged in the user's own cache directory can therefore mislead a search, but cannot
change what a privacy statement says.
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
    """The numbers that ``compute`` returns, read from disk if they are kept there.

    ``name`` and ``arguments`` are one line of text: what is computed, and everything that it depends on
    besides the code. Valid numbers are never below ``least``, so a file with smaller ones is refused.
    """

    def computed() -> _Numbers:
        started = time.process_time()
        values = compute()
        return _Numbers(values, time.process_time() - started)

    def parsed(blob: bytes) -> _Numbers:
        if len(blob) != least.nbytes:
            raise CertificationError(f"{name}: the file has {len(blob)} bytes, expected {least.nbytes}")
        values = np.frombuffer(blob, "<f8").astype(np.float64)
        if not np.all(values >= least):
            raise CertificationError(f"{name}: the file claims {values.min():g}, below {least.max():g}")
        return _Numbers(values, 0.0)

    spec = f"{name} of code {_code()}: {arguments}"
    return (
        DesignCache.default()
        .fetch(spec, computed, parsed, lambda numbers: numbers.seconds >= _SECONDS)
        .values
    )


@lru_cache(maxsize=1)
def _code() -> str:
    """A digest of the source code that numbers depend on."""
    digest = hashlib.sha256()
    for room in ("law", "loss", "design", "mechanisms"):
        for path in sorted((_PACKAGE / room).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
