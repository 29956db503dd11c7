"""Fixed point: what mechanism ``none`` becomes where updates must be integers, as secure aggregation needs.

Coordinates are clipped to [-clip, clip] and rounded at random to one of the two neighbouring points of a
lattice so fine that learning does not notice: 2^bits - 1 points, of which one is exactly 0. Twenty bits
are a step of 1.9e-6 clip, and the sum of up to 4096 clients fits the 32 bits of a masked code.

Guarantee: none; ``epsilon`` is infinite. Sums of codes are exact; rounding is unbiased to 2^-33 of a step,
with a variance of at most a quarter of the squared step (a sixth on average over uniform inputs).
Assumes: nothing about the inputs but that they are finite; what lies beyond the clip is cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from fl_privquant import checks
from fl_privquant.array_types import Array, ArrayLike, Floats, Ints
from fl_privquant.law.codebook import bits_of_sum, checked_sums
from fl_privquant.law.density import Density
from fl_privquant.mechanisms.stochastic import RoundingMechanism

DEFAULT_BITS: Final = 20
"""Bits of a coordinate, unless others are asked for."""

# What secure aggregation adds up in, at most.
_MAX_SUM_BITS: Final = 32


def checked_bits(bits: int) -> int:
    """The bits of a coordinate, if they are a whole number from 2 to 30."""
    return checks.whole("fixed_point_bits", bits, 2, 30)


@dataclass(frozen=True, eq=False)
class FixedPointMechanism(RoundingMechanism, kind="fixed_point"):
    """Randomized rounding to a fine lattice around 0, with ``bits`` for each coordinate.

    >>> import fl_privquant as pq
    >>> mechanism = FixedPointMechanism("none", 20)
    >>> codes = mechanism.encode([0.0, 0.1, -7.0], clip=0.5, rng=pq.RandomStream.seeded(1))
    >>> mechanism.decode(codes, clip=0.5).round(5)
    array([ 0. ,  0.1, -0.5])
    """

    name: str = "none"
    bits: int = DEFAULT_BITS
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_bits(self.bits)

    def __repr__(self) -> str:
        return f"<{self.name}: fixed point of {self.bits} bits, not private, mse {self.mse():.3g}>"

    @property
    def bits_per_coordinate(self) -> float:
        return float(self.bits)

    @property
    def max_code(self) -> int:
        # Even, so that a point in the middle stands for 0.
        return (1 << self.bits) - 2

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        return self.decode_sum(indices, 1, clip)

    def to_codes(self, indices: Array) -> Ints:
        return np.asarray(indices, dtype=np.int64)

    def sum_bits(self, num_clients: int) -> int:
        return bits_of_sum(num_clients, self.max_code, _MAX_SUM_BITS)

    def decode_sum(self, total: ArrayLike, num_clients: int, clip: float = 1.0) -> Floats:
        sums = checked_sums(total, num_clients, self.max_code, _MAX_SUM_BITS)
        # From the middle, so that 0 is exact.
        steps = sums.astype(np.int64) - num_clients * self.max_code // 2
        return np.asarray(steps * (checks.positive("clip", clip) * self.step / num_clients))

    def _rounding_variance(self, density: Density | ArrayLike | None) -> float:
        # Of uniform inputs it is known, for which so many points need not be gone through.
        return 1.0 / 6.0 if density is None else super()._rounding_variance(density)
