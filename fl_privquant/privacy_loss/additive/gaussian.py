"""Two normal distributions of the same width: the privacy loss of telling them apart, in closed form.

Many guarantees are stated by such a pair: those of normal noise, and of sums that a normal pair dominates.
Adaptive releases of normal pairs cost as much as one pair whose squared separation is the sum of theirs
(Dong, Roth, Su, "Gaussian Differential Privacy", JRSS B 2022, Corollary 2).

Reference for the closed form: Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy:
Analytical Calibration and Optimal Denoising", ICML 2018, Theorem 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from scipy.special import log_ndtr

# Rounding of the closed form: the two logarithms nearly cancel where epsilon is small.
_LAST_DIGITS = 1e-14
_FLOAT_ROOM = 1.0 + 1e-9
_TOLERANCE = 1e-12
# How many results are kept: searches ask for the same target again and again.
_KEPT = 1024


def gaussian_delta(separation: float, epsilon: float) -> float:
    """The delta at ``epsilon`` of N(0, 1) and N(``separation``, 1), rounded up.

    Parameters
    ----------
    separation
        Distance of the means, in standard deviations.
    epsilon
        The epsilon to spend.

    Returns
    -------
    float
        The delta.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    if separation == 0.0:
        return 0.0
    half, far = separation / 2.0, epsilon / separation
    # In logarithms, as e^epsilon overflows long before the product does.
    log_first, log_second = float(log_ndtr(half - far)), epsilon + float(log_ndtr(-half - far))
    share = -math.expm1(min(log_second - log_first, 0.0))
    return math.exp(log_first) * (share + _LAST_DIGITS * (1.0 - log_first)) * _FLOAT_ROOM


@lru_cache(maxsize=_KEPT)
def gaussian_separation(epsilon: float, delta: float) -> float:
    """The largest separation, to 12 digits, whose delta at ``epsilon`` is at most ``delta``.

    >>> round(gaussian_separation(1.0, 0.126937), 5)
    1.0
    """
    return _turning_point(lambda separation: gaussian_delta(separation, epsilon) <= delta)[0]


@lru_cache(maxsize=_KEPT)
def gaussian_epsilon(separation: float, delta: float) -> float:
    """The least epsilon, rounded up in the 12th digit, with which a pair of that separation has ``delta``.

    Infinite where ``delta`` is not above 0: the loss of normal noise has no largest value. Infinite, too,
    where the separation is not a number: what is not known is not private.

    >>> round(gaussian_epsilon(1.0, 0.126937), 5)
    1.0
    """
    if separation == 0.0 or gaussian_delta(separation, 0.0) <= delta:
        return 0.0
    if delta <= 0.0 or math.isnan(separation):
        return math.inf
    return _turning_point(lambda epsilon: gaussian_delta(separation, epsilon) > delta)[1]


def _turning_point(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Two numbers, equal to 12 digits; ``holds`` is true up to the first, and false from the second on."""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2.0 * high
    while high - low > _TOLERANCE * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
