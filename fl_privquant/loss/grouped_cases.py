r"""Laws of two rows, and the worst case of the other clients in a secure sum, bounded for many cases at once.

By step 1 of :mod:`fl_privquant.loss.two_row_sums`, every other client is at one of the two rows, and a case
is how many of them are at the upper one. There are as many cases as clients: too many to look at each.

In the cases with first..last clients at the upper row, ``first`` are at the upper and n - 1 -
``last`` at the lower row for certain. Of the g = last - first others it is known only that each is at one of
the rows. One law covers all these cases, as follows.

* With a probability c such a client draws from the part that the two rows have in common, whatever its row.
  Tell the adversary which clients do so, and leave the others out of the sum. Leaving out a client can only
  reveal more: the sum with it is the sum without it plus independent noise.
* *Blocks.* The sum of b draws from the upper row has nearly the law of b draws from the lower row, shifted by
  a whole number s, if s is nearly b times the difference of the two means. So the two laws have a far larger
  part in common than single draws, once one of them is shifted; a known shift of the sum reveals nothing. Let
  g >= b - 1 + k b. With j clients at the upper row put q = min(k, floor(j / b)) blocks of b of them together,
  and k - q blocks of clients at the lower row; of the g - k b that are left, j - q b are at the upper row.
  All of them, blocks and single draws, are *units*, and each is drawn from its common part or left out.
* *Mixture.* How many units are left out is random, and told. Let T_1 > T_2 > ... bound the probabilities that
  more units are left out than numbers M_1 < M_2 < ..., of either kind. With H_i the divergence if M_i are,
  which grows with i, the mean divergence is at most H_1 + T_1 (H_2 - H_1) + T_2 (H_3 - H_2) + ...: that of a
  mixture of these sums, of which it is known which one holds. What is left, 1e-30, is charged as a cut tail.

Groups are as large as possible while their bounds stay within that of the worst case known so far, plus a
small tolerance. The largest bound of all groups holds, whatever the groups are.
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
"""Cells of distances beyond which nothing is certified."""

_UNIT = 2.0**-53
# Tails of less than this probability are cut off after each convolution; it is far below what is spared.
_CUT = 1e-30
# All convolutions are direct, as the error of an FFT would exceed what may be spared.
_DIRECT = 1 << 62
# How far above the worst case the bound may be, as a share, with at least so many others; less with fewer.
_TOLERANCE, _MANY_OTHERS = 2e-5, 25_000
# Multiplications after which the tolerance doubles: so many bounds of groups, at least and at most.
_WORK, _LEAST_BOUNDS, _MOST_BOUNDS = 4e8, 16, 400
# Probabilities with which more single draws, and more blocks, are left out than in each law of the mixture.
_RARELY_MORE_DRAWS = (0.3, 0.03, 1e-3, 1e-8, 1e-30)
_RARELY_MORE_BLOCKS = (0.3, 0.3, 1e-2, 1e-6, 1e-30)
# The fewest draws of a block, and the fewest blocks that all draws must be enough for.
_LEAST_BLOCK, _LEAST_BLOCKS = 8, 8
# Cases that are computed first, evenly spaced; and the factor by which guesses of costs are enlarged.
_PROBED, _GUESS_ROOM = 5, 1.15
# Least number of draws that are left out, where it is a divisor.
_LEAST_LEFT_OUT = 1e-9
# With at least so many bits a binomial law is more accurate than repeated convolutions.
_MANY = 256
# Rounding units of rows a little beyond the two: they are differences, of at least a hundredth of the terms.
_ROW_UNITS = 512


@dataclass(frozen=True, eq=False)
class TwoRows:
    """A law of two rows ``low`` and ``high``, at the two ends of the inputs, over (m,) increasing codes.

    Two of them are equal if all their numbers are.
    """

    codes: Ints
    low: Floats
    high: Floats
    slope: float
    """Largest change of the share of the upper row, for inputs at distance 1."""

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
            return MOST_CELLS + 1
        return max(math.ceil(0.5 * float((rise[rise > 0.0] / least[rise > 0.0]).max(initial=0.0)) * 1.01), 1)

    def width(self, copies: int) -> float:
        """About how many points the sum of so many draws has, tails cut off."""
        widest = max(width_of_sum(self.codes, row, copies) for row in (self.low, self.high))
        return 1.15 * widest

    def row(self, share: float) -> Floats:
        """The row of a share, on all codes from 0."""
        return self.listed(self.low + share * (self.high - self.low))

    def listed(self, weights: Floats) -> Floats:
        """Weights of the codes, on all integers from 0."""
        return LatticeLaw.of(self.codes, weights).values


@dataclass(frozen=True, eq=False)
class _Unit:
    """Draws that are all from the lower or all from the upper row, and the common part of these two laws."""

    draws: int
    common: float
    """The probability of the common part, rounded down; ``law`` is its law."""
    law: LatticeLaw
    rarely: tuple[float, ...]
    """Probabilities with which more units are left out than are counted, for :meth:`left_out`."""

    @classmethod
    def of(cls, draws: int, least: Floats, rarely: tuple[float, ...]) -> _Unit:
        """The unit whose two laws, one of them shifted, are both at least ``least`` everywhere."""
        law = LatticeLaw(0, least / least.sum(), (least.size + 4) * _UNIT)
        return cls(draws, float(least.sum()) * (1.0 - least.size * _UNIT), law, rarely)

    def left_out(self, number: int) -> tuple[list[int], Floats]:
        """How many of ``number`` units are left out, and the probability, rounded up, of more.

        One of each for every probability of ``rarely``.
        """
        if number == 0 or self.common >= 1.0:
            return [0] * len(self.rarely), np.zeros(len(self.rarely))
        coin = np.array([self.common, 1.0 - self.common])
        counts = binomial_law(number, coin, _UNIT / coin.min(), 0.1 * self.rarely[-1])
        # The probabilities of more than the first number, more than the second, and so on.
        more = np.append(np.cumsum(counts.values[:0:-1])[::-1], 0.0)
        more = more * (1.0 + counts.relative + counts.values.size * _UNIT) + counts.lost
        places = [int(np.argmax(more <= chance)) for chance in self.rarely]
        return [counts.first + place for place in places], more[places]

    def usually_left_out(self, number: int) -> float:
        """About how many draws of ``number`` units are left out."""
        mean = number * (1.0 - self.common)
        return self.draws * min(mean + 2.0 * math.sqrt(mean), number)


@dataclass(eq=False)
class OtherClients:
    """The other draws of a sum, ``others`` in number, each at one of the two rows of the law."""

    law: TwoRows
    others: int
    spare: float
    """The probability that may be spared at a distance of 1 of the two shares."""
    _sums: dict[tuple[LatticeLaw, int], LatticeLaw] = field(default_factory=dict)

    def worst(self) -> float:
        """The largest separation of two shares over all cases, in units of their distance; rounded up."""
        cases = sorted({round(share * (self._end - 1)) for share in np.linspace(0.0, 1.0, _PROBED)})
        separations = [self._bound(case, 1) for case in cases]
        exact = largest = max(separations)
        first, looked_at, dearer = 0, 0, 1.0
        while first < self._end and math.isfinite(largest):
            usual = float(np.interp(first, cases, separations))
            size = self._end - first
            while True:
                allowed = exact * (1.0 + self._tolerance(looked_at))
                excess = allowed / usual - 1.0 if usual > 0.0 else 1.0
                size = self._affordable(excess / dearer, size)
                bound = self._bound(first, size)
                looked_at += 1
                if size == 1:
                    exact = max(exact, bound)
                    break
                cost = (bound / usual - 1.0) / self._lost_share(size) if usual > 0.0 else 0.0
                if bound <= allowed:
                    dearer = max(_GUESS_ROOM * cost, 0.5 * dearer)
                    break
                dearer = max(_GUESS_ROOM * cost, dearer)
                size = (3 * size + 3) // 4
            largest = max(largest, bound)
            first += size
        return largest

    def probed(self, enough: float = math.inf) -> float:
        """The separation in two cases only: all others at the lower row, and the last case.

        Once it is known to reach ``enough``, a part of it is returned that does.
        """
        first = self._bound(0, 1, enough)
        return first if first >= enough else max(first, self._bound(self._end - 1, 1, enough))

    @property
    def _end(self) -> int:
        return self.others // 2 + 1 if self.law.symmetric else self.others + 1

    def _tolerance(self, looked_at: int) -> float:
        """How far above the worst case the bound may be after so many bounds of groups, as a share."""
        patience = min(max(_WORK / self.law.width(self.others) ** 2, _LEAST_BOUNDS), _MOST_BOUNDS)
        few = min(self.others / _MANY_OTHERS, 1.0) ** 2
        return float(_TOLERANCE * few * 2.0 ** (looked_at // patience))

    def _affordable(self, share: float, most: int) -> int:
        """About the size of the largest group whose bound is too large by no more than that share."""
        fits, too_large = 1, most + 1
        while too_large - fits > 1:
            middle = (fits + too_large) // 2
            fits, too_large = (middle, too_large) if self._lost_share(middle) <= share else (fits, middle)
        return fits

    def _lost_share(self, size: int) -> float:
        """About the share by which the bound of a group of so many cases is above their separation."""
        left_out = math.fsum(unit.usually_left_out(number) for unit, number in self._units(size))
        return 0.5 * max(left_out, _LEAST_LEFT_OUT) / self.others

    def _units(self, size: int) -> list[tuple[_Unit, int]]:
        """The units of those draws whose rows differ within a group of ``size`` cases, and their numbers."""
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
        """The unit of as many draws as shift the mean by about one; None if these are too few or too many."""
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
        # On a lattice with gaps a shift may leave nothing in common.
        if least.sum() < 0.5:
            return None
        return _Unit.of(draws, least, _RARELY_MORE_BLOCKS)

    def _bound(self, first: int, size: int, enough: float = math.inf) -> float:
        """A bound for all cases with ``first`` to ``first + size - 1`` clients at the upper row.

        Once it is known to reach ``enough``, a part of it is returned that does.
        """
        lower = self.others - first - (size - 1)
        others = convolve(self._power(self._upper, first), self._power(self._lower, lower), _DIRECT, _CUT)
        mixture = [WeightedLaw(others, 1.0)] if size == 1 else self._mixture(others, self._units(size))
        largest = -math.inf
        for distance, rows in self._rows:
            largest = max(largest, self._pair(mixture, rows, distance) / distance)
            if largest >= enough:
                break
        return largest

    def _mixture(self, others: LatticeLaw, units: list[tuple[_Unit, int]]) -> list[WeightedLaw]:
        """The sums without the units that are left out, one for each number of these, the largest first."""
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
    def _rows(self) -> list[tuple[float, tuple[Floats, Floats]]]:
        """The distances of two shares that are compared, and their rows."""
        pairs = [
            (float(upper), middle)
            for nearest, upper in pairwise(np.linspace(0.0, 1.0, self.law.num_cells + 1))
            for middle in {0.5 * float(nearest), 1.0 - 0.5 * float(nearest)}
        ]
        return [
            (distance, (self.law.row(middle + 0.5 * distance), self.law.row(middle - 0.5 * distance)))
            for distance, middle in pairs
        ]

    def _pair(self, mixture: list[WeightedLaw], rows: tuple[Floats, Floats], distance: float) -> float:
        """The separation of two shares at a distance; the adversary knows which law of the mixture holds."""
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
        """The law of the sum of ``count`` draws from one law, computed once."""
        key = (one, count)
        if key not in self._sums:
            self._sums[key] = self._sum_of(one, count)
        return self._sums[key]

    def _sum_of(self, one: LatticeLaw, count: int) -> LatticeLaw:
        """The law of such a sum: binomial for many bits, else convolved from powers of two of the draws."""
        bit = count & -count
        if count == 0:
            return LatticeLaw(0, np.ones(1), 0.0)
        if count >= _MANY and one.values.size == 2 and one.values.min() > 0.0:
            return binomial_law(count, one.values, one.relative, _CUT)
        if count == 1:
            return one
        part = count // 2 if count == bit else bit
        return convolve(self._power(one, count - part), self._power(one, part), _DIRECT, _CUT)
