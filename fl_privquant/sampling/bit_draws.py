"""Sums of certified bits, of which a given number are from the upper row: half a random word each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant.sampling.stream import RandomStream

_CHUNK = 1 << 14


def draw_bit_sums(upper: NDArray[Any], trials: int, rare: int, stream: RandomStream) -> NDArray[np.uint8]:
    """The number of ones among ``trials`` bits of each input, of which ``upper`` are from the upper row.

    A bit of the upper row is 0, and one of the lower row is 1, with the weight ``rare`` of 2^32, exactly. A
    call takes half a word a bit and input from the stream, rounded up, whatever the numbers are.

    Parameters
    ----------
    upper
        Whole numbers from 0 to ``trials``, of any shape.
    trials
        Number of bits, at most 255.

    >>> draw_bit_sums(np.array([0, 4, 7]), 7, 1 << 20, RandomStream.seeded(1))
    array([0, 4, 7], dtype=uint8)
    """
    # Numba takes a second to import: only who draws pays for it.
    from fl_privquant.sampling.bit_loops import add_two_bits

    numbers = np.ascontiguousarray(upper, dtype=np.uint8).reshape(-1)
    out = np.zeros(numbers.size, dtype=np.uint8)
    pairs = -(-trials // 2)
    first_word = stream.reserve(pairs * numbers.size)
    words = np.empty(min(_CHUNK, numbers.size), dtype=np.uint64)
    for pair in range(pairs):
        reader = stream.reader(first_word + pair * numbers.size)
        for start in range(0, numbers.size, _CHUNK):
            part = slice(start, min(start + _CHUNK, numbers.size))
            reader.read(words[: part.stop - start])
            add_two_bits(
                words[: part.stop - start],
                numbers[part],
                2 * pair,
                min(2 * pair + 1, trials - 1),
                rare,
                out[part],
            )
    return out.reshape(np.shape(upper))
