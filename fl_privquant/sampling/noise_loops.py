"""Compiled loop of :mod:`fl_privquant.sampling.discrete`, apart so that numba is imported late."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_privquant.compiled import compiled

_SIGN = np.uint64(1)


@compiled
def draw_noise(
    words: NDArray[np.uint64], cells: NDArray[np.uint64], cell_bits: int, out: NDArray[np.int64]
) -> int:
    """Number of words that tie with a threshold; ``out`` holds a draw for every other one.

    See :class:`fl_privquant.sampling.noise_table.NoiseTable` for the cells. No index is out of
    bounds whatever the words are: there is a cell for every value of the highest bits.
    """
    to_cell = np.uint64(64 - cell_bits)
    rest_bits = np.uint64(63 - cell_bits)
    rest_mask = (np.uint64(1) << rest_bits) - np.uint64(1)
    ties = 0
    for i in range(words.size):
        word = words[i]
        own = word >> to_cell
        rest = (word >> _SIGN) & rest_mask
        cell = cells[own]
        threshold = cell & rest_mask
        magnitude = np.int64(own) if rest < threshold else np.int64(cell >> rest_bits)
        ties += int(rest == threshold)
        # -1 in two's complement is all ones: this negates where the sign bit is set.
        sign = -np.int64(word & _SIGN)
        out[i] = (magnitude ^ sign) - sign
    return ties
