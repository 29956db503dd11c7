"""Rounded Gaussian: Gaussian noise is added to the input, and the sum is rounded to a coarse lattice.

Each client adds its share of the noise to its coordinates and rounds the result: code = floor(x + g + 1/2) in
units of the lattice's spacing, modulo 2^wrap_bits. The spacing is of the order of the share's deviation, so
that a code is narrow. Nevertheless the sum of codes is as private as the sum of the inputs plus all noise,
because rounding is a post-processing (:mod:`fl_privquant.privacy_loss.additive.rounded_gaussian`, with the
proof); the rounding errors even count as noise.

Guarantee: (``epsilon``, ``delta``)-differential privacy of each coordinate and release in the local view,
where a client's own share of the noise protects it. In secure sums of updates of bounded L2 norm, the
Gaussian mechanism with the noise of all honest clients. Both hold for the integers that are drawn and
rounded: no float decides anything but which fine lattice point an input is rounded to, towards zero.
Unbiased, except for that rounding (2^-20 spacings). Assumes: secure randomness; in secure sums, the stated
number of honest clients, each of which adds its share.

The clip is the range that the ring has room for. For rotated updates of bounded L2 norm, a plan chooses it at
five standard deviations of a coordinate, where it clips nothing in practice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from scipy.special import ndtr

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats
from fl_privquant._validation import integer_between, number_between
from fl_privquant.distributions.codebook import check_sums
from fl_privquant.distributions.input_density import Density
from fl_privquant.errors import MISSING, InfeasibleDesignError, InvalidSpecError, pluralize
from fl_privquant.mechanisms.additive._certificate import MAX_EPSILON
from fl_privquant.mechanisms.additive._residues import (
    MAX_WRAP_BITS,
    NumClients,
    OptionalWrapBits,
    OverflowProbability,
    ResidueMechanism,
    WrapBits,
    choose_ring_bits,
)
from fl_privquant.mechanisms.modular_sum import SumRing
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec
from fl_privquant.mechanisms.sum_limits import CoordinateNoise
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.privacy_loss.additive.correlated_shares import CorrelatedShares
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta, gaussian_epsilon, gaussian_separation
from fl_privquant.privacy_loss.additive.rounded_gaussian import RoundedShares, fraction_gap
from fl_privquant.privacy_loss.additive.rounding_noise import RoundingNoise
from fl_privquant.privacy_loss.additive.sampled_gaussian import sampled_gaussian_losses
from fl_privquant.privacy_loss.closed_forms import NOT_PRIVATE
from fl_privquant.privacy_loss.composition.compose import NamedLoss, Part, compose_epsilon
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss
from fl_privquant.privacy_loss.correlated_noise import MAX_ROUNDS
from fl_privquant.privacy_loss.sums.gaussian_bound import NORM_ROUNDING
from fl_privquant.privacy_loss.update_bounds import UpdateNorms, WholeUpdate
from fl_privquant.sampling.fine_gaussian import FINE_BITS, MAX_DEVIATION, MIN_DEVIATION, FineGaussian
from fl_privquant.sampling.stream import Randomness
from fl_privquant.statement import LOCAL, Relation, View

ROUNDED_GAUSSIAN: Final = "rounded_gaussian"
"""The name of the mechanism whose noise plans correlate over rounds, and which hides records."""

_DEVIATION = number_between(f"[{MIN_DEVIATION:g}, {MAX_DEVIATION:g}]", "1.5 to 2 suit most runs")
Deviation = Annotated[float, _DEVIATION]
# With fewer than this, inputs on the fine lattice would not fit into 64 bits.
_SPACING = number_between("[1e-9, 1e12]", "a lattice has some clips per spacing, or the other way round")
_CORRELATION = number_between("(0, 1)", "it is a multiple of 1/64, such as 0.75")
_ROUNDS = integer_between(1, MAX_ROUNDS)
_COORDINATE = number_between("[0, 1]", "0.2 suits rotated updates, and 0 any others")
# Covers the rounding of closed forms, and that rounding errors of a single code are only nearly uniform.
_FLOAT_ROOM = 1.0 + 1e-9
_NOT_UNIFORM = 1e-6
# Deviations of plans are multiples of this, so that similar plans share their tables.
_GRID = 1.0 / 64.0
# A plan takes the narrowest ring whose error is at most this many times that of the widest.
_WORTH = 1.005
# Updates are not rotated if that takes no more bits, and adds no more to the error than this factor.
_AS_GOOD = 1.002
# Probability that a coordinate of a planned sum wraps. A wrap moves it by some 11 standard deviations, so
# that all wraps together add less than 1e-5 to the error.
WRAPS = 1e-8
# Fraction of delta that a plan leaves for tables and tails.
_LEFT = 1e-6
# Coordinate clip of rotated updates, in standard deviations of a coordinate at the norm bound.
_SPREAD = 5.0
# The largest epsilon that is certified for a coordinate in the local view.
_MAX_LOCAL_EPSILON = 50.0
# The search for a spacing ends when epsilon is this close to the target, as a share.
_CLOSE, _MAX_STEPS = 1e-6, 8


@dataclass(frozen=True)
class RoundedGaussianSpec(Spec):
    """The specification of rounded Gaussian: give ``epsilon`` or ``spacing``."""

    designed_for_sums = True
    chooses_width = True
    instead_of_epsilon = ("spacing",)
    either_or = True
    max_epsilon = MAX_EPSILON

    epsilon: float | None = None
    delta: float = 1e-6
    spacing: Annotated[float | None, _SPACING] = None
    """Distance of lattice points in units of the clip, where it is given instead of ``epsilon``."""
    deviation: Annotated[float, _DEVIATION] = 2.0
    """Standard deviation of a client's share of the noise, in spacings."""
    num_clients: NumClients = 1
    """The largest number of clients whose codes will be added up."""
    wrap_bits: OptionalWrapBits = None
    """Bits of a code; by default the fewest that keep ``overflow_probability``."""
    overflow_probability: OverflowProbability = 1e-9
    """Largest probability that noise carries one coordinate of the sum out of the ring."""
    coordinate_deviation: Annotated[float, _COORDINATE] = 0.0
    """Standard deviation of the coordinates of rotated updates, in clips: the ring has room for sums of equal
    updates, whose coordinates are nearly normal. With 0 it has room for all clients at the clip."""
    correlation: Annotated[float | None, _CORRELATION] = None
    """The share of its noise that the next round takes off
    (:mod:`fl_privquant.mechanisms.additive.correlated_gaussian`); plans set this and the following."""
    handed_deviation: Annotated[float | None, _DEVIATION] = None
    """Standard deviation of the noise that is handed over; ``deviation`` is then that of private noise."""
    rounds: Annotated[int | None, _ROUNDS] = None
    """Number of rounds of the run."""
    rounds_apart: Annotated[int | None, _ROUNDS] = None
    """How many rounds apart a client takes part, at least."""
    num_honest: NumClients | None = None
    """Honest clients in the sum of each round, at least."""
    num_corrupt: Annotated[int | None, integer_between(0, 1 << 31)] = None
    """Corrupt clients of each round, at most."""
    num_opened: Annotated[int | None, integer_between(0, 1 << 31)] = None
    """Seeds of a round that the server is told, at most, because their receivers are lost."""

    @property
    def correlated(self) -> bool:
        """Whether noise is handed over to the next round; all that this takes must then be given."""
        given = (self.correlation, self.handed_deviation, self.rounds, self.rounds_apart, self.num_honest)
        if self.correlation is None and given.count(None) < len(given):
            raise InvalidSpecError("correlation", MISSING, "missing", "without it no noise is handed over")
        if self.correlation is not None and (None in given or self.spacing is None):
            raise InvalidSpecError(
                "correlation",
                MISSING,
                "it takes spacing, handed_deviation, rounds, rounds_apart and num_honest",
                "Target(...).plan(..., correlation='auto') chooses them",
            )
        return self.correlation is not None

    @classmethod
    def needs_rotation(cls, norm_ratio: float | None) -> bool:
        """Only for a clip below the L2 clip: the noise does not depend on the inputs."""
        return norm_ratio is None or norm_ratio > 1.0

    @classmethod
    def choose_norm_ratio(cls, requirements: RunRequirements) -> float:
        """One, so that no coordinate is clipped, if that takes no more bits; else that of rotated updates."""
        rotated = max(math.sqrt(requirements.dimension) / _SPREAD, 1.0)
        if not requirements.in_sum or requirements.delta == 0.0 or requirements.schedule is not None:
            return rotated
        run = requirements.for_replace_one(requirements.epsilon)
        try:
            plain, narrow = (
                _ShareDesign.best(replace(run, norms=UpdateNorms(l2=ratio))) for ratio in (1.0, rotated)
            )
        except InfeasibleDesignError:
            return rotated
        as_good = plain.bits <= narrow.bits and plain.error <= _AS_GOOD * narrow.error
        return 1.0 if as_good else rotated

    @classmethod
    def propose(cls, requirements: RunRequirements, epsilon: float) -> dict[str, Any]:
        """The narrowest codes whose error is close to the least, with the noise that the target needs."""
        run = requirements.for_replace_one(epsilon)
        if run.schedule is not None:
            # Imported here because the module builds on this one.
            from fl_privquant.mechanisms.additive.correlated_gaussian import propose_correlated

            return propose_correlated(run)
        design = _ShareDesign.best(run)
        parameters = {
            "spacing": design.find_certified_spacing(run),
            "deviation": design.deviation,
            "num_clients": run.num_clients,
            "wrap_bits": design.bits,
            "overflow_probability": WRAPS,
            "coordinate_deviation": coordinate_deviation(run),
        }
        return parameters | dict(run.parameters)


def coordinate_deviation(requirements: RunRequirements) -> float:
    """Standard deviation, in clips, of the coordinates of updates that a plan rotates; else 0."""
    if not RoundedGaussianSpec.needs_rotation(requirements.norms.l2):
        return 0.0
    return min(requirements.norm_ratio / math.sqrt(requirements.dimension), 1.0)


@dataclass(frozen=True)
class _ShareDesign:
    """A ring, the deviation of shares that fits into it, and about what they cost and gain."""

    bits: int
    deviation: float
    spacing: float
    """In units of the clip; an estimate to some digits."""
    error: float
    """Squared error of the sum over that of a central Gaussian with as much noise as honest clients add."""

    @classmethod
    def best(cls, run: RunRequirements) -> _ShareDesign:
        """The narrowest ring whose error is close to the least.

        Raises InfeasibleDesignError where the noise fits into none, or nothing is certified.
        """
        given = dict(run.parameters)
        widths = range(2, MAX_WRAP_BITS + 1) if "wrap_bits" not in given else [int(given["wrap_bits"])]
        designs = [cls._fit_in_ring(bits, run, given.get("deviation")) for bits in widths]
        feasible = [design for design in designs if math.isfinite(design.error)]
        if not feasible:
            raise InfeasibleDesignError(
                f"no ring of up to {widths[-1]} bits holds the noise of {run.num_clients} clients "
                f"that epsilon {run.epsilon:g} needs, with shares of {MIN_DEVIATION:g} spacings or more; "
                "change the coordinate clip, or the number of clients or rounds"
            )
        least = min(design.error for design in feasible)
        return next(design for design in feasible if design.error <= _WORTH * least)

    @classmethod
    def _fit_in_ring(cls, bits: int, run: RunRequirements, deviation: float | None) -> _ShareDesign:
        """The largest shares that fit into a ring, or given ones; the error is infinite if none do."""
        none = cls(bits, math.inf, math.inf, math.inf)
        n, honest, distance = run.num_clients, run.num_honest, 2.0 * run.norm_ratio * NORM_ROUNDING
        # In deviations of the sum's noise: how far it reaches, and the signal if all clients are at the clip.
        reach = RoundingNoise(1.0, 0).reach(WRAPS) + 0.02
        signal = n * run.separation * math.sqrt(honest / n) / distance
        if (coordinate := coordinate_deviation(run)) > 0.0:
            reach, signal = reach * math.hypot(1.0, signal * coordinate), 0.0
        room = (1 << (bits - 1)) - 2.0
        fitting = room / (math.sqrt(n) * (reach + signal))
        largest = math.sqrt(max(fitting**2 - 1.0 / 12.0, 0.0))
        shares = math.floor(min(largest, MAX_DEVIATION) / _GRID) * _GRID if deviation is None else deviation
        if shares < MIN_DEVIATION or shares > largest:
            return none
        coordinates = run.dimension * run.composed_rounds
        lost = coordinates * RoundedShares(honest, shares).log_ratio
        if lost >= run.epsilon:
            return none
        separation = gaussian_separation(run.epsilon - lost, run.delta * math.exp(-lost) * (1.0 - _LEFT))
        separation /= math.sqrt(run.composed_rounds)
        # Rounding errors of all clients but one count as noise; all of them are in the error.
        hidden = honest * shares**2 + (honest - 1) / 12.0
        error = honest * (shares**2 + 1.0 / 12.0) / hidden * (run.separation / separation) ** 2
        return cls(bits, shares, distance / (separation * math.sqrt(hidden)), error)

    def find_certified_spacing(self, run: RunRequirements) -> float:
        """The least spacing, to 6 digits, whose certificate meets the run."""
        noise = FineGaussian(Fraction(self.deviation))
        shares = RoundedShares(run.num_honest, noise.proven_deviation, noise.total_variation)
        spacing = find_certified_spacing(shares, self.spacing, run)
        if spacing is None:
            raise InfeasibleDesignError(
                f"shares of {self.deviation:g} spacings are not certified for epsilon {run.epsilon:g}; use "
                "larger ones, or a larger epsilon or delta"
            )
        return spacing


def find_certified_spacing(
    shares: RoundedShares | CorrelatedShares, spacing: float, run: RunRequirements
) -> float | None:
    """The least spacing whose certificate meets the target, searched from a guess; None if none does."""
    distance = 2.0 * run.norm_ratio * NORM_ROUNDING
    for _ in range(_MAX_STEPS):
        costs = [
            (compose_epsilon([Part(pair, run.composed_rounds)], run.delta).epsilon, pair)
            for pair in shares.pairs(distance / spacing, run.dimension)
        ]
        if not costs:
            return None
        spent, pair = min(costs, key=lambda cost: cost[0])
        # A little is left, so that rounds of two plans for the same target can be mixed.
        if (1.0 - 2.0 * _CLOSE) * run.epsilon <= spent <= (1.0 - _CLOSE) * run.epsilon:
            return spacing
        lost = run.composed_rounds * pair.log_ratio
        left = (run.delta - run.composed_rounds * pair.infinity) * math.exp(-lost)
        if lost >= run.epsilon or left <= 0.0:
            return None
        aim = (1.0 - 1.5 * _CLOSE) * run.epsilon - lost
        allowed = gaussian_separation(aim, left) / math.sqrt(run.composed_rounds)
        # Separations are in inverse proportion to the spacing, except for the last digits.
        spacing *= pair.separation / allowed
    return None


@dataclass(frozen=True, eq=False, repr=False)
class RoundedGaussianMechanism(ResidueMechanism, kind="rounded_gaussian"):
    """Input plus Gaussian noise, rounded, modulo 2^wrap_bits; certified when it is made."""

    spacing: Annotated[float, _SPACING]
    """Distance of lattice points, for inputs in [-1, 1]."""
    deviation: Annotated[float, _DEVIATION]
    """Standard deviation of a client's share of the noise, in spacings."""
    num_clients: NumClients
    wrap_bits: WrapBits
    claimed_epsilon: float
    claimed_delta: float
    claimed_overflow_probability: float
    coordinate_deviation: Annotated[float, _COORDINATE] = 0.0
    """Standard deviation of rotated coordinates, in clips, that the ring has room for; 0 for any others."""

    encodes_coordinates_alone: ClassVar[bool] = True

    @classmethod
    def of(cls, spec: RoundedGaussianSpec) -> Self:
        """The certified mechanism with the least noise at ``epsilon``, or with the given spacing."""
        further = cls._further_fields(spec)
        noise, delta = FineGaussian(Fraction(spec.deviation)), spec.delta
        spacing, epsilon = spec.spacing, spec.epsilon
        if spacing is None:
            epsilon = float(spec.epsilon or 0.0)
            left = delta - (1.0 + math.exp(epsilon)) * noise.total_variation
            separation = gaussian_separation(epsilon, left * (1.0 - _LEFT)) if left > 0.0 else 0.0
            if separation == 0.0:
                raise InfeasibleDesignError(f"delta: {delta:g} is below what tables of noise reach; raise it")
            spacing = 2.0 / (separation * noise.proven_deviation) * _FLOAT_ROOM
        else:
            epsilon = local_epsilon(noise, spacing, delta * (1.0 - _LEFT))
        spread, handed = spec.coordinate_deviation, handed_variance(spec.handed_deviation, spec.correlation)
        bits = choose_ring_bits(
            spec.wrap_bits,
            lambda bits: overflow_probability(noise, spacing, spec.num_clients, bits, spread, handed),
            spec.overflow_probability,
            f"{ROUNDED_GAUSSIAN}: the noise of {spec.num_clients} clients with spacing {spacing:.4g}",
        )
        claims = (epsilon, delta, spec.overflow_probability)
        sizes = (spacing, spec.deviation, spec.num_clients, bits)
        return cls(
            ROUNDED_GAUSSIAN,
            *sizes,
            *claims,
            spread,
            parameters=spec.parameters(),
            **further,
        )

    @classmethod
    def _further_fields(cls, spec: RoundedGaussianSpec) -> dict[str, Any]:
        """The fields of a subclass."""
        return {}

    @property
    def _form(self) -> str:
        clients = pluralize(self.num_clients, "client")
        return f"shares of {self.deviation:g} spacings, codes of {self.wrap_bits} bits for up to {clients}"

    @cached_property
    def noise(self) -> FineGaussian:
        """The noise that a client adds."""
        return FineGaussian(Fraction(self.deviation))

    @cached_property
    def overflow_probability(self) -> float:
        sizes = (self.num_clients, self.wrap_bits, self.coordinate_deviation)
        return overflow_probability(self.noise, self.spacing, *sizes, self._handed_variance)

    def delta_at(self, epsilon: float) -> float:
        if math.isinf(epsilon):
            return 0.0
        ideal = gaussian_delta(2.0 / (self.spacing * self.noise.proven_deviation), epsilon)
        return min(ideal * _FLOAT_ROOM + (1.0 + math.exp(epsilon)) * self.noise.total_variation, 1.0)

    def loss(self, view: View = LOCAL, relation: Relation = Relation.REPLACE_ONE) -> NamedLoss:
        """The loss of one coordinate, whose inputs are up to two clips apart, or one for zero-out."""
        losses = self._shares(view).losses(relation.distance / self.spacing, 1)
        if not losses:
            return NamedLoss(NOT_PRIVATE)
        return replace(losses[-1], name="noise sum" if losses[1:] else "", norm=None, relation=relation)

    def update_losses(self, update: WholeUpdate) -> list[NamedLoss]:
        """The simple and the refined count of sums of rounded shares."""
        if update.l2_distance is None:
            return []
        distance = update.l2_distance * NORM_ROUNDING / self.spacing
        losses = self._shares(update.view).losses(distance, update.dimension)
        return [replace(loss, relation=update.relation) for loss in losses]

    def record_losses(self, update: WholeUpdate) -> list[tuple[PrivacyLoss, ...]]:
        """The simple and the refined count, for a record that is drawn at random.

        The simple count is a post-processing of sums with Gaussian noise, whatever they are. The refined
        count compares two sums. Replacing a record makes three (without it, with one, with the other), so
        that only the simple count serves there; what tables lack is counted for the two that are farthest
        apart.
        """
        norms, dimension, relation = update.norms, update.dimension, update.relation
        if norms.record is None or norms.record_rate is None:
            return []
        # Rounding towards zero makes two vectors differ by up to one more fine point in each coordinate.
        apart = norms.record / self.spacing + math.ldexp(math.sqrt(dimension), -FINE_BITS)
        farthest = 2.0 if relation is Relation.REPLACE_ONE else 1.0
        pairs = self._shares(update.view).pairs(farthest * apart * NORM_ROUNDING, dimension)
        return [
            sampled_gaussian_losses(
                pair.separation / farthest, norms.record_rate, relation, pair.infinity, pair.log_ratio
            )
            for pair in (pairs[:1] if relation is Relation.REPLACE_ONE else pairs)
        ]

    def _shares(self, view: View) -> RoundedShares:
        return RoundedShares(view.honest_count, self.noise.proven_deviation, self.noise.total_variation)

    @property
    def _handed_variance(self) -> float:
        """Variance of the noise of a code besides the client's own, in squared spacings."""
        return 0.0

    @property
    def _normal_deviation(self) -> float:
        """Standard deviation of the noise of a code, in spacings."""
        return math.sqrt(self.deviation**2 + self._handed_variance)

    @property
    def _code_variance(self) -> float:
        """Variance of noise and rounding together, in squared spacings."""
        return self._normal_deviation**2 + 1.0 / 12.0

    def pmf(self, x: ArrayLike) -> Floats:
        """(n, 2^wrap_bits) output probabilities for inputs in [-1, 1], wrap included."""
        centers = np.clip(np.asarray(x, dtype=np.float64).ravel(), -1.0, 1.0) / self.spacing
        # On the fine lattice; codes change half a point before the middle between two coarse points.
        centers = (np.trunc(np.ldexp(centers, FINE_BITS)) + 0.5) * 2.0**-FINE_BITS
        levels = self._check_listed_levels()
        reach = math.ceil(np.abs(centers).max(initial=0.0) + 12.0 * self._normal_deviation)
        edges = (np.arange(-reach, reach + 2) - 0.5 - centers[:, None]) / self._normal_deviation
        probabilities = np.diff(ndtr(edges), axis=1)
        # Codes are wrapped by padding their range to whole turns of the ring, and adding the turns up.
        before = (levels // 2 - reach) % levels
        after = -(before + probabilities.shape[1]) % levels
        padded = np.pad(probabilities, ((0, 0), (before, after)))
        return np.asarray(padded.reshape(centers.size, -1, levels).sum(axis=1))

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        # The mean of |N + e| over rounding errors e, which are uniform up to factors of 1 ± 1e-8.
        errors, weights = np.polynomial.legendre.leggauss(32)
        errors, s = 0.5 * errors, self._normal_deviation
        means = s * math.sqrt(2.0 / math.pi) * np.exp(-0.5 * (errors / s) ** 2) + errors * (
            2.0 * ndtr(errors / s) - 1.0
        )
        return self.spacing * 0.5 * float(weights @ means)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return self.spacing**2 * self._code_variance

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        """Codes of the inputs, with the noise that :attr:`noise` samples from the stream ``rng``."""
        return self.noise.encode(x, self.spacing, self.wrap_bits, clip=clip, stream=rng)

    def decode_sum(self, total: ArrayLike, num_clients: int, clip: float = 1.0) -> Floats:
        half = 1 << (self.sum_bits(num_clients) - 1)
        sums = check_sums(total, num_clients, 2 * half - 1)
        means = self._representatives(sums, (num_clients - 1) * half)
        means -= num_clients * half
        means *= self.spacing / num_clients * _validation.check_positive("clip", clip)
        return means

    def sum_ring(self, num_clients: int, dimension: int) -> SumRing:
        bits = self.sum_bits(num_clients)
        return SumRing(bits, None, float(1 << (bits - 1)), (1 << bits) - 1)

    @cached_property
    def coordinate_noise(self) -> CoordinateNoise:
        variance = self.spacing**2 * (self._code_variance + _NOT_UNIFORM)
        # Inputs are rounded towards zero, codes change half a fine point before the middle of two lattice
        # points, and rounding errors of codes have means below 1e-9 spacings.
        bias = self.spacing * (1.5 * 2.0**-FINE_BITS + 1e-9)
        return CoordinateNoise(
            max_mean=1.0 + bias,
            max_bias=bias,
            variance=variance,
            log_moment=lambda rate: 0.5 * rate**2 * variance,
            slip=self.noise.total_variation,
            min_variance=self.spacing**2 * (self._code_variance - _NOT_UNIFORM),
        )


def local_epsilon(noise: FineGaussian, spacing: float, delta: float) -> float:
    """The epsilon of a coordinate in the local view, with tables; infinite where none is certified."""
    separation = 2.0 / (spacing * noise.proven_deviation)
    most = gaussian_epsilon(separation, delta) + 1.0
    if most > _MAX_LOCAL_EPSILON:
        return math.inf
    # The distance of tables from ideal noise counts e^epsilon times, for any epsilon up to ``most``.
    epsilon = gaussian_epsilon(separation, delta - (1.0 + math.exp(most)) * noise.total_variation)
    return epsilon if epsilon <= most else math.inf


def handed_variance(deviation: float | None, correlation: float | None) -> float:
    """Variance of handed noise in a code, in squared spacings: what is added and what is taken off."""
    return 0.0 if deviation is None or correlation is None else deviation**2 * (1.0 + correlation**2)


def overflow_probability(
    noise: FineGaussian,
    spacing: float,
    num_clients: int,
    wrap_bits: int,
    coordinate_deviation: float = 0.0,
    further_variance: float = 0.0,
) -> float:
    """Bound of the probability that a sum of codes leaves the ring, if all clients have equal updates.

    Their coordinates are at the clip or, with a ``coordinate_deviation`` in clips, normally distributed.
    A sum of n codes is the sum of the inputs plus normal noise plus n - 1 uniform errors, rounded, within a
    factor 1 + eta (:mod:`fl_privquant.privacy_loss.additive.rounded_gaussian`). Fewer clients have less
    noise, and less signal. ``further_variance`` is that of normal noise which a client adds besides,
    in squared spacings, drawn like ``noise`` and at most twice.
    """
    signal, room = num_clients / spacing * _FLOAT_ROOM, (1 << (wrap_bits - 1)) - 1.5
    variance = num_clients * (float(noise.deviation) ** 2 + further_variance)
    if coordinate_deviation > 0.0:
        variance += (signal * coordinate_deviation) ** 2
    else:
        room -= signal
    if room <= 0.0:
        return 1.0
    outside = RoundingNoise(variance, num_clients).tail(room)
    gap = fraction_gap(num_clients, noise.proven_deviation)
    draws = num_clients * (3 if further_variance else 1)
    return min(outside * (1.0 + gap) + draws * noise.total_variation, 1.0)


@register(ROUNDED_GAUSSIAN, RoundedGaussianSpec, 5, "#9d4edd", plans_for_sums=True)
def design_rounded_gaussian(spec: RoundedGaussianSpec) -> RoundedGaussianMechanism:
    """The certified mechanism of a specification."""
    if not spec.correlated:
        return RoundedGaussianMechanism.of(spec)
    # Imported here because the module builds on this one.
    from fl_privquant.mechanisms.additive.correlated_gaussian import CorrelatedGaussianMechanism

    return CorrelatedGaussianMechanism.of(spec)
