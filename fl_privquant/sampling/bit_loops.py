"""Compiled loop of :mod:`fl_privquant.sampling.bit_draws`, apart so that numba is imported late."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant.compiled import compiled

_HALF_WORD = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@compiled
def add_two_bits(
    words: NDArray[np.uint64],
    upper: NDArray[np.unsignedinteger[Any]],
    first: int,
    last: int,
    rare: int,
    out: NDArray[np.unsignedinteger[Any]],
) -> None:
    """Add the bits ``first`` to ``last``, two or one, of each input, from the halves of its word.

    Those below ``upper`` are 1 except for ``rare`` of 2^32 half-words, the others are 0 except for these.
    """
    weight, all_words = np.uint64(rare), np.uint64(1 << 32)
    for i in range(words.size):
        low, high = words[i] & _LOW, words[i] >> _HALF_WORD
        total = low < (all_words - weight if first < upper[i] else weight)
        again = high < (all_words - weight if last < upper[i] else weight)
        out[i] += np.uint8(total) + np.uint8(again and last > first)
