"""PBM: the Poisson binomial mechanism, a number of successes whose probability is linear in the input.

For input x in [-1, 1] the code is Binomial(trials, 1/2 + theta x), and the estimate is (code - trials /
2) / (trials theta), unbiased. The codes are 0..trials: ``levels`` = trials + 1. The sum of the codes of
n clients is a Poisson binomial variable of n * trials trials, whatever the inputs: bounded, and never
wrapped.

It is sampled as it is defined: ``trials`` times, a bit is drawn from a certified table with two rows,
of integer weights, that of x = 1 with probability (1 + x) / 2. So the law is exactly binomial, with a
theta that is a rational number, and both guarantees are for what is sampled, not for a rounding of it.

Guarantee: ``epsilon`` = trials log((1 + 2 theta) / (1 - 2 theta)) for each coordinate and release,
local view, certified in integers: each trial is randomized response, and all trials 1 (or 0) is the
output that attains it. :func:`~fl_privquant.loss.bit_sums.aggregate_renyi` bounds what the secure sum over
n clients reveals of one of them, whatever the others' inputs.
Assumes: nothing about the inputs. For the sum: n clients that draw as they should; subtract corrupt and
dropped ones.
Reference: Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
Secure Aggregation", ICML 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant.errors import CertificationError, InfeasibleDesignError, InvalidSpecError
from fl_privquant.law.codebook import Codebook
from fl_privquant.law.density import Density, as_density
from fl_privquant.law.law import Law
from fl_privquant.law.table import TOTAL_WEIGHT, CertifiedTable, log_ratio_upper
from fl_privquant.loss.bit_sums import (
    aggregate_renyi,
    binomial,
    check_sum,
    poisson_binomial_losses,
    probed_renyi,
    sum_of_bits_loss,
)
from fl_privquant.loss.compose import NamedLoss
from fl_privquant.loss.norms import NO_NORMS, Norms, secure_sum_loss, two_row_loss
from fl_privquant.mechanisms.base import LatticeMechanism
from fl_privquant.mechanisms.registry import Listing, Spec, checked_epsilon, checked_levels, register
from fl_privquant.mechanisms.sum_limits import CoordinateNoise, bounded_noise
from fl_privquant.sampling.kernel import Sampler
from fl_privquant.sampling.stream import RandomStream
from fl_privquant.statement import LOCAL, View

__all__ = ["PbmMechanism", "PbmSpec", "design_pbm"]

Floats = NDArray[np.float64]

_HALF = TOTAL_WEIGHT // 2
_LAW_KNOTS = 129
_ERROR_PANELS = 512


@dataclass(frozen=True)
class PbmSpec(Spec):
    """What PBM is asked to be; exactly one of ``epsilon``, ``theta`` and ``renyi`` is given.

    Parameters
    ----------
    epsilon
        Privacy loss of one coordinate, one release, local view.
    levels
        Number of codes: one more than trials.
    theta
        How much the probability of a success moves with the input, above 0 and below 1/2.
    renyi
        Rényi divergence of one coordinate, one release, *aggregate view*: what the sum over ``num_clients``
        clients may reveal of any one of them.
    order
        Order of that divergence.
    num_clients
        Number of clients whose codes are added up, for ``renyi``; the honest ones that stay.
    """

    epsilon: float | None = None
    levels: int = 16
    theta: float | None = None
    renyi: float | None = None
    order: float = 2.0
    num_clients: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("epsilon", "theta", "renyi") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidSpecError(
                f"epsilon, theta, renyi: give exactly one of them, not {' and '.join(given) or 'none'}"
            )
        if self.epsilon is not None:
            checked_epsilon(self.epsilon)
        checked_levels(self.levels)
        if self.theta is not None and not 0.0 < self.theta < 0.5:
            raise InvalidSpecError(f"theta: {self.theta} is not above 0 and below 0.5")
        if self.renyi is not None:
            if not (math.isfinite(self.renyi) and self.renyi > 0.0):
                raise InvalidSpecError(f"renyi: {self.renyi} is not a finite number above 0")
            if self.num_clients is None:
                raise InvalidSpecError("num_clients: give the number of clients whose codes are added up")
            check_sum(self.levels - 1, self.num_clients, self.order)


@register(
    "pbm", PbmSpec, cached=False, listing=Listing(70, "#8d6a9f", plans_for_sums=True, plans_for_local=True)
)
def design_pbm(spec: PbmSpec) -> PbmMechanism:
    """The certified mechanism with the largest theta inside the target."""
    trials = spec.levels - 1
    if spec.epsilon is not None:
        rare = _rare_for_epsilon(trials, spec.epsilon)
        return PbmMechanism("pbm", trials, rare, float(spec.epsilon), spec.parameters())
    if spec.theta is not None:
        rare = max(round(TOTAL_WEIGHT * (0.5 - spec.theta)), 1)
    else:
        rare = _rare_for_renyi(trials, float(spec.renyi or 0.0), int(spec.num_clients or 0), spec.order)
    return PbmMechanism.of_bits("pbm", trials, rare, spec.parameters())


@dataclass(frozen=True, eq=False)
class PbmMechanism(LatticeMechanism, kind="pbm"):
    """``trials`` certified bits of randomized response a coordinate, of which the number of ones is sent.

    Parameters
    ----------
    name
        The registered name.
    trials
        Number of bits.
    rare
        The integer weight, of 2^32, of a 1 where x = -1 and of a 0 where x = 1; below one half.
    claimed_epsilon
        What the design was asked for; the certified loss is at most this.
    parameters
        How it was designed, for reports.
    """

    name: str
    trials: int
    rare: int
    claimed_epsilon: float
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_levels(self.trials + 1)
        if not 1 <= self.rare < _HALF:
            raise CertificationError(f"weight of the rare bit: {self.rare} is outside 1..{_HALF - 1}")
        if not self.epsilon <= self.claimed_epsilon:
            raise CertificationError(
                f"{self.statement.above(self.claimed_epsilon)}; it is {self.trials} times "
                f"log({TOTAL_WEIGHT - self.rare}/{self.rare})"
            )

    @classmethod
    def of_bits(cls, name: str, trials: int, rare: int, parameters: Mapping[str, Any]) -> PbmMechanism:
        """The mechanism with these bits, which claims the loss that is certified."""
        return cls(name, trials, rare, _loss(trials, rare), parameters)

    def __repr__(self) -> str:
        return (
            f"<{self.name}: {self.num_levels} levels, theta {self.theta:.6g}, certified "
            f"{self.statement.brief}, mse {self.mse():.5g}, mae {self.mae():.5g}>"
        )

    @cached_property
    def epsilon(self) -> float:
        return _loss(self.trials, self.rare)

    @property
    def theta(self) -> float:
        """How much the probability of a success moves with the input: exact, a multiple of 2^-32."""
        return (_HALF - self.rare) / TOTAL_WEIGHT

    @cached_property
    def codebook(self) -> Codebook:
        """Codes 0..trials and the estimates they stand for."""
        outer = 0.5 / self.theta
        return Codebook(np.arange(self.trials + 1), 2.0 * outer / self.trials, -outer)

    def pmf(self, x: ArrayLike) -> Floats:
        """(n, m) exact output probabilities for inputs in [-1, 1]."""
        inputs = np.clip(np.atleast_1d(np.asarray(x, dtype=np.float64)).ravel(), -1.0, 1.0)
        success = 0.5 + self.theta * inputs
        return binomial(np.arange(self.num_levels), self.trials, success[:, None])

    @cached_property
    def law(self) -> Law:
        """The binomial rows at 129 inputs, linear in between.

        For privacy this is the mechanism itself: likelihood ratios are monotone, so that every divergence is
        worst between -1 and 1, whose rows are exact. Its errors are a hair above those of the mechanism.
        """
        knots = np.linspace(-1.0, 1.0, _LAW_KNOTS)
        return Law.from_knots(self.values, knots, self.pmf(knots))

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        """Mean absolute error for inputs in [-1, 1], to 9 digits; uniform unless told."""
        inside = self.values[np.abs(self.values) < 1.0]
        breaks = np.unique(np.concatenate([np.linspace(-1.0, 1.0, _ERROR_PANELS + 1), inside]))
        nodes, weights = as_density(density).quadrature(breaks)
        return float(weights @ (self.pmf(nodes) * np.abs(self.values - nodes[:, None])).sum(axis=1))

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        """Exact mean squared error for inputs in [-1, 1]: (1 / (4 theta^2) - E X^2) / trials."""
        nodes, weights = as_density(density).quadrature(np.array([-1.0, 1.0]))
        return (0.25 / self.theta**2 - float(weights @ nodes**2)) / self.trials

    def encode(
        self, x: ArrayLike, clip: float = 1.0, rng: RandomStream | None = None, threads: int = 1
    ) -> NDArray[Any]:
        """Random codes; takes ``trials`` words a coordinate from ``rng``."""
        stream = rng if rng is not None else RandomStream.secure()
        dtype = np.uint8 if self.num_levels <= 256 else np.uint16
        total: NDArray[Any] = np.asarray(
            self._sampler.encode(x, clip=clip, stream=stream, threads=threads)
        ).astype(dtype)
        for _ in range(self.trials - 1):
            total += self._sampler.encode(x, clip=clip, stream=stream, threads=threads)
        return np.asarray(total)

    def loss(self, view: View = LOCAL) -> NamedLoss:
        loss = sum_of_bits_loss(self.trials, self.rare, self.epsilon, view.honest_count)
        return NamedLoss(loss, "" if view.is_local else "blanket")

    def update_losses(self, norms: Norms, dimension: int, view: View = LOCAL) -> list[NamedLoss]:
        """The mechanism's theorem, bit sums by a blanket, and by the worst case of the other clients."""
        honest = view.honest_count
        if norms == NO_NORMS:
            return poisson_binomial_losses(self.trials, self.theta, self.epsilon, dimension, honest)
        if norms.l2 is None:
            return []
        bounds = (
            secure_sum_loss(self.bit, norms.l2, dimension, honest, self.trials),
            two_row_loss(self.bit, norms.l2, dimension, honest, self.trials, "l2 gaussian of bits"),
        )
        return [bound for bound in bounds if bound is not None]

    @property
    def coordinate_noise(self) -> CoordinateNoise:
        # The mean of independent bits, with the largest variance where both sides are equally likely.
        outer = 0.5 / self.theta
        noise = bounded_noise(1.0, 0.0, outer**2, 1.0 + outer)
        return CoordinateNoise(
            1.0,
            0.0,
            noise.variance / self.trials,
            lambda rate: self.trials * noise.log_moment(rate / self.trials),
            noise.largest,
        )

    @cached_property
    def bit(self) -> CertifiedTable:
        """The table that each trial is drawn from."""
        outer = 0.5 / self.theta
        weights = np.array([[TOTAL_WEIGHT - self.rare, self.rare], [self.rare, TOTAL_WEIGHT - self.rare]])
        values = Codebook(np.array([0, 1]), 2.0 * outer, -outer)
        return CertifiedTable(values, weights, np.array([0]), np.array([1]))

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self.bit)


def _loss(trials: int, rare: int) -> float:
    """The privacy loss of all trials together, rounded up."""
    exact = trials * Fraction(log_ratio_upper(TOTAL_WEIGHT - rare, rare))
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def _rare_for_epsilon(trials: int, epsilon: float) -> int:
    """The smallest weight of the rare bit that keeps the loss within epsilon."""
    rare = max(math.ceil(TOTAL_WEIGHT / (math.exp(min(epsilon / trials, 50.0)) + 1.0)), 1)
    while rare < _HALF and _loss(trials, rare) > epsilon:
        rare += 1
    if rare >= _HALF:
        raise InvalidSpecError(
            f"epsilon: {epsilon} is too small for {trials} trials with weights of 32 bits; lower levels"
        )
    return rare


def _rare_for_renyi(trials: int, renyi: float, num_clients: int, order: float) -> int:
    """The smallest weight of the rare bit that keeps the divergence of the sum within the target."""

    def probed(rare: int) -> float:
        theta = (_HALF - rare) / TOTAL_WEIGHT
        return probed_renyi(trials, theta, num_clients, order, _loss(trials, rare))

    # The divergence grows with theta. All others at 1 stand for all cases until the last step.
    enough, too_little = _HALF - 1, 1
    if probed(enough) > renyi:
        raise InfeasibleDesignError(
            f"renyi: {renyi:g} is too small for {num_clients} clients of {trials} trials with 32-bit weights"
        )
    if probed(too_little) <= renyi:
        enough = too_little
    while enough - too_little > max(1, (_HALF - enough) >> 20):
        middle = (enough + too_little) // 2
        if probed(middle) <= renyi:
            enough = middle
        else:
            too_little = middle
    while (found := aggregate_renyi(trials, (_HALF - enough) / TOTAL_WEIGHT, num_clients, order)) > renyi:
        theta_share = math.sqrt(renyi / found) * (1.0 - 1e-6)
        enough = _HALF - max(math.floor((_HALF - enough) * theta_share), 1)
    return enough
