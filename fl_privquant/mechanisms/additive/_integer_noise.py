"""Common code of the additive mechanisms: randomized rounding to a lattice, integer noise, a modular wrap.

An input in [-clip, clip] is rounded at random, unbiased, to one of ``levels`` lattice points. Integer noise
is added, and the result is reduced modulo 2^wrap_bits. Codes of several clients are summed in that ring, too.
The residue of a sum is decoded to the integer nearest to the middle of the range that the inputs alone can
reach. The estimate is wrong only if the sum of the noises leaves the room that the ring has for it, and the
probability of that is bounded before anything is sent.

For a run whose updates have a bounded L2 norm, and of which only sums are seen, the number of lattice points,
the clip and the noise follow from the privacy target (:mod:`fl_privquant.optimize.sums.noise_lattice`). The
file of each mechanism holds its noise and its calibration.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats
from fl_privquant._validation import number_between
from fl_privquant.distributions.codebook import check_sums
from fl_privquant.distributions.input_density import Density, as_density
from fl_privquant.errors import CertificationError, InfeasibleDesignError, InvalidSpecError, pluralize
from fl_privquant.mechanisms.additive._certificate import MAX_EPSILON, calibrate, certify_delta, find_epsilon
from fl_privquant.mechanisms.additive._residues import (
    NumClients,
    OptionalWrapBits,
    OverflowProbability,
    ResidueMechanism,
    WrapBits,
    choose_ring_bits,
)
from fl_privquant.mechanisms.additive.gaussian import analytic_sigma
from fl_privquant.mechanisms.spec import Spec, check_levels
from fl_privquant.mechanisms.sum_limits import CoordinateNoise
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.optimize.sums.noise_lattice import (
    MAX_LEVELS,
    SPREADS,
    Lattice,
    best_lattice,
    certify_lattice,
)
from fl_privquant.privacy_loss.additive.integer_noise import NoisyInteger
from fl_privquant.privacy_loss.additive.integer_noise_l2 import (
    NoisyUpdate,
    real_shift_loss,
    shifted_noise_loss,
)
from fl_privquant.privacy_loss.composition.compose import NamedLoss
from fl_privquant.privacy_loss.update_bounds import WholeUpdate
from fl_privquant.sampling.integer_noise import IntegerNoise
from fl_privquant.sampling.rounding import encode_on_lattice
from fl_privquant.sampling.stream import Randomness
from fl_privquant.statement import LOCAL, Relation, View

# Codes of _WIDE bits are wide enough for every lattice; narrower ones may have _WORTH times their error.
_WIDE, _WORTH = 24, 1.01
# Covers the rounding of tails and bounds, which floats give to 12 digits or better.
_FLOAT_ROOM = 1.0 + 1e-9
# A fraction as Python writes it. Python reads more, such as 1e999999999, which would take forever.
_FRACTION = re.compile("[1-9][0-9]{0,99}(/[1-9][0-9]{0,99})?")


@dataclass(frozen=True)
class AdditiveSpec(Spec):
    """The specification of an additive mechanism: give ``epsilon`` or ``variance``."""

    designed_for_sums = True
    instead_of_epsilon = ("variance",)
    either_or = True
    max_epsilon = MAX_EPSILON
    noise_type: ClassVar[type[IntegerNoise]]

    epsilon: float | None = None
    levels: int = 16
    """Number of lattice points from -1 to 1 to which inputs are rounded. ``bits=`` sets this too; the code
    that is sent is wider, as it must hold the noise (:attr:`AdditiveMechanism.wrap_bits`)."""
    num_clients: NumClients = 1
    """The largest number of clients whose codes will be added up."""
    wrap_bits: OptionalWrapBits = None
    """Bits of a code; by default the fewest that keep ``overflow_probability``."""
    overflow_probability: OverflowProbability = 1e-9
    """Largest probability that noise carries one coordinate of the sum out of the ring."""
    variance: Annotated[float | None, number_between("(0, 1e18]")] = None
    """Variance of the noise in squared lattice steps, where it is given instead of ``epsilon``."""

    @property
    def allowed_delta(self) -> float:
        """The delta that goes with ``epsilon``: 0, unless the mechanism's privacy is approximate."""
        return float(self._given_fields().get("delta", 0.0))

    @property
    def max_shift(self) -> int:
        """The largest difference of two rounded inputs."""
        return self.levels - 1

    @classmethod
    def choose_norm_ratio(cls, requirements: RunRequirements) -> float:
        """The ratio with the least error for this noise in the sum; the usual one in the local view."""
        if not requirements.in_sum or requirements.delta == 0.0:
            return super().choose_norm_ratio(requirements)
        run = requirements.for_replace_one(requirements.replace_one_epsilon)
        return math.sqrt(requirements.dimension) / cls._lattice(run, SPREADS).spread

    @classmethod
    def propose(cls, requirements: RunRequirements, epsilon: float) -> dict[str, Any]:
        """The best lattice for the clip, and the least noise that is certified for the target."""
        run = requirements.for_replace_one(epsilon)
        lattice = cls._lattice(run, SPREADS if run.spread is None else (run.spread,))
        certified = certify_lattice(cls.noise_type, run, lattice)
        parameters = {
            "levels": certified.levels,
            "num_clients": requirements.num_clients,
            "variance": certified.variance,
        }
        return parameters | dict(requirements.parameters)

    @classmethod
    def _lattice(cls, run: RunRequirements, spreads: tuple[float, ...]) -> Lattice:
        """The best lattice for codes of the requested width, or of the least width that is nearly as good."""
        given_levels = dict(run.parameters).get("levels")
        levels = MAX_LEVELS if given_levels is None else int(given_levels)
        finest = best_lattice(cls.noise_type, run, _WIDE, levels, spreads)
        if given_levels is not None:
            return finest
        for bits in range(run.bits, _WIDE):
            try:
                lattice = best_lattice(cls.noise_type, run, bits, levels, spreads)
            except InfeasibleDesignError:
                continue
            if lattice.error <= _WORTH * finest.error:
                return lattice
        return finest


@dataclass(frozen=True)
class ApproximateSpec(AdditiveSpec):
    """The specification of an additive mechanism of approximate differential privacy."""

    delta: float = 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class AdditiveMechanism(ResidueMechanism):
    """Rounding to a lattice plus integer noise modulo 2^wrap_bits, certified when it is made.

    Guarantee: (``epsilon``, ``delta``)-differential privacy of each coordinate and release against an
    adversary who sees the code, certified in exact arithmetic on the very table that the noise is drawn from
    (:mod:`fl_privquant.mechanisms.additive._certificate`); the sum of codes reveals no more. The estimate is
    unbiased unless it wraps, which has probability at most ``overflow_probability`` per coordinate.
    Assumes: words that nobody else can predict, each used once; see :class:`RandomStream`.
    """

    noise: IntegerNoise
    """The noise that is added to the lattice point."""
    levels: int
    """Number of lattice points from -1 to 1."""
    num_clients: NumClients
    """The largest number of clients whose codes may be added up."""
    wrap_bits: WrapBits
    """Codes are integers modulo 2^wrap_bits."""
    claimed_epsilon: float
    claimed_delta: float
    claimed_overflow_probability: float

    noise_type: ClassVar[type[IntegerNoise]]
    encodes_coordinates_alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_levels(self.levels)
        super().__post_init__()

    @property
    def _form(self) -> str:
        clients = pluralize(self.num_clients, "client")
        return f"{self.levels} levels, codes of {self.wrap_bits} bits for up to {clients}"

    @classmethod
    def of(cls, spec: AdditiveSpec) -> Self:
        """The certified mechanism with the least noise at ``epsilon``, or noise of the given variance."""
        delta = spec.allowed_delta
        if spec.variance is None:
            noise, epsilon = cls._find_min_noise(spec), float(spec.epsilon or 0.0)
        else:
            noise = cls.noise_type.of_variance(Fraction(spec.variance))
            check_width(noise, spec)
            epsilon = cls._find_min_epsilon(noise, spec.max_shift, delta)
        sizes = spec.levels, spec.num_clients
        bits = choose_ring_bits(
            spec.wrap_bits,
            lambda bits: overflow_probability(noise, *sizes, bits),
            spec.overflow_probability,
            f"{cls.kind}: the noise of {spec.num_clients} clients on {spec.levels} levels",
        )
        claims = (epsilon, delta, spec.overflow_probability)
        return cls(cls.kind, noise, *sizes, bits, *claims, parameters=spec.parameters())

    @classmethod
    def _find_min_noise(cls, spec: AdditiveSpec) -> IntegerNoise:
        """The noise with the least variance that is certified at the spec's epsilon and delta."""

        def make(variance: Fraction) -> IntegerNoise:
            noise = cls.noise_type(variance)
            check_width(noise, spec)
            return noise

        epsilon, delta = float(spec.epsilon or 0.0), spec.allowed_delta
        guess = analytic_sigma(spec.max_shift, epsilon, delta) ** 2
        return calibrate(make, guess, spec.max_shift, epsilon, delta)

    @classmethod
    def _find_min_epsilon(cls, noise: IntegerNoise, max_shift: int, delta: float) -> float:
        """The least loss that is certified for noise of a given variance; infinite where none is."""
        return find_epsilon(noise, max_shift, delta)

    def delta_at(self, epsilon: float) -> float:
        """The certified delta of one coordinate, one release, local view, at another epsilon."""
        return 0.0 if math.isinf(epsilon) else certify_delta(self.noise, self.max_shift, epsilon)

    @property
    def max_shift(self) -> int:
        """The largest difference of the integers that noise is added to."""
        return self.levels - 1

    def loss(self, view: View = LOCAL, relation: Relation = Relation.REPLACE_ONE) -> NamedLoss:
        return NamedLoss(
            self._noisy_integer.loss(view.honest_count, relation),
            "" if view.is_local else "noise sum",
            relation=relation,
        )

    def update_losses(self, update: WholeUpdate) -> list[NamedLoss]:
        """The bounds by normal pairs for whole and for real shifts."""
        if update.l2_distance is None:
            return []
        noisy = NoisyUpdate(self._noisy_integer, update.l2_distance, update.dimension, update.num_honest)
        bounds = (shifted_noise_loss(noisy), real_shift_loss(noisy))
        return [dataclasses.replace(bound, relation=update.relation) for bound in bounds if bound is not None]

    @property
    def _noisy_integer(self) -> NoisyInteger:
        """The release of one coordinate, as the loss functions take it."""
        pure = self.epsilon if self.delta == 0.0 else math.inf
        return NoisyInteger(self.noise, self.max_shift, pure)

    @property
    def step(self) -> float:
        """Distance of lattice points, for inputs in [-1, 1]."""
        return 2.0 / self.max_shift

    @property
    def reach(self) -> int | None:
        """How far beyond the lattice the noise may carry a point, if that is bounded."""
        return self.noise.clamp_to(self.max_shift)

    @cached_property
    def overflow_probability(self) -> float:
        """Bound of the probability that noise carries a coordinate of the clients' sum out of the ring."""
        return overflow_probability(self.noise, self.levels, self.num_clients, self.wrap_bits)

    def pmf(self, x: ArrayLike) -> Floats:
        """(n, 2^wrap_bits) output probabilities for inputs in [-1, 1], wrap included."""
        position = (np.clip(np.asarray(x, dtype=np.float64).ravel(), -1.0, 1.0) + 1.0) / self.step
        below = np.minimum(np.floor(position), self.max_shift - 1).astype(np.int64)
        share = (position - below)[:, None]
        levels = self._check_listed_levels()
        largest = self.noise.largest or 0
        reach = np.arange(-largest, largest + 1)
        wrapped = np.bincount(reach % levels, self.noise.pmf(reach), levels)
        at = np.arange(levels) - below[:, None]
        return np.asarray((1.0 - share) * wrapped[at % levels] + share * wrapped[(at - 1) % levels])

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        # A wrap is not counted. For noise k other than 0 the error has the same sign at both lattice points,
        # so that its mean is |k|; for 0 it is that of rounding, twice the variance.
        magnitudes = np.arange(1, (self.noise.largest or 0) + 1)
        mean_magnitude = 2.0 * float(magnitudes @ self.noise.pmf(magnitudes))
        no_noise = float(self.noise.pmf(0))
        return self.step * (mean_magnitude + no_noise * 2.0 * rounding_variance(self.levels, density))

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        # A wrap is not counted: this is the variance of noise plus that of rounding, which are independent.
        return self.step**2 * (float(self.noise.variance) + rounding_variance(self.levels, density))

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        return encode_on_lattice(
            x,
            self.max_shift,
            noise=self.noise,
            reach=self.reach,
            bits=self.wrap_bits,
            clip=clip,
            stream=rng,
        )

    def decode_sum(self, total: ArrayLike, num_clients: int, clip: float = 1.0) -> Floats:
        bits = self.sum_bits(num_clients)
        sums = check_sums(total, num_clients, (1 << bits) - 1)
        lowest = -(_room_for_noise(self.levels, num_clients, bits) // 2)
        means = self._representatives(sums, lowest)
        means *= self.step / num_clients
        means -= 1.0
        means *= _validation.check_positive("clip", clip)
        return means

    @cached_property
    def coordinate_noise(self) -> CoordinateNoise:
        step, cut = self.step, self.reach

        def log_moment(rate: float) -> float:
            try:
                # Hoeffding's lemma: randomized rounding stays within one step.
                return (rate * step) ** 2 / 8.0 + self.noise.log_moment(rate * step)
            except (ValueError, OverflowError):
                return math.inf

        return CoordinateNoise(
            max_mean=1.0,
            max_bias=0.0,
            variance=step**2 * (float(self.noise.variance) + 0.25) * _FLOAT_ROOM,
            log_moment=log_moment,
            slip=self.noise.total_variation + (0.0 if cut is None else self.noise.tail(cut)),
            min_variance=step**2 * float(self.noise.variance) / _FLOAT_ROOM,
        )

    def _header(self) -> dict[str, Any]:
        return {"noise": str(getattr(self.noise, self.noise.parameter))}

    @classmethod
    def _other_fields(cls, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        if not _FRACTION.fullmatch(header["noise"]):
            raise CertificationError("mechanism: the parameter of its noise is not a positive fraction")
        return {**super()._other_fields(header, body), "noise": cls.noise_type(Fraction(header["noise"]))}


def check_width(noise: IntegerNoise, spec: AdditiveSpec) -> None:
    """Refuse noise that is too wide to be drawn from a table, and say what to change in the spec."""
    if noise.largest is None:
        raise InvalidSpecError(
            "levels",
            spec.levels,
            f"need noise of variance {float(noise.variance):.4g}, which is too wide for its table",
            "use fewer levels: a lattice that is finer than the noise gains nothing",
        )


def rounding_variance(levels: int, density: Density | ArrayLike | None = None) -> float:
    """Mean variance of randomized rounding to ``levels`` points from -1 to 1, in squared lattice steps.

    For an input that is a share f of the way between two points the variance is f (1 - f).

    >>> round(rounding_variance(16), 12) == round(1 / 6, 12)
    True
    """
    nodes, weights = as_density(density).quadrature(np.linspace(-1.0, 1.0, levels))
    position = (nodes + 1.0) * (0.5 * (levels - 1))
    share = position - np.floor(position)
    return float(weights @ (share * (1.0 - share)))


def overflow_probability(noise: IntegerNoise, levels: int, num_clients: int, wrap_bits: int) -> float:
    """Bound of the probability that the sum of the clients' noises does not fit into the ring.

    For one client it is the exact tail. For more, it is Chernoff's bound on the sum of independent, symmetric
    noises: 2 exp(n log E exp(rate N) - rate t). It grows with n while the room in the ring falls, so it holds
    for fewer clients too.
    """
    room = _room_for_noise(levels, num_clients, wrap_bits)
    if room < 0:
        return 1.0
    reach = room // 2
    if num_clients == 1:
        outside = noise.tail(reach)
    else:
        rate = noise.best_rate((reach + 1) / num_clients)
        exponent = num_clients * noise.log_moment(rate) - rate * (reach + 1)
        outside = 2.0 * math.exp(min(exponent, 0.0))
    return min(outside * _FLOAT_ROOM + num_clients * noise.total_variation, 1.0)


def _room_for_noise(levels: int, num_clients: int, wrap_bits: int) -> int:
    """How many integers of the ring are left for the noise beside the inputs of the clients, minus one."""
    return (1 << wrap_bits) - 1 - num_clients * (levels - 1)
