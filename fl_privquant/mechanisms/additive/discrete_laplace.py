"""Discrete Laplace: randomized rounding plus noise with P[k] proportional to exp(-|k| / scale).

This is two-sided geometric noise: probabilities of neighboring integers differ by a factor exp(1 / scale).
So those of integers D = levels - 1 apart, the largest difference of rounded inputs, differ by exp(D / scale),
and scale = D / epsilon.

Guarantee: pure ``epsilon``-differential privacy of each coordinate and release, local view, certified in
exact arithmetic on the table that the noise is drawn from; unbiased.
Assumes: nothing about the inputs.
Reference: Ghosh, Roughgarden, Sundararajan, "Universally Utility-Maximizing Privacy Mechanisms", STOC
2009; drawn as in Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from fl_privquant.mechanisms.additive._certificate import certify_epsilon
from fl_privquant.mechanisms.additive._integer_noise import AdditiveMechanism, AdditiveSpec, check_width
from fl_privquant.mechanisms.registry import register
from fl_privquant.sampling.integer_noise import DiscreteLaplace, IntegerNoise

# How far below epsilon to design, as shares that are tried in turn, because the table is rounded and cut.
_ROUNDING_ROOMS = [Fraction(1, 10**digits) for digits in range(12, 5, -1)]


@dataclass(frozen=True)
class DiscreteLaplaceSpec(AdditiveSpec):
    """The specification of discrete Laplace; see :class:`AdditiveSpec`."""

    noise_type = DiscreteLaplace


class DiscreteLaplaceMechanism(AdditiveMechanism, kind="discrete_laplace"):
    """Rounding plus two-sided geometric noise modulo 2^wrap_bits; see :class:`AdditiveMechanism`.

    Before the wrap, the sum is clamped as :mod:`fl_privquant.mechanisms.additive._certificate` says, so that
    delta is 0. A proof about the *sum* of several clients' noises must count a clamp as a failure, which has
    probability ``noise.tail(reach)`` for each client, about 1e-15 at epsilon 1.
    """

    noise_type = DiscreteLaplace

    def delta_at(self, epsilon: float) -> float:
        return 0.0 if epsilon >= self.epsilon else super().delta_at(epsilon)

    @classmethod
    def _find_min_noise(cls, spec: AdditiveSpec) -> IntegerNoise:
        """The noise with the least variance, to 6 digits."""
        epsilon = float(spec.epsilon or 0.0)
        for room in _ROUNDING_ROOMS:
            noise = DiscreteLaplace(spec.max_shift / (Fraction(epsilon) * (1 - room)))
            check_width(noise, spec)
            if cls._find_min_epsilon(noise, spec.max_shift, 0.0) <= epsilon:
                break
        return noise

    @classmethod
    def _find_min_epsilon(cls, noise: IntegerNoise, max_shift: int, delta: float) -> float:
        return certify_epsilon(noise, max_shift, noise.clamp_to(max_shift))

    @cached_property
    def _privacy(self) -> tuple[float, float]:
        return certify_epsilon(self.noise, self.max_shift, self.reach), 0.0


register("discrete_laplace", DiscreteLaplaceSpec, 110, "#b56576", plans_for_sums=True, plans_for_local=True)(
    DiscreteLaplaceMechanism.of
)
