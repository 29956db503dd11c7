"""None: the update as it is, neither clipped nor quantized nor private.

It is the baseline that shows what training reaches without quantization and privacy. Where updates must be
integers, as under secure aggregation, it becomes fixed point (:mod:`fl_privquant.mechanisms.fixed_point`).

Guarantee: none; ``epsilon`` is infinite. No error: floats come back bit for bit.
Assumes: finite inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fl_privquant.array_types import Array, ArrayLike
from fl_privquant.law.density import Density
from fl_privquant.mechanisms.continuous import FloatMechanism
from fl_privquant.mechanisms.fixed_point import FixedPointMechanism, checked_bits
from fl_privquant.mechanisms.registry import Spec, register
from fl_privquant.sampling.chunks import Chunk, encode_in_chunks
from fl_privquant.sampling.stream import Randomness


@dataclass(frozen=True)
class NoSpec(Spec):
    """Whether floats stay as they are (None), or become integers of that many bits."""

    fixed_point_bits: int | None = None

    def __post_init__(self) -> None:
        if self.fixed_point_bits is not None:
            checked_bits(self.fixed_point_bits)


@dataclass(frozen=True, eq=False)
class NoMechanism(FloatMechanism, kind="none"):
    """The identity on finite floats; ``clip`` and ``rng`` are taken and not used."""

    lossless = True

    name: str = "none"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.name}: floats unchanged, not private>"

    @property
    def epsilon(self) -> float:
        return math.inf

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None, threads: int = 1) -> Array:
        """A copy of the inputs, in single or double precision as they are."""
        return encode_in_chunks(
            x, _copy, dtype=None, clip=clip, stream=rng, threads=threads, words_per_input=0
        )

    def decode(self, indices: ArrayLike, clip: float = 1.0) -> Array:
        """The same floats, bit for bit and in their precision."""
        return self._checked_floats(indices)

    def for_sums(self) -> FixedPointMechanism:
        return FixedPointMechanism(self.name, parameters=self.parameters)

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        return 0.0

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return 0.0


@register("none", NoSpec, 100, "#111111")
def design_none(spec: NoSpec) -> NoMechanism | FixedPointMechanism:
    """The identity, or rounding to fixed point where bits are given."""
    if spec.fixed_point_bits is None:
        return NoMechanism("none", spec.parameters())
    return FixedPointMechanism("none", int(spec.fixed_point_bits), spec.parameters())


def _copy(chunk: Chunk) -> int:
    chunk.out[...] = chunk.x
    return int(np.count_nonzero(~np.isfinite(chunk.x)))
