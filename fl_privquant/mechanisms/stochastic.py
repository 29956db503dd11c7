"""Stochastic: randomized rounding to evenly spaced levels, without privacy.

The input is rounded to one of its two neighbouring levels, unbiased: the quantizer of FedPAQ and, with
the largest magnitude as its clip, of QSGD. The twin of the private mechanisms that tells what quantization
alone costs.

Guarantee: none; ``epsilon`` is infinite. Unbiased.
Assumes: nothing about the inputs.
Reference: Reisizadeh, Mokhtari, Hassani, Jadbabaie, Pedarsani, "FedPAQ", AISTATS 2020 (example 1);
Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD", NeurIPS 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant.law.codebook import Codebook
from fl_privquant.law.density import Density
from fl_privquant.mechanisms.additive import rounding_variance
from fl_privquant.mechanisms.base import LatticeMechanism
from fl_privquant.mechanisms.registry import Listing, Spec, checked_levels, register
from fl_privquant.mechanisms.sum_limits import CoordinateNoise, bounded_noise
from fl_privquant.sampling.rounding import encode_on_lattice
from fl_privquant.sampling.stream import RandomStream


@dataclass(frozen=True)
class StochasticSpec(Spec):
    """The specification of randomized rounding."""

    levels: int = 16

    def __post_init__(self) -> None:
        checked_levels(self.levels)


@dataclass(frozen=True, eq=False)
class StochasticMechanism(LatticeMechanism, kind="stochastic"):
    """Randomized rounding to ``levels`` values from -1 to 1; not private.

    Parameters
    ----------
    name
        The registered name.
    levels
        Number of output values.
    parameters
        How it was designed, for reports.
    """

    name: str
    levels: int
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_levels(self.levels)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.levels} levels, not private, mse {self.mse():.5g}, mae {self.mae():.5g}>"

    @property
    def epsilon(self) -> float:
        return math.inf

    @cached_property
    def codebook(self) -> Codebook:
        """Integer codes and their values."""
        return Codebook(np.arange(self.levels), 2.0 / (self.levels - 1), -1.0)

    def pmf(self, x: ArrayLike) -> NDArray[np.float64]:
        """(n, levels) output probabilities for inputs in [-1, 1]: a share for each of the two neighbours."""
        inputs = np.clip(np.asarray(x, dtype=np.float64).ravel(), -1.0, 1.0)
        position = (inputs + 1.0) * (0.5 * (self.levels - 1))
        return np.asarray(np.maximum(0.0, 1.0 - np.abs(position[:, None] - self.codes)))

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        # A share f between two points errs by f with probability 1 - f, and by 1 - f with probability f.
        return self.codebook.step * 2.0 * rounding_variance(self.levels, density)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return self.codebook.step**2 * rounding_variance(self.levels, density)

    @property
    def coordinate_noise(self) -> CoordinateNoise:
        # One of two neighbouring values, a step apart.
        return bounded_noise(1.0, 0.0, self.codebook.step**2 / 4.0, self.codebook.step)

    def encode(
        self, x: ArrayLike, clip: float = 1.0, rng: RandomStream | None = None, threads: int = 1
    ) -> NDArray[Any]:
        return encode_on_lattice(x, self.levels - 1, clip=clip, stream=rng, threads=threads)


@register("stochastic", StochasticSpec, cached=False, listing=Listing(90, "#a3a380"))
def design_stochastic(spec: StochasticSpec) -> StochasticMechanism:
    """Randomized rounding to that many levels."""
    return StochasticMechanism("stochastic", int(spec.levels), spec.parameters())
