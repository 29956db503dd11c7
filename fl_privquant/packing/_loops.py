"""Compiled loops of packing, which read and write whole 64-bit words, and of looking up levels by index.

They are a module of their own so that numba is imported when the first payload is packed, not with the
package. No loop here reads or writes beyond its arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant._array_types import Words
from fl_privquant._compiled import compile_loop

Digits = NDArray[np.uint8] | NDArray[np.uint16]

# This many values, of any width, fill whole 64-bit words.
_BLOCK = 64
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)


@compile_loop
def copy_values(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy all values of the source to the beginning of the target.

    An assignment to a slice does the same, but numba takes seconds to compile it, because of an error message
    that mentions the shapes.
    """
    for i in range(source.size):
        target[i] = source[i]


@compile_loop
def narrow_lanes(lanes: Words, group_bits: int, shifts: Words, low: Words, high: Words, out: Words) -> None:
    """Squeeze the values in the lanes of each word to ``group_bits`` adjacent bits, words end to end.

    Each of the three steps joins neighboring fields in pairs: the ``low`` one stays, the ``high``
    one moves down by ``shifts``. The number of lanes' bits must fill ``out`` exactly.
    """
    shift_0, shift_1, shift_2 = shifts[0], shifts[1], shifts[2]
    low_0, low_1, low_2 = low[0], low[1], low[2]
    high_0, high_1, high_2 = high[0], high[1], high[2]
    if 64 % group_bits == 0:
        groups = 64 // group_bits
        for k in range(out.size):
            joined = np.uint64(0)
            for j in range(groups):
                x = lanes[k * groups + j]
                x = (x & low_0) | ((x & high_0) >> shift_0)
                x = (x & low_1) | ((x & high_1) >> shift_1)
                x = (x & low_2) | ((x & high_2) >> shift_2)
                joined |= x << np.uint64(j * group_bits)
            out[k] = joined
        return
    joined = np.uint64(0)
    filled = 0
    k = 0
    for i in range(lanes.size):
        x = lanes[i]
        x = (x & low_0) | ((x & high_0) >> shift_0)
        x = (x & low_1) | ((x & high_1) >> shift_1)
        x = (x & low_2) | ((x & high_2) >> shift_2)
        joined |= x << np.uint64(filled)
        filled += group_bits
        if filled >= 64:
            out[k] = joined
            k += 1
            filled -= 64
            # group_bits < 64 on this path, so the shift stays below 64 even when nothing is left.
            joined = x >> np.uint64(group_bits - filled)


@compile_loop
def narrow_values(
    values: NDArray[Any],
    width: int,
    group_bits: int,
    shifts: Words,
    low: Words,
    high: Words,
    body: NDArray[np.uint8],
) -> None:
    """Write values that stand in lanes at ``width`` bits each; the bits after the last one become 0."""
    whole = values.size - values.size % _BLOCK
    bytes_of_whole = whole * width // 8
    narrow_lanes(
        values[:whole].view(np.uint64), group_bits, shifts, low, high, body[:bytes_of_whole].view(np.uint64)
    )
    if whole < values.size:
        block, words = np.zeros(_BLOCK, values.dtype), np.empty(width, np.uint64)
        copy_values(values[whole:], block)
        narrow_lanes(block.view(np.uint64), group_bits, shifts, low, high, words)
        copy_values(words.view(np.uint8)[: body.size - bytes_of_whole], body[bytes_of_whole:])


@compile_loop
def expand_values(
    body: NDArray[np.uint8],
    width: int,
    group_bits: int,
    shifts: Words,
    low: Words,
    high: Words,
    out: NDArray[Any],
) -> bool:
    """Read values of ``width`` bits each, and return whether the bits after the last one are 0."""
    whole = out.size - out.size % _BLOCK
    bytes_of_whole = whole * width // 8
    expand_lanes(
        body[:bytes_of_whole].view(np.uint64), group_bits, shifts, low, high, out[:whole].view(np.uint64)
    )
    if whole == out.size:
        return True
    block, words = np.zeros(_BLOCK, out.dtype), np.zeros(width, np.uint64)
    copy_values(body[bytes_of_whole:], words.view(np.uint8))
    expand_lanes(words, group_bits, shifts, low, high, block.view(np.uint64))
    copy_values(block[: out.size - whole], out[whole:])
    return not block[out.size - whole :].any()


@compile_loop
def expand_lanes(words: Words, group_bits: int, shifts: Words, low: Words, high: Words, out: Words) -> None:
    """Spread adjacent bits back to lanes: the inverse of :func:`narrow_lanes`."""
    shift_0, shift_1, shift_2 = shifts[0], shifts[1], shifts[2]
    low_0, low_1, low_2 = low[0], low[1], low[2]
    high_0, high_1, high_2 = high[0], high[1], high[2]
    if 64 % group_bits == 0:
        groups = 64 // group_bits
        for k in range(words.size):
            word = words[k]
            for j in range(groups):
                x = word >> np.uint64(j * group_bits)
                x = (x & low_2) | ((x << shift_2) & high_2)
                x = (x & low_1) | ((x << shift_1) & high_1)
                x = (x & low_0) | ((x << shift_0) & high_0)
                out[k * groups + j] = x
        return
    last = words.size - 1
    for i in range(out.size):
        bit = i * group_bits
        k = bit >> 6
        start = np.uint64(bit & 63)
        # Where a group ends inside its word, what the next one adds is masked away below.
        following = words[min(k + 1, last)]
        x = (words[k] >> start) | ((following << np.uint64(1)) << (np.uint64(63) - start))
        x = (x & low_2) | ((x << shift_2) & high_2)
        x = (x & low_1) | ((x << shift_1) & high_1)
        x = (x & low_0) | ((x << shift_0) & high_0)
        out[i] = x


@compile_loop
def join_digits(digits: Digits, base: np.uint64, per_word: int, out: Words) -> None:
    """Write ``per_word`` base-``base`` digits into each word, the first digit the least significant."""
    # A sum of digits times powers runs in vector registers; Horner's rule is one chain, 3 times slower.
    powers = np.ones(per_word, dtype=np.uint64)
    for j in range(1, per_word):
        powers[j] = powers[j - 1] * base
    for k in range(out.size):
        part = digits[k * per_word : (k + 1) * per_word]
        word = np.uint64(0)
        for j in range(per_word):
            word += np.uint64(part[j]) * powers[j]
        out[k] = word


@compile_loop
def split_digits(words: Words, base: np.uint64, per_word: int, out: Digits) -> int:
    """Read the digits of each word; return the first word that is too large, or -1.

    A division for every digit would be slow. If the number of digits is odd, the top digit is
    divided off; the rest is two halves below 2^32. A half x of h digits becomes the fixed-point
    fraction F = floor(2^32 x / base^h) + 1, whose integer part after each multiplication by the base
    is the next digit. This is exact: after j steps F/2^32 = (y + e) / base^(h-j), with y the digits
    that are left, an integer, and 0 < e <= base^h / 2^32 < 1, since base^h is below 2^32 (the base
    is not a power of two).
    """
    half = per_word // 2
    half_range = np.uint64(1)
    for _ in range(half):
        half_range *= base
    odd = per_word - 2 * half
    one = np.uint64(1)
    for k in range(words.size):
        start = k * per_word
        word = words[k]
        upper = word // half_range
        lower = word - upper * half_range
        if odd:
            top = upper // half_range
            upper -= top * half_range
            if top >= base:
                return k
            out[start + 2 * half] = top
        elif upper >= half_range:
            return k
        low_fraction = (lower << _HALF) // half_range + one
        high_fraction = (upper << _HALF) // half_range + one
        for j in range(half - 1, -1, -1):
            low_fraction *= base
            high_fraction *= base
            out[start + j] = low_fraction >> _HALF
            out[start + half + j] = high_fraction >> _HALF
            low_fraction &= _LOW_HALF
            high_fraction &= _LOW_HALF
    return -1


@compile_loop
def add_codes(indices: NDArray[Any], codes: NDArray[np.int64], total: NDArray[np.int64]) -> None:
    """Add the code of each index to the total."""
    for i in range(indices.size):
        total[i] += codes[indices[i]]


@compile_loop
def look_up(indices: NDArray[Any], values: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the value of each index; the caller has checked that all are in range."""
    for i in range(indices.size):
        out[i] = values[indices[i]]


@compile_loop
def look_up_and_add(
    indices: NDArray[Any], values: NDArray[Any], old: NDArray[Any], out: NDArray[Any]
) -> None:
    """Write the sum of an old coordinate and the value of its index."""
    for i in range(indices.size):
        out[i] = old[i] + values[indices[i]]
