"""QSGD: coordinates divided by the update's length, rounded at random to even steps; without privacy.

A message has the length |x| and then, for each coordinate, its sign and |x_i| / |x|, rounded at random,
unbiased, to one of the two neighboring multiples of 1 / s. (The published code for these integers is shorter
where most are 0; here all take the same number of bits.)

Guarantee: none; ``epsilon`` is infinite. Unbiased.
Assumes: nothing about the inputs.
Reference: Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
Quantization and Encoding", NeurIPS 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fl_privquant._array_types import ArrayLike, Bits, Floats
from fl_privquant._validation import integer_between
from fl_privquant.distributions.codebook import MAX_LEVELS
from fl_privquant.errors import CodeOverflowError
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.bit_messages import (
    LengthQuantizer,
    QuantizerSpec,
    bits_to_numbers,
    draw_uniforms,
    numbers_to_bits,
)
from fl_privquant.sampling.stream import Continuation

_LEVELS = integer_between(3, MAX_LEVELS)
# Nodes of the quadrature over a coordinate of a direction, in each step of the lattice.
_NODES = 32


@dataclass(frozen=True, kw_only=True)
class QsgdSpec(QuantizerSpec):
    """The specification of QSGD; see :class:`QuantizerSpec`."""

    levels: Annotated[int, _LEVELS] = 16
    """Number of values of a coordinate, 3 to 65536; the largest odd number up to it is used."""


@dataclass(frozen=True, eq=False, repr=False)
class QsgdMechanism(LengthQuantizer, kind="qsgd"):
    """Randomized rounding of an update over its length; see :class:`LengthQuantizer`."""

    levels: Annotated[int, _LEVELS] = 16

    @property
    def steps(self) -> int:
        """The number s of steps from 0 to 1."""
        return (self.levels - 1) // 2

    @property
    def _width(self) -> int:
        return (2 * self.steps).bit_length()

    @property
    def direction_bits(self) -> int:
        return self.dimension * self._width

    def squared_error(self, x: ArrayLike) -> float:
        inputs = np.asarray(x, dtype=np.float64)
        length = float(np.linalg.norm(inputs))
        if not length:
            return 0.0
        share = np.abs(inputs) / length * self.steps % 1.0
        return float((length / self.steps) ** 2 * np.sum(share * (1.0 - share)))

    @property
    def unit_error(self) -> float:
        if self.dimension == 1:
            return 0.0
        # The angle a to the plane orthogonal to an axis has density cos(a)^(d - 2), negligible far from 0.
        most = min(math.pi / 2.0, 40.0 / math.sqrt(self.dimension))
        steps = math.sin(most) * self.steps
        ends = np.arcsin(np.minimum(np.append(np.arange(0.0, steps), steps) / self.steps, 1.0))
        ends = np.unique(np.concatenate([ends, np.linspace(0.0, most, 65)]))
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        middle, half = 0.5 * (ends[1:] + ends[:-1]), 0.5 * np.diff(ends)
        angles = (middle[:, None] + half[:, None] * nodes).reshape(-1)
        density = (half[:, None] * weights).reshape(-1) * np.cos(angles) ** (self.dimension - 2)
        share = np.sin(angles) * self.steps % 1.0
        mean = float(density @ (share * (1.0 - share)) / density.sum())
        return self.dimension * mean / self.steps**2

    def _quantize(self, x: Floats, source: Continuation) -> tuple[float, Bits]:
        length = float(np.linalg.norm(x))
        scaled = np.abs(x) / length * self.steps if length else np.abs(x)
        rounded = np.minimum(np.floor(scaled + draw_uniforms(source, x.size)), self.steps)
        codes = self.steps + (np.sign(x) * rounded).astype(np.int64)
        return length, numbers_to_bits(codes, self._width)

    def _estimate(self, length: float, bits: Bits) -> Floats:
        codes = bits_to_numbers(bits, self._width)
        if int(codes.max()) > 2 * self.steps:
            raise CodeOverflowError(f"message: code {int(codes.max())} is outside 0..{2 * self.steps}")
        return np.asarray(length / self.steps * (codes - self.steps))


register("qsgd", QsgdSpec, 220, "#adb5bd")(QsgdMechanism.of)
