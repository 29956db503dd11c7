r"""Secure sums of laws with two rows, counted without a blanket: the exact worst case over the other clients.

The server sees, for each coordinate, the sum of the codes of ``n`` honest clients. A law of *two rows* draws
a client's code from the mixture r_u = (1 - u) low + u high, with a share u in [0, 1] that is linear in its
input: one bit, or any table with one piece. This module certifies the same as
:mod:`fl_privquant.loss.secure_sum`, a **separation** a for a given rate b: for inputs of one client at
distance D, whatever the others' inputs, the two laws of the sum are no easier to tell apart than N(0, 1) and
N(a D, 1), except for a probability b D. That module tells the adversary which clients drew from the blanket;
here nothing is told.

Proof
-----
*Notation.* v = abs(u - u') is the distance of the two shares, z = (u + u') / 2 their middle, Q the law of the
sum of the others, * the convolution, and H_e the hockey-stick divergence.

1. *Others at knots.* The two laws of the sum are r_(z + v/2) * Q and r_(z - v/2) * Q. For fixed v and e, H_e
   is the sum over outputs of max(first - e second, 0); both are linear in the row of *each* other client,
   the others fixed, and in z. So H_e is convex in each of these numbers, and is largest where each is at an
   end of its interval: every other client at one of the two rows, and z at one end of [v/2, 1 - v/2]. Of the
   others only the number that are at the upper row matters: n cases, each an exact convolution.
2. *Cells.* For v in a cell (p, t] let z be at an end of the larger interval [p/2, 1 - p/2]. The rows
   r_(z +- v/2) may then lie beyond the two rows of the law, by (t - p) / 2 at most; cells are so many that
   they have no negative entry there.
3. *One check a cell.* Let s v be what is spared at distance v. A set of outputs that has probability y at
   r_z * Q has y + v h / 2 and y - v h / 2 at the two laws, for all v with one h. The sets of largest
   likelihood ratio are the same for all v. With w = h - 2 s and c = Phi^-1, the quotient
   (c(y + v w / 2) - c(y - v w / 2)) / v grows with v: it is w times the mean of c' over an interval with
   y in its middle, and c' is convex. So if :func:`~fl_privquant.loss.normal_pairs.pair_separation` finds m
   for all sets at v = t, then m / t serves all v in the cell. The largest m / t of all cells and cases is the
   separation for shares.
4. *Bits.* The code is the sum of k draws from r_u (the Poisson binomial mechanism). Take all n k draws for
   coordinates as above, and let those of the protected client go from u to u' one after the other. In
   each step all other draws are from mixtures of the two rows, so that it has the separation of n k clients
   with one draw each. The chain of k steps has k times that separation, with what is spared carried along
   (:mod:`fl_privquant.loss.normal_pairs`).
5. *Stratified bits.* The code is again the sum of k draws, but of a share u the first m = floor(k u) are from
   the upper row, the next is from r_(k u - m), and the others are from the lower row: the mean is the same,
   and its variance is the same at all knots m / k. From u to u' the draws change one after the other, only
   one of them at a time, by lengths that add up to k v and are 1 except for the first and the last; all
   others are at one of the two rows. This is a chain as in step 4, with steps of unequal length
   (:mod:`fl_privquant.loss.normal_pairs`), and has the same separation.
6. *Updates.* As in step 5 of :mod:`fl_privquant.loss.secure_sum`, normal pairs add up by squares over
   coordinates and rounds. What is spared is in proportion to v, and so is what it grows to: with
   z^2 = 2 log(1 / (2 s v)), v z and v sqrt(z^2 + 4) grow with v, so that the factors e^(m L) are largest at
   v = 1, for which :func:`~fl_privquant.loss.normal_pairs.spare_for` is asked.

*Fewer cases.* Leaving out a client reveals no less: the sum with it is the sum without it plus independent
noise. In the cases with first..last clients at the upper row, ``first`` are at the upper and n - 1 - ``last``
at the lower row for certain; of the g others nothing is known but that each draws, with a probability c,
from the part that the two rows have in common, independently of its row. Tell which of them do so, and leave
out those that do not. How many are left, except for a probability that is charged as a cut tail is, follows
from Chernoff's bound. So one sum of three kinds of rows covers all these cases. Groups of cases are split,
the worst first, until the worst bound belongs to a single case or is close to one; whenever this stops, the
worst bound of all groups holds.

*Corrupt and lost clients* are not counted among the n: what they send is known, or missing, and shifts the
sum. A law whose rows and codes mirror needs half of the cases: mirroring exchanges the two rows, and the
order of the two laws, for which the check is the same.

*Rounding.* Rows are multiples of 2^-32, exact in floating point. Convolutions add positive terms only; their
relative error and cut tails (:mod:`fl_privquant.law.lattice`) enlarge the power of every test and make its
level smaller. Nothing is charged beside the rate.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fl_privquant.array_types import Floats
from fl_privquant.law.lattice import LatticeLaw, convolve, width_of_sum
from fl_privquant.law.table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.loss.kept_numbers import kept_numbers
from fl_privquant.loss.normal_pairs import pair_separation, spare_for
from fl_privquant.loss.renyi import is_continuous, slopes_of

_UNIT = 2.0**-53
# Tails with less than this probability are cut off after each convolution: far below what may be spared.
_CUT = 1e-30
# Products of lengths that are convolved directly: an FFT would lose more than may be spared.
_DIRECT = 1 << 62
# How close, as a share, the bound of a group of cases comes to the worst case.
_TOLERANCE = 2e-5
_GROUPS, _PARTS = 16, 4
# Multiplications of all convolutions together: some seconds. Wider sums would take too long.
_WORK, _LEAST_CASES, _MOST_CASES = 8e9, 64, 2500
_MOST_POINTS = 1 << 14
_MOST_CELLS = 64
# Rows a little beyond the two are differences of rounded numbers, a hundredth of them or more.
_ROW_UNITS = 512
# Above this number fewer clients are counted, which is a bound too.
_MOST_COPIES = 1 << 20
# Largest separation of a whole client that is looked for; about this much above what is guessed.
_LARGEST, _ROOM = 4.0, 1.25
# With less than this to spare, far above what is cut off, nothing is certified.
_LEAST_SPARE = 1e-26
# Logarithm of the probability, 1e-30, with which fewer clients draw from the common part than are counted.
_UNCOUNTED = math.log(1e-30)


class _Kind(Enum):
    """What is known about another draw: its row, or that it is from the common part of both rows."""

    LOWER = 0
    UPPER = 1
    COMMON = 2


@dataclass(frozen=True, eq=False)
class TwoRows:
    """A law of two rows: its codes, the lower and the upper row, and how fast the share grows with the input.

    Two of them are equal if all their numbers are.

    Parameters
    ----------
    codes
        (m,) increasing integers.
    low, high
        (m,) rows at the two ends of the inputs.
    slope
        Largest change of the share of the upper row, for inputs at distance 1.
    """

    codes: NDArray[np.int64]
    low: Floats
    high: Floats
    slope: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TwoRows) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)

    @cached_property
    def _numbers(self) -> tuple[object, ...]:
        return (*(array.tobytes() for array in (self.codes, self.low, self.high)), self.slope)

    @classmethod
    def of(cls, table: CertifiedTable) -> TwoRows | None:
        """The two rows of a table with one piece, or of a continuous one with two levels; else None."""
        law = table.law
        codes = table.codebook.codes
        codes = (codes - codes[0]) // max(int(np.gcd.reduce(codes - codes[0])), 1)
        if law.starts.size == 1:
            length = float(law.ends[0] - law.starts[0])
            return cls(codes, law.start_rows[0], law.end_rows[0], (1.0 + 1e-12) / length)
        if codes.size != 2 or not is_continuous(law):
            return None
        upper = law.rows[:, 1]
        low, high = law.rows[int(upper.argmin())], law.rows[int(upper.argmax())]
        steepest = float(np.abs(slopes_of(law)[:, 1]).max())
        return cls(codes, low, high, steepest / float(high[1] - low[1]) * (1.0 + 1e-12))

    @classmethod
    def bit(cls, rare: int) -> TwoRows:
        """One bit that is 1 with weight ``rare`` of 2^32 at the lower end, and 0 at the upper."""
        low = np.array([TOTAL_WEIGHT - rare, rare]) / TOTAL_WEIGHT
        return cls(np.array([0, 1]), low, low[::-1].copy(), 0.5)

    @property
    def text(self) -> str:
        """All its numbers, exactly, in a line."""
        rows = (row.astype("<f8").tobytes().hex() for row in (self.low, self.high))
        return " ".join((str(self.codes.tolist()), *rows, self.slope.hex()))

    @cached_property
    def symmetric(self) -> bool:
        """Whether codes mirror, and each row is the other's mirror image."""
        mirrors = np.array_equal(self.codes, self.codes[-1] - self.codes[::-1])
        return mirrors and np.array_equal(self.low, self.high[::-1])

    @cached_property
    def num_cells(self) -> int:
        """Cells of distances of shares that keep the rows of step 2 from having negative entries."""
        rise = np.abs(self.high - self.low)
        least = np.minimum(self.low, self.high)
        if np.any((least == 0.0) & (rise > 0.0)):
            return _MOST_CELLS + 1
        return max(math.ceil(0.5 * float((rise[rise > 0.0] / least[rise > 0.0]).max(initial=0.0)) * 1.01), 1)

    @cached_property
    def common(self) -> float:
        """The probability, rounded down, of a draw from the part that the two rows have in common."""
        return float(np.minimum(self.low, self.high).sum()) * (1.0 - self.low.size * _UNIT)

    def drawn_in_common(self, draws: int) -> int:
        """How many of so many draws are from the common part, except for a probability of 1e-30.

        That k of n draws or more are not has, by Chernoff, the probability exp(-n KL(k / n, q)) at most, q
        being that of one; KL is the divergence of two coins.
        """
        other = (1.0 - self.common) * (1.0 + 8.0 * _UNIT)
        if other == 0.0:
            return draws

        def exponent(count: int) -> float:
            rest = draws - count
            common = rest * math.log(rest / (draws * (1.0 - other))) if rest else 0.0
            return count * math.log(count / (draws * other)) + common

        enough, too_few = draws + 1, math.ceil(draws * other)
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            certain = exponent(middle) * (1.0 - 1e-9) >= -_UNCOUNTED
            enough, too_few = (middle, too_few) if certain else (enough, middle)
        return draws - (enough - 1)

    def width(self, copies: int) -> float:
        """About how many points the sum of so many draws has, tails cut off."""
        widest = max(width_of_sum(self.codes, row, copies) for row in (self.low, self.high))
        return 1.15 * widest

    def row(self, share: float) -> Floats:
        """The row of a share, on all codes from 0."""
        return self._listed(self.low + share * (self.high - self.low))

    def base_row(self, kind: _Kind) -> Floats:
        """One of the two rows, or the law of a draw from their common part, on all codes from 0."""
        if kind is _Kind.COMMON:
            least = np.minimum(self.low, self.high)
            return self._listed(least / least.sum())
        return self._listed(self.high if kind is _Kind.UPPER else self.low)

    def _listed(self, weights: Floats) -> Floats:
        values = np.zeros(int(self.codes[-1]) + 1)
        values[self.codes] = weights
        return values


@lru_cache(maxsize=256)
def sum_separation(
    law: TwoRows, num_honest: int, rate: float, bits: int = 1, stratified: bool = False
) -> float:
    """The least certified a for the rate b: two inputs at distance D are told apart as N(0, 1) and N(a D, 1).

    Infinite where nothing is certified. It is computed in this process, never read from a file.

    Parameters
    ----------
    num_honest
        Honest clients whose codes are in the sum, the protected one included.
    rate
        Two inputs at distance D may reveal everything with probability ``rate`` * D.
    bits
        Draws from the law that each client's code is the sum of, all for one input.
    stratified
        Whether the number of draws from the upper row is fixed by the input, except for one of them, as in
        step 5; else each draw has the same share, as in step 4.
    """
    return _separation(law, num_honest, rate, bits, stratified, _Cases.worst)


@lru_cache(maxsize=256)
def kept_separation(
    law: TwoRows, num_honest: int, rate: float, bits: int = 1, stratified: bool = False
) -> float:
    """What :func:`sum_separation` found, perhaps in another process: for searches, no guarantee.

    Whoever edits the file may claim anything from what is probed up, which can be some percent too little.
    """
    asked = (law, num_honest, rate, bits, stratified)
    (separation,) = kept_numbers(
        "sum_separation",
        f"{law.text}, {num_honest} clients, {rate.hex()}, {bits} draws, {stratified}",
        lambda: np.array([sum_separation(*asked)]),
        lambda: np.array([probed_separation(*asked)]),
    )
    return float(separation)


def probed_separation(
    law: TwoRows, num_honest: int, rate: float, bits: int = 1, stratified: bool = False
) -> float:
    """The same for two cases only, quickly: no guarantee, but close enough to compare designs."""
    return _separation(law, num_honest, rate, bits, stratified, _Cases.probed)


def _separation(
    law: TwoRows,
    num_honest: int,
    rate: float,
    bits: int,
    stratified: bool,
    of_cases: Callable[[_Cases], float],
) -> float:
    copies = min(num_honest * bits, _MOST_COPIES - _MOST_COPIES % bits)
    if copies < 2 * bits or law.num_cells > _MOST_CELLS or law.width(copies) > _MOST_POINTS:
        return math.inf
    most = _ROOM * bits * _guess(law, copies)
    while most <= _LARGEST:
        spare = spare_for(min(rate / law.slope, 0.5), bits, most, unequal=stratified and bits > 1)
        if spare < _LEAST_SPARE:
            return math.inf
        separation = bits * of_cases(_Cases(law, copies - 1, spare))
        if separation <= most:
            return separation * law.slope
        most = _ROOM * separation
    return math.inf


def _guess(law: TwoRows, copies: int) -> float:
    """About the separation of the two rows: the difference of their means over the deviation of the sum."""
    means = [float(row @ law.codes) for row in (law.low, law.high)]
    variances = [
        float(row @ (law.codes - mean) ** 2) for row, mean in zip((law.low, law.high), means, strict=True)
    ]
    return abs(means[1] - means[0]) / math.sqrt(copies * max(min(variances), 1e-12))


@dataclass(eq=False)
class _Cases:
    """The cases of step 1 for so many other clients: how many of them are at the upper row."""

    law: TwoRows
    others: int
    spare: float
    _sums: dict[tuple[_Kind, int], LatticeLaw] = field(default_factory=dict)

    def worst(self) -> float:
        """The largest separation of two shares over all cases, in units of their distance; rounded up."""
        end, exact = self._end, self.probed()
        size = max(math.ceil(end / _GROUPS), 1)
        groups = [self._group(first, min(size, end - first)) for first in range(0, end, size)]
        heapq.heapify(groups)
        looked_at = 0
        while True:
            bound, first, size = -groups[0][0], groups[0][1], groups[0][2]
            if size == 1 or bound <= exact * (1.0 + _TOLERANCE) or looked_at >= self._affordable:
                return bound
            heapq.heappop(groups)
            part = math.ceil(size / _PARTS)
            for start in range(first, first + size, part):
                group = self._group(start, min(part, first + size - start))
                heapq.heappush(groups, group)
                looked_at += 1
                if group[2] == 1:
                    exact = max(exact, -group[0])

    def probed(self) -> float:
        """The same for all others at the lower row, and for the last case."""
        return max(self._bound(0, 1), self._bound(self._end - 1, 1))

    @property
    def _end(self) -> int:
        return self.others // 2 + 1 if self.law.symmetric else self.others + 1

    @cached_property
    def _affordable(self) -> int:
        width = self.law.width(self.others)
        return int(min(max(_WORK / width**2, _LEAST_CASES), _MOST_CASES))

    def _group(self, first: int, size: int) -> tuple[float, int, int]:
        return -self._bound(first, size), first, size

    def _bound(self, first: int, size: int) -> float:
        """A bound for all cases with ``first`` to ``first + size - 1`` clients at the upper row."""
        lower = self.others - first - (size - 1)
        others = convolve(self._power(_Kind.UPPER, first), self._power(_Kind.LOWER, lower), _DIRECT, _CUT)
        if common := self.law.drawn_in_common(size - 1):
            others = convolve(others, self._power(_Kind.COMMON, common), _DIRECT, _CUT)
            others = replace(others, lost=others.lost + math.exp(_UNCOUNTED))
        ends = np.linspace(0.0, 1.0, self.law.num_cells + 1)
        separations = [
            self._pair(others, middle, upper) / float(upper)
            for nearest, upper in pairwise(ends)
            for middle in {0.5 * float(nearest), 1.0 - 0.5 * float(nearest)}
        ]
        return max(separations)

    def _pair(self, others: LatticeLaw, middle: float, distance: float) -> float:
        """The separation of two shares around a middle, at a distance."""
        first, second = (self.law.row(middle + sign * 0.5 * distance) for sign in (1.0, -1.0))
        relative = others.relative + (first.size + _ROW_UNITS * self.law.num_cells) * _UNIT
        return pair_separation(
            np.convolve(first, others.values),
            np.convolve(second, others.values),
            relative,
            others.lost,
            self.spare * distance,
        )

    def _power(self, kind: _Kind, count: int) -> LatticeLaw:
        """The law of the sum of so many draws of one kind, from sums of powers of two of them."""
        key = (kind, count)
        if key not in self._sums:
            bit = count & -count
            if count == 0:
                law = LatticeLaw(0, np.ones(1), 0.0)
            elif count == 1:
                row = self.law.base_row(kind)
                law = LatticeLaw(0, row, (row.size + 4) * _UNIT if kind is _Kind.COMMON else 0.0)
            elif count == bit:
                half = self._power(kind, count // 2)
                law = convolve(half, half, _DIRECT, _CUT)
            else:
                parts = self._power(kind, count - bit), self._power(kind, bit)
                law = convolve(*parts, _DIRECT, _CUT)
            self._sums[key] = law
        return self._sums[key]
