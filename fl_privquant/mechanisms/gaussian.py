"""Gaussian: the clipped input plus normal noise, calibrated exactly, in floating point.

Guarantee: (``epsilon``, ``delta``)-differential privacy of each coordinate and release, local view, in exact
arithmetic only: floats leak (see :class:`ContinuousMechanism`). A baseline for ``discrete_gaussian`` and
``skellam``; unbiased.
Assumes: nothing about the inputs.
Reference: Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration
and Optimal Denoising", ICML 2018, Theorem 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri

from fl_privquant.density import Density
from fl_privquant.mechanisms.continuous import ContinuousMechanism, open_uniforms
from fl_privquant.mechanisms.registry import Spec, checked_delta, checked_epsilon, register

__all__ = ["GaussianMechanism", "GaussianSpec", "analytic_sigma", "design_gaussian", "gaussian_delta"]

# Rounding of the closed form: the two logarithms nearly cancel where epsilon is small.
_LAST_DIGITS = 1e-14
_FLOAT_ROOM = 1.0 + 1e-9


@dataclass(frozen=True)
class GaussianSpec(Spec):
    """What the Gaussian baseline is asked to be."""

    epsilon: float
    delta: float = 1e-6

    def __post_init__(self) -> None:
        checked_epsilon(self.epsilon)
        checked_delta(self.delta)


class GaussianMechanism(ContinuousMechanism, kind="gaussian"):
    """The clipped input plus normal noise; see :class:`ContinuousMechanism`."""

    def _is_private(self) -> bool:
        return gaussian_delta(self.scale, 2.0, self.claimed_epsilon) <= self.claimed_delta

    def _noise(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        # The lower half of the normal law, where ndtri keeps its digits, and a sign of its own.
        signs = 1.0 - 2.0 * (words & np.uint64(1)).astype(np.float64)
        return np.asarray(signs * ndtri(0.5 * open_uniforms(words)))

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        return self.scale * math.sqrt(2.0 / math.pi)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        return self.scale**2


@register("gaussian", GaussianSpec, cached=False)
def design_gaussian(spec: GaussianSpec) -> GaussianMechanism:
    """The baseline with the least noise at (``epsilon``, ``delta``)."""
    sigma = analytic_sigma(2.0, float(spec.epsilon), float(spec.delta))
    return GaussianMechanism("gaussian", sigma, float(spec.epsilon), float(spec.delta), spec.parameters())


def gaussian_delta(sigma: float, sensitivity: float, epsilon: float) -> float:
    """The delta of normal noise at ``epsilon``: its hockey-stick divergence in closed form, rounded up.

    >>> round(gaussian_delta(1.0, 1.0, 1.0), 6)
    0.126937
    """
    half, far = sensitivity / (2.0 * sigma), epsilon * sigma / sensitivity
    log_first, log_second = float(log_ndtr(half - far)), epsilon + float(log_ndtr(-half - far))
    share = -math.expm1(min(log_second - log_first, 0.0))
    return math.exp(log_first) * (share + _LAST_DIGITS * (1.0 - log_first)) * _FLOAT_ROOM


def analytic_sigma(sensitivity: float, epsilon: float, delta: float) -> float:
    """The least standard deviation, to 9 digits, of normal noise with (``epsilon``, ``delta``)."""

    def excess(log_sigma: float) -> float:
        return math.log(max(gaussian_delta(math.exp(log_sigma), sensitivity, epsilon), 1e-300) / delta)

    low = high = math.log(sensitivity)
    while excess(low) <= 0.0:
        low -= 1.0
    while excess(high) > 0.0:
        high += 1.0
    found = brentq(excess, low, high, xtol=1e-10)
    while excess(found) > 0.0:
        found += 1e-10
    return math.exp(found)
