r"""Laws of two rows, and the worst case of the other clients in a secure sum, bounded for many cases at once.

By step 1 of :mod:`fl_privquant.loss.two_row_sums`, every other client is at one of the two rows in the worst
case, and a *case* is the number of other clients at the upper row. There are as many cases as clients, too
many to compute each. This module bounds a *group* of neighbouring cases by one law, which is proved here.

Take the cases with ``first`` to ``last`` clients at the upper row. Then ``first`` clients are at the upper
row and n - 1 - ``last`` at the lower row in every case of the group. The rows of the remaining
g = last - first *undecided* clients differ from case to case.

* *Common part.* Let c be the probability that the two rows have in common: the sum over outputs of the
  smaller of the two probabilities. With probability c an undecided client draws from this common part,
  whatever its row. Tell the adversary which of them do so, and leave the other undecided clients out of the
  sum. Leaving out a client can only reveal more: its code is independent noise on the sum without it.
* *Blocks.* The sum of b draws from the upper row has nearly the law of b draws from the lower row, shifted by
  a whole number s, if s is nearly b times the difference of the two means. So once one of them is shifted,
  the two laws of such a *block* have a far larger part in common than single draws; and a known shift of the
  sum reveals nothing. Let g >= b - 1 + k b. In a case with j undecided clients at the upper row, put
  q = min(k, floor(j / b)) blocks of b of these together, and k - q blocks of clients at the lower row. Of the
  g - k b clients that are left, j - q b are at the upper row. So every case has k blocks and g - k b single
  draws. All of them are *units*: each unit is drawn from its common part, or is left out.
* *Mixture.* The number of units that are left out is random, and the adversary is told it. Choose numbers
  M_1 < M_2 < ... for each of the two kinds of units, and let T_1 > T_2 > ... bound the probabilities that
  more than M_i units of either kind are left out. Let H_i be the divergence if M_i are left out; it grows
  with i. Then the mean divergence is at most H_1 + T_1 (H_2 - H_1) + T_2 (H_3 - H_2) + ..., which is that of
  a mixture of these sums of which the adversary knows the component. The probability of more than the last
  M_i, some 1e-30, is charged as a cut tail.

A group is made as large as possible while its bound exceeds the largest single case computed so far by no
more than a small tolerance. The largest bound of all groups is valid, whatever the groups are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from fl_privquant.array_types import Floats, Ints
from fl_privquant.law.lattice import LatticeLaw, WeightedLaw, binomial_law, convolve, width_of_sum
from fl_privquant.law.table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.loss.normal_pairs import pair_separation
from fl_privquant.loss.renyi import is_continuous, slopes_of

MOST_CELLS = 64
"""The most cells of distances (step 2 of the proof) that are computed; laws that need more are refused."""

_UNIT = 2.0**-53
# Tails of less than this probability are cut off after each convolution. It is far below any slack.
_CUT = 1e-30
# All convolutions are direct, because the error of an FFT would exceed the slack.
_DIRECT = 1 << 62
# The share by which a group's bound may exceed the worst case if there are at least _MANY_OTHERS other
# clients; with fewer clients it is smaller.
_TOLERANCE, _MANY_OTHERS = 2e-5, 25_000
# The tolerance doubles after about _WORK multiplications: after 16 bounds of groups at least, 400 at most.
_WORK, _LEAST_BOUNDS, _MOST_BOUNDS = 4e8, 16, 400
# For each component of the mixture, the probability that more single draws, or more blocks, are left out.
_RARELY_MORE_DRAWS = (0.3, 0.03, 1e-3, 1e-8, 1e-30)
_RARELY_MORE_BLOCKS = (0.3, 0.3, 1e-2, 1e-6, 1e-30)
# A block has at least this many draws, and the other clients must be enough for this many blocks.
_LEAST_BLOCK, _LEAST_BLOCKS = 8, 8
# The number of evenly spaced cases that are computed first, and the factor by which guesses are enlarged.
_PROBED, _GUESS_ROOM = 5, 1.15
# Avoids a division by zero where (almost) no draws are left out.
_LEAST_LEFT_OUT = 1e-9
# From this many bits on, the formula of a binomial law is more accurate than repeated convolutions.
_MANY = 256
# Rounding errors, in units, of rows a little beyond the two (step 2): these are differences of two terms,
# and are at least a hundredth as large as the terms.
_ROW_UNITS = 512


@dataclass(frozen=True, eq=False)
class TwoRows:
    """A law of two rows of probabilities over (m,) increasing codes: ``low`` and ``high``, one at each end.

    Two such laws are equal if all their numbers are.
    """

    codes: Ints
    low: Floats
    high: Floats
    slope: float
    """Largest change of the upper row's share between two inputs at distance 1."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TwoRows) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)

    @cached_property
    def _numbers(self) -> tuple[object, ...]:
        return (*(array.tobytes() for array in (self.codes, self.low, self.high)), self.slope)

    @classmethod
    def of(cls, table: CertifiedTable) -> TwoRows | None:
        """The two rows of a table with one piece, or of a continuous table with two levels; else None."""
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
        """One bit. It is 1 at the lower end, and 0 at the upper end, with probability ``rare`` / 2^32."""
        low = np.array([TOTAL_WEIGHT - rare, rare]) / TOTAL_WEIGHT
        return cls(np.array([0, 1]), low, low[::-1].copy(), 0.5)

    @cached_property
    def symmetric(self) -> bool:
        """Whether the codes are their own mirror image, and each row is the mirror image of the other."""
        mirrors = np.array_equal(self.codes, self.codes[-1] - self.codes[::-1])
        return mirrors and np.array_equal(self.low, self.high[::-1])

    @cached_property
    def num_cells(self) -> int:
        """The number of cells with which the rows of step 2 have no negative entries."""
        rise = np.abs(self.high - self.low)
        least = np.minimum(self.low, self.high)
        if np.any((least == 0.0) & (rise > 0.0)):
            return MOST_CELLS + 1
        return max(math.ceil(0.5 * float((rise[rise > 0.0] / least[rise > 0.0]).max(initial=0.0)) * 1.01), 1)

    def width(self, copies: int) -> float:
        """About how many points the sum of ``copies`` draws has once its tails are cut off."""
        widest = max(width_of_sum(self.codes, row, copies) for row in (self.low, self.high))
        return 1.15 * widest

    def row(self, share: float) -> Floats:
        """The row at a share, as probabilities of all integers from 0 to the largest code."""
        return self.listed(self.low + share * (self.high - self.low))

    def listed(self, weights: Floats) -> Floats:
        """Weights of the codes as weights of all integers from 0 to the largest code."""
        values = np.zeros(self._span)
        values[self._places] = weights
        return values

    @cached_property
    def _places(self) -> Ints:
        return np.asarray(self.codes - self.codes[0])

    @cached_property
    def _span(self) -> int:
        return int(self._places[-1]) + 1


@dataclass(frozen=True, eq=False)
class _Unit:
    """One draw or a block of draws, all from the lower or all from the upper row, and their common part."""

    draws: int
    common: float
    """The probability of the common part, rounded down."""
    law: LatticeLaw
    """The law of a draw from the common part."""
    rarely: tuple[float, ...]
    """For each component of the mixture, how rarely more units may be left out than it counts."""

    @classmethod
    def of(cls, draws: int, least: Floats, rarely: tuple[float, ...]) -> _Unit:
        """The unit whose two laws, one of them shifted, are both at least ``least`` everywhere."""
        law = LatticeLaw(0, least / least.sum(), (least.size + 4) * _UNIT)
        return cls(draws, float(least.sum()) * (1.0 - least.size * _UNIT), law, rarely)

    def left_out(self, number: int) -> tuple[list[int], Floats]:
        """How many of ``number`` units each component of the mixture leaves out, and the chance of more.

        The chances are rounded up.
        """
        if number == 0 or self.common >= 1.0:
            return [0] * len(self.rarely), np.zeros(len(self.rarely))
        coin = np.array([self.common, 1.0 - self.common])
        counts = binomial_law(number, coin, _UNIT / coin.min(), 0.1 * self.rarely[-1])
        # more[i] is the probability of more than counts.first + i.
        more = np.append(np.cumsum(counts.values[:0:-1])[::-1], 0.0)
        more = more * (1.0 + counts.relative + counts.values.size * _UNIT) + counts.lost
        places = [int(np.argmax(more <= chance)) for chance in self.rarely]
        return [counts.first + place for place in places], more[places]

    def usually_left_out(self, number: int) -> float:
        """About how many draws are left out with ``number`` units."""
        mean = number * (1.0 - self.common)
        return self.draws * min(mean + 2.0 * math.sqrt(mean), number)


@dataclass(eq=False)
class OtherClients:
    """The draws of a sum besides the protected one: ``others`` of them, each at one of the law's two rows."""

    law: TwoRows
    others: int
    spare: float
    """The slack s of the proof: that of two shares at distance 1."""
    _sums: dict[tuple[LatticeLaw, int], LatticeLaw] = field(default_factory=dict)
    _known_rows: list[tuple[Floats, Floats]] = field(default_factory=list)

    def worst(self) -> float:
        """The largest separation of two shares over all cases, in units of their distance; rounded up."""
        cases = sorted({round(share * (self._end - 1)) for share in np.linspace(0.0, 1.0, _PROBED)})
        separations = [self._bound(case, 1) for case in cases]
        exact = largest = max(separations)
        first, looked_at, cost_factor = 0, 0, 1.0
        while first < self._end and math.isfinite(largest):
            expected = float(np.interp(first, cases, separations))
            size = self._end - first
            while True:
                allowed = exact * (1.0 + self._tolerance(looked_at))
                excess = allowed / expected - 1.0 if expected > 0.0 else 1.0
                size = self._affordable(excess / cost_factor, size)
                bound = self._bound(first, size)
                looked_at += 1
                if size == 1:
                    exact = max(exact, bound)
                    break
                cost = (bound / expected - 1.0) / self._lost_share(size) if expected > 0.0 else 0.0
                if bound <= allowed:
                    cost_factor = max(_GUESS_ROOM * cost, 0.5 * cost_factor)
                    break
                cost_factor = max(_GUESS_ROOM * cost, cost_factor)
                size = (3 * size + 3) // 4
            largest = max(largest, bound)
            first += size
        return largest

    def probed(self, enough: float = math.inf) -> float:
        """The separation in two cases only: all others at the lower row, and the last case. No bound.

        As soon as the separation is known to be at least ``enough``, some number that is at least ``enough``,
        and at most the separation, is returned.
        """
        first = self._bound(0, 1, enough)
        return first if first >= enough else max(first, self._bound(self._end - 1, 1, enough))

    @property
    def _end(self) -> int:
        return self.others // 2 + 1 if self.law.symmetric else self.others + 1

    def _tolerance(self, looked_at: int) -> float:
        """The share by which a bound may exceed the worst case, after ``looked_at`` bounds of groups."""
        patience = min(max(_WORK / self.law.width(self.others) ** 2, _LEAST_BOUNDS), _MOST_BOUNDS)
        few = min(self.others / _MANY_OTHERS, 1.0) ** 2
        return float(_TOLERANCE * few * 2.0 ** (looked_at // patience))

    def _affordable(self, share: float, most: int) -> int:
        """About the largest size of a group, up to ``most``, whose bound is at most that share too large."""
        fits, too_large = 1, most + 1
        while too_large - fits > 1:
            middle = (fits + too_large) // 2
            fits, too_large = (middle, too_large) if self._lost_share(middle) <= share else (fits, middle)
        return fits

    def _lost_share(self, size: int) -> float:
        """About the share by which the bound of a group of ``size`` cases exceeds their separation."""
        left_out = math.fsum(unit.usually_left_out(number) for unit, number in self._units(size))
        return 0.5 * max(left_out, _LEAST_LEFT_OUT) / self.others

    def _units(self, size: int) -> list[tuple[_Unit, int]]:
        """The units of the undecided draws of a group of ``size`` cases, and how many there are of each."""
        draws, block = size - 1, self._block
        blocks = 0 if block is None else max(draws + 1 - block.draws, 0) // block.draws
        if block is None or blocks == 0:
            return [(self._single, draws)]
        return [(self._single, draws - blocks * block.draws), (block, blocks)]

    @cached_property
    def _single(self) -> _Unit:
        """The unit of one draw."""
        least = self.law.listed(np.minimum(self.law.low, self.law.high))
        return _Unit.of(1, least, _RARELY_MORE_DRAWS)

    @cached_property
    def _block(self) -> _Unit | None:
        """The unit of as many draws as shift the mean by about 1; None if these are too few or too many."""
        rise = float((self.law.high - self.law.low) @ self.law.codes)
        draws = round(1.0 / max(abs(rise), 1e-9))
        if not _LEAST_BLOCK <= draws <= self.others // _LEAST_BLOCKS:
            return None
        lower, upper = self._power(self._lower, draws), self._power(self._upper, draws)
        upper = replace(upper, first=upper.first - round(draws * rise))
        start = max(lower.first, upper.first)
        end = min(lower.first + lower.values.size, upper.first + upper.values.size)
        both = (
            law.values[start - law.first : end - law.first] * (1.0 - law.relative) for law in (lower, upper)
        )
        least = np.minimum(*both)
        # On a lattice with gaps the two shifted laws may have nothing in common.
        if least.sum() < 0.5:
            return None
        return _Unit.of(draws, least, _RARELY_MORE_BLOCKS)

    def _bound(self, first: int, size: int, enough: float = math.inf) -> float:
        """A bound of the separation in all cases with ``first`` to ``first + size - 1`` at the upper row.

        As soon as the bound is known to be at least ``enough``, some number that is at least ``enough``, and
        at most the bound, is returned.
        """
        lower = self.others - first - (size - 1)
        others = convolve(self._power(self._upper, first), self._power(self._lower, lower), _DIRECT, _CUT)
        mixture = [WeightedLaw(others, 1.0)] if size == 1 else self._mixture(others, self._units(size))
        largest = -math.inf
        for at, (distance, _) in enumerate(self._distances):
            largest = max(largest, self._pair(mixture, self._rows(at), distance) / distance)
            if largest >= enough:
                break
        return largest

    def _mixture(self, others: LatticeLaw, units: list[tuple[_Unit, int]]) -> list[WeightedLaw]:
        """The components of the mixture. The one that leaves out the most units comes first."""
        counts = [(unit, number, *unit.left_out(number)) for unit, number in units]
        more = np.sum([chances for *_, chances in counts], axis=0)
        weights = -np.diff(more[:-1], prepend=1.0, append=0.0)
        total = replace(others, lost=others.lost + float(more[-1]))
        mixture: list[WeightedLaw] = []
        for at in reversed(range(more.size)):
            for unit, number, left_out, _ in counts:
                added = number - left_out[at] if not mixture else left_out[at + 1] - left_out[at]
                total = convolve(total, self._power(unit.law, added), _DIRECT, _CUT)
            mixture.append(WeightedLaw(total, float(weights[at])))
        return mixture

    @cached_property
    def _distances(self) -> list[tuple[float, float]]:
        """The distances of two shares that are compared, and the middles of both shares."""
        return [
            (upper, middle)
            for nearest, upper in pairwise(np.linspace(0.0, 1.0, self.law.num_cells + 1).tolist())
            for middle in {0.5 * nearest, 1.0 - 0.5 * nearest}
        ]

    def _rows(self, at: int) -> tuple[Floats, Floats]:
        """The rows of the two shares with that number, which are computed once."""
        for distance, middle in self._distances[len(self._known_rows) : at + 1]:
            rows = self.law.row(middle + 0.5 * distance), self.law.row(middle - 0.5 * distance)
            self._known_rows.append(rows)
        return self._known_rows[at]

    def _pair(self, mixture: list[WeightedLaw], rows: tuple[Floats, Floats], distance: float) -> float:
        """The separation of two shares at a distance; the adversary knows the component of the mixture."""
        first, second = (
            np.concatenate([part.weight * np.convolve(row, part.law.values) for part in mixture])
            for row in rows
        )
        units = int(self.law.codes[-1]) + 3 + _ROW_UNITS * self.law.num_cells
        relative = max(part.law.relative for part in mixture) + units * _UNIT
        lost = math.fsum(part.weight * part.law.lost for part in mixture)
        return pair_separation(first, second, relative, lost, self.spare * distance)

    @cached_property
    def _lower(self) -> LatticeLaw:
        """The law of one draw from the lower row."""
        return LatticeLaw(0, self.law.listed(self.law.low), 0.0)

    @cached_property
    def _upper(self) -> LatticeLaw:
        """The law of one draw from the upper row."""
        return LatticeLaw(0, self.law.listed(self.law.high), 0.0)

    def _power(self, one: LatticeLaw, count: int) -> LatticeLaw:
        """The law of the sum of ``count`` draws from one law. Each is computed once, and kept."""
        key = (one, count)
        if key not in self._sums:
            self._sums[key] = self._sum_of(one, count)
        return self._sums[key]

    def _sum_of(self, one: LatticeLaw, count: int) -> LatticeLaw:
        """The law of that sum: binomial for many bits, else convolved by repeated doubling."""
        bit = count & -count
        if count == 0:
            return LatticeLaw(0, np.ones(1), 0.0)
        if count >= _MANY and one.values.size == 2 and one.values.min() > 0.0:
            return binomial_law(count, one.values, one.relative, _CUT)
        if count == 1:
            return one
        part = count // 2 if count == bit else bit
        return convolve(self._power(one, count - part), self._power(one, part), _DIRECT, _CUT)
