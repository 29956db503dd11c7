"""PBM: the Poisson binomial mechanism, a number of successes whose probability is linear in the input.

For input x in [-1, 1] the code is Binomial(trials, 1/2 + theta x), and the estimate is (code - trials / 2) /
(trials theta), unbiased. The codes are 0..trials: ``levels`` = trials + 1. The sum of the codes of n clients
is a Poisson binomial variable of n * trials trials, whatever the inputs: bounded, and never wrapped.

It is sampled as it is defined: ``trials`` times, a bit is drawn from a certified table with two rows of
integer weights, that of x = 1 with probability (1 + x) / 2. So the law is exactly binomial, with a rational
theta, and the guarantees are for what is sampled, not for a rounded version of it.

Guarantee: that of every :class:`~fl_privquant.mechanisms.sum_of_bits.SumOfBits`.
:func:`~fl_privquant.loss.bit_sums.aggregate_renyi` bounds what the secure sum over n clients reveals of one
of them, whatever the others' inputs.
Assumes: nothing about the inputs. For the sum: n clients that follow the protocol; corrupt clients and those
that dropped out do not count.
Reference: Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
Secure Aggregation", ICML 2022.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any

import numpy as np

from fl_privquant.array_types import Array, ArrayLike, Floats, code_type
from fl_privquant.checks import number_in
from fl_privquant.design.bits import SumOfBitsDesign, error_of_bits, least_error_bits, numbers_of_trials
from fl_privquant.design.spread import RunTarget, best_spread, clipped_moments
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.law.density import Density, as_density
from fl_privquant.law.law import Law
from fl_privquant.law.table import TOTAL_WEIGHT
from fl_privquant.loss.bit_sums import binomial
from fl_privquant.loss.compose import NamedLoss, Part, composed_epsilon
from fl_privquant.loss.norms import Norms, secure_sum_loss
from fl_privquant.mechanisms.registry import Spec, register
from fl_privquant.mechanisms.sum_of_bits import SumOfBits, loss_of_bits
from fl_privquant.mechanisms.wish import Estimate, Wish, estimate_bits
from fl_privquant.sampling.kernel import Sampler
from fl_privquant.sampling.stream import Randomness, RandomStream
from fl_privquant.statement import LOCAL, View

_HALF = TOTAL_WEIGHT // 2
_LAW_KNOTS = 129
_WORDS_TOGETHER = 1 << 12
_ERROR_PANELS = 512
# Another, slower certificate is tried if the error is more than this times that of a central Gaussian.
_LAX = 1.1
_MOST_STEPS, _CLOSE, _POWER = 8, 0.01, 1.3


@dataclass(frozen=True)
class PbmSpec(Spec):
    """The specification of PBM: give ``epsilon`` or ``theta``."""

    designed_for_sums = True

    epsilon: float | None = None
    levels: int = 16
    """Number of codes, which is one more than the number of trials."""
    theta: Annotated[float | None, number_in("(0, 0.5)")] = None
    """How much the probability of a success moves with the input, above 0 and below 1/2."""

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.theta is None):
            raise InvalidSpecError(f"epsilon={self.epsilon}, theta={self.theta}: give one of the two")
        super().__post_init__()

    @classmethod
    def best_clip(cls, wish: Wish) -> float:
        """The clip with the least error for these bits."""
        target = wish.run_target
        trials = numbers_of_trials(2**wish.bits - 1, target.num_honest)[0]
        return best_spread(trials, target, stratified=False)

    @classmethod
    def estimate(cls, wish: Wish) -> Estimate | None:
        """The estimate for bits drawn independently."""
        return estimate_bits(wish, stratified=False)

    @classmethod
    def proposal(cls, wish: Wish, epsilon: float) -> dict[str, Any]:
        """The number of bits and the theta with the least error."""
        target = dataclasses.replace(wish.run_target, epsilon=epsilon)
        parameters = dict(wish.parameters)
        most = int(parameters.pop("levels", 2**wish.bits)) - 1
        best = binomial_bits(target, wish.norm_ratio, most)
        if best is None:
            raise InfeasibleDesignError(f"no sum of at most {most} bits meets epsilon {epsilon:g}")
        return {"levels": best.trials + 1, "theta": (_HALF - best.rare) / TOTAL_WEIGHT, **parameters}


@register("pbm", PbmSpec, 70, "#8d6a9f", plans_for_sums=True, plans_for_local=True)
def design_pbm(spec: PbmSpec) -> PbmMechanism:
    """The certified mechanism with the given theta, or with the largest one within epsilon."""
    trials = spec.levels - 1
    if spec.epsilon is not None:
        rare = _rare_for_epsilon(trials, spec.epsilon)
        return PbmMechanism("pbm", trials, rare, spec.epsilon, parameters=spec.parameters())
    rare = max(round(TOTAL_WEIGHT * (0.5 - float(spec.theta or 0.0))), 1)
    return PbmMechanism.of_bits("pbm", trials, rare, spec.parameters())


class PbmMechanism(SumOfBits, kind="pbm"):
    """Each bit is from the upper row with probability (1 + x) / 2; see :class:`SumOfBits`."""

    def pmf(self, x: ArrayLike) -> Floats:
        inputs = np.clip(np.atleast_1d(np.asarray(x, dtype=np.float64)).ravel(), -1.0, 1.0)
        success = 0.5 + self.theta * inputs
        return binomial(np.arange(self.num_levels), self.trials, success[:, None])

    @cached_property
    def law(self) -> Law:
        """The binomial rows at 129 inputs, linear in between.

        Its privacy is that of the mechanism itself: likelihood ratios are monotone, so that every divergence
        is largest between -1 and 1, whose rows are exact. Its errors are slightly above the mechanism's.
        """
        knots = np.linspace(-1.0, 1.0, _LAW_KNOTS)
        return Law.from_knots(self.values, knots, self.pmf(knots))

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        """Mean absolute error, as of every mechanism, to 9 digits."""
        inside = self.values[np.abs(self.values) < 1.0]
        breaks = np.union1d(np.linspace(-1.0, 1.0, _ERROR_PANELS + 1), inside)
        return self._mean_error(density, breaks, 1)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        """Exact mean squared error: (1 / (4 theta^2) - E X^2) / trials for inputs X."""
        nodes, weights = as_density(density).quadrature(np.array([-1.0, 1.0]))
        return (0.25 / self.theta**2 - float(weights @ nodes**2)) / self.trials

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None, threads: int = 1) -> Array:
        """Random codes; takes ``trials`` words per coordinate from ``rng``."""
        stream = rng if rng is not None else RandomStream.secure()
        draw = partial(self._sampler.encode, clip=clip, stream=stream, threads=threads)
        # The first trial by itself: errors then count the inputs as they were given.
        total = draw(x).astype(code_type(self.trials.bit_length()))
        # Trials of few inputs are drawn together, with the same words as one after the other.
        together = min(max(_WORDS_TOGETHER // max(total.size, 1), 1), self.trials)
        inputs = x if together == 1 else np.asarray(x)
        for first in range(1, self.trials, together):
            if (count := min(together, self.trials - first)) == 1:
                total += draw(inputs)
            else:
                total += draw(np.broadcast_to(inputs, (count, *total.shape))).sum(axis=0, dtype=total.dtype)
        return total

    def update_losses(self, norms: Norms, dimension: int, view: View = LOCAL) -> list[NamedLoss]:
        """The bounds for every sum of bits, and one by a blanket, which counts each bit as a coordinate."""
        losses = super().update_losses(norms, dimension, view)
        if norms.l2 is None:
            return losses
        blanket = secure_sum_loss(self.bit, norms.l2, dimension, view.honest_count, self.trials)
        return losses if blanket is None else [blanket, *losses]

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self.bit)


@lru_cache(maxsize=64)
def binomial_bits(target: RunTarget, norm_ratio: float, most: int) -> SumOfBitsDesign | None:
    """At most ``most`` Poisson binomial bits with the least error for rotated updates at the norm bound.

    Bits are designed for the exact worst case of the other clients. With few clients or a large budget the
    bound by a blanket is better, and theta is then as large as that bound allows. ``norm_ratio`` is the L2
    clip divided by the coordinate clip.
    """
    spread = math.sqrt(target.dimension) / norm_ratio
    square = clipped_moments(spread)[0] / spread**2
    separation, rate = target.coordinate_separation(norm_ratio), target.update(norm_ratio).rate

    def error(trials: int, rare: int) -> float:
        return error_of_bits(trials, rare, square)

    best = least_error_bits(most, separation, target.num_honest, rate, error, stratified=False)
    if best is not None and best.error <= _LAX / (target.num_honest * separation**2):
        return best
    trials = numbers_of_trials(most, target.num_honest)[0]
    start = _HALF // 2 if best is None else best.rare
    rare = _rare_by_blanket(trials, start, target, norm_ratio)
    if rare is None or (best is not None and best.error <= error(trials, rare)):
        return best
    return SumOfBitsDesign(trials, rare, error(trials, rare))


def _rare_by_blanket(trials: int, start: int, target: RunTarget, norm_ratio: float) -> int | None:
    """The least weight of the rare bit that a blanket certifies for the target, to a per cent of theta."""

    def epsilon(rare: int) -> float:
        bit = PbmMechanism.of_bits("pbm", trials, rare, {}).bit
        loss = secure_sum_loss(bit, norm_ratio, target.dimension, target.num_honest, trials)
        if loss is None:
            return math.inf
        return composed_epsilon([Part(loss.loss, target.rounds)], target.delta).epsilon

    # Epsilon grows about as theta, or faster.
    theta, low, high = _HALF - start, 0, _HALF
    for _ in range(_MOST_STEPS):
        cost = epsilon(_HALF - theta)
        low, high = (theta, high) if cost <= target.epsilon else (low, theta)
        if low and high - low <= _CLOSE * high:
            break
        ratio = min(max(target.epsilon / cost, 0.25), 4.0) if cost > 0.0 else 4.0
        guess = int(theta * ratio ** (1.0 / _POWER) * (1.0 - 0.5 * _CLOSE))
        theta = guess if low < guess < high else (low + high) // 2
    return _HALF - low if low else None


def _rare_for_epsilon(trials: int, epsilon: float) -> int:
    """The smallest weight of the rare bit that keeps the loss within epsilon."""
    rare = max(math.ceil(TOTAL_WEIGHT / (math.exp(min(epsilon / trials, 50.0)) + 1.0)), 1)
    while rare < _HALF and loss_of_bits(trials, rare) > epsilon:
        rare += 1
    if rare >= _HALF:
        raise InvalidSpecError(
            f"epsilon: {epsilon} is too small for {trials} trials with weights of 32 bits; lower levels"
        )
    return rare
