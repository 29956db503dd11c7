r"""What a secure sum tells of one client's update: a Gaussian guarantee by the L2 norm, certified.

The server sees, for each coordinate, the sum of the codes of ``n`` honest clients. This module certifies,
for a continuous table (:class:`~fl_privquant.table.CertifiedTable` whose law does not jump), two figures:

* a **separation** a and a rate b: for inputs x, x' of one client at distance D = abs(x - x'), whatever the
  others' inputs, the two laws of the sum are no easier to tell apart than N(0, 1) and N(a D, 1), but for
  a probability b D. Gaussian pairs add up as squares, so two updates at L2 distance R, of d coordinates,
  cost no more than N(0, 1) and N(a R, 1), but for a probability b sqrt(d) R: *whatever d*. Over T rounds the
  separation is a R sqrt(T), and (epsilon, delta) follow from it by the exact formula for the normal law;
* a **Rényi rate** for each order, the same in terms of divergences; weaker, and a cross-check.

Proof
-----
*Notation.* r_x is the law of a client's code for input x, low_i the least weight of output i over all rows,
gamma = sum of low_i, and * the convolution on the lattice of codes.

1. *Blanket.* Every row is gamma * (low / gamma) + rest: with probability gamma a client draws from the
   blanket low / gamma, which does not depend on its data. Tell the adversary which of the other n - 1 clients
   did, and the codes of those that did not. Left is the sum of K ~ Binomial(n - 1, gamma) blanket draws, of
   law Q = Q_K, and the code of the protected client. K is known to the adversary and has one law whatever
   the inputs, so its hockey-stick divergences are the averages of those given K, and so are moments.
2. *Slopes.* The law is continuous and linear on pieces. So r_x - r_x' = (x - x') g, with g a mixture of the
   slopes g_j of the pieces; and any row is a mixture of the rows at knots.
3. *Middle.* Let z = (r_x + r_x') / 2, D = x - x' > 0 and e >= 1. With w = (2 / D) (e - 1) / (e + 1),

       H_e(x, x') = sum of max(r_x*Q - e r_x'*Q, 0) = (D / 2) (1 + e) * sum of max(g*Q - w z*Q, 0).

   The last sum is convex in g and in z: it is at most S(w), its largest value over slopes g_j and knots'
   rows z, averaged over K. For D < 0 replace g by -g. S falls and is convex in w.
4. *Normal pair.* For N(D a / 2, 1) and N(-D a / 2, 1) the same algebra gives H_e = (D / 2) (1 + e) G(D, w),

       G(D, w) = (P - Q) / D - w (P + Q) / 2,    P, Q = Phi(+-m / 2 - t),    m = D a,    t = log(e) / m.

   *G falls with D.* By the envelope theorem (t is the best threshold) and with phi the normal density,
   phi1, phi2 = phi(+-m / 2 - t), phi1 = e phi2, u = w / a:
   d(G / a) / dm = ((phi1 + phi2) / 2 - mean of phi between the two) / m - u (phi1 - phi2) / 4. As
   (phi1 - phi2) / (phi1 + phi2) = (e - 1) / (e + 1) = m u / 2, this is <= 0 if the mean is at least
   (phi1 + phi2) / 2 * (1 - (m u / 2)^2) = phi(t) exp(-m^2 / 8) / cosh(m t / 2). And the mean is phi(t) times
   the mean of cosh(t s) exp(-s^2 / 2) over abs(s) < m / 2, which is at least phi(t) exp(-m^2 / 8).
5. *One check.* So S(w) <= G(2, w) + b / 4 for 0 <= w <= W, and S(W) <= b / 4, give for all D <= 2 and e >= 1

       H_e(x, x') <= H_e(normal pair at m = D a) + D (1 + e) b / 8,

   where e is at most 3 if W <= 1 / 2, as D w <= 1; beyond W the left side only falls. If 2 a <= 1 the normal
   pair has H_e <= 0.39, so the right side is at most (1 - b D) H_e(normal) + b D: the pair that reveals
   everything with probability b D, and else is the normal one. Both orders of x and x' are covered, so this
   holds for e < 1 too. Dominating pairs compose (Zhu, Dong, Wang 2022, Theorem 10): normal ones by adding
   squares, and the sum of D_i is at most sqrt(d) times the L2 distance.
6. *Rényi.* With h = D g*Q / z*Q, z now the row at x', the moment of order k is 1 + sum of z*Q f(h), f(h) =
   (1 + h)^k - 1 - k h, with 0 for 1 + h where that is negative; again convex in (g, z). For k >= 3
   f(h) / D^2 is convex in D (it is the integral of k (k - 1) (1 - s) (g*Q)^2 / z*Q * (1 + s h)^(k - 2) over
   s in [0, 1]): its largest value is at D = 0, k (k - 1) / 2 times the Fisher information J, or at D = 2.
   For k = 2 it is at most J. With that value c, (k - 1) D_k <= sum of log(1 + c D_i^2) <= c R^2. Orders
   between 2 and 3 take that of 3.

*Rounding.* Sums Q come with a relative error and a lost mass (:mod:`fl_privquant.lattice`). g*Q is enlarged
by the error of its positive and negative parts, z*Q made smaller; what was lost, and numbers of draws below
the lowest that is counted on, are a probability of their own, charged to every coordinate
(:attr:`UpdateBound.charge`): what is counted is then a pair of measures of less mass, below its
dominating pair at every e; such pairs compose as well, and the rest has no more mass than what is charged.
Between two values of w at which S is known it lies below its chord, and G above its tangent.

References
----------
Balle, Bell, Gascon, Nissim, "The Privacy Blanket of the Shuffle Model", CRYPTO 2019. Dong, Roth, Su,
"Gaussian Differential Privacy", JRSS B 2022. Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via
Characteristic Function", AISTATS 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fl_privquant.errors import InvalidSpecError
from fl_privquant.lattice import LatticeLaw, WeightedLaw, binomial_sums, width_of_sum
from fl_privquant.law import Law
from fl_privquant.renyi import INPUT_ROUNDING, is_continuous, slopes_of
from fl_privquant.table import CertifiedTable

__all__ = [
    "NORM_ROUNDING",
    "SumCertificate",
    "UpdateBound",
    "certify_sum",
]

Floats = NDArray[np.float64]

NORM_ROUNDING = 1.0 + 1e-5
"""How much the norm of a clipped and rotated update may exceed its bound by the rounding of floats.

Clips and rotations work in float32: a Hadamard transform of 2^30 coordinates, twice, may add 60 units.
"""

# Probability for which nothing is promised, for a whole update and round: far below any delta in use.
_CHARGED = 1e-11
_COVERED = 1e-17
# Inputs lie in [-1, 1]: the largest distance of two of them, with the sampler's rounding.
_WIDEST = 2.0 + 2.0**-29
# How far knots may lie outside [-1, 1]: the sampler rounds an input by a share of its piece's length.
_OUTSIDE = 1e-6
_BUCKETS = 64
_STRIKES = 1600
_TOLERANCE = 1e-5
# In standard deviations of the score: beyond lies less than any probability that is charged.
_REACH = 9.5
# Largest strike and separation for which step 5 of the proof holds.
_LARGEST_STRIKE, _LARGEST_SEPARATION = 0.5, 0.5
# How much of the rate b is left for the check of step 5.
_SHARE = 0.25
# Relative accuracy of slopes, of scipy's normal law, and of some thousand additions.
_SLOPE_UNITS, _NORMAL_UNITS, _SUM_UNITS = 1e-12, 3e-14, 1e-11
# Points of all convolutions together: some seconds. With fewer buckets than the least there is no use.
_MOST_POINTS, _LEAST_BUCKETS = 5e6, 8


@dataclass(frozen=True, eq=False)
class SumCertificate:
    """What the secure sum of ``num_honest`` clients tells of one client's coordinate, for any distance.

    Parameters
    ----------
    num_honest
        Honest clients whose codes are in the sum, the protected one included.
    information
        Fisher information J of the sum about one input, in units of 1 / clip^2, rounded up.
    """

    num_honest: int
    information: float
    _strikes: Floats
    _scores: Floats
    _pairs: tuple[_Pair, ...]
    _sums: tuple[WeightedLaw, ...]

    def separation(self, rate: float) -> float:
        """The least a that is certified with the given b = ``rate``; infinite if there is none.

        Two inputs at distance D are told apart no better than N(0, 1) and N(a D, 1), but for a probability
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
        """Bound of the Rényi divergence of that order, over the squared distance of two inputs."""
        if not order > 1.0:
            raise InvalidSpecError(f"order: {order} is not above 1")
        if math.isinf(self.information):
            return math.inf
        whole = 2.0 if order <= 2.0 else max(order, 3.0)
        near = whole * (whole - 1.0) / 2.0 * self.information
        far = max(math.fsum(score.moment(whole) for score in pair.scores(self._sums)) for pair in self._pairs)
        return max(near, far / _WIDEST**2) * (1.0 + _SUM_UNITS) / (whole - 1.0)

    def _holds(self, separation: float, spare: float) -> bool:
        """Whether all chords of the scores stay below tangents of the normal pair's."""
        middle = 0.5 * (self._strikes[1:] + self._strikes[:-1])
        value, slope = _normal_score(separation, middle)
        half = 0.5 * np.diff(self._strikes)
        return bool(
            np.all(self._scores[:-1] <= value + slope * half + spare)
            and np.all(self._scores[1:] <= value - slope * half + spare)
        )


@dataclass(frozen=True)
class UpdateBound:
    """Two whole updates: how far apart they are, and what their certificate is charged.

    Parameters
    ----------
    distance
        L2 distance of two updates in units of the clip.
    dimension
        Number of coordinates.
    """

    distance: float
    dimension: int

    @property
    def widened(self) -> float:
        """The distance, with what the sampler's rounding of inputs may add."""
        return self.distance + math.sqrt(self.dimension) * INPUT_ROUNDING

    @property
    def rate(self) -> float:
        """The rate b that :meth:`SumCertificate.separation` is asked for."""
        return _CHARGED / (math.sqrt(self.dimension) * self.widened)

    @property
    def charge(self) -> float:
        """A probability, for each round, for which nothing is promised."""
        return _CHARGED + self.dimension * _COVERED


def certify_sum(
    table: CertifiedTable, num_honest: int, buckets: int = _BUCKETS, num_strikes: int = _STRIKES
) -> SumCertificate | None:
    """The certificate of a table in the sum of ``num_honest`` honest clients.

    None where there is none: the law jumps, nobody else is in the sum, or the law has so many pieces, or so
    fine a lattice, that it would take too long.

    Parameters
    ----------
    buckets
        Numbers of blanket draws that are told apart: more are tighter, and take longer.
    num_strikes
        Points at which the sum and a normal pair are compared; the same holds of them.
    """
    law = table.law
    if num_honest < 2 or not is_continuous(law) or max(-law.starts[0], law.ends[-1]) > 1.0 + _OUTSIDE:
        return None
    codes = table.codebook.codes // max(int(np.gcd.reduce(table.codebook.codes)), 1)
    # Multiples of 2^-32: sums of them are exact.
    low = law.rows.min(axis=0)
    share = float(low.sum())
    pairs = tuple(
        _Pair(sign * slope, row, codes)
        for slope in slopes_of(law)
        for row in law.rows
        for sign in ((1.0,) if _is_symmetric(law, codes) else (1.0, -1.0))
    )
    affordable = int(_MOST_POINTS / (len(pairs) * width_of_sum(codes, low, num_honest * share)))
    if affordable < _LEAST_BUCKETS:
        return None
    blanket = LatticeLaw.of(codes, low / share)
    found, uncovered = binomial_sums(blanket, num_honest - 1, share, min(buckets, affordable))
    if uncovered > _COVERED:
        return None
    sums = tuple(found)
    scores = [pair.scores(sums) for pair in pairs]
    information = max(math.fsum(each.information for each in pair) for pair in scores)
    information *= 1.0 + _SUM_UNITS
    strikes = np.linspace(0.0, min(_REACH * math.sqrt(information), _LARGEST_STRIKE), num_strikes + 1)
    worst = np.max([np.sum([each.excess(strikes) for each in pair], axis=0) for pair in scores], axis=0)
    return SumCertificate(num_honest, information, strikes, worst * (1.0 + _SUM_UNITS), pairs, sums)


@dataclass(frozen=True, eq=False)
class _Pair:
    """A slope of the law and a row, on their codes."""

    slope: Floats
    row: Floats
    codes: NDArray[np.int64]

    def scores(self, sums: tuple[WeightedLaw, ...]) -> list[_Score]:
        """Both in the sum with each number of blanket draws."""
        return [self._score(each) for each in sums]

    def _score(self, drawn: WeightedLaw) -> _Score:
        values = drawn.law.values
        relative = drawn.law.relative + _SLOPE_UNITS + self.codes.size * 2.0**-53
        length = values.size + int(self.codes[-1])
        rise, size, base = np.zeros(length), np.zeros(length), np.zeros(length)
        entries = zip(self.codes.tolist(), self.slope.tolist(), self.row.tolist(), strict=True)
        for code, steep, mass in entries:
            at = slice(code, code + values.size)
            rise[at] += steep * values
            size[at] += abs(steep) * values
            base[at] += mass * values
        used = base > 0.0
        rise, error, base = rise[used], relative * size[used], base[used] * (1.0 - relative)
        order = np.argsort(-(rise + error) / base, kind="stable")
        return _Score(rise[order], error[order], base[order], drawn.weight, 1.0 + 4.0 * relative)


@dataclass(frozen=True, eq=False)
class _Score:
    """The convolutions of a slope, right to ``error``, and of a row, from below; largest quotient first."""

    rise: Floats
    error: Floats
    base: Floats
    weight: float
    room: float

    @property
    def information(self) -> float:
        """The part of the Fisher information that this number of draws adds."""
        return self.weight * float(((np.abs(self.rise) + self.error) ** 2 / self.base).sum())

    def excess(self, strikes: Floats) -> Floats:
        """The part of S that this number of draws adds, at each strike."""
        upper = self.rise + self.error
        rises = np.concatenate([[0.0], np.cumsum(upper)])
        bases = np.concatenate([[0.0], np.cumsum(self.base)])
        count = np.searchsorted(-upper / self.base, -strikes, side="left")
        gained, paid = rises[count], strikes * bases[count]
        # Of sums of that many positive numbers, one after the other.
        rounding = 2.0 * self.base.size * np.finfo(np.float64).eps * (gained + paid)
        return np.asarray(self.weight * (np.maximum(gained - paid, 0.0) + rounding))

    def moment(self, order: float) -> float:
        """The part of the sum of z*Q f(h) that this number of draws adds, at the largest distance."""
        # Where the sign of a slope is not known it is taken to be the worse one.
        sign = np.where(self.rise > -self.error, 1.0, -1.0)
        ratio = _WIDEST * sign * (np.abs(self.rise) + self.error) / self.base
        with np.errstate(over="ignore"):
            powers = np.maximum(1.0 + ratio, 0.0) ** order
            # The difference cancels where the ratio is small: what it may lose is added.
            rounding = 4.0 * np.finfo(np.float64).eps * (1.0 + order) * np.maximum(powers, 1.0)
            excess = np.maximum(powers - 1.0 - order * ratio, 0.0) + rounding
        return self.weight * self.room * float((self.base * excess).sum())


def _is_symmetric(law: Law, codes: NDArray[np.int64]) -> bool:
    """Whether codes, pieces and rows mirror: then a slope's opposite is that of the mirrored piece."""
    lengths = law.ends - law.starts
    return (
        np.array_equal(codes, codes[-1] - codes[::-1])
        and np.array_equal(law.start_rows, law.end_rows[::-1, ::-1])
        and np.allclose(lengths, lengths[::-1], rtol=1e-13, atol=0.0)
    )


def _normal_score(separation: float, strikes: Floats) -> tuple[Floats, Floats]:
    """The value of G(2, w), rounded down, and the modulus of its slope."""
    middle = _WIDEST * separation
    tangent = np.minimum(0.5 * _WIDEST * strikes, 1.0 - 1e-15)
    threshold = 2.0 * np.arctanh(tangent) / middle
    upper, lower = ndtr(middle / 2.0 - threshold), ndtr(-middle / 2.0 - threshold)
    slope = 0.5 * (upper + lower)
    value = (upper - lower) / _WIDEST - strikes * slope
    error = _NORMAL_UNITS * (upper + lower) * (1.0 + strikes)
    return np.maximum(value - error, 0.0), slope
