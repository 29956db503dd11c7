"""The specification of integer noise on a lattice, for a coordinate's loss or for a target of secure sums.

For a run whose updates have a bounded L2 norm, of which only sums are seen, the number of lattice points, the
clip and the noise follow from the target (:mod:`fl_privquant.design.noise_lattice`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

from fl_privquant.checks import number_in, whole_in
from fl_privquant.design.noise_lattice import (
    MOST_LEVELS,
    SPREADS,
    Lattice,
    NoiseKind,
    best_lattice,
    certified_lattice,
)
from fl_privquant.design.spread import RunTarget
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.integer_privacy import MAX_EPSILON
from fl_privquant.mechanisms.registry import Spec
from fl_privquant.mechanisms.wish import Wish
from fl_privquant.sampling.discrete import IntegerNoise

MAX_WRAP_BITS = 32
"""Widest ring: codes are at most uint32."""

NUM_CLIENTS = whole_in(1, 1 << 31)
"""The check of a number of clients."""

WRAP_BITS = whole_in(1, MAX_WRAP_BITS)
"""The check of the width of a ring."""

_OVERFLOW = number_in("(0, 0.01]", "; typical values are 1e-9 to 1e-6")
# Codes of so many bits hold every lattice that is tried; narrower ones may have this times its error.
_WIDE, _WORTH = 24, 1.01


@dataclass(frozen=True)
class AdditiveSpec(Spec):
    """The specification of an additive mechanism: give ``epsilon`` or ``variance``."""

    designed_for_sums = True
    noise_kind: ClassVar[NoiseKind]

    epsilon: float | None = None
    levels: int = 16
    """Number of lattice points from -1 to 1 to which inputs are rounded. ``bits=`` sets this too; the code
    that is sent is wider, as it must hold the noise (:attr:`AdditiveMechanism.wrap_bits`)."""
    num_clients: Annotated[int, NUM_CLIENTS] = 1
    """The largest number of clients whose codes will be added up."""
    wrap_bits: Annotated[int | None, WRAP_BITS] = None
    """Bits of a code; by default the fewest that keep ``overflow_probability``."""
    overflow_probability: Annotated[float, _OVERFLOW] = 1e-9
    """Largest probability that noise carries one coordinate of the sum out of the ring."""
    variance: Annotated[float | None, number_in("(0, 1e18]")] = None
    """Variance of the noise in squared lattice steps, where it is given instead of ``epsilon``."""

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.variance is None):
            raise InvalidSpecError(
                f"epsilon={self.epsilon}, variance={self.variance}: give one of the two, the loss of a "
                "coordinate or the variance of the noise"
            )
        super().__post_init__()
        if self.epsilon is not None and self.epsilon > MAX_EPSILON:
            raise InvalidSpecError(
                f"epsilon: {self.epsilon} is above {MAX_EPSILON:g}; for no privacy use 'stochastic'"
            )

    @property
    def allowed_delta(self) -> float:
        """The delta that goes with ``epsilon``: 0, unless the mechanism's privacy is approximate."""
        return 0.0

    @property
    def max_shift(self) -> int:
        """The largest difference of two rounded inputs."""
        return self.levels - 1

    @property
    def noise(self) -> IntegerNoise | None:
        """The noise of the given variance."""
        return None if self.variance is None else self.noise_kind.make(Fraction(self.variance))

    @classmethod
    def best_clip(cls, wish: Wish) -> float:
        """The clip with the least error for this noise."""
        return cls._lattice(wish, wish.run_target, SPREADS).spread

    @classmethod
    def proposal(cls, wish: Wish, epsilon: float) -> dict[str, Any]:
        """Its best lattice for the clip, and the least noise that is certified."""
        target = dataclasses.replace(wish.run_target, epsilon=epsilon)
        lattice = cls._lattice(wish, target, SPREADS if wish.spread is None else (wish.spread,))
        certified = certified_lattice(cls.noise_kind, target, lattice)
        parameters = {
            "levels": certified.levels,
            "num_clients": wish.num_clients,
            "variance": certified.variance,
        }
        return parameters | dict(wish.parameters)

    @classmethod
    def _lattice(cls, wish: Wish, target: RunTarget, spreads: tuple[float, ...]) -> Lattice:
        """The best lattice for codes as wide as wished; for wider ones where these are clearly worse."""
        given = dict(wish.parameters).get("levels")
        levels = MOST_LEVELS if given is None else int(given)
        finest = best_lattice(cls.noise_kind, target, _WIDE, levels, spreads)
        if given is not None:
            return finest
        for bits in range(wish.bits, _WIDE):
            try:
                lattice = best_lattice(cls.noise_kind, target, bits, levels, spreads)
            except InfeasibleDesignError:
                continue
            if lattice.error <= _WORTH * finest.error:
                return lattice
        return finest


@dataclass(frozen=True)
class ApproximateSpec(AdditiveSpec):
    """The specification of an additive mechanism of approximate differential privacy."""

    delta: float = 1e-6

    @property
    def allowed_delta(self) -> float:
        return self.delta
