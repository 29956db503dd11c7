"""Rounded Gaussian with noise that the next round takes off again: more accurate than fresh noise.

Each client adds two kinds of noise to its input, and rounds the result as rounded Gaussian does. *Private
noise* is its own. *Handed noise* is drawn from a seed, which it hands over to one client of the next round;
that client subtracts ``correlation`` times the same noise from its own code. So the noise of a round is
mostly taken off in the next one, and a model, which is a sum of updates, keeps little of it. Where clients
take part rarely, this leaves a fraction of the error of a trusted server that adds fresh noise in each round
(:mod:`fl_privquant.privacy_loss.correlated_noise`).

Guarantee: (``epsilon``, ``delta``)-differential privacy of each coordinate and release in the local view, by
private noise alone: whoever sees a client's code may know all handed noise. In secure sums, each
participation of a client costs what :mod:`fl_privquant.privacy_loss.additive.correlated_shares` proves, its
effect on later rounds included.
Assumes: secure randomness; a server that follows the protocol. In every sum that is opened there are at least
``num_honest`` honest clients, at most ``num_corrupt`` of the next round's are corrupt, at most ``num_opened``
seeds of a round are told to the server, no client takes part in two rounds that are less than
``rounds_apart`` apart, and there are at most ``rounds`` rounds. Strategies see to all of this, and clients to
what they can see of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Ints
from fl_privquant._validation import integer_between
from fl_privquant.errors import MISSING, InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.additive._residues import MAX_WRAP_BITS, NumClients
from fl_privquant.mechanisms.additive.rounded_gaussian import (
    WRAPS,
    Deviation,
    RoundedGaussianMechanism,
    RoundedGaussianSpec,
    coordinate_deviation,
    find_certified_spacing,
    handed_variance,
    overflow_probability,
)
from fl_privquant.mechanisms.handed_noise import HandedNoise, NoiseSeeds
from fl_privquant.mechanisms.sum_limits import CoordinateNoise
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.privacy_loss.additive.correlated_shares import CorrelatedShares
from fl_privquant.privacy_loss.composition.compose import NamedLoss, UpdateNorm
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss
from fl_privquant.privacy_loss.correlated_noise import (
    CORRELATION_STEPS,
    MAX_ROUNDS,
    PREFIX_SUMS,
    LagNoise,
    RoundSchedule,
    Workload,
    error_ratio,
    find_correlation,
)
from fl_privquant.privacy_loss.sums.gaussian_bound import NORM_ROUNDING
from fl_privquant.privacy_loss.update_bounds import WholeUpdate
from fl_privquant.sampling.fine_gaussian import FINE_BITS, MAX_DEVIATION, FineGaussian
from fl_privquant.sampling.stream import Randomness, RandomStream
from fl_privquant.statement import LOCAL, Relation, View

SEED_BYTES = 32
"""Size of the seed of handed noise."""

# What private noise may be, in spacings: the least for which the rounding of the run costs next to nothing.
_PRIVATE_DEVIATIONS = (1.25, 1.375, 1.5, 1.625, 1.75, 2.0)
# The share of epsilon that the rounding of a run may cost.
_ROUNDING_SHARE = 1e-3
# Handed noise is tried on this grid, in spacings.
_GRID = 0.25
# A plan takes the narrowest ring whose error is at most this many times that of the widest.
_WORTH = 1.03
_CORRELATION_BITS = CORRELATION_STEPS.bit_length() - 1


@dataclass(frozen=True, eq=False, repr=False)
class CorrelatedGaussianMechanism(RoundedGaussianMechanism, kind="correlated_gaussian"):
    """Input plus private noise plus handed noise, less what the round before handed over, rounded.

    The inherited ``deviation`` is that of private noise. Without :meth:`with_seeds` a code is one that nobody
    can take the noise off again.
    """

    correlation_steps: Annotated[int, integer_between(1, CORRELATION_STEPS - 1)] = 1
    """The correlation, in units of 1 / 64."""
    handed_deviation: Deviation = 2.0
    """Standard deviation of handed noise, in spacings."""
    rounds: Annotated[int, integer_between(1, MAX_ROUNDS)] = 1
    """Number of rounds of the run."""
    rounds_apart: Annotated[int, integer_between(1, MAX_ROUNDS)] = 1
    """How many rounds apart a client takes part, at least."""
    num_honest: NumClients = 1
    """Honest clients in the sum of each round, at least."""
    num_corrupt: Annotated[int, integer_between(0, 1 << 31)] = 0
    """Corrupt clients of each round, at most: they learn as many seeds of the round before."""
    num_opened: Annotated[int, integer_between(0, 1 << 31)] = 0
    """Seeds of a round that the server is told, at most, because their receivers are lost."""

    encodes_coordinates_alone: ClassVar[bool] = False

    @classmethod
    def _further_fields(cls, spec: RoundedGaussianSpec) -> dict[str, Any]:
        return {
            "correlation_steps": correlation_in_steps(spec.correlation or 0.0),
            "handed_deviation": spec.handed_deviation,
            "rounds": spec.rounds,
            "rounds_apart": spec.rounds_apart,
            "num_honest": spec.num_honest,
            "num_corrupt": spec.num_corrupt or 0,
            "num_opened": spec.num_opened or 0,
        }

    @property
    def correlation(self) -> float:
        """The share of a round's handed noise that the next round takes off."""
        return self.correlation_steps / CORRELATION_STEPS

    @property
    def handed(self) -> HandedNoise:
        sizes = (self.num_honest, self.num_corrupt, self.num_opened)
        private = (self.deviation / self.handed_deviation) ** 2
        return HandedNoise(self.correlation, private, self.rounds, self.rounds_apart, *sizes)

    @property
    def _form(self) -> str:
        return f"correlated over rounds by {self.correlation:g}, {super()._form}"

    @cached_property
    def handed_noise(self) -> FineGaussian:
        """The noise that a client hands over."""
        return FineGaussian(Fraction(self.handed_deviation))

    @cached_property
    def shares(self) -> CorrelatedShares:
        """What is counted in secure sums."""
        return CorrelatedShares(
            RoundSchedule(self.rounds, self.rounds_apart),
            self.correlation,
            self.num_honest,
            self.num_corrupt + self.num_opened,
            self.handed_noise.proven_deviation,
            self.noise.proven_deviation,
            self.noise.total_variation + self.handed_noise.total_variation,
        )

    def loss(self, view: View = LOCAL, relation: Relation = Relation.REPLACE_ONE) -> NamedLoss:
        """The loss of one coordinate, by private noise alone: that of the local view, whatever is seen."""
        return super().loss(LOCAL, relation)

    def update_losses(self, update: WholeUpdate) -> list[NamedLoss]:
        """The bound for one participation in secure sums that have at least the planned honest clients."""
        view = update.view
        unknown = view.is_local or view.honest_count < self.num_honest or view.sampled not in (None, 1.0)
        if update.l2_distance is None or unknown:
            return []
        pairs = self.shares.pairs(update.l2_distance * NORM_ROUNDING / self.spacing, update.dimension)
        name = "l2 gaussian of correlated shares"
        return [NamedLoss(pair, name, norm=UpdateNorm.L2, relation=update.relation) for pair in pairs]

    def record_losses(self, update: WholeUpdate) -> list[tuple[PrivacyLoss, ...]]:
        """None: sampling of records is not proved to amplify the loss under correlated noise."""
        return []

    @property
    def _handed_variance(self) -> float:
        return handed_variance(self.handed_deviation, self.correlation)

    def round_equivalent_mse(self, lost: float = 0.0, workload: Workload = PREFIX_SUMS) -> float:
        """The variance of independent noise of a code that would leave the same error in models.

        It is the mean over all rounds, in squared clips; ``lost`` is the fraction of clients that are lost.
        """
        fresh = (self.deviation**2 + 1.0 / 12.0) / self.handed_deviation**2
        schedule = RoundSchedule(self.rounds, self.rounds_apart, workload)
        stays = _share_that_stays(lost) if self.num_opened else lost
        variance = LagNoise(self.correlation, fresh).model_variance(schedule, stays, lost - stays)
        return (self.spacing * self.handed_deviation) ** 2 * variance / schedule.workload_moments[0]

    @property
    def participation_norm(self) -> float:
        return math.sqrt(self.shares.noise.participation_cost(self.shares.schedule))

    def with_seeds(self, seeds: NoiseSeeds) -> Self:
        """The mechanism that draws handed noise from these seeds, for one code."""
        for seed in (seeds.own, seeds.previous):
            if seed is not None and len(seed) != SEED_BYTES:
                raise InvalidSpecError("seed of noise", MISSING, f"{len(seed)} bytes, expected {SEED_BYTES}")
        bound = copy.copy(self)
        bound.__dict__["_seeds"] = seeds
        return bound

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        """Codes of the inputs; private noise is drawn from the stream ``rng``."""
        inputs = x if hasattr(x, "size") else np.asarray(x)
        seeds: NoiseSeeds = self.__dict__.get("_seeds") or NoiseSeeds(draw_seed(rng))
        added = self._draw_handed(seeds.own, int(inputs.size))
        if seeds.previous is not None:
            taken_off = self._draw_handed(seeds.previous, int(inputs.size))
            taken_off *= self.correlation_steps
            taken_off += CORRELATION_STEPS // 2
            taken_off >>= _CORRELATION_BITS
            added -= taken_off
        return self.noise.encode(inputs, self.spacing, self.wrap_bits, clip=clip, stream=rng, added=added)

    def take_off(self, total: Ints, seeds: Sequence[bytes]) -> Ints:
        noise = np.zeros(total.size, np.int64)
        for seed in seeds:
            noise += self._draw_handed(seed, total.size)
        rounded = (noise + (1 << (FINE_BITS - 1))) >> FINE_BITS
        return np.asarray((total - rounded) & ((1 << self.wrap_bits) - 1))

    def _draw_handed(self, seed: bytes, size: int) -> Any:
        return self.handed_noise.sample(size, RandomStream(seed, simulated=False))

    @cached_property
    def coordinate_noise(self) -> CoordinateNoise:
        # A code with nothing taken off has less noise, and three draws go into one with.
        noise = super().coordinate_noise
        least = noise.min_variance - (self.spacing * self.handed_deviation * self.correlation) ** 2
        return replace(noise, min_variance=least, slip=3.0 * noise.slip)


def draw_seed(rng: Randomness) -> bytes:
    """A fresh seed of handed noise: the stream's next words, or the operating system's randomness."""
    stream = RandomStream.secure() if rng is None else rng
    return stream.words(SEED_BYTES // 8).tobytes()


def correlation_in_steps(correlation: float) -> int:
    """The correlation in units of 1 / 64; InvalidSpecError if it is no multiple of that in (0, 1)."""
    steps = _validation.check_number("correlation", correlation) * CORRELATION_STEPS
    if not (steps.is_integer() and 1 <= steps < CORRELATION_STEPS):
        # In this order nan becomes 1.
        nearest = round(min(max(1.0, steps), CORRELATION_STEPS - 1.0)) / CORRELATION_STEPS
        raise InvalidSpecError(
            "correlation",
            correlation,
            f"is not a multiple of 1/{CORRELATION_STEPS} between 0 and 1",
            f"the nearest is {nearest:g}",
        )
    return round(steps)


@dataclass(frozen=True)
class _Design:
    """Handed noise and a correlation, with the ring that they need and about what they gain."""

    bits: int
    shares: CorrelatedShares
    spacing: float
    """In units of the clip; an estimate to some digits."""
    error: float
    """Mean squared error of prefix sums over that of a central Gaussian with fresh noise."""


def propose_correlated(run: RunRequirements) -> dict[str, Any]:
    """The narrowest codes whose error in prefix sums is close to the least, for a run's epsilon."""
    schedule = run.schedule
    if schedule is None:
        raise InvalidSpecError("correlation", MISSING, "the run's schedule is missing")
    given = dict(run.parameters)
    if run.num_honest - run.corrupt - run.dropped < 1:
        raise InfeasibleDesignError(
            f"correlation: of {run.num_honest} honest clients, {run.corrupt} may hand their seed to a "
            f"corrupt one and {run.dropped} to a lost one, so that no noise is counted; ask more clients, or "
            "lower corrupt_fraction or dropout_fraction"
        )
    private = _choose_private_deviation(run, schedule)
    widest = int(given.get("wrap_bits", MAX_WRAP_BITS))
    handed = given.get("handed_deviation")
    grid = np.arange(2.0, MAX_DEVIATION + _GRID, _GRID) if handed is None else [float(handed)]
    designs = [_design(float(deviation), private, run, schedule) for deviation in grid]
    designs = [design for design in designs if design.bits <= widest]
    if not designs:
        raise InfeasibleDesignError(
            f"wrap_bits: {widest} do not hold the correlated noise of {run.num_clients} clients; leave it out"
        )
    least = min(design.error for design in designs)
    bits = min(design.bits for design in designs if design.error <= _WORTH * least)
    best = min((design for design in designs if design.bits <= bits), key=lambda design: design.error)
    spacing = find_certified_spacing(best.shares, best.spacing, run)
    if spacing is None:
        raise InfeasibleDesignError(
            f"correlated noise is not certified for epsilon {run.epsilon:g}; use a larger epsilon or delta"
        )
    return {
        "spacing": spacing,
        "deviation": private,
        "num_clients": run.num_clients,
        "wrap_bits": best.bits,
        "overflow_probability": WRAPS,
        "coordinate_deviation": coordinate_deviation(run),
        "correlation": best.shares.correlation,
        "handed_deviation": _handed_deviation(best.shares),
        "rounds": schedule.rounds,
        "rounds_apart": schedule.rounds_apart,
        "num_honest": run.num_honest,
        "num_corrupt": run.corrupt,
        "num_opened": run.dropped,
    } | given


def _share_that_stays(lost: float) -> float:
    """The share of noise that neither the next round nor the server takes off.

    Of its senders as many are gone, when they are asked for the seeds of lost receivers, as in a round.
    """
    return lost**2


def _handed_deviation(shares: CorrelatedShares) -> float:
    """The deviation on the grid whose proven deviation, a little smaller, is that of the shares."""
    return round(shares.deviation / _GRID) * _GRID


def _choose_private_deviation(run: RunRequirements, schedule: RoundSchedule) -> float:
    """The least private noise with which the rounding of the run costs next to nothing."""
    given = dict(run.parameters)
    if "deviation" in given:
        return float(given["deviation"])
    for deviation in _PRIVATE_DEVIATIONS:
        private = FineGaussian(Fraction(deviation)).proven_deviation
        shares = CorrelatedShares(schedule, 0.0, run.num_honest, 0, 1.0, private)
        if run.composed_rounds * shares.log_ratio(run.dimension) <= _ROUNDING_SHARE * run.epsilon:
            return deviation
    raise InfeasibleDesignError(
        f"correlation: private noise of {_PRIVATE_DEVIATIONS[-1]:g} spacings does not hide the rounding of "
        f"{run.dimension} coordinates in {schedule.rounds} rounds; give a larger deviation"
    )


def _design(handed: float, private: float, run: RunRequirements, schedule: RoundSchedule) -> _Design:
    """The design with handed noise of that deviation, and the best or the given correlation."""
    n, honest = run.num_clients, run.num_honest
    exposed = run.corrupt + run.dropped
    stays = _share_that_stays(run.dropped / n)
    fresh = (private**2 + 1.0 / 12.0) / handed**2
    counted = honest * private**2 / ((honest - exposed) * handed**2)
    uncounted, opened = fresh - counted, run.dropped / n - stays
    chosen = dict(run.parameters).get("correlation")
    correlation = find_correlation(
        schedule, private=counted, not_counted=uncounted, lost=stays, opened=opened
    )
    if chosen is not None:
        correlation = correlation_in_steps(float(chosen)) / CORRELATION_STEPS
    correlation = correlation or 1.0 / CORRELATION_STEPS
    handed_noise, private_noise = FineGaussian(Fraction(handed)), FineGaussian(Fraction(private))
    shares = CorrelatedShares(
        schedule,
        correlation,
        honest,
        exposed,
        handed_noise.proven_deviation,
        private_noise.proven_deviation,
        handed_noise.total_variation + private_noise.total_variation,
    )
    distance = 2.0 * run.norm_ratio * NORM_ROUNDING
    spacing = distance * shares.sensitivity / run.separation
    noise = LagNoise(correlation, counted)
    ratio = error_ratio(schedule, noise, not_counted=uncounted, lost=stays, opened=opened)
    error = ratio * run.survivors / shares.num_hidden
    variance, spread = handed_variance(handed, correlation), coordinate_deviation(run)
    bits = next(
        bits
        for bits in range(2, 2 * MAX_WRAP_BITS)
        if bits > MAX_WRAP_BITS
        or overflow_probability(private_noise, spacing * (1.0 - 1e-3), n, bits, spread, variance) <= WRAPS
    )
    return _Design(bits, shares, spacing, error)
