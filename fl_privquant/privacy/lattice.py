"""Laws on the integers, and their sums, with what floating point and cut tails can be wrong by.

Sums of many codes or noises are convolutions. In floating point they come with errors, and their tails must
be cut somewhere. Whoever uses a law from here charges both: the relative error in every probability, and
the small part that is missing, of which nothing is known. So neither can make a figure smaller than the
truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LatticeLaw", "convolve", "power"]

Floats = NDArray[np.float64]

_UNIT = 2.0**-53
# Tails with less than this probability are cut off after each convolution.
_CUT = 1e-24
# Products of lengths up to which a direct convolution, with its small relative error, is fast enough.
_DIRECT = 100_000_000


@dataclass(frozen=True, eq=False)
class LatticeLaw:
    """A law on the integers: ``values`` for ``first``, ``first + 1``, ..., and how far they can be trusted.

    Guarantee: the law is the sum of a measure within a factor 1 + ``relative``, either way, of ``values``,
    and of another one of total mass at most ``lost``.
    """

    first: int
    values: Floats
    relative: float = 8.0 * _UNIT
    lost: float = 0.0

    @classmethod
    def of(cls, points: NDArray[np.int64], probabilities: Floats) -> LatticeLaw:
        """The law with these probabilities, right to 8 units, of distinct integers."""
        first = int(points.min())
        values = np.zeros(int(points.max()) - first + 1)
        values[points - first] = probabilities
        return cls(first, values)


def convolve(a: LatticeLaw, b: LatticeLaw, direct: int = _DIRECT) -> LatticeLaw:
    """The law of the sum of two independent numbers.

    A direct convolution adds only positive terms: its relative error is below the number of terms in units.
    An FFT has an error below 3 * 8 u log2(N) ||a|| ||b|| at every point (Higham, "Accuracy and Stability of
    Numerical Algorithms", Theorem 24.2, twice forward and once back): it is taken off, and is lost.
    """
    relative = a.relative + b.relative + a.relative * b.relative
    lost = a.lost + b.lost
    if a.values.size * b.values.size <= direct:
        values = np.convolve(a.values, b.values)
        relative += (min(a.values.size, b.values.size) + 2) * _UNIT
    else:
        size = 1 << (a.values.size + b.values.size - 1).bit_length()
        spectrum = np.fft.rfft(a.values, size) * np.fft.rfft(b.values, size)
        error = 24.0 * _UNIT * math.log2(size) * float(np.linalg.norm(a.values) * np.linalg.norm(b.values))
        values = np.fft.irfft(spectrum, size)[: a.values.size + b.values.size - 1] - error
        values = np.maximum(values, 0.0)
        lost += 2.0 * error * values.size
    return _trimmed(LatticeLaw(a.first + b.first, values, relative, lost))


def power(law: LatticeLaw, count: int, direct: int = _DIRECT) -> LatticeLaw:
    """The law of the sum of ``count`` independent numbers of one law, by repeated doubling.

    >>> power(LatticeLaw(0, np.array([0.5, 0.5])), 3).values.round(6)
    array([0.125, 0.375, 0.375, 0.125])
    """
    result = LatticeLaw(0, np.ones(1), 0.0)
    square = law
    while count:
        if count & 1:
            result = convolve(result, square, direct)
        count >>= 1
        if count:
            square = convolve(square, square, direct)
    return result


def _trimmed(law: LatticeLaw) -> LatticeLaw:
    below = int(np.searchsorted(np.cumsum(law.values), _CUT))
    above = int(np.searchsorted(np.cumsum(law.values[::-1]), _CUT))
    end = law.values.size - above
    if below >= end or below + above == 0:
        return law
    lost = law.lost + 2.1 * _CUT * (1.0 + law.relative)
    return LatticeLaw(law.first + below, law.values[below:end], law.relative, lost)
