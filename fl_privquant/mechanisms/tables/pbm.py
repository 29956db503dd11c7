"""PBM: the Poisson binomial mechanism, a number of successes whose probability is linear in the input.

For input x in [-1, 1] the code is Binomial(trials, 1/2 + theta x), and the estimate is (code - trials / 2) /
(trials theta), unbiased. The codes are 0..trials: ``levels`` = trials + 1. The sum of the codes of n clients
is a Poisson binomial variable of n * trials trials, whatever the inputs: bounded, and never wrapped.

It is sampled as it is defined: ``trials`` times, a bit is drawn from a certified table with two rows of
integer weights, that of x = 1 with probability (1 + x) / 2. So the distribution is exactly binomial, with a
rational theta, and the guarantees are for what is sampled, not for a rounded version of it.

Guarantee: ``epsilon`` = trials log((1 + 2 theta) / (1 - 2 theta)) for each coordinate and release, local
view, certified in integers. Each bit is randomized response, and the output in which all bits are 1 (or 0)
attains this loss. What the secure sum over n clients reveals of one of them, whatever the others' inputs, is
bounded by the authors' theorem (:func:`~fl_privquant.privacy_loss.sums.bit_sums.aggregate_renyi`) and, for
updates of bounded L2 norm, by a privacy blanket that counts each bit as a coordinate
(:mod:`fl_privquant.privacy_loss.sums.gaussian_bound`).
Assumes: nothing about the inputs. For the sum: n clients that follow the protocol; corrupt clients and those
that dropped out do not count.
Reference: Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
Secure Aggregation", ICML 2022.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, Self

import numpy as np

from fl_privquant._array_types import Array, ArrayLike, Floats, smallest_code_type
from fl_privquant._validation import number_between
from fl_privquant.distributions.certified_table import (
    TOTAL_WEIGHT,
    CertifiedTable,
    log_ratio_upper,
    round_up,
)
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.input_density import Density, as_density
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import CertificationError, InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.base import LatticeMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec, check_levels
from fl_privquant.mechanisms.sum_limits import CoordinateNoise, bounded_noise
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.privacy_loss.composition.compose import NamedLoss, Part, compose_epsilon
from fl_privquant.privacy_loss.sums.bit_sums import binomial, poisson_binomial_losses, sum_of_bits_loss
from fl_privquant.privacy_loss.sums.gaussian_bound import NORM_ROUNDING, UpdateBound
from fl_privquant.privacy_loss.update_bounds import NO_NORMS, WholeUpdate, secure_sum_loss
from fl_privquant.sampling.kernel import Sampler
from fl_privquant.sampling.stream import Randomness, RandomStream
from fl_privquant.statement import LOCAL, Relation, View

_HALF = TOTAL_WEIGHT // 2
_NUM_KNOTS = 129
_WORDS_TOGETHER = 1 << 12
_ERROR_PANELS = 512
# The search for theta ends when it is this close to the largest one, as a share.
_MAX_STEPS, _CLOSE, _POWER = 16, 1e-3, 1.3


@dataclass(frozen=True)
class PbmSpec(Spec):
    """The specification of PBM: give ``epsilon`` or ``theta``."""

    designed_for_sums = True
    instead_of_epsilon = ("theta",)
    either_or = True

    epsilon: float | None = None
    levels: int = 16
    """Number of codes, which is one more than the number of trials."""
    theta: Annotated[float | None, number_between("(0, 0.5)")] = None
    """How much the probability of a success moves with the input, above 0 and below 1/2."""

    @classmethod
    def propose(cls, requirements: RunRequirements, epsilon: float) -> dict[str, Any]:
        """The largest theta that is certified for the run."""
        parameters = dict(requirements.parameters)
        levels = check_levels(int(parameters.pop("levels", 2**requirements.bits)))
        run = requirements.for_replace_one(epsilon)
        rare = find_rare_weight(levels - 1, run, requirements.norm_ratio)
        return {"levels": levels, "theta": (_HALF - rare) / TOTAL_WEIGHT, **parameters}


@register("pbm", PbmSpec, 70, "#8d6a9f", plans_for_sums=True, plans_for_local=True)
def design_pbm(spec: PbmSpec) -> PbmMechanism:
    """The certified mechanism with the given theta, or with the largest one within epsilon."""
    trials = spec.levels - 1
    if spec.epsilon is not None:
        rare = _find_rare_weight_for_epsilon(trials, spec.epsilon)
        return PbmMechanism("pbm", trials, rare, spec.epsilon, parameters=spec.parameters())
    rare = max(round(TOTAL_WEIGHT * (0.5 - float(spec.theta or 0.0))), 1)
    return PbmMechanism.from_bit_weights(trials, rare, spec.parameters())


@dataclass(frozen=True, eq=False, repr=False)
class PbmMechanism(LatticeMechanism, kind="pbm"):
    """Sends, per coordinate, the number of ones among ``trials`` certified bits of randomized response."""

    trials: int
    """Number of bits."""
    rare: int
    """The integer weight, of 2^32, of a 1 at the lower row and of a 0 at the upper; below one half."""
    claimed_epsilon: float

    def __post_init__(self) -> None:
        check_levels(self.trials + 1)
        if not 1 <= self.rare < _HALF:
            raise CertificationError(f"weight of the rare bit: {self.rare} is outside 1..{_HALF - 1}")
        if not self.epsilon <= self.claimed_epsilon:
            raise CertificationError(
                f"{self.statement.above(self.claimed_epsilon)}; it is {self.trials} times "
                f"log({TOTAL_WEIGHT - self.rare}/{self.rare})"
            )

    @classmethod
    def from_bit_weights(cls, trials: int, rare: int, parameters: Mapping[str, Any]) -> Self:
        """The mechanism with these bits, whose claimed loss is the certified one."""
        return cls("pbm", trials, rare, epsilon_of_bits(trials, rare), parameters=parameters)

    @property
    def _form(self) -> str:
        return f"{self.num_levels} levels, theta {self.theta:.6g}"

    @cached_property
    def epsilon(self) -> float:
        return epsilon_of_bits(self.trials, self.rare)

    @property
    def theta(self) -> float:
        """How far the probability of a 1 is from 1/2 at either row; an exact multiple of 2^-32."""
        return (_HALF - self.rare) / TOTAL_WEIGHT

    @cached_property
    def codebook(self) -> Codebook:
        """Codes 0..trials and the estimates they stand for."""
        outer = 0.5 / self.theta
        return Codebook(np.arange(self.trials + 1), 2.0 * outer / self.trials, -outer)

    @cached_property
    def bit(self) -> CertifiedTable:
        """The table that each bit is drawn from."""
        return _bit_table(self.rare)

    def pmf(self, x: ArrayLike) -> Floats:
        inputs = np.clip(np.atleast_1d(np.asarray(x, dtype=np.float64)).ravel(), -1.0, 1.0)
        success = 0.5 + self.theta * inputs
        return binomial(np.arange(self.num_levels), self.trials, success[:, None])

    @cached_property
    def distribution(self) -> OutputDistribution:
        """The binomial rows at 129 inputs, linear in between.

        Its privacy is that of the mechanism itself: likelihood ratios are monotone, so that every divergence
        is largest between -1 and 1, whose rows are exact. Its errors are slightly above the mechanism's.
        """
        knots = np.linspace(-1.0, 1.0, _NUM_KNOTS)
        return OutputDistribution.from_knots(self.values, knots, self.pmf(knots))

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        """Mean absolute error, as of every mechanism, to 9 digits."""
        inside = self.values[np.abs(self.values) < 1.0]
        breaks = np.union1d(np.linspace(-1.0, 1.0, _ERROR_PANELS + 1), inside)
        return self._mean_error(density, breaks, 1)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        """Exact mean squared error: (1 / (4 theta^2) - E X^2) / trials for inputs X."""
        nodes, weights = as_density(density).quadrature(np.array([-1.0, 1.0]))
        return (0.25 / self.theta**2 - float(weights @ nodes**2)) / self.trials

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        """Random codes; takes ``trials`` words per coordinate from ``rng``."""
        stream = rng if rng is not None else RandomStream.secure()
        draw = partial(self._sampler.encode, clip=clip, stream=stream)
        # The first trial by itself: errors then count the inputs as they were given.
        total = draw(x).astype(smallest_code_type(self.trials.bit_length()))
        # Trials of few inputs are drawn together, with the same words as one after the other.
        together = min(max(_WORDS_TOGETHER // max(total.size, 1), 1), self.trials)
        inputs = x if together == 1 else np.asarray(x)
        for first in range(1, self.trials, together):
            if (count := min(together, self.trials - first)) == 1:
                total += draw(inputs)
            else:
                total += draw(np.broadcast_to(inputs, (count, *total.shape))).sum(axis=0, dtype=total.dtype)
        return total

    def loss(self, view: View = LOCAL, relation: Relation = Relation.REPLACE_ONE) -> NamedLoss:
        loss = sum_of_bits_loss(self.trials, self.rare, self.epsilon, view.honest_count, relation)
        return NamedLoss(loss, "" if view.is_local else "blanket", relation=relation)

    def update_losses(self, update: WholeUpdate) -> list[NamedLoss]:
        """The authors' theorem; with an L2 norm a blanket, which counts each bit as a coordinate."""
        dimension, honest = update.dimension, update.num_honest
        if update.norms == NO_NORMS:
            return poisson_binomial_losses(self.trials, self.theta, self.epsilon, dimension, honest)
        if update.l2_distance is None:
            return []
        blanket = secure_sum_loss(self.bit, update.l2_distance, dimension, honest, self.trials)
        return [] if blanket is None else [dataclasses.replace(blanket, relation=update.relation)]

    @property
    def coordinate_noise(self) -> CoordinateNoise:
        # The value is a mean of independent bits, whose variance is largest if 0 and 1 are equally likely,
        # and smallest if each is from one row.
        outer = 0.5 / self.theta
        noise = bounded_noise(1.0, 0.0, outer**2, 1.0 + outer)
        return CoordinateNoise(
            1.0,
            0.0,
            noise.variance / self.trials,
            lambda rate: self.trials * noise.log_moment(rate / self.trials),
            noise.largest,
            min_variance=max(outer**2 - 1.0, 0.0) / self.trials,
        )

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self.bit)


def epsilon_of_bits(trials: int, rare: int) -> float:
    """The privacy loss of all bits together, rounded up."""
    return round_up(trials * Fraction(log_ratio_upper(TOTAL_WEIGHT - rare, rare)))


def _bit_table(rare: int) -> CertifiedTable:
    """Randomized response with that weight, of 2^32, of the wrong bit."""
    outer = 0.5 * TOTAL_WEIGHT / (_HALF - rare)
    weights = np.array([[TOTAL_WEIGHT - rare, rare], [rare, TOTAL_WEIGHT - rare]])
    values = Codebook(np.array([0, 1]), 2.0 * outer, -outer)
    return CertifiedTable(values, weights, np.array([0]), np.array([1]))


def theta_of_normal_noise(run: RunRequirements, norm_ratio: float, trials: int) -> float:
    """The theta that would be right if the sum of the honest clients' bits were normal."""
    distance = UpdateBound(2.0 * norm_ratio * NORM_ROUNDING, run.dimension).widened
    separation = run.separation / distance
    return 0.5 / math.sqrt(1.0 + trials / (run.num_honest * separation**2))


@lru_cache(maxsize=64)
def find_rare_weight(trials: int, run: RunRequirements, norm_ratio: float) -> int:
    """The least weight of the rare bit, to a thousandth of theta, that is certified for the run.

    ``norm_ratio`` is the L2 clip divided by the coordinate clip. Raises InfeasibleDesignError where no weight
    is.
    """

    def epsilon(rare: int) -> float:
        bit = _bit_table(rare)
        loss = secure_sum_loss(bit, 2.0 * norm_ratio, run.dimension, run.num_honest, trials)
        if loss is None:
            return math.inf
        return compose_epsilon([Part(loss.loss, run.composed_rounds)], run.delta).epsilon

    # Epsilon grows about as theta, or faster.
    theta = max(int(theta_of_normal_noise(run, norm_ratio, trials) * TOTAL_WEIGHT), 1)
    low, high = 0, _HALF
    for _ in range(_MAX_STEPS):
        cost = epsilon(_HALF - theta)
        low, high = (theta, high) if cost <= run.epsilon else (low, theta)
        if high - low <= max(_CLOSE * high, 1.0) or (1.0 - _CLOSE) * run.epsilon <= cost <= run.epsilon:
            break
        ratio = min(max(run.epsilon / cost, 0.25), 4.0) if cost > 0.0 else 4.0
        guess = int(theta * ratio ** (1.0 / _POWER) * (1.0 - 0.5 * _CLOSE))
        theta = guess if low < guess < high else (low + high) // 2
    if not low:
        raise InfeasibleDesignError(
            f"no {trials} bits of a code meet epsilon {run.epsilon:g} with {run.num_honest} honest "
            "clients; raise epsilon or delta, or the number of clients, or lower the number of rounds"
        )
    return _HALF - low


def _find_rare_weight_for_epsilon(trials: int, epsilon: float) -> int:
    """The smallest weight of the rare bit that keeps the loss within epsilon."""
    rare = max(math.ceil(TOTAL_WEIGHT / (math.exp(min(epsilon / trials, 50.0)) + 1.0)), 1)
    while rare < _HALF and epsilon_of_bits(trials, rare) > epsilon:
        rare += 1
    if rare >= _HALF:
        raise InvalidSpecError(
            "epsilon", epsilon, f"is too small for {trials} trials with weights of 32 bits", "lower levels"
        )
    return rare
