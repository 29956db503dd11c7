"""Integer noise: its privacy loss in the local view, and in the sum of the noises of n clients.

A release is j + N modulo a power of two, with an integer j in 0..D that depends on the input, and noise N.
Let f be the distribution of N in the local view, where the server sees each release. In the aggregate view,
where it sees the sum, the adversary knows the other clients' integers in the worst case, and f is the
distribution of the sum of the n honest noises, that of the protected client included. For two integers s
apart, the pair of output distributions is (f, f shifted by s).

**Worst shift.** The three noises (Skellam, discrete Gaussian, discrete Laplace) are log-concave, and so are
their sums. Then the hockey-stick curve H(a) grows with s at every a (see
:mod:`fl_privquant.mechanisms.additive._certificate`), so the pair for s = D dominates those for all inputs.
Randomized rounding is a mixture, and the wrap is post-processing.

**The distribution of the sum.** Skellam noises add up to Skellam noise. Discrete Gaussians nearly add up to
one: the probabilities of a sum of n with parameter sigma^2 are within a factor e^tau of the discrete Gaussian
with n sigma^2, tau = 10 * sum over k < n of exp(-2 pi^2 sigma^2 k / (k + 1)) (Kairouz, Liu, Steinke 2021, on
sums of discrete Gaussians). Where tau is not negligible, sigma is small and the sum is convolved. Discrete
Laplace noise is always convolved.

**Tables.** The noise is drawn from a table whose probabilities are multiples of 2^-127. Where the ideal
probability is above 2^-70, that of the table agrees with it to 2^-50. Smaller ones have total mass ``lost``,
which is charged as an infinite loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from scipy.special import ive

from fl_privquant._array_types import Floats, Ints
from fl_privquant.distributions.integer_distribution import IntegerDistribution, power
from fl_privquant.errors import InvalidSpecError
from fl_privquant.privacy_loss.composition.loss_distribution import ROUNDING, PrivacyLoss
from fl_privquant.sampling.integer_noise import DiscreteGaussian, IntegerNoise, Skellam
from fl_privquant.statement import Relation

# Probabilities below this, which is 2^-70, count as lost mass.
_MIN_PROBABILITY = 8e-22
# Relative error of a probability that is the exponential of a number up to 100, and of rounding in tables.
_EXPONENTIAL = 1e-13
# Accuracy of scipy's scaled Bessel function, checked against exact tables to 3e-12.
_BESSEL = 1e-10
_NEGLIGIBLE_GAP = 1e-12
_WIDEST = 1 << 22
_DIRECT = 1 << 29


@dataclass(frozen=True)
class NoisyInteger:
    """The release of one coordinate: an integer in 0..max_shift plus noise."""

    noise: IntegerNoise
    max_shift: int
    pure_epsilon: float = math.inf
    """The certified pure epsilon of a release that is clamped; infinite where none is certified."""

    def loss(self, num_honest: int = 1, relation: Relation = Relation.REPLACE_ONE) -> PrivacyLoss:
        """The loss of one coordinate, in the sum of ``num_honest`` honest clients; 1 is the local view.

        The input 0 is the middle of the lattice, or is rounded to one of the two points next to it.
        """
        shift = self.max_shift if relation is Relation.REPLACE_ONE else -(-self.max_shift // 2)
        distribution = noise_sum(self.noise, num_honest)
        # The second distribution is Q(y) = P(y - shift): outputs below the first ones of Q have no finite
        # loss.
        reach = max(distribution.values.size - shift, 0)
        first, second = distribution.values[distribution.values.size - reach :], distribution.values[:reach]
        usable = (first > 0.0) & (second > 0.0)
        losses = np.log(first[usable]) - np.log(second[usable])
        losses += 2.0 * distribution.relative + ROUNDING * (1.0 + np.abs(losses))
        unknown = (
            distribution.lost
            + float(distribution.values[: distribution.values.size - reach].sum() + first[~usable].sum())
        ) * (1.0 + 1e-9)
        masses = first[usable]
        if math.isfinite(self.pure_epsilon):
            losses, masses, unknown = self._pure(num_honest, losses, masses, unknown)
        atoms = np.append(losses, 0.0), np.append(masses, 0.0)
        return PrivacyLoss.merge_atoms(*atoms, min(unknown, 1.0), 2.0 * distribution.relative + ROUNDING)

    def distance_to_ideal(self, num_honest: int) -> float:
        """Upper bound of the total variation distance between the sums of drawn and of ideal noises."""
        return num_honest * (self.noise.total_variation + self._clamping_probability)

    @property
    def _clamping_probability(self) -> float:
        """Probability that a client's release is clamped; otherwise its noise is the ideal one."""
        reach = self.noise.clamp_to(self.max_shift)
        return 0.0 if reach is None else self.noise.tail(reach)

    def _pure(
        self, num_honest: int, losses: Floats, masses: Floats, unknown: float
    ) -> tuple[Floats, Floats, float]:
        """Losses of a pure release: none exceeds its certified epsilon, so that none is infinite.

        The same holds for a sum, as f(y) / f(y - D) is a mean of such ratios of one noise. But the
        distribution of the sum does not take into account that each client clamps its noise. With probability
        at most q any client clamps, which changes a hockey-stick curve by at most (1 + a) q. Above a =
        e^epsilon the curve is 0. Up to there an atom at epsilon + 1, of mass (1 + e^epsilon) q / (1 - 1/e),
        covers the change.
        """
        epsilon = self.pure_epsilon
        if num_honest == 1:
            return np.append(np.minimum(losses, epsilon), epsilon), np.append(masses, unknown), 0.0
        clamped = num_honest * self._clamping_probability
        extra = (unknown + (1.0 + math.exp(epsilon)) * clamped) / -math.expm1(-1.0)
        return np.append(np.minimum(losses, epsilon), epsilon + 1.0), np.append(masses, extra), 0.0


def noise_sum(noise: IntegerNoise, count: int) -> IntegerDistribution:
    """The distribution of the sum of ``count`` independent noises, cut where probabilities are negligible."""
    ideal = ideal_sum(noise, count)
    return replace(ideal, lost=ideal.lost + count * noise.total_variation)


def ideal_sum(noise: IntegerNoise, count: int, least: float = _MIN_PROBABILITY) -> IntegerDistribution:
    """The sum of ideal noises, which tables approximate, with probabilities down to ``least``."""
    if isinstance(noise, Skellam) and (count > 1 or least < _MIN_PROBABILITY):
        variance = count * float(noise.variance)
        return _two_sided(lambda k: np.asarray(ive(k, variance), dtype=np.float64), variance, _BESSEL, least)
    if count > 1 and isinstance(noise, DiscreteGaussian) and sum_gap(noise, count) <= _NEGLIGIBLE_GAP:
        total = DiscreteGaussian(Fraction(noise.sigma_squared) * count)
        relative = _EXPONENTIAL + 2.0 * sum_gap(noise, count)
        return _two_sided(total.pmf, float(total.sigma_squared), relative, least)
    single = _two_sided(noise.pmf, float(noise.variance), _EXPONENTIAL, least)
    if count == 1:
        return single
    # The error of an FFT exceeds very small probabilities, so direct convolutions are used for these.
    return power(single, count) if least >= _MIN_PROBABILITY else power(single, count, _DIRECT, 1e-3 * least)


def sum_gap(noise: DiscreteGaussian, count: int) -> float:
    """How far, in log probabilities, a sum of ``count`` discrete Gaussians may be from a discrete Gaussian.

    >>> sum_gap(DiscreteGaussian(Fraction(4)), 100) < 1e-14
    True
    """
    k = np.arange(1, min(count, 10_000))
    exponents = -2.0 * math.pi**2 * float(noise.sigma_squared) * k / (k + 1.0)
    # Each term beyond the listed ones is at most the last of these.
    total = float(np.exp(exponents).sum())
    rest = max(count - 10_000, 0) * math.exp(exponents[-1]) if k.size else 0.0
    return 10.0 * (total + rest)


def _two_sided(
    pmf: Callable[[Ints], Floats], variance: float, relative: float, least: float
) -> IntegerDistribution:
    """A symmetric log-concave distribution from its probabilities, down to ``least``."""
    # This reach is enough for Gaussian tails. For the heavier tails of Laplace noise it is doubled.
    reach = int(math.sqrt(100.0 * variance)) + 64
    while True:
        if reach > _WIDEST:
            raise InvalidSpecError(
                "variance", float(variance), "is too wide for the noise to be listed", "use fewer levels"
            )
        half = np.asarray(pmf(np.arange(reach + 2)), dtype=np.float64)
        if half[-1] < least:
            break
        reach *= 2
    end = int(np.argmax(half < least))
    # The distribution is log-concave, so ratios of neighbors fall and the tail is below a geometric series.
    ratio = half[end] / half[end - 1]
    tail = half[end] / (1.0 - ratio)
    values = np.concatenate([half[end - 1 : 0 : -1], half[:end]])
    return IntegerDistribution(1 - end, values, relative, 2.0 * tail * (1.0 + relative))
