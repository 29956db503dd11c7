"""At how many standard deviations to clip the coordinates of a rotated update: bias against noise.

A random rotation spreads an update of L2 norm R over its d coordinates: at the norm bound they are nearly
normal, with standard deviation R / sqrt(d). Clipping them to ``spread`` standard deviations moves the
estimate by what is cut off, which all clients may have in common, so that it does not average out. A wider
clip takes more noise: a sum of bits has to hide inputs up to the clip, and rounds them more coarsely.

Errors are those of one coordinate of the *sum* over clients, divided by their number, in units of the
variance of a coordinate: noise + number of clients * squared bias, for clients with the same update, which is
the worst case for the bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from fl_privquant.array_types import Floats
from fl_privquant.design.bits import bits_for_separation, error_of_bits, error_of_strata
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.law.density import Density, DistributionDensity
from fl_privquant.loss.normal import gaussian_separation
from fl_privquant.loss.secure_sum import NORM_ROUNDING, UpdateBound

__all__ = [
    "LEAST_SPREAD",
    "RunTarget",
    "best_spread",
    "clipped_moments",
    "error_at_norm_bound",
    "error_of_mean",
    "rounding_at_norm_bound",
    "usual_norm_ratio",
]

LEAST_SPREAD = 2.0
"""At two standard deviations 1 % of the energy of an update at the norm bound is cut off: not more than that.

The bias of the clip is the same in every round, which noise is not.
"""

# Coordinate clip of a rotated update, in standard deviations of its coordinates, unless told otherwise.
_USUAL_SPREAD = 3.0
# Normal pairs compose exactly but for rounding, which designs leave this much of epsilon.
_ROUNDING_ROOM = 1e-9
_MOST = 6.0
_CLOSE = 0.01
# A standard normal number, as samples.
_NORMAL = ndtri((np.arange(4001) + 0.5) / 4001)


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

    def update(self, norm_ratio: float) -> UpdateBound:
        """How far apart two updates can be, whose L2 norm is that many coordinate clips at most."""
        return UpdateBound(2.0 * norm_ratio * NORM_ROUNDING, self.dimension)

    def coordinate_separation(self, norm_ratio: float) -> float:
        """The separation that a coordinate may have, for inputs at distance 1: a run of it meets the target.

        Raises InfeasibleDesignError where the certificate's own charge exceeds delta.
        """
        update = self.update(norm_ratio)
        left = self.delta - self.rounds * update.charge
        if left <= 0.0:
            raise InfeasibleDesignError(
                f"run_delta: {self.delta:g} is not above the {self.rounds * update.charge:.2g} that the "
                f"certificate of {self.dimension} coordinates and {self.rounds} rounds takes; raise it"
            )
        allowed = gaussian_separation(self.epsilon * (1.0 - _ROUNDING_ROOM), left)
        return allowed / math.sqrt(self.rounds) / update.widened


def usual_norm_ratio(dimension: int) -> float:
    """L2 clip over coordinate clip, for rotated updates: the square root of the dimension, over 3.

    A rotation spreads an update over its coordinates: at the L2 clip, they have a standard deviation of the
    L2 clip over sqrt(dimension), and 0.27 % of them exceed three of these and are clipped.

    >>> usual_norm_ratio(900)
    10.0
    """
    return math.sqrt(dimension) / _USUAL_SPREAD


@dataclass(frozen=True)
class _Normal:
    """A normal law of mean 0, as the part of ``scipy.stats`` that takes long to import describes it."""

    scale: float

    def pdf(self, x: Floats) -> Floats:
        return np.asarray(np.exp(-0.5 * (x / self.scale) ** 2) / (self.scale * math.sqrt(2.0 * math.pi)))

    def cdf(self, x: float) -> float:
        return float(ndtr(x / self.scale))

    def sf(self, x: float) -> float:
        return float(ndtr(-x / self.scale))

    def ppf(self, share: Floats) -> Floats:
        return np.asarray(self.scale * ndtri(share))


def clipped_moments(spread: float) -> tuple[float, float]:
    """Mean square of a standard normal number clipped to +-``spread``, and of what is cut off.

    >>> [round(each, 6) for each in clipped_moments(3.0)]
    [0.995007, 0.000407]
    """
    tail, density = float(ndtr(-spread)), math.exp(-0.5 * spread**2) / math.sqrt(2.0 * math.pi)
    inside = 1.0 - 2.0 * tail - 2.0 * spread * density
    cut_off = 2.0 * ((1.0 + spread**2) * tail - spread * density)
    return inside + 2.0 * spread**2 * tail, cut_off


def rounding_at_norm_bound(spread: float, intervals: int) -> float:
    """Mean variance of a clipped normal coordinate that is rounded at random, in squared lattice steps.

    The lattice has that many equal ``intervals`` from -``spread`` to ``spread`` standard deviations.

    >>> round(rounding_at_norm_bound(3.0, 1000), 4)
    0.1659
    """
    position = (np.clip(_NORMAL / spread, -1.0, 1.0) + 1.0) * (0.5 * intervals)
    share = position - np.floor(position)
    return float((share * (1.0 - share)).mean())


def error_of_mean(mse: Callable[[Density], float], spread: float, num_clients: int) -> float:
    """Squared error of one coordinate of the mean of rotated updates at the norm bound, clip bias included.

    In units of the variance of a coordinate, for clients that all have the same update.

    Parameters
    ----------
    mse
        Mean squared error of a code in units of clip^2, for a density of inputs.
    spread
        Coordinate clip, in standard deviations of a coordinate.
    num_clients
        Clients whose codes are averaged.
    """
    noise = spread**2 * mse(DistributionDensity(_Normal(1.0 / spread)))
    return noise / num_clients + clipped_moments(spread)[1]


def error_at_norm_bound(spread: float, trials: int, target: RunTarget, stratified: bool = True) -> float:
    """The error with a sum of bits that meets a target, about; infinite where none does.

    Parameters
    ----------
    spread
        Coordinate clip, in standard deviations of a coordinate.
    stratified
        Whether the bits are stratified, or those of the Poisson binomial mechanism.
    """
    update = target.update(math.sqrt(target.dimension) / spread)
    allowed = target.separation / update.widened
    try:
        rare = bits_for_separation(
            trials, allowed, target.num_honest, update.rate, stratified=stratified, rough=True
        )
    except InfeasibleDesignError:
        return math.inf
    square, cut_off = clipped_moments(spread)
    if stratified:
        noise = error_of_strata(trials, rare, rounding_at_norm_bound(spread, trials))
    else:
        noise = error_of_bits(trials, rare, square / spread**2)
    return spread**2 * noise + target.num_clients * cut_off


def best_spread(
    trials: int, target: RunTarget, stratified: bool = True, least: float = LEAST_SPREAD
) -> float:
    """The number of standard deviations, ``least`` or more, with the least error.

    See :func:`error_at_norm_bound`.
    """
    from scipy.optimize import minimize_scalar  # takes long to import

    def error(spread: float) -> float:
        return error_at_norm_bound(spread, trials, target, stratified)

    found = minimize_scalar(error, bounds=(least, _MOST), method="bounded", options={"xatol": _CLOSE})
    return float(found.x)
