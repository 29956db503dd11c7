"""Compiled loops over whole updates, for :mod:`fl_privquant.codec._rotation`, ``clip`` and ``subset``.

They have their own module so that numba is imported with the first update, not with the package.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_privquant._array_types import Array, Ints, Words
from fl_privquant._compiled import compile_loop

# How many columns are transformed, and sums of squares kept, at once: as many as fit into a core's cache.
_LANES = 64


@compile_loop
def sum_of_squares(x: Array, unit: float) -> float:
    """The sum of the squares of ``unit * x``, in double precision whatever the precision of ``x``."""
    # The order of additions is the same on every machine.
    sums = np.zeros(_LANES)
    for first in range(0, x.size, _LANES):
        part = x[first : first + _LANES]
        for j in range(part.size):
            scaled = np.float64(part[j]) * unit
            sums[j] += scaled * scaled
    total = 0.0
    for lane in sums:
        total += lane
    return total


@compile_loop
def scale_in_place(x: Array, unit: float, factor: float) -> None:
    """Multiply every coordinate by a power of two and by a factor, the product of which may overflow."""
    for i in range(x.size):
        x[i] = (np.float64(x[i]) * unit) * factor


@compile_loop
def clip_rows(
    rows: Array, bound: float, inside: float, least: float, most: float, factors: NDArray[np.float64]
) -> None:
    """Scale each row whose L2 norm exceeds ``bound`` to ``inside`` times that, and write by which factors.

    A row whose sum of squares is outside ``least`` to ``most`` is left as it is, with the factor NaN.
    """
    for i in range(rows.shape[0]):
        squares = sum_of_squares(rows[i], 1.0)
        norm = math.sqrt(squares)
        factors[i] = 1.0
        if not least <= squares <= most:
            factors[i] = np.nan
        elif norm > bound:
            factors[i] = bound / norm * inside
            scale_in_place(rows[i], 1.0, factors[i])


@compile_loop
def _flip_signs(bits: Array, words: Words) -> None:
    """Flip the top bit of integer i where bit i % 64 of word i // 64 is set: the sign, if it is a float's."""
    top = bits.itemsize * 8 - 1
    for k in range(words.size):
        word = words[k]
        first = 64 * k
        for j in range(min(64, bits.size - first)):
            bits[first + j] ^= ((word >> np.uint64(j)) & np.uint64(1)) << np.uint64(top)


@compile_loop
def _transform_pairs(x: Array, out: Array) -> None:
    """Sums of neighbors into the first half of ``out``, differences into the second: one stage."""
    half = x.size // 2
    for j in range(half):
        a, b = x[2 * j], x[2 * j + 1]
        out[j] = a + b
        out[j + half] = a - b


@compile_loop
def _transform_fours(x: Array, out: Array) -> None:
    """Two stages of :func:`_transform_pairs` in one, which halves the traffic to memory."""
    quarter = x.size // 4
    for j in range(quarter):
        a, b, c, d = x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]
        sum_ab, difference_ab = a + b, a - b
        sum_cd, difference_cd = c + d, c - d
        out[j] = sum_ab + sum_cd
        out[j + quarter] = difference_ab + difference_cd
        out[j + 2 * quarter] = sum_ab - sum_cd
        out[j + 3 * quarter] = difference_ab - difference_cd


@compile_loop
def hadamard_blocks(x: Array, size: int, scale: float) -> None:
    """The Walsh-Hadamard transform of each block of ``size`` neighbors, times ``scale``, in place.

    ``size`` is a power of two that divides the size of ``x``. Every stage moves what it mixes from the last
    bit of the position to the first, so that all stages are the same loop, and after the last one the
    positions are in their natural order.
    """
    # Compiled loops do not check their bounds: other sizes would write beyond the array.
    if size < 1 or size & (size - 1) or x.size % size:
        raise ValueError("hadamard_blocks: the size is not a power of two that divides the array")
    spare = np.empty(size, x.dtype)
    for start in range(0, x.size, size):
        block = x[start : start + size]
        now, other = block, spare
        done = 1
        while 4 * done <= size:
            _transform_fours(now, other)
            now, other = other, now
            done *= 4
        if done < size:
            _transform_pairs(now, other)
            now, other = other, now
        for j in range(size):
            block[j] = now[j] * scale


@compile_loop
def _hadamard_rows(x: Array, rows: int, lanes: int) -> None:
    """The transform of every column of a matrix of ``rows`` rows with ``lanes`` columns, in place."""
    half = 1
    while 2 * half < rows:
        width = half * lanes
        for i in range(0, rows * lanes, 4 * width):
            # With slices the compiler knows that indices are not negative, and uses vector instructions.
            a, b = x[i : i + width], x[i + width : i + 2 * width]
            c, d = x[i + 2 * width : i + 3 * width], x[i + 3 * width : i + 4 * width]
            for j in range(width):
                sum_ab, difference_ab = a[j] + b[j], a[j] - b[j]
                sum_cd, difference_cd = c[j] + d[j], c[j] - d[j]
                a[j] = sum_ab + sum_cd
                b[j] = difference_ab + difference_cd
                c[j] = sum_ab - sum_cd
                d[j] = difference_ab - difference_cd
        half *= 4
    if half < rows:
        a, b = x[: half * lanes], x[half * lanes : 2 * half * lanes]
        for j in range(half * lanes):
            a[j], b[j] = a[j] + b[j], a[j] - b[j]


@compile_loop
def _copy(source: Array, target: Array) -> None:
    for j in range(source.size):
        target[j] = source[j]


@compile_loop
def _copy_scaled(source: Array, target: Array, scale: float) -> None:
    for j in range(source.size):
        target[j] = source[j] * scale


@compile_loop
def _locate_column(first: int, count: int, shift: int, length: int) -> tuple[int, int]:
    """Where column ``first`` of a turned row lies, and how many of ``count`` come before the row's end."""
    at = first + shift if first + shift < length else first + shift - length
    return at, min(count, length - at)


@compile_loop
def hadamard_columns(x: Array, starts: Ints, shifts: Ints, scale: float) -> None:
    """The Walsh-Hadamard transform of each column of rows of nearly equal length, times ``scale``, in place.

    Row i is ``x[starts[i] : starts[i + 1]]`` turned to the left by ``shifts[i]`` positions. The number of
    rows is a power of two; columns that not all rows have are left as they are.
    """
    rows = shifts.size
    if rows < 1 or rows & (rows - 1) or starts.size != rows + 1:
        raise ValueError("hadamard_columns: the number of rows is not a power of two")
    width = x.size
    for i in range(rows):
        length = starts[i + 1] - starts[i]
        if starts[i] < 0 or starts[i + 1] > x.size or not 0 <= shifts[i] < length:
            raise ValueError("hadamard_columns: a row is outside the array, or a shift outside its row")
        width = min(width, length)
    strip = np.empty(rows * min(width, _LANES), x.dtype)
    for first in range(0, width, _LANES):
        lanes = min(_LANES, width - first)
        for i in range(rows):
            row, out = x[starts[i] : starts[i + 1]], strip[i * lanes : (i + 1) * lanes]
            at, ahead = _locate_column(first, lanes, shifts[i], row.size)
            _copy(row[at : at + ahead], out[:ahead])
            _copy(row[: lanes - ahead], out[ahead:])
        _hadamard_rows(strip, rows, lanes)
        for i in range(rows):
            row, out = x[starts[i] : starts[i + 1]], strip[i * lanes : (i + 1) * lanes]
            at, ahead = _locate_column(first, lanes, shifts[i], row.size)
            _copy_scaled(out[:ahead], row[at : at + ahead], scale)
            _copy_scaled(out[ahead:], row[: lanes - ahead], scale)


@compile_loop
def transform_rows(
    rows: Array,
    bits: Array,
    first: int,
    last: int,
    words: Words,
    size: int,
    starts: Ints,
    shifts: Ints,
    scale: float,
    backward: bool,
) -> None:
    """Flip signs and transform the columns ``first`` to ``last`` of each row, in place; backward undoes it.

    ``bits`` are the same rows as integers. The transform is that of blocks of ``size`` or, with ``shifts``,
    that of columns.
    """
    for i in range(rows.shape[0]):
        part, part_bits = rows[i, first:last], bits[i, first:last]
        if not backward:
            _flip_signs(part_bits, words)
        if shifts.size:
            hadamard_columns(part, starts, shifts, scale)
        else:
            hadamard_blocks(part, size, scale)
        if backward:
            _flip_signs(part_bits, words)


@compile_loop
def draw_places(words: Words, dimension: int) -> Ints:
    """(k,) different numbers below ``dimension``, one for each of k words: the first steps of a shuffle."""
    numbers = np.arange(dimension)
    for i in range(words.size):
        j = i + np.int64(words[i] % np.uint64(dimension - i))
        numbers[i], numbers[j] = numbers[j], numbers[i]
    return numbers[: words.size].copy()
