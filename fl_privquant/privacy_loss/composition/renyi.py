"""The Rényi bound on epsilon, and the search for its best rate.

A bound at one rate takes a moment of every loss, and a moment of a loss with thousands of atoms takes long.
So the best of fixed rates, and the best rate of all, are found with few moments.

**Valleys.** For r > 0 the bound is N(r) / r with N(r) = K(r) - log(delta) - (1 + r) log(1 + r) + r log r. The
logarithm K of a moment is a convex function of r, and so are the other terms. The rates at which N(r) / r is
at most some t are those at which N(r) - t r is at most 0: an interval. So the bound falls up to its least
value and rises from there on. If its values at both neighbors of a fixed rate are larger, it is the best of
all fixed rates, and the others need not be computed. Rounding errors could hide this where values are nearly
equal. Then, and for moments that are interpolated, which need not be convex, the bound is computed at all
fixed rates, except for those at which it is known to be larger than at another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss

__all__ = ["Moments", "Part", "Valley", "epsilon_at_rate", "minimize", "quick_epsilon", "renyi_epsilon"]

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
# The range of rates r that is searched. Rates beyond it change a bound by less than 1e-9 of log(delta).
_MAX_LOG_RATE, _MIN_LOG_RATE = math.log(1e9), math.log(1e-9)
_COARSE = np.linspace(_MIN_LOG_RATE, _MAX_LOG_RATE, 22)
_RATES = np.geomspace(1e-5, 1e5, 161)
_LOG_RATES = np.log(_RATES)
# Terms of the bound at the fixed rates.
_LOG_ORDERS, _LOG_SHARES = np.log1p(_RATES), np.log1p(1.0 / _RATES)
# Where the search for the best of the fixed rates begins.
_STARTS, _COARSE_STARTS = (40, 80, 120), (5, 10, 15)
# Values that differ by less than a share _CLOSE of what they are computed from, or by _UNITS for each
# occurrence of a loss, may owe that to rounding. Both are far above the rounding errors of moments.
_CLOSE, _UNITS = 1e-9, 1e-12
# The terms of a bound that depend on nothing but its rate are below this.
_LARGEST_TERM = 25.0


class Moments(Protocol):
    """The part of a loss that the Rényi bound needs; :class:`PrivacyLoss` and norm bounds implement it."""

    @property
    def infinity(self) -> float:
        """Probability of an infinite loss."""

    @property
    def max_loss(self) -> float:
        """The pure epsilon, or infinity."""

    def log_moment(self, rate: float) -> float:
        """Upper bound of log E exp(rate * loss), over finite losses."""


@dataclass(frozen=True, eq=False)
class Part:
    """A release that occurs ``count`` times, independently given what was released before."""

    loss: Moments
    count: int


@dataclass(frozen=True)
class Valley:
    """A function of the logarithm of a rate that falls and then rises: a convex function over the rate."""

    rounding: float
    """Far more than the rounding error of the convex function, besides a small share of its value."""
    start: float | None = None
    """About where the function is least; None if that is not known."""

    @classmethod
    def of(cls, constant: float, count: int, start: float | None = None) -> Valley:
        """The valley of a sum of a constant and the moments of ``count`` losses."""
        return cls(_CLOSE * constant + _UNITS * count, start)

    def noise(self, log_rate: float, value: float) -> float:
        """What may be due to rounding in the value at a rate."""
        return _CLOSE * (abs(value) + _LARGEST_TERM) + self.rounding * math.exp(-log_rate)


def epsilon_at_rate(total: float, log_delta: float, rate: float) -> float:
    """The Rényi bound on epsilon at one rate r, where ``total`` is K(r); it may be negative."""
    return (total - log_delta - math.log1p(rate)) / rate - math.log1p(1.0 / rate)


def renyi_epsilon(parts: Sequence[Part], delta: float) -> tuple[float, float]:
    """The Rényi bound on epsilon at ``delta``, and the rate r (the order minus one) that gives it."""
    left = delta - math.fsum(part.count * part.loss.infinity for part in parts)
    if left <= 0.0:
        return math.inf, 1.0

    def bound(log_rate: float) -> float:
        rate = math.exp(log_rate)
        total = math.fsum(part.count * part.loss.log_moment(rate) for part in parts)
        return epsilon_at_rate(total, math.log(left), rate)

    def at_least(log_rate: float) -> float:
        rate = math.exp(log_rate)
        total = 0.0
        for part in parts:
            least = _min_moment(part.loss)
            if least is None:
                return -math.inf
            total += part.count * least(rate) * (1.0 - _CLOSE)
        return epsilon_at_rate(total, math.log(left), rate)

    best = minimize(bound, _valley(parts, left), at_least)
    return max(bound(best), 0.0), math.exp(best)


def quick_epsilon(parts: Sequence[Part], delta: float) -> float:
    """The Rényi bound at the best of fixed rates, at which the moments of each loss are computed once."""
    left = delta - math.fsum(part.count * part.loss.infinity for part in parts)
    if left <= 0.0:
        return math.inf
    if any(_find_known(part.loss).every is None for part in parts):
        best = _best_of_fixed(parts, math.log(left), _valley(parts, left))
        if best is not None:
            return max(best, 0.0)
    # Moments that floats cannot hold are infinite, and so are their bounds.
    with np.errstate(over="ignore"):
        moments = [part.count * _moments(part.loss) for part in parts]
    bounds = _all_bounds(moments, math.log(left))
    return max(float(np.nanmin(bounds)), 0.0)


def _all_bounds(moments: Sequence[Floats], log_delta: float) -> Floats:
    """The bounds at all fixed rates, from the moments of all parts."""
    total = np.zeros(_RATES.size)
    for moments_of_part in moments:
        total += moments_of_part
    # The moments of each part are rounded up already; this covers the rounding of their sum.
    total += 1e-13 * np.abs(total)
    return np.asarray((total - log_delta - _LOG_ORDERS) / _RATES - _LOG_SHARES)


def _best_of_fixed(parts: Sequence[Part], log_delta: float, valley: Valley | None) -> float | None:
    """The least bound at the fixed rates, from few of them; None where all are needed."""

    def bound(at: int) -> float:
        # As in _all_bounds.
        total = 0.0
        for part in parts:
            total += part.count * _moment(part.loss, at)
        total += 1e-13 * abs(total)
        return (total - log_delta - float(_LOG_ORDERS[at])) / float(_RATES[at]) - float(_LOG_SHARES[at])

    if valley is None:
        if any(_min_moment(part.loss) is None for part in parts):
            return None
        at_least = _all_bounds([part.count * _min_moments(part.loss) for part in parts], log_delta)
        return _min_above(bound, at_least)[1]
    # Other threads may change what is kept in the meantime.
    kept = _find_known(parts[0].loss)
    last = kept.best
    starts = _STARTS if last is None else (last - 1, last, last + 1)
    kept.best, least = _least(bound, _LOG_RATES, valley, starts)
    return least


@dataclass(eq=False)
class _KnownMoments:
    """The log moments of a loss at fixed rates that were computed so far."""

    some: dict[int, float] = field(default_factory=dict)
    """Moments by the number of the rate."""
    every: Floats | None = None
    """All of them, or None if some are not known."""
    least: Floats | None = None
    """What they are not below, or None if that is not known."""
    best: int | None = None
    """The number of the rate at which a bound was least, the last time that it was searched for."""


_kept_moments: WeakKeyDictionary[Moments, _KnownMoments] = WeakKeyDictionary()


def _find_known(loss: Moments) -> _KnownMoments:
    if loss not in _kept_moments:
        _kept_moments[loss] = _KnownMoments()
    return _kept_moments[loss]


def _moment(loss: Moments, at: int) -> float:
    """The log moment of a loss at one of the fixed rates, computed once."""
    some = _find_known(loss).some
    if at not in some:
        some[at] = loss.log_moment(float(_RATES[at]))
    return some[at]


def _min_moment(loss: Moments) -> Callable[[float], float] | None:
    """What the log moment of a loss at a rate is not below, of losses that take long to compute."""
    least: Callable[[float], float] | None = getattr(loss, "min_log_moment", None)
    return least


def _min_moments(loss: Moments) -> Floats:
    """What the log moments of a loss at the fixed rates are not below, computed once."""
    known, least = _find_known(loss), _min_moment(loss)
    if known.least is None and least is not None:
        known.least = np.array([least(rate) for rate in _RATES.tolist()])
    return np.full(_RATES.size, -np.inf) if known.least is None else known.least


def _moments(loss: Moments) -> Floats:
    """The log moments of a loss at all fixed rates, computed once."""
    known = _find_known(loss)
    if known.every is None:
        known.every = np.array([_moment(loss, at) for at in range(_RATES.size)])
    return known.every


def _valley(parts: Sequence[Part], left: float) -> Valley | None:
    """The valley of the bound, if ``left`` remains of delta; None where moments need not be convex."""
    if not all(isinstance(part.loss, PrivacyLoss) for part in parts):
        return None
    best = _find_known(parts[0].loss).best
    start = None if best is None else float(_LOG_RATES[best])
    return Valley.of(-math.log(left), sum(part.count for part in parts), start)


def minimize(
    function: Callable[[float], float],
    valley: Valley | None,
    at_least: Callable[[float], float] = lambda log_rate: -math.inf,
) -> float:
    """The minimizer of a function of a logarithm that falls and then rises, by golden-section search.

    Where the function is not certain to be a valley, the search begins at the least of many values. Those
    that ``at_least``, which the function is nowhere below, shows to be larger are not computed.
    """
    best = None if valley is None else _min_coarse(function, valley)
    if best is None:
        floors = np.array([at_least(x) for x in _COARSE.tolist()])
        best = _min_above(lambda at: function(float(_COARSE[at])), floors)[0]
    low, high = float(_COARSE[max(best - 1, 0)]), float(_COARSE[min(best + 1, _COARSE.size - 1)])
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(26):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return left if at_left <= at_right else right


def _min_above(function: Callable[[int], float], floors: Floats) -> tuple[int, float]:
    """The number of the least value of a function, the first of equal ones, and that value.

    No value is below its floor, and values whose floors are above the least value are not computed.
    """
    least, best = math.inf, 0
    for at in np.argsort(floors, kind="stable").tolist():
        if floors[at] > least:
            break
        value = function(at)
        if value < least or (value == least and at < best):
            least, best = value, at
    return best, least


def _min_coarse(function: Callable[[float], float], valley: Valley) -> int | None:
    starts: Sequence[int] = _COARSE_STARTS
    if valley.start is not None:
        near = round((valley.start - _MIN_LOG_RATE) / float(_COARSE[1] - _COARSE[0]))
        starts = (near - 1, near, near + 1)
    return _least(lambda at: function(float(_COARSE[at])), _COARSE, valley, starts)[0]


def _least(
    function: Callable[[int], float], log_rates: Floats, valley: Valley, starts: Sequence[int]
) -> tuple[int | None, float | None]:
    """The number of the log rate with the least value in a valley, and that value.

    None and None where rounding may hide which it is. The search begins at the rates with the numbers
    ``starts``, of which those that do not exist are ignored.
    """
    size = log_rates.size
    values = {at: function(at) for at in starts if 0 <= at < size}
    while not any(map(math.isnan, values.values())):
        best = min(values, key=values.__getitem__)
        below = max((at for at in values if at < best), default=-1)
        above = min((at for at in values if at > best), default=size)
        if best - below > 1 and best - below >= above - best:
            values[(below + best) // 2] = function((below + best) // 2)
        elif above - best > 1:
            values[(best + above) // 2] = function((best + above) // 2)
        else:
            beside = [at for at in (below, above) if 0 <= at < size]
            noise = {at: valley.noise(float(log_rates[at]), values[at]) for at in (best, *beside)}
            if all(values[at] - noise[at] > values[best] + noise[best] for at in beside):
                return best, values[best]
            break
    return None, None
