"""Rounded Gaussian: Gaussian noise is added to the input, and the sum is rounded to a coarse lattice.

Each client adds its share of the noise to its coordinates and rounds the result: code = floor(x + g + 1/2) in
units of the lattice's spacing, modulo 2^wrap_bits. The spacing is of the order of the share's deviation, so
that a code is narrow. Nevertheless the sum of codes is as private as the sum of the inputs plus all noise,
because rounding is a post-processing (:mod:`fl_privquant.loss.rounded_shares`, with the proof); the rounding
errors even count as noise.

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
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from scipy.special import ndtr

from fl_privquant import checks
from fl_privquant.array_types import Array, ArrayLike, Floats
from fl_privquant.checks import number_in
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError, counted
from fl_privquant.law.codebook import checked_sums
from fl_privquant.law.density import Density
from fl_privquant.loss.compose import NamedLoss, Part, composed_epsilon
from fl_privquant.loss.normal import gaussian_delta, gaussian_epsilon, gaussian_separation
from fl_privquant.loss.norms import Norms
from fl_privquant.loss.response import NOT_PRIVATE
from fl_privquant.loss.rounded_shares import RoundedShares, fraction_gap
from fl_privquant.loss.rounding_noise import RoundingNoise
from fl_privquant.loss.secure_sum import NORM_ROUNDING
from fl_privquant.mechanisms.integer_privacy import MAX_EPSILON
from fl_privquant.mechanisms.registry import Spec, register
from fl_privquant.mechanisms.residues import (
    MAX_WRAP_BITS,
    NumClients,
    OptionalWrapBits,
    OverflowProbability,
    ResidueMechanism,
    WrapBits,
    ring_bits,
)
from fl_privquant.mechanisms.sum_limits import CoordinateNoise
from fl_privquant.mechanisms.sum_ring import SumRing
from fl_privquant.mechanisms.wish import Estimate, Wish
from fl_privquant.sampling.fine_gaussian import FINE_BITS, MAX_DEVIATION, MIN_DEVIATION, FineGaussian
from fl_privquant.sampling.stream import Randomness
from fl_privquant.statement import LOCAL, View

_DEVIATION = number_in(f"[{MIN_DEVIATION:g}, {MAX_DEVIATION:g}]", "; 1.5 to 2 suit most runs")
# With fewer than this, inputs on the fine lattice would not fit into 64 bits.
_SPACING = number_in("[1e-9, 1e12]", "; a lattice has some clips per spacing, or the other way round")
_COORDINATE = number_in("[0, 1]", "; 0.2 suits rotated updates, and 0 any others")
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
_WRAPS = 1e-8
# Share of delta that a plan leaves for tables and tails.
_LEFT = 1e-6
# Coordinate clip of rotated updates, in standard deviations of a coordinate at the norm bound.
_SPREAD = 5.0
# The largest epsilon that is certified for a coordinate in the local view.
_MOST_LOCAL = 50.0
# The search for a spacing ends when epsilon is this close to the target, as a share.
_CLOSE, _MOST_STEPS = 1e-6, 8


@dataclass(frozen=True)
class RoundedGaussianSpec(Spec):
    """The specification of rounded Gaussian: give ``epsilon`` or ``spacing``."""

    designed_for_sums: ClassVar[bool] = True
    chooses_width: ClassVar[bool] = True
    instead_of_epsilon: ClassVar[tuple[str, ...]] = ("spacing",)
    most_epsilon: ClassVar[float] = MAX_EPSILON

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is not None and self.spacing is not None:
            raise InvalidSpecError(
                f"epsilon={self.epsilon}, spacing={self.spacing}: give one of the two, the loss of a "
                "coordinate or the distance of lattice points"
            )

    @classmethod
    def needs_rotation(cls, norm_ratio: float | None) -> bool:
        """Only for a clip below the L2 clip: the noise does not depend on the inputs."""
        return norm_ratio is None or norm_ratio > 1.0

    @classmethod
    def planned_ratio(cls, wish: Wish) -> float:
        """One, so that no coordinate is clipped, if that takes no more bits; else that of rotated updates."""
        rotated = max(math.sqrt(wish.dimension) / _SPREAD, 1.0)
        if not wish.in_sum or wish.delta == 0.0:
            return rotated
        try:
            plain, narrow = (
                _ShareDesign.best(replace(wish, norms=Norms(l2=ratio)), wish.epsilon)
                for ratio in (1.0, rotated)
            )
        except InfeasibleDesignError:
            return rotated
        as_good = plain.bits <= narrow.bits and plain.error <= _AS_GOOD * narrow.error
        return 1.0 if as_good else rotated

    @classmethod
    def proposal(cls, wish: Wish, epsilon: float) -> dict[str, Any]:
        """The narrowest codes whose error is close to the least, with the noise that the target needs."""
        design = _ShareDesign.best(wish, epsilon)
        parameters = {
            "spacing": design.certified_spacing(wish, epsilon),
            "deviation": design.deviation,
            "num_clients": wish.num_clients,
            "wrap_bits": design.bits,
            "overflow_probability": _WRAPS,
            "coordinate_deviation": _coordinate_deviation(wish),
        }
        return parameters | dict(wish.parameters)

    @classmethod
    def estimate(cls, wish: Wish) -> Estimate | None:
        """The error and the width of the proposal, from closed forms."""
        if wish.own_clips:
            wish = replace(wish, norms=Norms(l2=cls.planned_ratio(wish)))
        if not cls.proposes(wish):
            return None
        try:
            design = _ShareDesign.best(wish, wish.epsilon)
        except InfeasibleDesignError:
            return None
        return Estimate(design.error * wish.survivors / wish.view.honest_count, design.bits)


def _coordinate_deviation(wish: Wish) -> float:
    """Standard deviation, in clips, of the coordinates of updates that a plan rotates; else 0."""
    if not RoundedGaussianSpec.needs_rotation(wish.norms.l2):
        return 0.0
    return min(wish.norm_ratio / math.sqrt(wish.dimension), 1.0)


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
    def best(cls, wish: Wish, epsilon: float) -> _ShareDesign:
        """The narrowest ring whose error is close to the least.

        Raises InfeasibleDesignError where the noise fits into none, or nothing is certified.
        """
        given = dict(wish.parameters)
        widths = range(2, MAX_WRAP_BITS + 1) if "wrap_bits" not in given else [int(given["wrap_bits"])]
        designs = [cls._in_ring(bits, wish, epsilon, given.get("deviation")) for bits in widths]
        feasible = [design for design in designs if math.isfinite(design.error)]
        if not feasible:
            raise InfeasibleDesignError(
                f"no ring of up to {widths[-1]} bits holds the noise of {wish.num_clients} clients that "
                f"epsilon {epsilon:g} needs, with shares of {MIN_DEVIATION:g} spacings or more; change the "
                "coordinate clip, or the number of clients or rounds"
            )
        least = min(design.error for design in feasible)
        return next(design for design in feasible if design.error <= _WORTH * least)

    @classmethod
    def _in_ring(cls, bits: int, wish: Wish, epsilon: float, deviation: float | None) -> _ShareDesign:
        """The largest shares that fit into a ring, or given ones; the error is infinite if none do."""
        none = cls(bits, math.inf, math.inf, math.inf)
        target, n = replace(wish.run_target, epsilon=epsilon), wish.num_clients
        honest, distance = target.num_honest, 2.0 * wish.norm_ratio * NORM_ROUNDING
        # In deviations of the sum's noise: how far it reaches, and the signal if all clients are at the clip.
        reach = RoundingNoise(1.0, 0).reach(_WRAPS) + 0.02
        signal = n * target.separation * math.sqrt(honest / n) / distance
        if (coordinate := _coordinate_deviation(wish)) > 0.0:
            reach, signal = reach * math.hypot(1.0, signal * coordinate), 0.0
        room = (1 << (bits - 1)) - 2.0
        fitting = room / (math.sqrt(n) * (reach + signal))
        largest = math.sqrt(max(fitting**2 - 1.0 / 12.0, 0.0))
        shares = math.floor(min(largest, MAX_DEVIATION) / _GRID) * _GRID if deviation is None else deviation
        if shares < MIN_DEVIATION or shares > largest:
            return none
        coordinates = target.dimension * target.rounds
        lost = coordinates * RoundedShares(honest, shares).log_ratio
        if lost >= epsilon:
            return none
        separation = gaussian_separation(epsilon - lost, target.delta * math.exp(-lost) * (1.0 - _LEFT))
        separation /= math.sqrt(target.rounds)
        # Rounding errors of all clients but one count as noise; all of them are in the error.
        hidden = honest * shares**2 + (honest - 1) / 12.0
        error = honest * (shares**2 + 1.0 / 12.0) / hidden * (target.separation / separation) ** 2
        return cls(bits, shares, distance / (separation * math.sqrt(hidden)), error)

    def certified_spacing(self, wish: Wish, epsilon: float) -> float:
        """The least spacing, to 6 digits, whose certificate meets the target."""
        target, noise = wish.run_target, FineGaussian(Fraction(self.deviation))
        shares = RoundedShares(target.num_honest, noise.proven_deviation, noise.total_variation)
        distance, spacing = 2.0 * wish.norm_ratio * NORM_ROUNDING, self.spacing
        for _ in range(_MOST_STEPS):
            costs = [
                (composed_epsilon([Part(pair, target.rounds)], target.delta).epsilon, pair)
                for pair in shares.pairs(distance / spacing, target.dimension)
            ]
            if not costs:
                break
            spent, pair = min(costs, key=lambda cost: cost[0])
            # A little is left, so that rounds of two plans for the same target can be mixed.
            if (1.0 - 2.0 * _CLOSE) * epsilon <= spent <= (1.0 - _CLOSE) * epsilon:
                return spacing
            lost = target.rounds * pair.log_ratio
            left = (target.delta - target.rounds * pair.infinity) * math.exp(-lost)
            if lost >= epsilon or left <= 0.0:
                break
            aim = (1.0 - 1.5 * _CLOSE) * epsilon - lost
            allowed = gaussian_separation(aim, left) / math.sqrt(target.rounds)
            # Separations are in inverse proportion to the spacing, except for the last digits.
            spacing *= pair.separation / allowed
        raise InfeasibleDesignError(
            f"shares of {self.deviation:g} spacings are not certified for epsilon {epsilon:g}; use larger "
            "ones, or a larger epsilon or delta"
        )


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

    @classmethod
    def of(cls, spec: RoundedGaussianSpec) -> Self:
        """The certified mechanism with the least noise at ``epsilon``, or with the given spacing."""
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
            epsilon = _local_epsilon(noise, spacing, delta * (1.0 - _LEFT))
        spread = spec.coordinate_deviation
        bits = ring_bits(
            spec.wrap_bits,
            lambda bits: overflow_probability(noise, spacing, spec.num_clients, bits, spread),
            spec.overflow_probability,
            f"{cls.kind}: the noise of {spec.num_clients} clients with spacing {spacing:.4g}",
        )
        claims = (epsilon, delta, spec.overflow_probability)
        sizes = (spacing, spec.deviation, spec.num_clients, bits)
        return cls(cls.kind, *sizes, *claims, spread, parameters=spec.parameters())

    @property
    def _form(self) -> str:
        clients = counted(self.num_clients, "client")
        return f"shares of {self.deviation:g} spacings, codes of {self.wrap_bits} bits for up to {clients}"

    @cached_property
    def noise(self) -> FineGaussian:
        """The noise that a client adds."""
        return FineGaussian(Fraction(self.deviation))

    @cached_property
    def overflow_probability(self) -> float:
        sizes = (self.num_clients, self.wrap_bits, self.coordinate_deviation)
        return overflow_probability(self.noise, self.spacing, *sizes)

    def delta_at(self, epsilon: float) -> float:
        if math.isinf(epsilon):
            return 0.0
        ideal = gaussian_delta(2.0 / (self.spacing * self.noise.proven_deviation), epsilon)
        return min(ideal * _FLOAT_ROOM + (1.0 + math.exp(epsilon)) * self.noise.total_variation, 1.0)

    def loss(self, view: View = LOCAL) -> NamedLoss:
        """The loss of one coordinate whose inputs are up to two clips apart."""
        losses = self._shares(view).losses(2.0 / self.spacing, 1)
        return (
            replace(losses[-1], name="noise sum" if losses[1:] else "") if losses else NamedLoss(NOT_PRIVATE)
        )

    def update_losses(self, norms: Norms, dimension: int, view: View = LOCAL) -> list[NamedLoss]:
        """The simple and the refined count of sums of rounded shares."""
        if norms.l2 is None:
            return []
        return self._shares(view).losses(2.0 * norms.l2 * NORM_ROUNDING / self.spacing, dimension)

    def _shares(self, view: View) -> RoundedShares:
        return RoundedShares(view.honest_count, self.noise.proven_deviation, self.noise.total_variation)

    @property
    def _code_variance(self) -> float:
        """Variance of noise and rounding together, in squared spacings."""
        return self.deviation**2 + 1.0 / 12.0

    def pmf(self, x: ArrayLike) -> Floats:
        """(n, 2^wrap_bits) output probabilities for inputs in [-1, 1], wrap included."""
        centres = np.clip(np.asarray(x, dtype=np.float64).ravel(), -1.0, 1.0) / self.spacing
        # On the fine lattice; codes change half a point before the middle between two coarse points.
        centres = (np.trunc(np.ldexp(centres, FINE_BITS)) + 0.5) * 2.0**-FINE_BITS
        levels = self._listed_levels()
        reach = math.ceil(np.abs(centres).max(initial=0.0) + 12.0 * self.deviation)
        edges = (np.arange(-reach, reach + 2) - 0.5 - centres[:, None]) / self.deviation
        probabilities = np.diff(ndtr(edges), axis=1)
        # Codes are wrapped by padding their range to whole turns of the ring, and adding the turns up.
        before = (levels // 2 - reach) % levels
        after = -(before + probabilities.shape[1]) % levels
        padded = np.pad(probabilities, ((0, 0), (before, after)))
        return np.asarray(padded.reshape(centres.size, -1, levels).sum(axis=1))

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        # The mean of |N + e| over rounding errors e, which are uniform up to factors of 1 ± 1e-8.
        errors, weights = np.polynomial.legendre.leggauss(32)
        errors, s = 0.5 * errors, self.deviation
        means = s * math.sqrt(2.0 / math.pi) * np.exp(-0.5 * (errors / s) ** 2) + errors * (
            2.0 * ndtr(errors / s) - 1.0
        )
        return self.spacing * 0.5 * float(weights @ means)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return self.spacing**2 * self._code_variance

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None, threads: int = 1) -> Array:
        """Codes of the inputs, with the noise that :attr:`noise` samples from the stream ``rng``."""
        return self.noise.encode(x, self.spacing, self.wrap_bits, clip=clip, stream=rng, threads=threads)

    def decode_sum(self, total: ArrayLike, num_clients: int, clip: float = 1.0) -> Floats:
        half = 1 << (self.sum_bits(num_clients) - 1)
        sums = checked_sums(total, num_clients, 2 * half - 1)
        means = self._representatives(sums, (num_clients - 1) * half)
        means -= num_clients * half
        means *= self.spacing / num_clients * checks.positive("clip", clip)
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
            largest_mean=1.0 + bias,
            max_bias=bias,
            variance=variance,
            log_moment=lambda rate: 0.5 * rate**2 * variance,
            slip=self.noise.total_variation,
            min_variance=self.spacing**2 * (self._code_variance - _NOT_UNIFORM),
        )


def _local_epsilon(noise: FineGaussian, spacing: float, delta: float) -> float:
    """The epsilon of a coordinate in the local view, with tables; infinite where none is certified."""
    separation = 2.0 / (spacing * noise.proven_deviation)
    most = gaussian_epsilon(separation, delta) + 1.0
    if most > _MOST_LOCAL:
        return math.inf
    # The distance of tables from ideal noise counts e^epsilon times, for any epsilon up to ``most``.
    epsilon = gaussian_epsilon(separation, delta - (1.0 + math.exp(most)) * noise.total_variation)
    return epsilon if epsilon <= most else math.inf


def overflow_probability(
    noise: FineGaussian, spacing: float, num_clients: int, wrap_bits: int, coordinate_deviation: float = 0.0
) -> float:
    """Bound of the probability that a sum of codes leaves the ring, if all clients have equal updates.

    Their coordinates are at the clip or, with a ``coordinate_deviation`` in clips, normally distributed.
    A sum of n codes is the sum of the inputs plus normal noise plus n - 1 uniform errors, rounded, within a
    factor 1 + eta (:mod:`fl_privquant.loss.rounded_shares`). Fewer clients have less noise, and less signal.
    """
    signal, room = num_clients / spacing * _FLOAT_ROOM, (1 << (wrap_bits - 1)) - 1.5
    variance = num_clients * float(noise.deviation) ** 2
    if coordinate_deviation > 0.0:
        variance += (signal * coordinate_deviation) ** 2
    else:
        room -= signal
    if room <= 0.0:
        return 1.0
    outside = RoundingNoise(variance, num_clients).tail(room)
    gap = fraction_gap(num_clients, noise.proven_deviation)
    return min(outside * (1.0 + gap) + num_clients * noise.total_variation, 1.0)


register("rounded_gaussian", RoundedGaussianSpec, 5, "#9d4edd", plans_for_sums=True)(
    RoundedGaussianMechanism.of
)
