"""Stochastic: randomized rounding to evenly spaced levels, without privacy.

The input is rounded at random, unbiased, to one of its two neighboring levels. This is the quantizer of
FedPAQ and, with the largest magnitude as its clip, of QSGD. Compared with private mechanisms it shows the
error of quantization alone.

Guarantee: none; ``epsilon`` is infinite. Unbiased.
Assumes: nothing about the inputs.
Reference: Reisizadeh, Mokhtari, Hassani, Jadbabaie, Pedarsani, "FedPAQ", AISTATS 2020 (example 1);
Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD", NeurIPS 2017.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats
from fl_privquant._validation import integer_between
from fl_privquant.distributions.codebook import MAX_LEVELS, Codebook
from fl_privquant.distributions.input_density import Density
from fl_privquant.mechanisms.additive._integer_noise import rounding_variance
from fl_privquant.mechanisms.base import LatticeMechanism, Mechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec
from fl_privquant.mechanisms.sum_limits import CoordinateNoise, bounded_noise
from fl_privquant.sampling.rounding import encode_on_lattice
from fl_privquant.sampling.stream import Randomness


@dataclass(frozen=True)
class StochasticSpec(Spec):
    """The specification of randomized rounding."""

    levels: int = 16


class RoundingMechanism(Mechanism):
    """Randomized rounding to the points 0..max_code of a lattice from -1 to 1; not private."""

    @property
    @abstractmethod
    def max_code(self) -> int:
        """The last lattice point."""

    @property
    def step(self) -> float:
        """Distance of two lattice points, for inputs in [-1, 1]."""
        return 2.0 / self.max_code

    def _rounding_variance(self, density: Density | ArrayLike | None) -> float:
        return rounding_variance(self.max_code + 1, density)

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        # For an input a share f of the way between two points the error is f or 1 - f, with probability
        # 1 - f or f.
        return self.step * 2.0 * self._rounding_variance(density)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return self.step**2 * self._rounding_variance(density)

    @property
    def coordinate_noise(self) -> CoordinateNoise:
        # The output is one of two neighboring lattice points, a step apart.
        return bounded_noise(1.0, 0.0, self.step**2 / 4.0, self.step)

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: Randomness = None) -> Array:
        return encode_on_lattice(x, self.max_code, clip=clip, stream=rng)


@dataclass(frozen=True, eq=False, repr=False)
class StochasticMechanism(RoundingMechanism, LatticeMechanism, kind="stochastic"):
    """Randomized rounding to ``levels`` values from -1 to 1; see :class:`RoundingMechanism`."""

    levels: Annotated[int, integer_between(2, MAX_LEVELS)]

    def __post_init__(self) -> None:
        _validation.check_declared(self)

    @property
    def max_code(self) -> int:
        return self.levels - 1

    @cached_property
    def codebook(self) -> Codebook:
        return Codebook(np.arange(self.levels), self.step, -1.0)

    def pmf(self, x: ArrayLike) -> Floats:
        """(n, levels) output probabilities for inputs in [-1, 1]: a share for each of the two neighbors."""
        inputs = np.clip(np.asarray(x, dtype=np.float64).ravel(), -1.0, 1.0)
        position = (inputs + 1.0) * (0.5 * (self.levels - 1))
        return np.asarray(np.maximum(0.0, 1.0 - np.abs(position[:, None] - self.codes)))


@register("stochastic", StochasticSpec, 90, "#a3a380")
def design_stochastic(spec: StochasticSpec) -> StochasticMechanism:
    """Randomized rounding to that many levels."""
    return StochasticMechanism("stochastic", spec.levels, parameters=spec.parameters())
