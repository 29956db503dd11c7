r"""What a secure sum reveals about one client's update: a certified Gaussian guarantee by the L2 norm.

The server sees, for each coordinate, the sum of the codes of ``n`` honest clients. This module certifies,
for a continuous table (:class:`~fl_privquant.distributions.certified_table.CertifiedTable` whose distribution
does not jump), two figures:

* a **separation** a for a rate b: for two inputs x, x' of one client at distance D = abs(x - x'), whatever
  the inputs of the other clients, the two distributions of the sum are no easier to tell apart than N(0, 1)
  and N(a D, 1), except for a probability b D. Squared separations of Gaussian pairs add up, so two updates of
  d coordinates at L2 distance R cost no more than N(0, 1) and N(a R, 1), except for a probability b sqrt(d)
  R: *whatever d*. Over T rounds the separation is a R sqrt(T), and (epsilon, delta) follow from it by the
  exact formula for the normal distribution;
* a **Rényi rate** for each order, which states the same in terms of Rényi divergences. It is weaker, and
  serves as a cross-check.

Proof
-----
*Notation.* r_x is the distribution of a client's code for input x, low_i the least probability of output i
over all rows, gamma = sum of low_i, and * the convolution on the lattice of codes. e = exp(epsilon) is the
factor of a hockey-stick divergence H_e.

1. *Blanket.* Every row is gamma * (low / gamma) + rest: with probability gamma a client draws from the
   blanket low / gamma, which does not depend on its data. Tell the adversary which of the other n - 1 clients
   did so, and the codes of those that did not. What remains hidden is the sum of K ~ Binomial(n - 1, gamma)
   blanket draws, of distribution Q = Q_K, and of the protected client's code. The adversary knows K, and K
   has the same distribution whatever the inputs. So hockey-stick divergences, and moments, are averages of
   those given K.
2. *Slopes.* The distribution is continuous and linear on pieces. So r_x - r_x' = (x - x') g, where g is a
mixture of
   the slopes g_j of the pieces; and any row is a mixture of the rows at knots.
3. *The sum's divergence in terms of slopes.* Let z = (r_x + r_x') / 2, D = x - x' > 0 and e >= 1. With
   w = (2 / D) (e - 1) / (e + 1), called the *strike*,

       H_e(x, x') = sum of max(r_x*Q - e r_x'*Q, 0) = (D / 2) (1 + e) * sum of max(g*Q - w z*Q, 0).

   The last sum, averaged over K, is convex in g and in z. So it is at most S(w), its largest value over
   slopes g_j and rows z at knots. For D < 0 replace g by -g. S falls with w and is convex in w.
4. *The normal pair's divergence in the same terms.* For N(D a / 2, 1) and N(-D a / 2, 1) the same algebra
   gives H_e = (D / 2) (1 + e) G(D, w), where

       G(D, w) = (p1 - p2) / D - w (p1 + p2) / 2,   p1, p2 = Phi(+-m / 2 - t),   m = D a,   t = log(e) / m.

   *G falls with D*, so that one check at the largest D will cover all D. Proof: let phi be the normal
   density, phi1, phi2 = phi(+-m / 2 - t), so that phi1 = e phi2, and u = w / a. The threshold t is the
   best one, so by the envelope theorem

       d(G / a) / dm = ((phi1 + phi2) / 2 - mean of phi between the two points) / m - u (phi1 - phi2) / 4.

   As (phi1 - phi2) / (phi1 + phi2) = (e - 1) / (e + 1) = m u / 2, this is <= 0 if the mean is at least
   (phi1 + phi2) / 2 * (1 - (m u / 2)^2) = phi(t) exp(-m^2 / 8) / cosh(m t / 2). And the mean is phi(t) times
   the mean of cosh(t s) exp(-s^2 / 2) over abs(s) < m / 2, which is at least phi(t) exp(-m^2 / 8).
5. *One check for all distances.* Suppose S(w) <= G(2, w) + b / 4 for 0 <= w <= W, and S(W) <= b / 4. Then
   for all D <= 2 and e >= 1

       H_e(x, x') <= H_e(normal pair at m = D a) + D (1 + e) b / 8.

   For w <= W <= 1 / 2, e is at most 3, as D w <= 1, and the last term is at most D b / 2. Beyond W the left
   side only falls, so it stays at most D b / 2, its bound at W. If 2 a <= 1 the normal pair has H_e <= 0.39,
   so the left side is at most (1 - b D) H_e(normal) + b D for all e >= 1. That is the divergence of a pair
   that reveals everything with probability b D, and else is the normal one. Both orders of x and x' are
   covered, so this holds for e < 1 too. Dominating pairs compose (Zhu, Dong, Wang 2022, Theorem 10): squared
   separations of normal ones add up, and the sum of the D_i of all coordinates is at most sqrt(d) times the
   L2 distance.
6. *Rényi.* Now let z be the row at x', and h = D g*Q / z*Q. The moment of order k is 1 + sum of z*Q f(h),
   f(h) = (1 + h)^k - 1 - k h, with 0 for 1 + h where that is negative; it is again convex in (g, z). For
   k >= 3 each z*Q f(h) / D^2 is convex in D, as it is the integral of
   k (k - 1) (1 - s) (g*Q)^2 / z*Q * (1 + s h)^(k - 2) over s in [0, 1]. So the largest value of their sum is
   at D = 0, where it is k (k - 1) / 2 times the Fisher information J, or at D = 2. For k = 2 it is at most J.
   With that value c, (k - 1) D_k <= sum of log(1 + c D_i^2) <= c R^2. Orders between 2 and 3 take the value
   of order 3.

*Rounding.* The distributions Q come with a relative error and a lost mass
(:mod:`fl_privquant.distributions.integer_distribution`). g*Q is
enlarged by the error of its positive and negative parts, and z*Q made smaller. The mass that was lost, and
the numbers K of draws below the lowest that is considered, are a separate probability, charged to every
coordinate (:attr:`UpdateBound.charge`). What is counted is then a pair of measures of less mass, which is
below its dominating pair at every e. Such pairs compose as well, and the rest has no more mass than what is
charged. Between two values of w at which S is computed, S lies below its chord, and G above its tangent.

References
----------
Balle, Bell, Gascon, Nissim, "The Privacy Blanket of the Shuffle Model", CRYPTO 2019. Dong, Roth, Su,
"Gaussian Differential Privacy", JRSS B 2022. Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via
Characteristic Function", AISTATS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from fl_privquant._array_types import Floats, Ints
from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.distributions.integer_distribution import (
    IntegerDistribution,
    WeightedDistribution,
    binomial_sums,
    estimate_sum_width,
)
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InvalidSpecError
from fl_privquant.privacy_loss.tables.renyi_by_distance import INPUT_ROUNDING, is_continuous, slopes_of

NORM_ROUNDING = 1.0 + 1e-5
"""The factor by which the norm of a clipped and rotated update may exceed its bound, as floats are rounded.

Clips and rotations work in float32: a Hadamard transform of 2^30 coordinates, twice, may add 60 units.
"""

# The probability with which a whole update may be revealed in a round (far below any delta in use), and the
# lost mass of one coordinate, which is charged besides.
_CHARGED = 1e-11
_COVERED = 1e-17
# The largest distance of two inputs in [-1, 1], with the sampler's rounding.
_WIDEST = 2.0 + 2.0**-29
# How far knots may lie outside [-1, 1]: the sampler rounds an input by a share of its piece's length.
_OUTSIDE = 1e-6
# How many numbers K of blanket draws are distinguished, and at how many strikes w the sum and a normal pair
# are compared. More of either give a tighter certificate, and take longer.
_BUCKETS, _STRIKES = 64, 1600
_TOLERANCE = 1e-5
# The largest strike, in standard deviations of the score g*Q / z*Q. Beyond it lies less than is charged.
_REACH = 9.5
# Largest strike and separation for which step 5 of the proof holds.
_LARGEST_STRIKE, _LARGEST_SEPARATION = 0.5, 0.5
# The share of the rate b that is slack in the check of step 5.
_SHARE = 0.25
# Relative accuracy of slopes, of scipy's normal distribution, and of some thousand additions.
_SLOPE_UNITS, _NORMAL_UNITS, _SUM_UNITS = 1e-12, 3e-14, 1e-11
# How many pairs of a slope and a row are computed together, to keep memory small.
_PAIRS_AT_A_TIME = 256
# Orders at which Rényi divergences are computed; larger ones help at no delta in use.
_ORDERS = np.concatenate([[2.0], 3.0 * 1.05 ** np.arange(48), 30.0 * 1.15 ** np.arange(1, 36)])
# The most points of all convolutions together, which take some seconds, and the fewest useful buckets.
_MAX_POINTS, _MIN_BUCKETS = 5e6, 8


@dataclass(frozen=True, eq=False)
class SumCertificate:
    """What the secure sum of ``num_honest`` clients, the protected one included, reveals about a coordinate.

    It holds for two inputs at any distance.
    """

    num_honest: int
    information: float
    """Fisher information J of the sum about one input, in units of 1 / clip^2, rounded up."""
    _strikes: Floats
    _scores: Floats
    _pairs: _Pairs
    _sums: tuple[WeightedDistribution, ...]

    def separation(self, rate: float) -> float:
        """The least separation a that is certified for the rate b = ``rate``; infinite if there is none.

        Two inputs at distance D are as hard to tell apart as N(0, 1) and N(a D, 1), except for a probability
        ``rate`` * D.
        """
        spare = _SHARE * rate
        if self._scores[-1] > spare or math.isinf(self.information):
            return math.inf
        low, high = 0.0, min(4.0 * math.sqrt(self.information), _LARGEST_SEPARATION)
        if not self._holds(high, spare):
            return math.inf
        while high - low > _TOLERANCE * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self._holds(middle, spare) else (middle, high)
        return high

    def renyi(self, order: float) -> float:
        """Bound of the Rényi divergence of that order, divided by the squared distance of two inputs."""
        if not order > 1.0:
            raise InvalidSpecError("order", order, "is not above 1")
        if math.isinf(self.information):
            return math.inf
        whole = 2.0 if order <= 2.0 else max(order, 3.0)
        if whole > _ORDERS[-1]:
            return math.inf
        above = int(np.searchsorted(_ORDERS, whole))
        moments = self._moments
        if _ORDERS[above] == whole:
            return float(moments[above]) / (whole - 1.0)
        # Moments are convex in the order, so a chord lies above them.
        share = (whole - _ORDERS[above - 1]) / (_ORDERS[above] - _ORDERS[above - 1])
        chord = (1.0 - share) * moments[above - 1] + share * moments[above]
        return float(chord) * (1.0 + _SUM_UNITS) / (whole - 1.0)

    @cached_property
    def _moments(self) -> Floats:
        """For each fixed order, a bound of (order - 1) times the divergence over the squared distance.

        These bounds are convex in the order a. For fixed h the excess (1 + h)^a - 1 - a h is convex in a; so
        are sums and maxima of such terms, and a (a - 1) / 2.
        """
        near = _ORDERS * (_ORDERS - 1.0) / 2.0 * self.information
        far = np.zeros(_ORDERS.size)
        for block in self._pairs.blocks():
            total = np.sum([block.score(partial_sum).moments(_ORDERS) for partial_sum in self._sums], axis=0)
            far = np.maximum(far, total.max(axis=0))
        return np.asarray(np.maximum(near, far / _WIDEST**2) * (1.0 + _SUM_UNITS))

    def _holds(self, separation: float, spare: float) -> bool:
        """The check of step 5: whether all chords of S stay below the tangents of G, plus the slack."""
        middle = 0.5 * (self._strikes[1:] + self._strikes[:-1])
        value, slope = _normal_score(separation, middle)
        half = 0.5 * np.diff(self._strikes)
        return bool(
            np.all(self._scores[:-1] <= value + slope * half + spare)
            and np.all(self._scores[1:] <= value - slope * half + spare)
        )


@dataclass(frozen=True)
class UpdateBound:
    """Two whole updates at an L2 ``distance``, in units of the clip, and the probabilities that they cost."""

    distance: float
    dimension: int

    @property
    def widened(self) -> float:
        """The distance, with the most that the sampler's rounding of inputs may add."""
        return self.distance + math.sqrt(self.dimension) * INPUT_ROUNDING

    @property
    def rate(self) -> float:
        """The rate b to give to :meth:`SumCertificate.separation`."""
        return _CHARGED / (math.sqrt(self.dimension) * self.widened)

    @property
    def charge(self) -> float:
        """The probability, per round, with which the update may be revealed; it counts towards delta."""
        return _CHARGED + self.dimension * _COVERED


def certify_sum(table: CertifiedTable, num_honest: int) -> SumCertificate | None:
    """The certificate of a table in the sum of ``num_honest`` honest clients.

    None where there is none: the distribution jumps, nobody else is in the sum, or the distribution has so
    many pieces, or so fine a lattice, that it would take too long.
    """
    distribution = table.distribution
    if (
        num_honest < 2
        or not is_continuous(distribution)
        or max(-distribution.starts[0], distribution.ends[-1]) > 1.0 + _OUTSIDE
    ):
        return None
    codes = table.codebook.codes // max(int(np.gcd.reduce(table.codebook.codes)), 1)
    # These are multiples of 2^-32, so their sum is exact.
    low = distribution.rows.min(axis=0)
    share = float(low.sum())
    pairs = _Pairs.of(distribution, codes)
    affordable = int(_MAX_POINTS / (len(pairs.rows) * estimate_sum_width(codes, low, num_honest * share)))
    if affordable < _MIN_BUCKETS:
        return None
    blanket = IntegerDistribution.of(codes, low / share)
    parts, uncovered = binomial_sums(blanket, num_honest - 1, share, min(_BUCKETS, affordable))
    if uncovered > _COVERED:
        return None
    sums = tuple(parts)
    information = max(
        float(np.sum([block.score(partial_sum).information for partial_sum in sums], axis=0).max())
        for block in pairs.blocks()
    )
    information *= 1.0 + _SUM_UNITS
    strikes = np.linspace(0.0, min(_REACH * math.sqrt(information), _LARGEST_STRIKE), _STRIKES + 1)
    worst = np.max([block.excess(sums, strikes) for block in pairs.blocks()], axis=0)
    return SumCertificate(num_honest, information, strikes, worst * (1.0 + _SUM_UNITS), pairs, sums)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs of a slope of the distribution and a row: one pair per line, one code per column."""

    slopes: Floats
    rows: Floats
    codes: Ints

    @classmethod
    def of(cls, distribution: OutputDistribution, codes: Ints) -> _Pairs:
        """Every slope of the distribution with every row."""
        signs = (1.0,) if _is_symmetric(distribution, codes) else (1.0, -1.0)
        slopes = np.concatenate([sign * np.asarray(slopes_of(distribution)) for sign in signs])
        rows = distribution.rows
        return cls(np.repeat(slopes, len(rows), axis=0), np.tile(rows, (len(slopes), 1)), codes)

    def blocks(self) -> Iterator[_Pairs]:
        """The pairs in blocks, so that memory stays small."""
        for start in range(0, len(self.rows), _PAIRS_AT_A_TIME):
            chosen = slice(start, start + _PAIRS_AT_A_TIME)
            yield _Pairs(self.slopes[chosen], self.rows[chosen], self.codes)

    def score(self, drawn: WeightedDistribution) -> _Score:
        """The convolutions g*Q and z*Q of all pairs, for one number of blanket draws."""
        values = drawn.distribution.values
        relative = drawn.distribution.relative + _SLOPE_UNITS + self.codes.size * 2.0**-53
        shape = (len(self.rows), values.size + int(self.codes[-1]))
        rise, size, base = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for column, code in enumerate(self.codes.tolist()):
            at = slice(code, code + values.size)
            steep = self.slopes[:, column, None] * values
            rise[:, at] += steep
            size[:, at] += np.abs(steep)
            base[:, at] += self.rows[:, column, None] * values
        unused = base <= 0.0
        rise[unused] = size[unused] = 0.0
        return _Score(rise, relative * size, base * (1.0 - relative), drawn.weight, 1.0 + 4.0 * relative)

    def excess(self, sums: Sequence[WeightedDistribution], strikes: Floats) -> Floats:
        """The largest sum of max(g*Q - w z*Q, 0) of all pairs, at each strike w."""
        cells = (len(self.rows), strikes.size + 1)
        first = np.arange(cells[0])[:, None] * cells[1]
        gained, paid = np.zeros(cells), np.zeros(cells)
        terms = strikes.size
        for drawn in sums:
            score = self.score(drawn)
            # An output contributes at all strikes below its quotient.
            at = (first + np.searchsorted(strikes, score.quotient, side="left")).ravel()
            upper = (drawn.weight * (score.rise + score.error)).ravel()
            gained += np.bincount(at, upper, gained.size).reshape(cells)
            paid += np.bincount(at, (drawn.weight * score.base).ravel(), paid.size).reshape(cells)
            terms += score.base.shape[1]
        # From the largest strike down: the small sums keep their digits.
        gained = np.cumsum(gained[:, :0:-1], axis=1)[:, ::-1]
        paid = strikes * np.cumsum(paid[:, :0:-1], axis=1)[:, ::-1]
        # The rounding of sums of that many positive numbers.
        rounding = 2.0 * terms * np.finfo(np.float64).eps * (gained + paid)
        return np.asarray((np.maximum(gained - paid, 0.0) + rounding).max(axis=0))


@dataclass(frozen=True, eq=False)
class _Score:
    """The convolutions of slopes and of rows with one Q, and their errors: one pair per line."""

    rise: Floats
    """The convolution g*Q, right to ``error``."""
    error: Floats
    base: Floats
    """A lower bound of the convolution z*Q."""
    weight: float
    """The probability of this number of blanket draws."""
    room: float
    """A factor that covers the relative error of moments."""

    @property
    def quotient(self) -> Floats:
        """The largest quotient g*Q / z*Q at each output; 0 where the row has no mass."""
        return _over(self.rise + self.error, self.base)

    @property
    def information(self) -> Floats:
        """For each pair, the part of the Fisher information that this number of blanket draws contributes."""
        return np.asarray(self.weight * _over((np.abs(self.rise) + self.error) ** 2, self.base).sum(axis=1))

    def moments(self, orders: Floats) -> Floats:
        """The part of the sum of z*Q f(h), at the largest distance, that this number of draws contributes.

        One pair per line, one order per column.
        """
        # Where the sign of a slope is not certain, the worse one is taken.
        sign = np.where(self.rise > -self.error, 1.0, -1.0)
        ratio = _WIDEST * sign * _over(np.abs(self.rise) + self.error, self.base)
        with np.errstate(divide="ignore"):
            logarithm = np.log1p(np.maximum(ratio, -1.0))
        # The relative error of a power grows with its logarithm; powers below 1 count as 1.
        units = 4.0 * np.finfo(np.float64).eps * (1.0 + np.where(ratio > 0.0, logarithm, 1.0))
        divergences = np.empty((len(self.base), orders.size))
        powers, rounding, line = (np.empty_like(ratio) for _ in range(3))
        with np.errstate(over="ignore", invalid="ignore"):
            for at, order in enumerate(orders.tolist()):
                np.exp(np.multiply(order, logarithm, out=powers), out=powers)
                # The difference cancels where the ratio is small; its largest error is added.
                np.multiply(units, 1.0 + order, out=rounding)
                rounding *= np.maximum(powers, 1.0, out=line)
                powers -= 1.0
                powers -= np.multiply(order, ratio, out=line)
                excess = np.maximum(powers, 0.0, out=powers)
                excess += rounding
                divergences[:, at] = np.einsum("ij,ij->i", self.base, excess)
        # NaN arises where both the power and the quotient overflow.
        return self.weight * self.room * np.where(np.isnan(divergences), np.inf, divergences)


def _over(numerator: Floats, denominator: Floats) -> Floats:
    """The quotient; 0 where the denominator is 0."""
    with np.errstate(over="ignore"):
        return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0.0)


def _is_symmetric(distribution: OutputDistribution, codes: Ints) -> bool:
    """Whether codes, pieces and rows are symmetric: then the negative of every slope is a slope too."""
    lengths = distribution.ends - distribution.starts
    return (
        np.array_equal(codes, codes[-1] - codes[::-1])
        and np.array_equal(distribution.start_rows, distribution.end_rows[::-1, ::-1])
        and np.allclose(lengths, lengths[::-1], rtol=1e-13, atol=0.0)
    )


def _normal_score(separation: float, strikes: Floats) -> tuple[Floats, Floats]:
    """The value of G(2, w) at each strike w, rounded down, and the absolute value of its slope in w."""
    middle = _WIDEST * separation
    tangent = np.minimum(0.5 * _WIDEST * strikes, 1.0 - 1e-15)
    threshold = 2.0 * np.arctanh(tangent) / middle
    upper, lower = ndtr(middle / 2.0 - threshold), ndtr(-middle / 2.0 - threshold)
    slope = 0.5 * (upper + lower)
    value = (upper - lower) / _WIDEST - strikes * slope
    error = _NORMAL_UNITS * (upper + lower) * (1.0 + strikes)
    return np.maximum(value - error, 0.0), slope
