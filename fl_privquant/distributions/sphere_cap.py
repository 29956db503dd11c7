"""Certified bounds on the measure of a cap of the unit sphere, in decimal arithmetic.

The cap of height h around a fixed unit vector is the set of unit vectors whose inner product with it is at
least h. A uniform unit vector of d coordinates lies in it with probability
I(1 - h^2; a, 1/2) / 2 = 1/2 - I(h^2; 1/2, a) / 2, where a = (d - 1) / 2 and I is the regularized incomplete
Beta function. Each of the two forms is a series of positive terms whose ratio falls or stays below a number
less than 1, so that the terms that are left out lie below a geometric series. The factor before the series is
a Beta function, a ratio of Gamma functions. Stirling's series gives these with an error below the first term
that is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from fl_privquant.errors import MISSING, InvalidSpecError

_DIGITS = 150
# Relative error that covers all rounding and Stirling's series together; tests check that it is enough.
_SLACK = Decimal(10) ** -80
_PI = Decimal(
    "3.1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421"
    "17067982148086513282306647093844609550582231725359408128481117450284102701938521105559644622948954930382"
)
# For arguments of at least _LARGE, _TERMS terms of Stirling's series have an error below 10^-94.
_LARGE = 200
_TERMS = 30
# If h^2 is above this, the first form is used: it needs few terms, and is accurate however small the cap is.
_HIGH = Fraction(1, 100)


@lru_cache(maxsize=256)
def cap_share_bounds(height: float, dimension: int) -> tuple[Decimal, Decimal]:
    """A lower and an upper bound, of 60 digits, of the measure of the cap of that height in [0, 1).

    >>> low, high = cap_share_bounds(0.5, 3)  # uniform on [-1, 1], as Archimedes found
    >>> low <= Decimal("0.25") <= high, high - low < Decimal("1e-50")
    (True, True)
    """
    if not 0.0 <= height < 1.0:
        raise InvalidSpecError("height", height, "is outside [0, 1)")
    if dimension == 1 or height == 0.0:
        return Decimal("0.5"), Decimal("0.5")
    with localcontext() as context:
        context.prec = _DIGITS
        square = Fraction(height) ** 2
        direct = square >= _HIGH
        share = _tail(square, dimension) if direct else (1 - _center(square, dimension)) / 2
        # The error of the second form is absolute, that of the first is relative.
        slack = share * _SLACK if direct else _SLACK
        context.prec = 60
        context.rounding = ROUND_FLOOR
        low = share - slack
        context.rounding = ROUND_CEILING
        high = share + slack
    if low <= 0:
        raise InvalidSpecError(
            "height", MISSING, f"the cap of height {height} has almost measure 0", "lower the height"
        )
    return low, high


def _tail(square: Fraction, dimension: int) -> Decimal:
    """I(1 - h^2; a, 1/2) / 2: x^a sqrt(1 - x) / (a B(a, 1/2)) sum of (a + 1/2)_n / (a + 1)_n x^n."""
    a, x = Decimal(dimension - 1) / 2, _decimal(1 - square)
    front = (a * x.ln()).exp() * _decimal(square).sqrt() / (a * _beta(dimension))
    # Ratios of neighboring terms stay below x.
    return front * _series(lambda n: (a + n + Decimal("0.5")) / (a + n + 1) * x, x) / 2


def _center(square: Fraction, dimension: int) -> Decimal:
    """I(h^2; 1/2, a): h (1 - h^2)^a / (B(1/2, a) / 2) sum of (a + 1/2)_n / (3/2)_n h^2n."""
    a, x = Decimal(dimension - 1) / 2, _decimal(square)
    front = (a * (1 - x).ln()).exp() * x.sqrt() * 2 / _beta(dimension)
    # Ratios of neighboring terms fall with n for a above 1, and stay below x otherwise.
    return front * _series(lambda n: (a + n + Decimal("0.5")) / (n + Decimal("1.5")) * x, x)


def _series(ratio: Callable[[int], Decimal], limit: Decimal) -> Decimal:
    """1 + r_0 + r_0 r_1 + ..., to a relative error far below the slack."""
    total, term, place = Decimal(1), Decimal(1), 0
    while True:
        step = ratio(place)
        term *= step
        total += term
        place += 1
        bound = max(step, limit)
        if bound < 1 and term * bound < total * (1 - bound) * _SLACK / 1000:
            return total


@lru_cache(maxsize=64)
def _beta(dimension: int) -> Decimal:
    """B(1/2, a) = sqrt(pi) Gamma(a) / Gamma(a + 1/2) at a = (d - 1) / 2."""
    a, factor = Decimal(dimension - 1) / 2, Decimal(1)
    while a < _LARGE:
        factor *= (a + Decimal("0.5")) / a
        a += 1
    return _PI.sqrt() * factor * (_log_gamma(a) - _log_gamma(a + Decimal("0.5"))).exp()


def _log_gamma(z: Decimal) -> Decimal:
    """The number log Gamma(z) - log(2 pi) / 2, by Stirling's series."""
    total = (z - Decimal("0.5")) * z.ln() - z
    for k in range(1, _TERMS + 1):
        number = _bernoulli()[2 * k] / (2 * k * (2 * k - 1))
        total += _decimal(number) / z ** (2 * k - 1)
    return total


@lru_cache(maxsize=1)
def _bernoulli() -> list[Fraction]:
    """Bernoulli's numbers, up to twice as many as the series has terms."""
    numbers = [Fraction(1)]
    for m in range(1, 2 * _TERMS + 1):
        numbers.append(-sum((math.comb(m + 1, j) * numbers[j] for j in range(m)), Fraction(0)) / (m + 1))
    return numbers


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)
