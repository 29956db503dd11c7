"""Integer noise at its own best lattice: how fine, how much noise, and where to clip, for a target.

Rotated updates at the norm bound have nearly normal coordinates. A lattice of ``levels`` points covers them
up to ``spread`` standard deviations. A finer one rounds less, and its rounding adds less to the distance of
two updates; but with the noise it takes more bits. A wider one clips less, and is coarser.
:func:`best_lattice` weighs these for codes of at most so many bits, *before* noise is made: by the mean of
the squared length of a rounded difference, which is what matters over many rounds, and by normal noise of the
same variance, than which integer noise hides no better. So its error is a little too small;
:func:`certified_lattice` then finds the noise with which the accountant's certificate
(:mod:`fl_privquant.accounting.noise_norm`) meets the target.

Errors are in units of the variance of a coordinate, of one client, as in :mod:`fl_privquant.design.spread`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fl_privquant.accounting.noise_norm import rounded_mean_square, shifted_noise
from fl_privquant.accounting.norm import Norms
from fl_privquant.design.spread import clipped_moments, rounding_at_norm_bound
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.loss.compose import Part, composed_epsilon
from fl_privquant.loss.normal import gaussian_separation
from fl_privquant.mechanisms.additive import MAX_WRAP_BITS, AdditiveMechanism
from fl_privquant.mechanisms.discrete_gaussian import DiscreteGaussianMechanism
from fl_privquant.mechanisms.discrete_laplace import DiscreteLaplaceMechanism
from fl_privquant.mechanisms.integer_privacy import MAX_EPSILON, certified_delta
from fl_privquant.mechanisms.skellam import SkellamMechanism
from fl_privquant.sampling.discrete import DiscreteGaussian, DiscreteLaplace, IntegerNoise, Skellam

__all__ = ["NOISES", "Lattice", "RunTarget", "best_lattice", "certified_lattice"]

_SPREADS = tuple(np.arange(1.5, 6.5, 0.05).tolist())
# A code is cut off, or wraps by itself, with this probability at most.
_OUTSIDE = 1e-9
# The target is met this closely, as a share of epsilon.
_NEAR = 5e-4
_MOST_STEPS = 12
_LOCAL_DELTA = 1e-6


@dataclass(frozen=True)
class _Kind:
    """One noise: how it is made from its variance, and its mechanism."""

    make: Callable[[Fraction], IntegerNoise]
    mechanism: type[AdditiveMechanism]
    deviations: float
    """How many standard deviations of it a code has to hold, at the least."""


def _laplace(variance: Fraction) -> DiscreteLaplace:
    """The variance is 1 / (2 sinh^2(1 / (2 scale)))."""
    return DiscreteLaplace(Fraction(0.5 / math.asinh(math.sqrt(0.5 / float(variance)))))


# Normal noise, and Skellam noise of some variance, leave 6.1 deviations with that probability; Laplace noise
# falls as e^(-sqrt(2) z).
NOISES = {
    "discrete_gaussian": _Kind(DiscreteGaussian, DiscreteGaussianMechanism, 6.1),
    "skellam": _Kind(Skellam, SkellamMechanism, 6.1),
    "discrete_laplace": _Kind(_laplace, DiscreteLaplaceMechanism, 14.6),
}
"""Mechanisms that add integer noise, by their registered names."""


@dataclass(frozen=True)
class RunTarget:
    """A whole run in the aggregate view, for rotated updates at their L2 norm bound.

    Parameters
    ----------
    epsilon, delta
        What the run may cost a client.
    rounds
        Rounds that a client takes part in.
    dimension
        Number of coordinates.
    num_clients, num_honest
        Clients in a round, and how many of them are counted on.
    """

    epsilon: float
    delta: float
    rounds: int
    dimension: int
    num_clients: int
    num_honest: int

    @property
    def separation(self) -> float:
        """What one round may cost: the separation of two updates, as normal laws."""
        return gaussian_separation(self.epsilon, self.delta) / math.sqrt(self.rounds)

    @property
    def central(self) -> float:
        """The error of a central Gaussian, as that of one of the honest clients' noises."""
        return 4.0 * self.dimension / (self.separation**2 * self.num_honest)


@dataclass(frozen=True)
class Lattice:
    """A lattice and its noise: ``variance`` is in squared lattice steps; ``error`` is about what it has."""

    levels: int
    spread: float
    variance: float
    error: float


def best_lattice(name: str, target: RunTarget, max_bits: int, max_levels: int = 256) -> Lattice:
    """The lattice with the least error whose codes, noise included, have at most ``max_bits`` bits.

    Raises InfeasibleDesignError where not even two lattice points and the noise fit.

    >>> target = RunTarget(10.0, 1e-5, 50, 650, 1000, 1000)
    >>> best = best_lattice("skellam", target, 8)
    >>> best.levels, round(best.error / target.central, 2)
    (28, 1.01)
    """

    def at(spread: float) -> Lattice:
        most = (1 << max_bits) - 1
        # The noise in lattice steps grows with the number of steps.
        wide = 1.0 + NOISES[name].deviations * math.sqrt(target.central) / spread
        levels = min(int(most / wide), max_levels - 1) + 1
        return _lattice(target, levels, spread)

    # The number of points jumps with the spread: no search for a minimum is safe, and each trial is quick.
    best = min(map(at, _SPREADS), key=lambda lattice: lattice.error)
    if math.isinf(best.error):
        raise InfeasibleDesignError(
            f"bits: {max_bits} hold no lattice with the noise of {name} for epsilon {target.epsilon:g}; the "
            f"noise of a client has a deviation of {math.sqrt(target.central):.3g} of those of a coordinate"
        )
    return best


def _lattice(target: RunTarget, levels: int, spread: float) -> Lattice:
    if levels < 2:
        return Lattice(levels, spread, math.inf, math.inf)
    step = 2.0 * spread / (levels - 1)
    squared = 4.0 * target.dimension / step**2
    length = rounded_mean_square(levels - 1, squared, target.dimension)
    variance = length / (target.separation**2 * target.num_honest)
    noise = step**2 * (variance + rounding_at_norm_bound(spread, levels - 1))
    return Lattice(levels, spread, variance, noise + target.num_clients * clipped_moments(spread)[1])


def certified_lattice(name: str, target: RunTarget, lattice: Lattice) -> AdditiveMechanism:
    """The mechanism on that lattice with about the least noise that is certified for the target."""
    norms = Norms(l2=math.sqrt(target.dimension) / lattice.spread)

    def cost(variance: float) -> tuple[AdditiveMechanism, float]:
        mechanism = _mechanism(name, lattice.levels, target.num_clients, variance)
        counted = shifted_noise(mechanism, norms, target.dimension, target.num_honest)
        if counted is None:
            return mechanism, math.inf
        return mechanism, composed_epsilon([Part(counted[0], target.rounds)], target.delta).epsilon

    variance, power = lattice.variance, 0.7
    best: AdditiveMechanism | None = None
    low, high = 0.0, math.inf
    for _ in range(_MOST_STEPS):
        mechanism, epsilon = cost(variance)
        if epsilon <= target.epsilon:
            best, high = mechanism, variance
            if epsilon >= target.epsilon * (1.0 - _NEAR):
                break
        else:
            low = variance
        # Epsilon falls about as that power of the variance.
        ratio = min(epsilon / target.epsilon, 4.0)
        guess = variance * (ratio * (1.0 + 0.4 * _NEAR)) ** (1.0 / power)
        variance = guess if low < guess < high else 0.5 * (low + min(high, 4.0 * low + 1.0))
    if best is None:
        raise InfeasibleDesignError(
            f"{name}: no noise on {lattice.levels} levels was found that meets epsilon {target.epsilon:g}"
        )
    return best


def _mechanism(name: str, levels: int, num_clients: int, variance: float) -> AdditiveMechanism:
    """The mechanism with noise of that variance, in the narrowest ring for the sum of all clients."""
    kind = NOISES[name]
    noise = kind.make(Fraction(variance))
    for bits in range(1, MAX_WRAP_BITS + 1):
        overflow = kind.mechanism._overflow(noise, levels, num_clients, bits)
        if overflow <= _OUTSIDE:
            break
    else:
        raise InvalidSpecError(f"{name}: the noise of {num_clients} clients needs more than {bits} bits")
    if kind.mechanism is DiscreteLaplaceMechanism:
        epsilon, delta = MAX_EPSILON * 1e3, 0.0
    else:
        # The local view is not what it is for: what one coordinate costs there is stated as it is.
        epsilon = next(
            (each for each in (1.0, 2.0, 4.0, 8.0, 16.0) if _local(noise, levels, each) <= _LOCAL_DELTA),
            MAX_EPSILON,
        )
        delta = _local(noise, levels, epsilon)
    return kind.mechanism(name, noise, levels, num_clients, bits, epsilon, delta, _OUTSIDE, {})


def _local(noise: IntegerNoise, levels: int, epsilon: float) -> float:
    return certified_delta(noise, levels - 1, epsilon)
