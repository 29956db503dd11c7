"""The privacy of integer noise, certified in exact integer arithmetic on the probabilities that are drawn.

**Approximate DP.** A release is j + N with an integer j in 0..D and noise N. Its delta at epsilon, for
integers a shift s apart, is the hockey-stick divergence

    delta_s = sum over y of max(P[N = y] - e^epsilon P[N = y - s], 0).

The largest shift is the worst. The three noises are log-concave, so the ratio of the two probabilities falls
with y and the sum runs over a half-line: delta_s is the largest value, over t, of P[N <= t] - e^epsilon
P[N <= t - s]. For every t this grows with s, hence so does delta_s; by symmetry -s is like s. Random rounding
of the input mixes integers j, and the divergence is jointly convex: a mixture is at most as bad as its worst
pair. Reducing modulo a power of two is post-processing.

Noise is drawn from a table of integer units, whose distribution is within a total variation distance T
(``total_variation``) of that ideal distribution. The table's own delta_D is computed from the units. If each
of two distributions is changed by T, their divergence changes by at most (1 + e^epsilon) T. To compare
delta_s with delta_D, one goes to the ideal distribution and back, which costs that twice.

**Pure DP.** A table ends somewhere, and an output that only some inputs can reach has no finite epsilon. So
j + N is clamped to the range from -C to D + C, where D + C is within the table. This is post-processing, and
hardly ever happens. With probabilities p_k that fall with k, and tails T_k = p_k + p_{k+1} + ..., the worst
ratio of an output is p_k / p_{k+D} for some k < C, or T_C / T_{C+D} at an end.

Guarantee: :func:`certify_delta` and :func:`certify_epsilon` are never below the delta and epsilon of
the noise that is drawn, for any shift up to D.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from typing import TypeVar

import scipy

from fl_privquant.distributions.certified_table import log_ratio_upper
from fl_privquant.errors import CertificationError, InvalidSpecError
from fl_privquant.sampling.integer_noise import IntegerNoise

MAX_EPSILON = 32.0
"""Beyond this epsilon the tables' distance to the ideal noise, times e^epsilon, is not negligible."""

_EXP_BITS = 192
# 100 digits are enough: e^epsilon in units of 2^-192 has 58 + 14 of them, for epsilon up to 32.
_DECIMAL = Context(prec=100)
# A unit of a magnitude is 2^-127, and each sign has half of it.
_SIGNED_BITS = 128
# The search for an epsilon begins at MAX_EPSILON / 2^_HALVINGS.
_HALVINGS = 20
# How close calibration comes to the least noise, as a share of its variance.
_CLOSE = 1e-7

NoiseT = TypeVar("NoiseT", bound=IntegerNoise)


def certify_delta(noise: IntegerNoise, max_shift: int, epsilon: float) -> float:
    """The delta of adding the noise to integers up to ``max_shift`` apart, at ``epsilon``: rounded up.

    >>> from fl_privquant.sampling.integer_noise import DiscreteLaplace
    >>> certify_delta(DiscreteLaplace(3), max_shift=3, epsilon=1.0) < 1e-28
    True
    >>> certify_delta(DiscreteLaplace(3), max_shift=3, epsilon=0.9) > 0.01
    True
    """
    if not 0.0 <= epsilon <= MAX_EPSILON:
        raise InvalidSpecError(
            "epsilon", epsilon, f"is outside 0..{MAX_EPSILON:g}", "for no privacy use 'stochastic'"
        )
    one_sided = _signed_units(noise)
    signed = [*one_sided[:0:-1], *one_sided]
    # Rounded down: a smaller e^epsilon makes the divergence larger.
    growth = int(_DECIMAL.multiply(_DECIMAL.exp(Decimal(epsilon)), Decimal(1 << _EXP_BITS))) - 1
    shifted = [0] * max_shift + signed
    excess = sum(
        max((here << _EXP_BITS) - growth * there, 0) for here, there in zip(signed, shifted, strict=False)
    )
    moved = 2 * (1 + Fraction(growth + 2, 1 << _EXP_BITS)) * Fraction(noise.total_variation)
    exact = Fraction(excess, 1 << (_EXP_BITS + _SIGNED_BITS)) + moved
    return min(math.nextafter(float(exact), math.inf), 1.0)


def find_epsilon(noise: IntegerNoise, max_shift: int, delta: float) -> float:
    """An epsilon at which ``delta`` is certified, the least one to 6 digits; infinite if there is none.

    Powers of two are tried up to ``MAX_EPSILON``, the smallest first. Trying only the largest would fail: the
    table's distance to the ideal distribution counts e^epsilon times, so that far above the least epsilon no
    delta is certified any more.

    >>> from fl_privquant.sampling.integer_noise import DiscreteLaplace
    >>> round(find_epsilon(DiscreteLaplace(3), max_shift=3, delta=1e-20), 4)
    1.0
    """
    powers = [math.ldexp(MAX_EPSILON, -step) for step in range(_HALVINGS, -1, -1)]
    enough = [power for power in powers if certify_delta(noise, max_shift, power) <= delta]
    if not enough:
        return math.inf
    high = enough[0]
    low = 0.0 if high == powers[0] else 0.5 * high
    while high - low > 1e-6 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if certify_delta(noise, max_shift, middle) <= delta else (middle, high)
    return high


def certify_epsilon(noise: IntegerNoise, max_shift: int, reach: int | None) -> float:
    """The pure epsilon of adding the noise to 0..``max_shift``, clamped ``reach`` beyond: rounded up.

    >>> from fl_privquant.sampling.integer_noise import DiscreteLaplace
    >>> round(certify_epsilon(DiscreteLaplace(3), max_shift=3, reach=100), 12)
    1.0
    """
    units = _signed_units(noise)
    if reach is None or not 1 <= reach < len(units) - max_shift:
        raise CertificationError(
            f"noise up to {len(units) - 1} does not cover inputs {max_shift} apart and {reach} beyond them"
        )
    if any(nearer < further for nearer, further in pairwise(units)):
        raise CertificationError("the probabilities of the noise do not fall with its magnitude")
    top, bottom = sum(units[reach:]), sum(units[reach + max_shift :])
    for near, far in zip(units[:reach], units[max_shift:], strict=False):
        if near * bottom > top * far:
            top, bottom = near, far
    return log_ratio_upper(top, bottom)


def calibrate(
    make: Callable[[Fraction], NoiseT], guess: float, max_shift: int, epsilon: float, delta: float
) -> NoiseT:
    """The noise with the least variance, to 7 digits, that is certified at (``epsilon``, ``delta``).

    ``make`` takes the variance. Privacy does not depend on where the search stops: the variance is raised
    until the certificate of the noise that is returned holds.
    """

    def excess(log_variance: float) -> float:
        noise = make(Fraction(math.exp(log_variance)))
        return math.log(certify_delta(noise, max_shift, epsilon) / delta)

    low = high = math.log(guess)
    stride = 0.1
    while excess(low) <= 0.0:
        low, stride = low - stride, 2.0 * stride
    while excess(high) > 0.0:
        high, stride = high + stride, 2.0 * stride
    log_variance = scipy.optimize.brentq(excess, low, high, xtol=_CLOSE) if low < high else high
    while excess(log_variance) > 0.0:
        log_variance += _CLOSE
    return make(Fraction(math.exp(log_variance)))


def _signed_units(noise: IntegerNoise) -> list[int]:
    """Probabilities of 0, 1, ... in units of 2^-128. The units of a magnitude are shared by its two signs."""
    units = noise.units()
    return [2 * units[0], *units[1:]]
