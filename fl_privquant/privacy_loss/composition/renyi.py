"""The Rényi bound on epsilon, at the best of many rates.

A rate r is an order of the divergence, less one. Any rate gives a valid bound, so that the search for the
best one may be approximate. The moments of a loss at fixed rates are computed once, and bounds at these are
quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

from fl_privquant._array_types import Floats

__all__ = ["Moments", "Part", "epsilon_at_rate", "minimize", "quick_epsilon", "renyi_epsilon"]

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
# The range of rates that is searched. Rates beyond it change a bound by less than 1e-9 of log(delta).
_COARSE = np.linspace(math.log(1e-9), math.log(1e9), 22)
_GOLDEN_STEPS = 26
_RATES = np.geomspace(1e-5, 1e5, 161)
# Terms of the bound at the fixed rates.
_LOG_ORDERS, _LOG_SHARES = np.log1p(_RATES), np.log1p(1.0 / _RATES)


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


def epsilon_at_rate(total: float, log_delta: float, rate: float) -> float:
    """The Rényi bound on epsilon at one rate r, where ``total`` is K(r); it may be negative."""
    return (total - log_delta - math.log1p(rate)) / rate - math.log1p(1.0 / rate)


def renyi_epsilon(parts: Sequence[Part], delta: float) -> tuple[float, float]:
    """The Rényi bound on epsilon at ``delta``, and the rate r (the order minus one) that gives it."""
    left = _delta_left(parts, delta)
    if left <= 0.0:
        return math.inf, 1.0

    def bound(log_rate: float) -> float:
        rate = math.exp(log_rate)
        total = math.fsum(part.count * part.loss.log_moment(rate) for part in parts)
        return epsilon_at_rate(total, math.log(left), rate)

    best = minimize(bound)
    return max(bound(best), 0.0), math.exp(best)


def quick_epsilon(parts: Sequence[Part], delta: float) -> float:
    """The Rényi bound at the best of fixed rates, at which the moments of each loss are computed once."""
    left = _delta_left(parts, delta)
    if left <= 0.0:
        return math.inf
    total = np.zeros(_RATES.size)
    # Moments that floats cannot hold are infinite, and so are their bounds.
    with np.errstate(over="ignore"):
        for part in parts:
            total += part.count * _moments(part.loss)
    # The moments of each part are rounded up already; this covers the rounding of their sum.
    total += 1e-13 * np.abs(total)
    bounds = (total - math.log(left) - _LOG_ORDERS) / _RATES - _LOG_SHARES
    return max(float(np.nanmin(bounds)), 0.0)


def _delta_left(parts: Sequence[Part], delta: float) -> float:
    """What is left of delta beside the probability of an infinite loss."""
    return delta - math.fsum(part.count * part.loss.infinity for part in parts)


_moments_by_loss: WeakKeyDictionary[Moments, Floats] = WeakKeyDictionary()


def _moments(loss: Moments) -> Floats:
    """The log moments of a loss at the fixed rates, computed once."""
    if loss not in _moments_by_loss:
        _moments_by_loss[loss] = np.array([loss.log_moment(rate) for rate in _RATES.tolist()])
    return _moments_by_loss[loss]


def minimize(function: Callable[[float], float]) -> float:
    """The minimizer of a function of a log rate that falls and then rises, by golden-section search.

    The search begins at the least of a few values, so that it also ends near the least value of a function
    with several minima.
    """
    values = np.array([function(log_rate) for log_rate in _COARSE.tolist()])
    best = int(np.argmin(np.where(np.isnan(values), math.inf, values)))
    low, high = float(_COARSE[max(best - 1, 0)]), float(_COARSE[min(best + 1, _COARSE.size - 1)])
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(_GOLDEN_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return left if at_left <= at_right else right
