"""Integer noise without floating-point: discrete Laplace, discrete Gaussian and Skellam.

How it is drawn. All three distributions are tabulated (:mod:`fl_privquant.sampling._noise_table`) in units of
2^-127 with a certified total-variation distance below 2^-100 to the ideal distribution. A draw is then one
random word, one look-up and one comparison, in vector code: a few nanoseconds, whatever is drawn. Rejection
sampling (Canonne, Kamath, Steinke 2020) is exact, but takes thousands of times as long, reveals by its
running time what it drew, and does not exist for Skellam noise. Its exactness would gain little: N draws from
the tables add at most (1 + e^epsilon) N ``total_variation`` to delta, less than 10^-12 for 10^17 draws at
epsilon 2. Where a table would be too large (sigma above 20 000, a Laplace scale above 3 700) the distribution
can still be used for bounds of sums, but not be drawn from; use a coarser lattice.

One word is reserved in the stream for each draw, so the same seed gives the same noise, in whatever
pieces it is drawn.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar, Self, TypeAlias

import numpy as np

from fl_privquant._array_types import ArrayLike, Floats, Ints, Words
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.sampling._noise_table import (
    NoiseTable,
    Ratios,
    build_table,
    gaussian_ratios,
    laplace_ratios,
    skellam_ratios,
)
from fl_privquant.sampling.stream import RandomStream, continuation_address

_CHUNK = 1 << 15
# The largest Laplace scale, and the largest variance of the others, for which a table is built.
_MAX_TABLE_SCALE = 3_700
_MAX_TABLE_VARIANCE = 20_000**2
# Terms of a sum that are below this share of the first one do not change a float.
_NEGLIGIBLE = 2.0**-70


class _IntegerNoise(ABC):
    """Common code of the three noises: drawing from a table, and the moments of the draws."""

    parameter: ClassVar[str]
    deviations: ClassVar[float] = 6.1
    """A draw exceeds this many standard deviations, either way, with a probability of about 1e-9."""

    def __post_init__(self) -> None:
        received = getattr(self, self.parameter)
        try:
            value = Fraction(received)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidSpecError(self.parameter, received, ", expected a finite number") from error
        if value <= 0:
            raise InvalidSpecError(self.parameter, received, "is not above 0")
        object.__setattr__(self, self.parameter, value)

    @classmethod
    @abstractmethod
    def of_variance(cls, variance: Fraction) -> Self:
        """The noise of that variance; for a discrete Gaussian ``variance`` is sigma^2, close to it."""

    def clamp_to(self, max_shift: int) -> int | None:
        """How far beyond 0..max_shift the sum of an integer there and noise is clamped; None if it is not."""
        return None

    @property
    def total_variation(self) -> float:
        """Upper bound of the distance of one draw to the closed form; 0 where nothing is drawn."""
        return _tabulate(self).total_variation if self._tabulate_probabilities else 0.0

    @property
    def largest(self) -> int | None:
        """The largest magnitude that can be drawn; None where a table would be too large."""
        return _tabulate(self).largest if self._tabulate_probabilities else None

    def sample(self, shape: int | tuple[int, ...], stream: RandomStream) -> Ints:
        """Independent draws (int64) of the given shape."""
        out = np.empty(shape, dtype=np.int64)
        self.fill(out.reshape(-1), stream, stream.reserve(out.size))
        return out

    def fill(self, out: Ints, stream: RandomStream, first_word: int) -> None:
        """Write draws into a vector, one for each reserved word from address ``first_word`` on."""
        words = np.empty(min(_CHUNK, out.size), dtype=np.uint64)
        for start in range(0, out.size, _CHUNK):
            part = out[start : start + _CHUNK]
            part_words = words[: part.size]
            stream.fill(part_words, first_word + start)
            self.draw(part_words, part, stream, first_word + start)

    def draw(self, words: Words, out: Ints, stream: RandomStream, first_word: int) -> None:
        """Write the draws of ``words``, which were read from address ``first_word`` on."""
        # Imported here because numba takes a second to import.
        from fl_privquant.sampling._loops import draw_noise

        table = self._table
        if draw_noise(words, table.cells, table.cell_bits, out):
            _break_ties(table, words, out, stream, first_word)

    def units(self) -> list[int]:
        """Probability of each magnitude 0, 1, ... in units of 2^-127, exactly as it is drawn."""
        return self._table.units()[: self._table.largest + 1]

    @property
    def _table(self) -> NoiseTable:
        """The table that draws come from."""
        if not self._tabulate_probabilities:
            raise InvalidSpecError(self.parameter, MISSING, "too large to be drawn from a table")
        return _tabulate(self)

    @property
    def _tabulate_probabilities(self) -> bool:
        """Whether the distribution is narrow enough for a table."""
        return True

    @abstractmethod
    def log_moment(self, rate: float) -> float:
        """Upper bound of log E exp(rate N) for a draw N."""

    @abstractmethod
    def best_rate(self, mean: float) -> float:
        """The rate at which log_moment(rate) - rate * mean is least, or near it: any rate gives a bound."""

    @abstractmethod
    def _ratios(self) -> Ratios:
        """The distribution, as ratios of neighboring probabilities."""


@dataclass(frozen=True)
class DiscreteLaplace(_IntegerNoise):
    """Integer noise k with probability proportional to exp(-|k| / scale).

    Guarantee: added to an integer of sensitivity D, the output is D / scale differentially private
    up to the delta that :attr:`total_variation` adds.
    Reference: A. Ghosh, T. Roughgarden, M. Sundararajan, "Universally utility-maximizing privacy
    mechanisms", STOC 2009 (the two-sided geometric mechanism).

    >>> noise = DiscreteLaplace(Fraction(3, 2))
    >>> noise.sample(5, RandomStream.seeded(1)).tolist()
    [3, 0, -3, 5, 5]
    """

    scale: Fraction

    parameter: ClassVar[str] = "scale"
    # Its tails fall as e^(-sqrt(2) z), z in standard deviations.
    deviations: ClassVar[float] = 14.6

    @classmethod
    def of_variance(cls, variance: Fraction) -> Self:
        # Solved for the scale: the variance is 1 / (2 sinh^2(1 / (2 scale))).
        return cls(Fraction(0.5 / math.asinh(math.sqrt(0.5 / float(variance)))))

    def clamp_to(self, max_shift: int) -> int:
        # This is half of the table's range beyond the shift. The other half ensures that the part of the
        # distribution that the table lacks is small compared with the tails whose ratios matter.
        return max(((self.largest or 0) - max_shift) // 2, 1)

    def pmf(self, k: ArrayLike) -> Floats:
        """Probability of each integer, closed form: tanh(1 / (2 scale)) exp(-|k| / scale)."""
        rate = float(1 / self.scale)
        return np.asarray(math.tanh(rate / 2.0) * np.exp(-rate * np.abs(_integers(k))))

    def tail(self, k: int) -> float:
        """Probability that the magnitude exceeds ``k``."""
        rate = float(1 / self.scale)
        return 1.0 if k < 0 else 2.0 * math.exp(-rate * (k + 1)) / (1.0 + math.exp(-rate))

    @property
    def variance(self) -> float:
        """Variance, closed form: 1 / (2 sinh^2(1 / (2 scale)))."""
        half = float(1 / self.scale) / 2.0
        return 0.5 / math.sinh(half) ** 2 if half < 300.0 else 2.0 * math.exp(-2.0 * half)

    def log_moment(self, rate: float) -> float:
        # E exp(rate N) = (1 - p)^2 / ((1 - p e^rate) (1 - p e^-rate)) with p = exp(-1 / scale).
        fall = 1.0 / float(self.scale)
        parts = (math.log(-math.expm1(exponent)) for exponent in (rate - fall, -rate - fall))
        return 2.0 * math.log(-math.expm1(-fall)) - sum(parts)

    def best_rate(self, mean: float) -> float:
        # Where the derivative sinh(rate) / (cosh(1 / scale) - cosh(rate)) is the mean: a quadratic in e^rate.
        fall = 1.0 / float(self.scale)
        middle = mean * math.cosh(fall)
        rate = math.log((middle + math.sqrt(middle**2 + 1.0 - mean**2)) / (mean + 1.0))
        return min(max(rate, 0.0), fall * (1.0 - 1e-9))

    @property
    def _tabulate_probabilities(self) -> bool:
        return self.scale <= _MAX_TABLE_SCALE

    def _ratios(self) -> Ratios:
        return laplace_ratios(self.scale)


@dataclass(frozen=True)
class DiscreteGaussian(_IntegerNoise):
    """Integer noise k with probability proportional to exp(-k^2 / (2 sigma^2)).

    Guarantee: added to an integer of sensitivity D, the output has D^2 / (2 sigma^2) zero-concentrated
    differential privacy (coordinates add up), except for the delta that :attr:`total_variation` adds.
    Reference: Canonne, Kamath, Steinke 2020, Theorem 4. A *sum* of such noises does not have this
    distribution: its privacy is computed from its own probabilities.

    >>> noise = DiscreteGaussian(Fraction(9, 4))
    >>> noise.sample(5, RandomStream.seeded(1)).tolist()
    [2, -2, -2, 1, 3]
    """

    sigma_squared: Fraction

    parameter: ClassVar[str] = "sigma_squared"

    @classmethod
    def of_variance(cls, variance: Fraction) -> Self:
        return cls(variance)

    def pmf(self, k: ArrayLike) -> Floats:
        """Probability of each integer: a closed form, over a sum that is accurate to the last digits."""
        exponent = np.square(_integers(k)) / (-2.0 * float(self.sigma_squared))
        return np.asarray(np.exp(exponent) / self._normalizer)

    def tail(self, k: int) -> float:
        """Probability that the magnitude exceeds ``k``."""
        if k < 0:
            return 1.0
        return 2.0 * self._sum_above(k, np.ones_like) / self._normalizer

    @property
    def variance(self) -> float:
        """Variance, which is at most sigma^2, and close to it unless sigma is small."""
        return 2.0 * self._sum_above(0, np.square) / self._normalizer

    def log_moment(self, rate: float) -> float:
        # As small as for the continuous Gaussian, or smaller (Canonne, Kamath, Steinke, section 2).
        return rate**2 * float(self.sigma_squared) / 2.0

    def best_rate(self, mean: float) -> float:
        return mean / float(self.sigma_squared)

    @cached_property
    def _normalizer(self) -> float:
        return 1.0 + 2.0 * self._sum_above(0, np.ones_like)

    def _sum_above(self, k: int, term: Callable[[Floats], Floats]) -> float:
        """Sum over j > k of term(j) exp(-j^2 / (2 sigma^2))."""
        rate = 0.5 / float(self.sigma_squared)
        # A term is negligible once j^2 exceeds the first one's square by this much.
        reach = math.isqrt(int((k + 1) ** 2 - math.log(_NEGLIGIBLE) / rate)) + 2
        total = 0.0
        for start in range(k + 1, reach + 1, 1 << 20):
            j = np.arange(start, min(start + (1 << 20), reach + 1), dtype=np.float64)
            total += float((term(j) * np.exp(-rate * j * j)).sum())
        return total

    @property
    def _tabulate_probabilities(self) -> bool:
        return self.sigma_squared <= _MAX_TABLE_VARIANCE

    def _ratios(self) -> Ratios:
        return gaussian_ratios(self.sigma_squared)


@dataclass(frozen=True)
class Skellam(_IntegerNoise):
    """Integer noise: the difference of two independent Poisson numbers of mean variance / 2.

    P[X = k] = exp(-variance) I_k(variance), I_k the modified Bessel function. Closed under
    sums: the noises of n clients with variance v each add up to Skellam noise of variance n v.
    Reference: N. Agarwal, P. Kairouz, Z. Liu, "The Skellam Mechanism for Differentially Private
    Federated Learning", NeurIPS 2021.

    >>> noise = Skellam(Fraction(9, 4))
    >>> noise.sample(5, RandomStream.seeded(1)).tolist()
    [2, -2, -2, 0, 3]
    """

    variance: Fraction

    parameter: ClassVar[str] = "variance"

    @classmethod
    def of_variance(cls, variance: Fraction) -> Self:
        return cls(variance)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variance > _MAX_TABLE_VARIANCE:
            raise InvalidSpecError(
                "variance",
                float(self.variance),
                f"is above {_MAX_TABLE_VARIANCE:.6g}, and Skellam noise is drawn from tables only",
                "use a coarser lattice or discrete Gaussian noise",
            )

    def pmf(self, k: ArrayLike) -> Floats:
        """Probability of each integer; beyond :attr:`largest` accurate to some 10 digits only."""
        from scipy.special import ive

        probabilities = _tabulate(self).probabilities
        magnitudes = np.abs(_integers(k))
        inside = magnitudes < probabilities.size
        out = np.empty(magnitudes.shape)
        out[inside] = probabilities[magnitudes[inside].astype(np.int64)]
        out[~inside] = ive(magnitudes[~inside], float(self.variance))
        return out

    def tail(self, k: int) -> float:
        """Probability that the magnitude exceeds ``k``: at most 2^-100 above the exact one."""
        if k < 0:
            return 1.0
        table = _tabulate(self)
        # Summed from the smallest on, so that small probabilities are not lost to rounding.
        return 2.0 * float(table.probabilities[:k:-1].sum()) + table.total_variation

    def log_moment(self, rate: float) -> float:
        # variance (cosh(rate) - 1), written so that a small rate loses no digits.
        return 2.0 * float(self.variance) * math.sinh(rate / 2.0) ** 2

    def best_rate(self, mean: float) -> float:
        return math.asinh(mean / float(self.variance))

    def _ratios(self) -> Ratios:
        return skellam_ratios(self.variance)


IntegerNoise: TypeAlias = DiscreteLaplace | DiscreteGaussian | Skellam
"""Any of the three noises."""


@lru_cache(maxsize=32)
def _tabulate(noise: _IntegerNoise) -> NoiseTable:
    return build_table(noise._ratios())


def _break_ties(table: NoiseTable, words: Words, out: Ints, stream: RandomStream, first_word: int) -> None:
    """Draw again, with a second word, where a word equals its threshold, which practically never happens."""
    rest_bits = 63 - table.cell_bits
    own = words >> np.uint64(64 - table.cell_bits)
    thresholds = table.cells[own] & np.uint64((1 << rest_bits) - 1)
    rests = (words >> np.uint64(1)) & np.uint64((1 << rest_bits) - 1)
    for i in np.flatnonzero(rests == thresholds).tolist():
        second = stream.integer(continuation_address(first_word + i), 1)
        cell = int(own[i])
        magnitude = cell if second < int(table.ties[cell]) else int(table.cells[cell]) >> rest_bits
        out[i] = -magnitude if int(words[i]) & 1 else magnitude


def _integers(k: ArrayLike) -> Floats:
    numbers = np.asarray(k)
    if numbers.dtype.kind not in "ui":
        raise InvalidSpecError("k", str(numbers.dtype), ", expected integers")
    return numbers.astype(np.float64)
