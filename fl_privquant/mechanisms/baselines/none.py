"""None: the update unchanged, neither clipped nor quantized nor private; in sums, integers in fixed point.

It is the baseline that shows what training reaches without quantization and privacy.

**Fixed point** replaces floats where updates must be integers, as for secure aggregation. Coordinates
are clipped to [-clip, clip] and rounded at random to one of the two neighboring points of a lattice so fine
that learning does not notice: 2^bits - 1 points, of which one is exactly 0. Twenty bits are a step of 1.9e-6
clip, and the sum of up to 4096 clients fits the 32 bits of a masked code.

Guarantee: none; ``epsilon`` is infinite. Floats come back bit for bit. Sums of fixed-point codes are exact;
rounding is unbiased to 2^-33 of a step, with a variance of at most a quarter of the squared step (a sixth on
average over uniform inputs).
Assumes: finite inputs; in fixed point, coordinates beyond the clip are clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats, Ints
from fl_privquant._validation import integer_between
from fl_privquant.distributions.codebook import check_sums, count_sum_bits
from fl_privquant.distributions.input_density import Density
from fl_privquant.mechanisms._continuous import FloatMechanism
from fl_privquant.mechanisms.baselines.stochastic import RoundingMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec
from fl_privquant.sampling.chunks import Chunk, encode_in_chunks
from fl_privquant.sampling.stream import Randomness

DEFAULT_BITS: Final = 20
"""Bits of a fixed-point coordinate by default."""

_BITS = integer_between(2, 30)
# The widest integers that secure aggregation sums.
_MAX_SUM_BITS: Final = 32


@dataclass(frozen=True)
class NoSpec(Spec):
    """The specification: floats stay unchanged (None), or become integers of that many bits."""

    fixed_point_bits: Annotated[int | None, _BITS] = None


class NoMechanism(FloatMechanism, kind="none"):
    """The identity on finite floats; ``clip`` and ``rng`` are accepted and ignored."""

    lossless = True
    _form = "floats unchanged"

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        """A copy of the inputs, in single or double precision as they are."""
        return encode_in_chunks(x, _copy, dtype=None, clip=clip, stream=rng, words_per_input=0)

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Array:
        """The same floats, bit for bit and in their precision."""
        return self._check_floats(indices)

    def for_sums(self) -> FixedPointMechanism:
        return FixedPointMechanism(self.name, parameters=self.parameters)

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        return 0.0

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return 0.0


@dataclass(frozen=True, eq=False, repr=False)
class FixedPointMechanism(RoundingMechanism, kind="fixed_point"):
    """Randomized rounding to a fine lattice around 0, with ``bits`` for each coordinate.

    >>> import fl_privquant as pq
    >>> mechanism = FixedPointMechanism("none", 20)
    >>> codes = mechanism.encode([0.0, 0.1, -7.0], clip=0.5, rng=pq.RandomStream.seeded(1))
    >>> mechanism.decode(codes, clip=0.5).round(5)
    array([ 0. ,  0.1, -0.5])
    """

    bits: Annotated[int, _BITS] = DEFAULT_BITS

    def __post_init__(self) -> None:
        _validation.check_declared(self)

    @property
    def _form(self) -> str:
        return f"fixed point of {self.bits} bits"

    @property
    def bits_per_coordinate(self) -> float:
        return float(self.bits)

    @property
    def max_code(self) -> int:
        # It is even, so that the point in the middle stands for 0.
        return (1 << self.bits) - 2

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Floats:
        return self.decode_sum(indices, 1, clip)

    def to_codes(self, indices: Array) -> Ints:
        return np.asarray(indices, dtype=np.int64)

    def sum_bits(self, num_clients: int) -> int:
        return count_sum_bits(num_clients, self.max_code, _MAX_SUM_BITS)

    def decode_sum(self, total: ArrayLike, num_clients: int, clip: float = 1.0) -> Floats:
        sums = check_sums(total, num_clients, self.max_code, _MAX_SUM_BITS)
        # Counted from the middle, so that 0 is exact.
        steps = sums.astype(np.int64) - num_clients * self.max_code // 2
        return np.asarray(steps * (_validation.check_positive("clip", clip) * self.step / num_clients))

    def _rounding_variance(self, density: Density | ArrayLike | None) -> float:
        # For uniform inputs it is known, so that the many points need not be enumerated.
        return 1.0 / 6.0 if density is None else super()._rounding_variance(density)


@register("none", NoSpec, 100, "#111111")
def design_none(spec: NoSpec) -> NoMechanism | FixedPointMechanism:
    """The identity, or rounding to fixed point where bits are given."""
    if spec.fixed_point_bits is None:
        return NoMechanism("none", parameters=spec.parameters())
    return FixedPointMechanism("none", spec.fixed_point_bits, parameters=spec.parameters())


def _copy(chunk: Chunk) -> int:
    chunk.out[...] = chunk.x
    return int(np.count_nonzero(~np.isfinite(chunk.x)))
