"""The best lattice for integer noise and a privacy target: its step, its noise, and the clip.

Rotated updates at the norm bound have nearly normal coordinates. A lattice of ``levels`` points covers them
up to ``spread`` standard deviations. A finer lattice rounds less, and its rounding adds less to the distance
of two updates, but together with the noise it takes more bits. A wider lattice clips less, and is coarser.

:func:`best_lattice` finds the best compromise for codes of a limited number of bits. To be quick it does not
build the noise. It uses the mean of the squared length of a rounded difference, which matters most over
many rounds, and normal noise of the same variance, which hides at least as well as integer noise. So the
error that it states is a little too small. :func:`certify_lattice` then finds the noise whose certificate
meets the target (:mod:`fl_privquant.privacy_loss.additive.integer_noise_l2`).

Errors are in units of the variance of a coordinate, of one client, as in
:mod:`fl_privquant.optimize.sums.coordinate_clip`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.optimize.sums.coordinate_clip import (
    MIN_SPREAD,
    rescale_to_unit_gain,
    rounding_at_norm_bound,
)
from fl_privquant.privacy_loss.additive.integer_noise import NoisyInteger
from fl_privquant.privacy_loss.additive.integer_noise_l2 import (
    NoisyUpdate,
    real_shift_loss,
    rounded_mean_square,
    shifted_noise_loss,
)
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.sampling.integer_noise import IntegerNoise

SPREADS = tuple(np.arange(MIN_SPREAD, 6.5, 0.05).tolist())
"""Numbers of standard deviations that a lattice may cover."""

MAX_LEVELS = 256
"""More lattice points than this hardly reduce the error."""

# The search ends when epsilon is this close to the target, as a share.
_NEAR = 5e-4
_MAX_STEPS = 12
# Epsilon falls about as this power of the variance.
_POWER = 0.7
# How many standard deviations out the slope of :mod:`fl_privquant.privacy_loss.additive.integer_noise_l2` is
# largest.
_END = 9.0


@dataclass(frozen=True)
class Lattice:
    """A lattice, its noise, and the error with that noise."""

    levels: int
    spread: float
    variance: float
    """Variance of the noise in squared lattice steps; a little too small from :func:`best_lattice`."""
    error: float
    """Error at unit gain, a little too small from :func:`best_lattice`."""


def best_lattice(
    kind: type[IntegerNoise],
    target: RunRequirements,
    max_bits: int,
    max_levels: int = MAX_LEVELS,
    spreads: Sequence[float] = SPREADS,
) -> Lattice:
    """The lattice with the least error whose codes, noise included, have at most ``max_bits`` bits.

    The number of standard deviations of a coordinate that it covers is one of ``spreads``.
    Raises InfeasibleDesignError where not even two lattice points and the noise fit.

    >>> from fl_privquant.sampling.integer_noise import Skellam
    >>> target = RunRequirements(num_clients=1000, dimension=650, rounds=50, epsilon=10.0)
    >>> best = best_lattice(Skellam, target, 8)
    >>> best.levels <= 256, round(best.error / target.central_error, 2)
    (True, 1.01)
    """

    def at(spread: float) -> Lattice:
        # The noise in lattice steps grows with the number of steps.
        wide = 1.0 + kind.deviations * math.sqrt(target.central_error) / spread
        intervals = min(int(((1 << max_bits) - 1) / wide), max_levels - 1)
        if intervals < 1:
            return Lattice(1, spread, math.inf, math.inf)
        # The squared distance of two updates at the norm bound, in lattice steps.
        squared = 4.0 * target.dimension * (0.5 * intervals / spread) ** 2
        told = rounded_mean_square(intervals, squared, target.dimension)
        # The squared deviation of the sum of noises, if rounding is told and if it is not.
        needed = squared / target.separation**2
        for _ in range(_MAX_STEPS):
            needed = squared / target.separation**2 * math.exp(min(_END / math.sqrt(needed), 3.0))
        variance = min(told / target.separation**2, needed) / target.num_honest
        return Lattice(intervals + 1, spread, variance, error_of_noise(target, intervals, spread, variance))

    # The error is not smooth in the spread, as the number of points jumps, so all spreads are tried.
    best = min(map(at, spreads), key=lambda lattice: lattice.error)
    if math.isinf(best.error):
        raise InfeasibleDesignError(
            f"bits: {max_bits} hold no lattice and its noise for epsilon {target.epsilon:g}; the noise of a "
            f"client has {math.sqrt(target.central_error):.3g} times the standard deviation of a coordinate"
        )
    return best


def error_of_noise(target: RunRequirements, intervals: int, spread: float, variance: float) -> float:
    """The error at unit gain that noise, rounding and clipping cause together."""
    step = 2.0 * spread / intervals
    noise = step**2 * (variance + rounding_at_norm_bound(spread, intervals))
    return rescale_to_unit_gain(noise, spread, target.num_clients)


def certify_lattice(kind: type[IntegerNoise], target: RunRequirements, lattice: Lattice) -> Lattice:
    """The same lattice with about the least noise that is certified for the target, and the error with it.

    Raises InfeasibleDesignError where no noise is found that is certified.
    """
    intervals = lattice.levels - 1
    l2 = math.sqrt(target.dimension) / lattice.spread

    def cost(integer: NoisyInteger) -> float:
        update = NoisyUpdate(integer, 2.0 * l2, target.dimension, target.num_honest)
        certified = (shifted_noise_loss(update), real_shift_loss(update))
        return min(
            compose_epsilon([Part(bound.loss, target.composed_rounds)], target.delta).epsilon
            if bound
            else math.inf
            for bound in certified
        )

    variance, best = lattice.variance, None
    low, high = 0.0, math.inf
    for _ in range(_MAX_STEPS):
        integer = NoisyInteger(kind.of_variance(Fraction(variance)), intervals)
        epsilon = cost(integer)
        if epsilon <= target.epsilon:
            error = error_of_noise(target, intervals, lattice.spread, float(integer.noise.variance))
            best, high = replace(lattice, variance=variance, error=error), variance
            if epsilon >= target.epsilon * (1.0 - _NEAR):
                break
        else:
            low = variance
        ratio = min(epsilon / target.epsilon, 4.0)
        guess = variance * (ratio * (1.0 + 0.4 * _NEAR)) ** (1.0 / _POWER)
        variance = guess if low < guess < high else 0.5 * (low + min(high, 4.0 * low + 1.0))
    if best is None:
        raise InfeasibleDesignError(
            f"no noise on {lattice.levels} levels was found that meets epsilon {target.epsilon:g}"
        )
    return best
