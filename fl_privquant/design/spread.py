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

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtr, ndtri

from fl_privquant.design.bits import bits_for_separation, error_of_strata
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.law.density import Density, as_density
from fl_privquant.loss.secure_sum import NORM_ROUNDING, UpdateBound

__all__ = [
    "LEAST_SPREAD",
    "best_spread",
    "clipped_moments",
    "error_at_norm_bound",
    "error_of_mean",
    "rounding_at_norm_bound",
]

LEAST_SPREAD = 2.0
"""At two standard deviations 1 % of the energy of an update at the norm bound is cut off: not more than that.

The bias of the clip is the same in every round, which noise is not.
"""

_MOST = 6.0
_CLOSE = 0.01
# A standard normal number, as samples.
_NORMAL = ndtri((np.arange(4001) + 0.5) / 4001)


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
    from scipy.stats import norm  # takes long to import

    noise = spread**2 * mse(as_density(norm(scale=1.0 / spread)))
    return noise / num_clients + clipped_moments(spread)[1]


def error_at_norm_bound(
    spread: float, trials: int, separation: float, dimension: int, num_clients: int, num_honest: int
) -> float:
    """The error with a sum of stratified bits that meets a target; infinite where none does.

    Parameters
    ----------
    spread
        Coordinate clip, in standard deviations of a coordinate.
    separation
        What one round may cost: the separation of two updates at the norm bound.
    """
    update = UpdateBound(2.0 * math.sqrt(dimension) / spread * NORM_ROUNDING, dimension)
    try:
        rare = bits_for_separation(trials, separation / update.widened, num_honest, update.rate, rough=True)
    except InfeasibleDesignError:
        return math.inf
    rounding = rounding_at_norm_bound(spread, trials)
    return spread**2 * error_of_strata(trials, rare, rounding) + num_clients * clipped_moments(spread)[1]


def best_spread(
    trials: int,
    separation: float,
    dimension: int,
    num_clients: int,
    num_honest: int,
    least: float = LEAST_SPREAD,
) -> float:
    """The number of standard deviations, ``least`` or more, with the least error.

    See :func:`error_at_norm_bound`.
    """

    def error(spread: float) -> float:
        return error_at_norm_bound(spread, trials, separation, dimension, num_clients, num_honest)

    found = minimize_scalar(error, bounds=(least, _MOST), method="bounded", options={"xatol": _CLOSE})
    return float(found.x)
