"""Composition: the epsilon of many releases at a given delta, by the smallest of several bounds.

What is composed is a list of parts. A part is the privacy loss of a release, and how many times the release
occurs (coordinates times rounds). Pairs of normal distributions compose exactly: their squared separations
add up (Dong, Roth, Su 2022, Corollary 2), and so do the probabilities with which they reveal everything. For
all other losses there are three valid bounds:

**pure.** The sum of the largest losses. It holds at every delta.

**rdp.** A bound by Rényi divergences. For r > 0 let K(r) = sum of count * log E exp(r * loss), which is r
times the Rényi divergence of order r + 1. As (1 - e^-x) e^(-r x) <= r^r / (1 + r)^(1 + r) for x >= 0,

    delta(epsilon) = E max(1 - exp(epsilon - loss), 0) <= r^r / (1 + r)^(1 + r) * exp(K(r) - r epsilon).

This is solved for epsilon and minimized over r (Canonne, Kamath, Steinke 2020, Proposition 12). Any r gives
a valid bound, so that the search for the best one may be approximate.

**pld.** The privacy loss distribution: the distribution of the total loss itself, on a grid; see
:func:`pld_epsilon`.

*Infinite losses.* If a release has an infinite loss with probability v, then with probability at most
count * v any of its ``count`` occurrences has one. This probability is taken off delta first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fl_privquant import _validation
from fl_privquant._array_types import Floats
from fl_privquant.distributions.certified_table import round_up
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon
from fl_privquant.privacy_loss.closed_forms import NormalLoss
from fl_privquant.privacy_loss.composition.loss_distribution import ROUNDING, PrivacyLoss
from fl_privquant.privacy_loss.composition.renyi import (
    Moments,
    Part,
    epsilon_at_rate,
    minimize,
    quick_epsilon,
    renyi_epsilon,
)
from fl_privquant.statement import Relation

__all__ = [
    "Bound",
    "Composition",
    "Moments",
    "NamedLoss",
    "Part",
    "UpdateNorm",
    "compose_epsilon",
    "epsilon_at_rate",
    "pld_epsilon",
    "pure_epsilon",
    "quick_epsilon",
    "renyi_epsilon",
]

# Sizes of the grid. Rounding errors grow with the size, so that a small grid is more accurate, too.
_MIN_GRID, _MAX_GRID = 1 << 14, 1 << 20
# Grid points that the losses of a single release span at most.
_MAX_SINGLE = 1 << 15
# A finer grid is tried as long as the grid makes epsilon too large by more than this share.
_GRID_EXCESS = 2e-4
# A grid is computed only if it may improve epsilon by at least this share.
_WORTH_A_GRID = 1e-3
# Log of the probability, under the tilted distribution, that is left outside the window on either side.
_LOG_OUTSIDE = math.log(1e-13)
# Rounding unit, with room for the constants of Higham, "Accuracy and Stability of Numerical Algorithms",
# Theorem 24.2: an FFT of size N has a relative error in the 2-norm below log2(N) * 8 units.
_UNIT = 2.0**-53
# Largest relative rounding error of an epsilon that is solved for.
_SOLVED_ROOM = 1e-12


class Composition(StrEnum):
    """How losses were composed to an epsilon."""

    EXACT = "exact"
    PURE = "pure"
    """Largest losses added up, which holds at delta 0."""
    RDP = "rdp"
    PLD = "pld"
    NONE = "not private"


class UpdateNorm(StrEnum):
    """The norm of a whole update that is clipped, or that a loss depends on."""

    L1 = "l1"
    L2 = "l2"
    LINF = "linf"
    """The largest coordinate."""


@dataclass(frozen=True, eq=False)
class NamedLoss:
    """The loss of a release as a mechanism states it: spent ``count`` times, with the name of the bound.

    Statements print the name before the method of composition; it is empty where the loss is exact.
    ``norm`` is the norm of the update that the bound relies on, if any.
    """

    loss: Moments
    name: str = ""
    count: int = 1
    norm: UpdateNorm | None = None
    relation: Relation = Relation.REPLACE_ONE
    """The relation that the loss is for. A loss for replace-one is an upper bound for the other two."""


@dataclass(frozen=True)
class Bound:
    """An epsilon and the name of the method that gave it."""

    epsilon: float
    method: Composition


def compose_epsilon(parts: Sequence[Part], delta: float, refine: bool = True) -> Bound:
    """The smallest of the valid bounds on epsilon at ``delta``, with its name.

    Parameters
    ----------
    parts
        Losses, and how often each is spent.
    delta
        The delta at which epsilon is bounded, from 0 to 1.
    refine
        Whether to take the time for the tightest bounds; quick ones are a few per cent larger.

    Returns
    -------
    Bound
        The bound.

    Raises
    ------
    InvalidSpecError
        The delta is outside [0, 1].

    >>> response = PrivacyLoss(np.array([-1.0, 1.0]), np.array([0.26894142, 0.73105858]))
    >>> compose_epsilon([Part(response, 100)], 0.0)
    Bound(epsilon=100.0, method=<Composition.PURE: 'pure'>)
    >>> bound = compose_epsilon([Part(response, 100)], 1e-5)
    >>> print(bound.method, round(bound.epsilon, 3))
    pld 79.841
    """
    _validation.check_in_interval("delta", delta, "[0, 1]")
    parts = [part for part in parts if part.count > 0]
    if not parts:
        return Bound(0.0, Composition.EXACT)
    pairs = [(part.loss, part.count) for part in parts if isinstance(part.loss, NormalLoss)]
    if len(pairs) == len(parts) and delta > 0.0:
        return Bound(_normal_epsilon(pairs, delta), Composition.EXACT)
    if len(parts) == 1 and parts[0].count == 1 and isinstance(parts[0].loss, PrivacyLoss):
        return Bound(_single_epsilon(parts[0].loss, delta), Composition.EXACT)
    if len(parts) == 1 and refine:
        # The ways to count a release are compared in full, and the best of them is then counted again.
        known = _known_bounds.setdefault(parts[0].loss, {})
        bound = known.get((parts[0].count, delta))
        if bound is None:
            bound = _smallest_bound(parts, delta, refine)
            if len(known) >= _MAX_KNOWN:
                known.clear()
            known[parts[0].count, delta] = bound
        return bound
    return _smallest_bound(parts, delta, refine)


# Bounds that were counted in full, by the loss, and how many are kept for each loss.
_known_bounds: WeakKeyDictionary[Moments, dict[tuple[int, float], Bound]] = WeakKeyDictionary()
_MAX_KNOWN = 64


def _smallest_bound(parts: Sequence[Part], delta: float, refine: bool) -> Bound:
    bounds = [Bound(pure_epsilon(parts), Composition.PURE)]
    if delta > 0.0 and not refine:
        bounds.append(Bound(quick_epsilon(parts, delta), Composition.RDP))
    elif delta > 0.0:
        # The quick bound comes first, because its rate is where the search for the best one begins.
        quick = quick_epsilon(parts, delta)
        renyi, rate = renyi_epsilon(parts, delta)
        # If moments are interpolated between a few rates, the bound has several minima, and the search may
        # end in a worse one than the best of the fixed rates.
        bounds.append(Bound(min(renyi, quick), Composition.RDP))
        if renyi < math.inf and _is_worth_a_grid(parts, renyi):
            bounds.append(Bound(pld_epsilon(parts, delta, rate), Composition.PLD))
    # Of nearly equal bounds, the one that also holds at delta 0 is preferred.
    return min(bounds, key=lambda bound: bound.epsilon * (1.0 - 1e-6 * (bound.method is Composition.PURE)))


def _normal_epsilon(pairs: Sequence[tuple[NormalLoss, int]], delta: float) -> float:
    """The epsilon of normal pairs, rounded up. The probability that one reveals all is taken off delta.

    Logarithms of ratios add up to r. With the normal pair's (e, f), the total is (e + r, e^r f).
    """
    squares = math.fsum(count * loss.separation**2 for loss, count in pairs)
    revealed = math.fsum(count * loss.infinity for loss, count in pairs)
    ratio = math.fsum(count * loss.log_ratio for loss, count in pairs) * (1.0 + ROUNDING)
    left = (delta - revealed * (1.0 + ROUNDING)) * math.exp(-ratio)
    return gaussian_epsilon(math.sqrt(squares) * (1.0 + ROUNDING), left) + ratio


def _is_worth_a_grid(parts: Sequence[Part], renyi: float) -> bool:
    """Whether the total's distribution is known, and may give a noticeably smaller epsilon than moments.

    At a small delta, epsilon exceeds the mean of the loss. After some 10^8 releases the mean is so close to
    the Rényi bound that a grid cannot improve on it.
    """
    losses = [(part.loss, part.count) for part in parts if isinstance(part.loss, PrivacyLoss)]
    mean = math.fsum(count * loss.mean for loss, count in losses)
    return len(losses) == len(parts) and mean < (1.0 - _WORTH_A_GRID) * renyi


def pure_epsilon(parts: Sequence[Part]) -> float:
    """The sum of the largest losses: exact arithmetic, rounded up at the end."""
    if any(math.isinf(part.loss.max_loss) for part in parts):
        return math.inf
    return round_up(sum((Fraction(part.loss.max_loss) * part.count for part in parts), Fraction(0)))


def pld_epsilon(parts: Sequence[Part], delta: float, rate: float) -> float:
    """An upper bound of epsilon at ``delta`` > 0, from the distribution of the total loss on a grid.

    Every loss of the parts must be a :class:`PrivacyLoss`. ``rate`` is the tilt r of the notes. Any r > 0
    gives a valid bound; the rate that :func:`renyi_epsilon` returns gives an accurate one.

    Notes
    -----
    The distribution of the total loss is a convolution of the distributions of all losses, which is computed
    by FFT. These notes say why the result is an upper bound in spite of the grid, the finite window and
    rounding.

    *Grid.* Each loss is moved to a grid of step h by :meth:`PrivacyLoss.on_grid`, which can only make it
    worse, by about count * h^2 / 8 in total.

    *Tilt.* An FFT has an absolute error, which would swamp a small delta. So distributions are tilted before
    the transform. With p the distribution of one loss and M = E exp(r * loss), t(k) = p(k) e^(r h k) / M is a
    probability distribution. The total then has probability exp(K - r x) T(x) at x, where T is the
    convolution of all t. T is centered where delta is reached, so T is computed to full *relative* accuracy
    there, however small delta is. With y = x - epsilon,

        delta(epsilon) = exp(K - r epsilon) * sum over x > epsilon of T(x) e^(-r y) (1 - e^-y).

    *Window.* T is computed modulo a window. The part below the window is folded into it, which only adds to
    delta. The part above has, by Chernoff's bound, probability at most tau under T, and adds at most
    tau * exp(K - r epsilon).

    *Rounding.* Let u be the rounding unit and N the size of the grid. The transform F_i of t_i has an error
    of at most e_i = 8 u log2(N) ||t_i|| sqrt(N) at each frequency. So the difference of the products of
    (F_i + error)^count_i and of F_i^count_i is at most (product of (|F_i| + e_i)^count_i) * sum of count_i
    e_i / (|F_i| + e_i). The mean of this over frequencies bounds the error of every T(x). Together with the
    error of the inverse transform it is added to every T(x).
    """
    losses = [(part.loss, part.count) for part in parts if isinstance(part.loss, PrivacyLoss)]
    left = delta - math.fsum(count * loss.infinity for loss, count in losses)
    if len(losses) < len(parts) or left <= 0.0:
        return math.inf
    # With a steeper tilt, exp(rate * loss) would overflow, or the tilted distribution would be mostly
    # rounding errors.
    largest = max(float(np.abs(loss.losses).max()) for loss, _ in losses)
    rate = min(rate, 300.0 / max(largest, 1e-6))
    exact = math.fsum(count * loss.log_moment(rate) for loss, count in losses)
    best = math.inf
    size, step = _MIN_GRID, math.inf
    window = _window(losses, rate)
    while True:
        total = _Total.of(losses, rate, size, window)
        best = min(best, total.epsilon(left))
        excess, allowed = total.log_moment - exact, _GRID_EXCESS * best * rate
        if excess <= allowed < math.inf or size >= _MAX_GRID or total.step > 0.6 * step:
            return best
        # The excess falls with the square of the step, and so in inverse proportion to the squared size.
        factor = math.sqrt(excess / allowed) if 0.0 < allowed < math.inf else 8.0
        size, step = min(size << max(math.ceil(math.log2(factor)), 1), _MAX_GRID), total.step


@dataclass(frozen=True, eq=False)
class _Total:
    """The tilted distribution T of the total loss: T[j] is the probability of (first + j) * step."""

    first: int
    step: float
    tilted: Floats
    rate: float
    log_moment: float
    outside: float

    @classmethod
    def of(
        cls,
        losses: list[tuple[PrivacyLoss, int]],
        rate: float,
        size: int,
        window: tuple[float, float, float],
    ) -> _Total:
        """The distribution on a grid of ``size`` points, for the range and shift of :func:`_window`."""
        low, high, shift = window
        span = max(float(loss.losses[-1] - loss.losses[0]) for loss, _ in losses)
        step = max((high - low) / (size - 4), span / _MAX_SINGLE, 1e-12)
        top = max(float(loss.losses[-1]) for loss, _ in losses)
        # The largest losses matter most. If the grid contains the largest one, that loss is not enlarged.
        if top >= step:
            step = top / math.floor(top / step)
        log_moment = log_tail = largest = 0.0
        log_magnitude = np.zeros(size // 2 + 1)
        phase = np.ones(size // 2 + 1, dtype=np.complex128)
        relative = np.zeros(size // 2 + 1)
        transform_error = 8.0 * _UNIT * math.log2(size)
        for loss, count in losses:
            first, masses = loss.on_grid(step)
            exponents = rate * step * (first + np.arange(masses.size))
            peak = float(exponents[masses > 0.0].max())
            weights = masses * np.exp(np.minimum(exponents - peak, 0.0))
            moment = float(weights.sum())
            log_moment += count * (peak + math.log(moment) + loss.slack + ROUNDING * (1.0 + abs(peak)))
            weights /= moment
            last = (first + int(np.flatnonzero(weights)[-1])) * step
            largest += count * last
            further = np.minimum(step * (first + np.arange(masses.size)) - last, 0.0)
            log_tail += count * (math.log(float(weights @ np.exp(shift * further))) + shift * last + ROUNDING)
            folded = np.bincount((first + np.arange(masses.size)) % size, weights, size)
            transform = np.fft.rfft(folded)
            error = transform_error * (math.sqrt(size) * float(np.linalg.norm(weights)) + 4.0)
            magnitude = np.abs(transform) + error
            log_magnitude += count * np.log(magnitude)
            relative += count * error / magnitude
            phase *= _power(transform / magnitude, count)
        # The factor 2 covers the rounding of tilted masses and of powers: one unit each per occurrence.
        product = np.exp(log_magnitude)
        wrong = 2.0 * (product * relative).sum() / size
        tilted = np.fft.irfft(phase * product, size)
        wrong += transform_error * math.sqrt(2.0 * float(product @ product) / size)
        first = math.floor(low / step)
        rolled = np.roll(tilted, -(first % size))
        # Chernoff's bound for the distribution on the grid, beyond the window's last point.
        end = (first + size) * step
        outside = 0.0 if largest < end else math.exp(min(log_tail - shift * end, 0.0))
        return cls(first, step, np.maximum(rolled, 0.0) + wrong, rate, log_moment, outside)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 whose delta is certainly at most ``delta``."""
        high = self._first_within(delta)
        if high == self.tilted.size:
            return math.inf
        if high <= max(-self.first, 0):
            return max(self._at(high), 0.0)
        # Between two grid points the sum is alpha - beta e^epsilon, which is solved for epsilon.
        scale = self._scale(high)
        alpha, beta = self._sums(high)
        rest = delta / scale - self.outside * math.exp(self.rate * self.step)
        share = (alpha - rest) / beta if beta > 0.0 else 1.0
        inside = math.log(share) if share > 0.0 else -self.step
        return float(max(self._at(high) + min(max(inside, -self.step), 0.0), 0.0) * (1.0 + 4.0 * _UNIT))

    def _first_within(self, delta: float) -> int:
        """Index of the first grid point with delta small enough."""
        first = max(-self.first, 0)
        places = range(first, self.tilted.size)
        return first + bisect_left(places, True, key=lambda index: self._delta(index) <= delta)

    def _at(self, index: int) -> float:
        return (self.first + index) * self.step

    def _scale(self, index: int) -> float:
        exponent = self.log_moment - self.rate * self._at(index)
        return math.exp(exponent) if exponent < 700.0 else math.inf

    def _sums(self, index: int) -> tuple[float, float]:
        beyond = self._beyond[: self.tilted.size - index]
        weights = self.tilted[index:] * np.exp(-self.rate * beyond)
        return float(weights.sum()), float(weights @ np.exp(-beyond))

    def _delta(self, index: int) -> float:
        scale = self._scale(index)
        if math.isinf(scale):
            return math.inf
        # The operator @ is avoided because BLAS would start threads for it.
        excess = float((self.tilted[index:] * self._excess[: self.tilted.size - index]).sum())
        return scale * (excess * (1.0 + 1e-12) + self.outside)

    @cached_property
    def _beyond(self) -> Floats:
        return self.step * np.arange(self.tilted.size, dtype=np.float64)

    @cached_property
    def _excess(self) -> Floats:
        """The contribution to delta, up to a common factor, of a total loss that far above epsilon."""
        return np.asarray(np.exp(-self.rate * self._beyond) * -np.expm1(-self._beyond))


def _window(losses: list[tuple[PrivacyLoss, int]], rate: float) -> tuple[float, float, float]:
    """Total losses outside of which the tilted distribution has about exp(_LOG_OUTSIDE) on a side.

    The third number is the shift of the rate with which Chernoff's bound gives the upper end. Any shift
    bounds the tail; this one is nearly the best.
    """

    def total(at: float) -> float:
        return math.fsum(count * loss.log_moment(at) for loss, count in losses)

    here = total(rate)
    top = math.fsum(count * float(loss.losses[-1]) for loss, count in losses)
    bottom = math.fsum(count * float(loss.losses[0]) for loss, count in losses)

    def upper(log_shift: float) -> float:
        shift = math.exp(log_shift)
        return (total(rate + shift) - here - _LOG_OUTSIDE) / shift

    def lower(log_shift: float) -> float:
        shift = math.exp(log_shift)
        return (total(rate - shift) - here - _LOG_OUTSIDE) / shift

    # Both are convex functions of the shift, divided by it: they fall, and then rise.
    shift = minimize(upper)
    high = min(upper(shift), top)
    low = max(-lower(minimize(lower)), bottom)
    return low, max(high, low + 1e-9), math.exp(shift)


def _power(unit: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Powers of numbers of modulus at most 1 by repeated squaring, with an error of at most 4 count units."""
    result = np.ones_like(unit)
    square = unit.copy()
    remaining = count
    while remaining:
        if remaining & 1:
            result *= square
        remaining >>= 1
        if remaining:
            square *= square
    return result


def _single_epsilon(loss: PrivacyLoss, delta: float) -> float:
    """The smallest epsilon with loss.delta(epsilon) <= delta."""
    if delta == 0.0 or loss.infinity >= delta:
        return loss.max_loss if loss.infinity == 0.0 else math.inf
    if loss.delta(0.0) <= delta:
        return 0.0
    # Bisection for the first of the losses at which delta is small enough.
    above = range(int(np.searchsorted(loss.losses, 0.0, side="right")), loss.losses.size - 1)
    enough = above.start + bisect_left(
        above, True, key=lambda place: loss.delta(float(loss.losses[place])) <= delta
    )
    # Below that loss, delta is a constant minus another one times e^epsilon.
    highest = float(loss.losses[enough])
    constant = float(loss.masses[enough:].sum()) - (delta - loss.infinity) / (1.0 + loss.slack)
    factor = float((loss.masses[enough:] * np.exp(highest - loss.losses[enough:])).sum())
    solved = highest + math.log(min(max(constant / factor, 1e-300), 1.0)) if factor > 0.0 else highest
    # The solution may be wrong in its last digits. Bisection finds these, and keeps a bound from above.
    low, high = max(solved, 0.0) * (1.0 - _SOLVED_ROOM), min(max(solved, 0.0) * (1.0 + _SOLVED_ROOM), highest)
    if loss.delta(low) <= delta or loss.delta(high) > delta:
        low, high = 0.0, highest
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (low, middle) if loss.delta(middle) <= delta else (middle, high)
    return high
