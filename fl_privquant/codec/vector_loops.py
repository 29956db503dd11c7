"""Compiled loops over whole updates, of :mod:`fl_privquant.codec.rotate` and ``clip``.

Kept apart so that numba is imported with the first update, not with the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "flip_signs",
    "hadamard",
    "scale_in_place",
    "sum_of_squares",
]

_Function = TypeVar("_Function", bound=Callable[..., object])

Floats = NDArray[Any]
Words = NDArray[np.uint64]

# Coordinates whose inner stages run while they stay in a core's first cache: 16 to 32 KB.
_BLOCK = 4096


def _compiled(function: _Function) -> _Function:
    return cast(_Function, numba.njit(cache=True, nogil=True)(function))


@_compiled
def sum_of_squares(x: Floats, unit: float) -> float:
    """The sum of the squares of ``unit * x``, in double precision whatever the precision of ``x``."""
    total = 0.0
    for value in x:
        scaled = np.float64(value) * unit
        total += scaled * scaled
    return total


@_compiled
def scale_in_place(x: Floats, unit: float, factor: float) -> None:
    """Multiply every coordinate by a power of two and by a factor, whose product may be no float."""
    for i in range(x.size):
        x[i] = (np.float64(x[i]) * unit) * factor


@_compiled
def flip_signs(bits: NDArray[Any], words: Words) -> None:
    """Flip the top bit of integer i where bit i % 64 of word i // 64 is set: the sign, if it is a float's."""
    top = bits.itemsize * 8 - 1
    for k in range(words.size):
        word = words[k]
        first = 64 * k
        for j in range(min(64, bits.size - first)):
            bits[first + j] ^= ((word >> np.uint64(j)) & np.uint64(1)) << np.uint64(top)


@_compiled
def _stage(x: Floats, start: int, stop: int, half: int) -> None:
    for i in range(start, stop, 2 * half):
        for j in range(i, i + half):
            a = x[j]
            b = x[j + half]
            x[j] = a + b
            x[j + half] = a - b


@_compiled
def _two_stages(x: Floats, start: int, stop: int, half: int) -> None:
    # Two stages in one pass halve the traffic to memory.
    for i in range(start, stop, 4 * half):
        for j in range(i, i + half):
            a = x[j]
            b = x[j + half]
            c = x[j + 2 * half]
            d = x[j + 3 * half]
            sum_ab, difference_ab = a + b, a - b
            sum_cd, difference_cd = c + d, c - d
            x[j] = sum_ab + sum_cd
            x[j + half] = difference_ab + difference_cd
            x[j + 2 * half] = sum_ab - sum_cd
            x[j + 3 * half] = difference_ab - difference_cd


@_compiled
def hadamard(x: Floats) -> None:
    """The Walsh-Hadamard transform, in place and not scaled; the size is a power of two."""
    size = x.size
    if size & (size - 1):
        # Compiled loops do not check their bounds: this would write beyond the array.
        raise ValueError("hadamard: the size is not a power of two")
    block = min(size, _BLOCK)
    for start in range(0, size, block):
        half = 1
        while 2 * half < block:
            _two_stages(x, start, start + block, half)
            half *= 4
        if half < block:
            _stage(x, start, start + block, half)
    half = block
    while 2 * half < size:
        _two_stages(x, 0, size, half)
        half *= 4
    if half < size:
        _stage(x, 0, size, half)
