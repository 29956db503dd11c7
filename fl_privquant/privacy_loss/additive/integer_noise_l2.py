"""Integer noise on updates of bounded L2 norm: bounds by normal pairs.

Norms are in units of the clip. Before noise is added, inputs are rounded at random to integers. The first
bound, which is the smaller one on coarse lattices, tells the adversary how inputs were rounded. The second
one does not. (Both are below the published Rényi bounds wherever epsilon is of any use.)

**Rounding told.** Let the two inputs use the same random numbers for the rounding, and tell these to the
adversary, who can then only learn more (joint convexity). A coordinate of difference D, in lattice steps,
then gives integers whose difference k is one of the two whole numbers next to D, with mean D, independently
of the other coordinates.

**Normal pairs.** Let F(t) be the probability that the sum of the n honest noises is t or more. Let t0 be the
first t with F(t) <= s, and a the largest value of Phi^-1(F(t - 1)) - Phi^-1(F(t)) over all t from 2 - t0 to
t0. (The noises are symmetric and log-concave, and so is their sum. Thus F(1 - t) = 1 - F(t), the differences
at t and 2 - t are equal, and those from 1 to t0 need to be computed.) Then for *every* whole shift k all
tests of the noise shifted by k against the noise itself have

    power - s <= H_(a k)(level + s)                                                                  (1)

in the notation of :mod:`fl_privquant.privacy_loss.additive.normal_pairs`. Proof: By log-concavity the best
tests are half-lines, of power F(t - k) and level F(t).

* If t - k >= 1 - t0 and t <= t0, then Phi^-1(F(t - k)) - Phi^-1(F(t)) is the sum of k differences, each at
  most a.
* If t > t0, the power is at most F(t0) <= s, or the sum of the differences up to t0 bounds it by
  H_(a k)(F(t0)) <= H_(a k)(s). The lower end mirrors this.
* For a test beyond both ends H_(a k)(s) >= 1 - s.

The noise that is drawn from tables is within n times their total variation distance of the ideal
distribution, which is added to s.

So a shift by k costs no more than N(0, 1) against N(a k, 1), except for a probability that
:func:`~fl_privquant.privacy_loss.additive.normal_pairs.spare_for` keeps small. Given the shifts k_i of all
coordinates, an update costs N(0, 1) against N(a K, 1), K^2 = sum of k_i^2. The length K exceeds each of a
few bounds with a small probability only, so the loss is covered by a mixture of the losses at these bounds.
By Chernoff, for every rate r,

    log Pr[K^2 >= B] <= (largest value of the sum of log E exp(r k_i^2)) - r B,

where the largest value is taken over all D_i with sum of D_i^2 <= S. It is d times the concave hull of
log E exp(r k^2), as a function of D^2, at S / d. The hull is bounded on a fine grid, with the function at the
far end of each cell.

**Rounding not told.** Let an input be the real number x, in lattice steps. It is rounded to one of its two
neighbors with mean x, so that the sum of the input and all noise is t or more with probability G(t - x),
where G interpolates F linearly between whole numbers. (Tell the adversary the integers of the other
clients.) Distributions of different x have monotone likelihood ratios: those of the rounded inputs have, and
adding log-concave noise preserves this (composition of totally positive kernels). So the best tests are
half-lines, and for *every real* shift D all tests have

    power - s <= H_(b D)(level + s),

where b is the largest slope of -Phi^-1(G) between 1 - t0 and t0, by the argument of
:mod:`fl_privquant.privacy_loss.additive.rounding_noise`. From j to j + 1 the slope of G is the probability
p_j of j, and phi(Phi^-1(G)) is a concave function of G, so that it is least at an end. Hence b is the
largest value of

    p_j / min(phi(Phi^-1(F(j))), phi(Phi^-1(F(j + 1)))).

An update at distance D then costs no more than N(0, 1) against N(b D, 1): rounding adds nothing to the
distance. This is the argument of rounded shares (:mod:`fl_privquant.privacy_loss.additive.rounded_gaussian`)
as far as it holds here. There, noise is added before rounding, and rounding errors hide the sum, too. Here
they cannot count as noise: if all other inputs are whole numbers, nothing else is rounded at random. And b
exceeds the inverse of the noise's deviation by a factor of about exp(z / (2 deviation)) at the end of the
range, z deviations out. So a coarse lattice, on which the noise of the sum has a deviation of 20 steps,
costs more than 20 %; with 200 steps it costs 2 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from scipy.special import ndtri

from fl_privquant._array_types import Floats
from fl_privquant.distributions.integer_distribution import IntegerDistribution
from fl_privquant.errors import InvalidSpecError
from fl_privquant.privacy_loss.additive.integer_noise import NoisyInteger, ideal_sum
from fl_privquant.privacy_loss.additive.normal_pairs import INVERSE_ERROR, spare_for
from fl_privquant.privacy_loss.closed_forms import gaussian_loss
from fl_privquant.privacy_loss.composition.compose import NamedLoss, UpdateNorm
from fl_privquant.privacy_loss.composition.loss_distribution import ROUNDING, PrivacyLoss
from fl_privquant.privacy_loss.sums.gaussian_bound import NORM_ROUNDING, UpdateBound
from fl_privquant.sampling.integer_noise import IntegerNoise

# The exponential of a larger number overflows.
_FAR = 700.0
_FLOAT_ROOM = 1.0 + 1e-9
# The probability, for a whole update, that a shift reveals everything; and the probabilities with which the
# length K of a rounded difference exceeds its bounds. The last of these is charged as an infinite loss, too.
_CHARGED = 1e-11
_CHANCES = (0.3, 0.03, 1e-3, 1e-6, 1e-11)
# Probabilities of the sum are listed down to the first number. The second is the least slack s.
_LISTED, _MIN_SPARE = 1e-36, 1e-28
# A coordinate may reveal everything with at least this many times the distance of drawn from ideal noise.
_TIMES_APART = 100.0
_UNIT = 2.0**-53
# Largest separation of one coordinate that is tried, and the factor by which guesses are enlarged.
_LARGEST, _ROOM = 3.0, 1.25
_RATES = np.geomspace(1e-6, 64.0, 161)
_COARSE = 10
_MAX_CHORDS = 64


@dataclass(frozen=True)
class NoisyUpdate:
    """An update of bounded L2 norm whose coordinates are rounded to integers and get noise."""

    integer: NoisyInteger
    distance: float
    """The L2 distance of two neighboring updates at most, in units of the clip."""
    dimension: int
    num_honest: int
    """Honest clients in the sum; 1 in the local view."""

    @property
    def squared(self) -> float:
        """Largest squared distance of two updates before they are rounded, in lattice steps."""
        step = 2.0 / self.integer.max_shift
        return (UpdateBound(self.distance * NORM_ROUNDING, self.dimension).widened / step) ** 2


def shifted_noise_loss(update: NoisyUpdate) -> NamedLoss | None:
    """The loss of the normal pairs that cover every whole shift; None where none is certified."""
    integer, dimension, squared = update.integer, update.dimension, update.squared
    farthest = min(integer.max_shift, math.ceil(math.sqrt(squared)) + 1)
    apart = integer.distance_to_ideal(update.num_honest)
    # The slack must exceed the distance of the drawn sum from the ideal one.
    revealed = max(_CHARGED / dimension, _TIMES_APART * apart)
    separation = _shift_separation(integer.noise, farthest, update.num_honest, revealed, apart)
    if math.isinf(separation):
        return None
    loss = _rounded_loss(separation, integer.max_shift, squared, dimension)
    charged = replace(loss, infinity=loss.infinity + dimension * revealed)
    return NamedLoss(charged, "l2 gaussian of integer noise", norm=UpdateNorm.L2)


def real_shift_loss(update: NoisyUpdate) -> NamedLoss | None:
    """The loss of the normal pairs that cover every real shift, if the adversary is not told roundings."""
    integer, dimension, squared = update.integer, update.dimension, update.squared
    apart = integer.distance_to_ideal(update.num_honest)
    revealed = max(_CHARGED / dimension, _TIMES_APART * apart)
    # The largest shift of a coordinate is the width of the lattice.
    farthest = min(float(integer.max_shift), math.sqrt(squared))
    separation = _shift_separation(integer.noise, farthest, update.num_honest, revealed, apart, told=False)
    if math.isinf(separation):
        return None
    loss = gaussian_loss(separation * math.sqrt(squared), dimension * revealed)
    return NamedLoss(loss, "l2 gaussian of integer noise", norm=UpdateNorm.L2)


def _rounded_loss(separation: float, max_shift: int, squared: float, dimension: int) -> PrivacyLoss:
    """The loss of a normal pair whose distance is the length of a difference that is rounded at random."""
    chances = (1.0, *_CHANCES)
    losses = [
        gaussian_loss(separation * rounded_length(max_shift, squared, dimension, chance))
        for chance in _CHANCES
    ]
    # The adversary is told which of the bounds the length stays within.
    weights = [likely - rare for likely, rare in pairwise(chances)]
    values = np.concatenate([loss.losses for loss in losses])
    masses = np.concatenate([weight * loss.masses for weight, loss in zip(weights, losses, strict=True)])
    infinity = _CHANCES[-1] + sum(
        weight * loss.infinity for weight, loss in zip(weights, losses, strict=True)
    )
    slack = max(loss.slack for loss in losses) + ROUNDING
    return PrivacyLoss.merge_atoms(values, masses, infinity, slack)


@lru_cache(maxsize=64)
def _shift_separation(
    noise: IntegerNoise, farthest: float, num_honest: int, revealed: float, apart: float, told: bool = True
) -> float:
    """The separation of one lattice step in the sum of honest noises; infinite where none is certified.

    It holds for whole steps if the adversary is ``told`` how inputs are rounded, else for real ones.
    """
    try:
        distribution = ideal_sum(noise, num_honest, _LISTED)
    except InvalidSpecError:
        return math.inf
    most = _ROOM * farthest / math.sqrt(num_honest * float(noise.variance))
    while most <= _LARGEST:
        spare = spare_for(revealed, most) - apart
        if spare < _MIN_SPARE:
            return math.inf
        separation = shift_separation(distribution, spare, told)
        if separation * farthest <= most:
            return separation
        most = max(2.0 * most, _ROOM * separation * farthest)
    return math.inf


def shift_separation(distribution: IntegerDistribution, spare: float, whole: bool = True) -> float:
    """The least a, rounded up, for which (1) holds for whole shifts of symmetric log-concave noise.

    Without ``whole`` it is the b for all real shifts of inputs that are rounded at random.

    >>> coin = IntegerDistribution(-1, np.array([0.25, 0.5, 0.25]))
    >>> round(shift_separation(coin, 0.3), 4)
    1.349
    """
    # F(0), F(1), ..., up to the first that is at most the slack.
    beyond = np.cumsum(distribution.values[::-1])[::-1][-distribution.first :]
    relative = distribution.relative + distribution.values.size * _UNIT
    end = int(np.argmax(beyond * (1.0 + relative) + distribution.lost <= spare))
    if end == 0:
        return math.inf
    upper = beyond[:end] * (1.0 + relative) + distribution.lost
    lower = beyond[1 : end + 1] * (1.0 - relative)
    if whole:
        return float((ndtri(upper) - ndtri(lower)).max()) + INVERSE_ERROR
    scores = np.maximum(np.abs(ndtri(upper)), np.abs(ndtri(lower))) + INVERSE_ERROR
    heights = np.exp(-0.5 * scores**2) / math.sqrt(2.0 * math.pi)
    return (
        float((distribution.values[-distribution.first :][:end] * (1.0 + relative) / heights).max())
        * _FLOAT_ROOM
    )


@lru_cache(maxsize=256)
def rounded_length(max_shift: int, squared: float, dimension: int, chance: float) -> float:
    """A bound that the length of the difference of two rounded updates exceeds with probability ``chance``.

    ``squared`` is the squared distance of the two updates before they are rounded, in lattice steps.
    """
    grid = _Grid.of(max_shift)

    def bound(at: int) -> float:
        rate = float(_RATES[at])
        return (grid.max_log_moment(rate, squared, dimension) - math.log(chance)) / rate

    # Every rate gives a bound. Take the best of a few rates, and then the best of its neighbors.
    best = min(range(0, _RATES.size, _COARSE), key=bound)
    near = range(max(best - _COARSE + 1, 0), min(best + _COARSE, _RATES.size))
    return math.sqrt(min(bound(at) for at in near)) * _FLOAT_ROOM


@lru_cache(maxsize=256)
def rounded_mean_square(max_shift: int, squared: float, dimension: int) -> float:
    """The largest mean of the squared length of a rounded difference. It serves to compare lattices only."""
    grid = _Grid.of(max_shift)
    share = grid.far - np.floor(grid.far)
    mean = grid.far**2 + share * (1.0 - share)
    return dimension * _hull_at(grid.far**2, mean, min(squared / dimension, float(grid.far[-1]) ** 2))


@dataclass(frozen=True, eq=False)
class _Grid:
    """Differences of inputs, in lattice steps: moments in a cell are at most those at its far end."""

    near: Floats
    far: Floats

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, max_shift: int) -> _Grid:
        wide = np.geomspace(1e-9, 1.0, 400)
        rest = np.linspace(1.0, max_shift, 64 * min(max_shift, 64))
        points = np.unique(np.concatenate([[0.0], wide, rest, np.arange(1, min(max_shift, 4096) + 1)]))
        return cls(points[:-1], points[1:])

    def max_log_moment(self, rate: float, squared: float, dimension: int) -> float:
        """The largest sum of log E exp(rate k^2): the concave hull, in D^2, times the dimension."""
        low, high = rate * self._below**2, rate * (self._below + 1.0) ** 2
        # Exponents far apart would overflow, and exponents close to each other would cancel.
        step = high - low
        gained = low + np.log1p(self._share * np.expm1(np.minimum(step, _FAR)))
        if not (near := step < _FAR).all():
            log_rest, log_share = self._log_shares
            gained = np.where(near, gained, np.logaddexp(low + log_rest, high + log_share))
        at = min(squared / dimension, float(self.far[-1]) ** 2)
        return dimension * _hull_at(self._near_squares, gained, at)

    @cached_property
    def _below(self) -> Floats:
        """The whole numbers at or below the far ends."""
        return np.floor(self.far)

    @cached_property
    def _share(self) -> Floats:
        """The probability with which each far end is rounded up."""
        return np.asarray(self.far - self._below)

    @cached_property
    def _log_shares(self) -> tuple[Floats, Floats]:
        """The logarithms of the probabilities of rounding down, and of rounding up."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log1p(-self._share)), np.asarray(np.log(self._share))

    @cached_property
    def _near_squares(self) -> Floats:
        return np.asarray(self.near**2)


def _hull_at(x: Floats, y: Floats, at: float) -> float:
    """The upper concave hull of points with increasing x >= 0 and y, at ``at``; flat beyond the last.

    It is the least of slope * at + max(y - slope * x) over slopes >= 0: each slope gives a valid bound, so
    that the search for the best one may be approximate. A chord of two points around ``at`` gives a slope;
    the point that is furthest above it takes the place of one of the two, until there is none.
    """
    left, right = 0, x.size - 1
    best = float(y[-1])
    for _ in range(_MAX_CHORDS):
        slope = max(float(y[right] - y[left]) / float(x[right] - x[left]), 0.0)
        above = y - slope * x
        top = int(above.argmax())
        best = min(best, slope * at + float(above[top]))
        if top in (left, right) or above[top] <= above[left] * (1.0 + _UNIT):
            break
        left, right = (top, right) if x[top] <= at else (left, top)
    return best * _FLOAT_ROOM
