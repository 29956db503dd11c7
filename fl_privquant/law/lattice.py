"""Laws on the integers, and their sums, with bounds of the errors of floating point and of cut tails.

Sums of many codes or noises are convolutions. In floating point they come with errors, and their tails must
be cut somewhere. Callers account for both: the relative error of every probability, and the small part that
is missing, of which nothing is known. So neither makes a stated privacy loss smaller than the true one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from fl_privquant.array_types import Floats, Ints

_UNIT = 2.0**-53
# Tails with less than this probability are cut off after each convolution.
_CUT = 1e-24
# Probabilities of fewer draws than the smallest number that is used.
_LOWEST, _UNCOUNTED = 1e-19, 1e-18
# Relative accuracy of scipy's binomial probabilities, with room.
_BINOMIAL = 1e-10
# Products of lengths up to which a direct convolution, with its small relative error, is fast enough.
_DIRECT = 100_000_000


@dataclass(frozen=True, eq=False)
class LatticeLaw:
    """A law on the integers: probabilities ``values`` of ``first``, ``first + 1``, ..., with their errors.

    Guarantee: the law is the sum of a measure within a factor 1 + ``relative``, either way, of ``values``,
    and of another one of total mass at most ``lost``.
    """

    first: int
    values: Floats
    relative: float = 8.0 * _UNIT
    lost: float = 0.0

    @classmethod
    def of(cls, points: Ints, probabilities: Floats) -> LatticeLaw:
        """The law with these probabilities, right to 8 units, of distinct integers."""
        first = int(points.min())
        values = np.zeros(int(points.max()) - first + 1)
        values[points - first] = probabilities
        return cls(first, values)


def convolve(a: LatticeLaw, b: LatticeLaw, direct: int = _DIRECT, cut: float = _CUT) -> LatticeLaw:
    """The law of the sum of two independent numbers; tails of mass below ``cut`` are cut off, and are lost.

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
    return _trimmed(LatticeLaw(a.first + b.first, values, relative, lost), cut)


def binomial_law(number: int, coin: Floats, relative: float = 0.0, cut: float = _CUT) -> LatticeLaw:
    """The law of the number of ones in independent throws of a coin; tails below ``cut`` are lost.

    From the mean outwards each probability is the one before it times a quotient, and all are divided by
    their sum: a relative error of some units for each number that is listed. With L = log(1 / cut), numbers
    further from the mean than L / 3 + sqrt(L^2 / 9 + 2 L variance) have a probability of at most ``cut`` on
    either side (Bernstein's inequality). There are ``number`` >= 1 throws; ``coin`` has the probabilities,
    above 0, of a zero and of a one, which may have the error ``relative``.

    >>> binomial_law(3, np.array([0.5, 0.5])).values.round(6)
    array([0.125, 0.375, 0.375, 0.125])
    """
    zero, one = float(coin[0]), float(coin[1])
    mean, unlikely = number * one, -math.log(cut)
    reach = unlikely / 3.0 + math.sqrt(unlikely**2 / 9.0 + 2.0 * unlikely * number * zero * one)
    first, last = max(math.floor(mean - reach), 0), min(math.ceil(mean + reach), number)
    listed = np.arange(first, last, dtype=np.float64)
    middle = min(max(round(mean), first), last) - first
    upwards = (number - listed[middle:]) / (listed[middle:] + 1.0) * (one / zero)
    downwards = (listed[:middle] + 1.0) / (number - listed[:middle]) * (zero / one)
    below, above = np.cumprod(downwards[::-1])[::-1], np.cumprod(upwards)
    values = np.concatenate([below, [1.0], above])
    # Each quotient is rounded four times, in a probability and in the sum; then sums and divisions are.
    steps = max(below.size, above.size)
    error = (8 * steps + values.size + 8) * _UNIT + 2.1 * number * relative
    return LatticeLaw(first, values / values.sum(), error, 2.1 * cut)


def power(law: LatticeLaw, count: int, direct: int = _DIRECT, cut: float = _CUT) -> LatticeLaw:
    """The law of the sum of ``count`` independent numbers of one law, by repeated doubling.

    >>> power(LatticeLaw(0, np.array([0.5, 0.5])), 3).values.round(6)
    array([0.125, 0.375, 0.375, 0.125])
    """
    result = LatticeLaw(0, np.ones(1), 0.0)
    square = law
    while count:
        if count & 1:
            result = convolve(result, square, direct, cut)
        count >>= 1
        if count:
            square = convolve(square, square, direct, cut)
    return result


def coarse_count(num_honest: int) -> int:
    """The number of clients, rounded down to its 7 leading bits, which is safe and makes caches effective.

    >>> coarse_count(100), coarse_count(1234)
    (100, 1232)
    """
    return num_honest - num_honest % (1 << max(num_honest.bit_length() - 7, 0))


@dataclass(frozen=True, eq=False)
class WeightedLaw:
    """A component of a mixture: a law, and its probability, rounded up."""

    law: LatticeLaw
    weight: float


def binomial_floors(number: int, share: float, buckets: int) -> list[tuple[int, float]]:
    """The floors of about ``buckets`` buckets of K ~ Binomial(number, share), each with its probability.

    Probabilities are rounded up. Below the lowest floor lies less than 1e-18.
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
    law: LatticeLaw, number: int, share: float, buckets: int
) -> tuple[list[WeightedLaw], float]:
    """Sums of K draws from ``law``, K ~ Binomial(number, share), and a probability that none covers.

    K is replaced by the floor of its bucket, which is a bound wherever more draws hide more. Not covered are
    numbers below the lowest floor, and what was lost in computing the sums.
    """
    floors = binomial_floors(number, share, buckets)
    total = power(law, floors[0][0])
    step = power(law, floors[1][0] - floors[0][0]) if len(floors) > 1 else total
    sums: list[WeightedLaw] = []
    uncovered = _UNCOUNTED if floors[0][0] > 0 else 0.0
    for at, (_, weight) in enumerate(floors):
        total = convolve(total, step) if at else total
        sums.append(WeightedLaw(total, weight))
        uncovered += weight * total.lost
    return sums, uncovered


def width_of_sum(codes: Ints, weights: Floats, draws: float) -> float:
    """About how many points the sum of that many draws has, tails cut off; ``weights`` in any unit."""
    mean = float(weights @ codes) / float(weights.sum())
    spread = math.sqrt(draws * float(weights @ (codes - mean) ** 2) / float(weights.sum()))
    return min(21.0 * spread, draws * float(codes[-1])) + float(codes[-1])


def _trimmed(law: LatticeLaw, cut: float) -> LatticeLaw:
    below = int(np.searchsorted(np.cumsum(law.values), cut))
    above = int(np.searchsorted(np.cumsum(law.values[::-1]), cut))
    end = law.values.size - above
    if below >= end or below + above == 0:
        return law
    lost = law.lost + 2.1 * cut * (1.0 + law.relative)
    return LatticeLaw(law.first + below, law.values[below:end], law.relative, lost)
