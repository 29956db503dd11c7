"""Distributions on the integers, and their sums, with bounds of floating-point errors and cut tails.

The distribution of a sum of many codes or noises is a convolution. In floating point it comes with rounding
errors, and its tails must be cut somewhere. Every distribution here states both: the relative error of its
probabilities, and the probability that is missing. Callers take both into account, so that neither makes a
stated privacy loss smaller than the true one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from fl_privquant._array_types import Floats, Ints

_UNIT = 2.0**-53
# Tails with less than this probability are cut off after each convolution.
_CUT = 1e-24
# The probability of fewer draws than the lowest floor: about the first number, at most the second.
_LOWEST, _UNCOUNTED = 1e-19, 1e-18
# Relative accuracy of scipy's binomial probabilities, with room.
_BINOMIAL = 1e-10
# Convolutions are direct, which has a small relative error, up to this product of lengths; else by FFT.
_DIRECT = 100_000_000


@dataclass(frozen=True, eq=False)
class IntegerDistribution:
    """A distribution on the integers: probabilities ``values`` from ``first`` on, with their errors.

    Guarantee: the true distribution is the sum of a measure within a factor 1 + ``relative``, either way, of
    ``values``, and of another measure of total mass at most ``lost``.
    """

    first: int
    values: Floats
    relative: float = 8.0 * _UNIT
    lost: float = 0.0

    @classmethod
    def of(cls, points: Ints, probabilities: Floats) -> IntegerDistribution:
        """The distribution with these probabilities, right to 8 units, of distinct integers."""
        first = int(points.min())
        values = np.zeros(int(points.max()) - first + 1)
        values[points - first] = probabilities
        return cls(first, values)


def convolve(
    a: IntegerDistribution, b: IntegerDistribution, direct: int = _DIRECT, cut: float = _CUT
) -> IntegerDistribution:
    """The distribution of the sum of two independent numbers; tails of mass below ``cut`` are lost.

    A direct convolution adds only positive terms: its relative error is below the number of terms, in
    rounding units. An FFT has an error below 3 * 8 u log2(N) ||a|| ||b|| at every point (Higham, "Accuracy
    and Stability of Numerical Algorithms", Theorem 24.2, twice forward and once back). That error is taken
    off every probability and counts as lost.
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
    return _trim_tails(IntegerDistribution(a.first + b.first, values, relative, lost), cut)


def power(
    distribution: IntegerDistribution, count: int, direct: int = _DIRECT, cut: float = _CUT
) -> IntegerDistribution:
    """The distribution of the sum of ``count`` independent numbers of one distribution, by repeated doubling.

    >>> power(IntegerDistribution(0, np.array([0.5, 0.5])), 3).values.round(6)
    array([0.125, 0.375, 0.375, 0.125])
    """
    result = IntegerDistribution(0, np.ones(1), 0.0)
    square = distribution
    while count:
        if count & 1:
            result = convolve(result, square, direct, cut)
        count >>= 1
        if count:
            square = convolve(square, square, direct, cut)
    return result


def round_count_down(num_honest: int) -> int:
    """The number of clients, rounded down to its 7 leading bits: similar numbers then share cached results.

    Counting fewer clients is safe: it never understates a privacy loss.

    >>> round_count_down(100), round_count_down(1234)
    (100, 1232)
    """
    return num_honest - num_honest % (1 << max(num_honest.bit_length() - 7, 0))


@dataclass(frozen=True, eq=False)
class WeightedDistribution:
    """A component of a mixture: a distribution, and its probability, rounded up."""

    distribution: IntegerDistribution
    weight: float


def binomial_floors(number: int, share: float, buckets: int) -> list[tuple[int, float]]:
    """The floors of about ``buckets`` buckets of K ~ Binomial(number, share), each with its probability.

    A bucket is a range of values of K, and its floor the least of these. Probabilities are rounded up. K is
    below the lowest floor with probability less than 1e-18.
    """
    binom = scipy.stats.binom
    lowest = max(int(binom.ppf(_LOWEST, number, share)), 0)
    while binom.cdf(lowest - 1, number, share) > _UNCOUNTED:
        lowest -= 1
    highest = int(binom.isf(1e-9, number, share))
    width = highest - lowest + 1
    stride = 1 if width <= 2 * buckets else math.ceil(width / buckets)
    starts = np.arange(lowest, max(highest, lowest) + 1, stride)
    ends = np.append(starts[1:], number + 1)
    # Computed from the nearer tail, so that small probabilities keep their digits.
    below = binom.cdf(ends - 1, number, share) - binom.cdf(starts - 1, number, share)
    above = binom.sf(starts - 1, number, share) - binom.sf(ends - 1, number, share)
    weights = np.where(ends < number * share, below, above) * (1.0 + _BINOMIAL)
    return list(zip(starts.tolist(), weights.tolist(), strict=True))


def binomial_sums(
    distribution: IntegerDistribution, number: int, share: float, buckets: int
) -> tuple[list[WeightedDistribution], float]:
    """The distributions of sums of Binomial(number, share) draws, and the probability not covered.

    K is replaced by the floor of its bucket, which is a bound wherever more draws hide more. Not covered are
    numbers below the lowest floor, and the mass that was lost in computing the sums.
    """
    floors = binomial_floors(number, share, buckets)
    total = power(distribution, floors[0][0])
    step = power(distribution, floors[1][0] - floors[0][0]) if len(floors) > 1 else total
    sums: list[WeightedDistribution] = []
    uncovered = _UNCOUNTED if floors[0][0] > 0 else 0.0
    for at, (_, weight) in enumerate(floors):
        total = convolve(total, step) if at else total
        sums.append(WeightedDistribution(total, weight))
        uncovered += weight * total.lost
    return sums, uncovered


def estimate_sum_width(codes: Ints, weights: Floats, draws: float) -> float:
    """About how many points the sum of that many draws has without its tails; ``weights`` in any unit."""
    mean = float(weights @ codes) / float(weights.sum())
    spread = math.sqrt(draws * float(weights @ (codes - mean) ** 2) / float(weights.sum()))
    return min(21.0 * spread, draws * float(codes[-1])) + float(codes[-1])


def _trim_tails(distribution: IntegerDistribution, cut: float) -> IntegerDistribution:
    if distribution.values[0] >= cut and distribution.values[-1] >= cut:
        return distribution
    below = int(np.searchsorted(np.cumsum(distribution.values), cut))
    above = int(np.searchsorted(np.cumsum(distribution.values[::-1]), cut))
    end = distribution.values.size - above
    if below >= end or below + above == 0:
        return distribution
    lost = distribution.lost + 2.1 * cut * (1.0 + distribution.relative)
    return IntegerDistribution(
        distribution.first + below, distribution.values[below:end], distribution.relative, lost
    )
