"""Laws of two rows: a client's code is drawn from one of two laws, with odds that are linear in its input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fl_privquant.array_types import Floats
from fl_privquant.law.lattice import width_of_sum
from fl_privquant.law.table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.loss.renyi import is_continuous, slopes_of

MOST_CELLS = 64
"""Cells of distances beyond which nothing is certified."""


@dataclass(frozen=True, eq=False)
class TwoRows:
    """A law of two rows ``low`` and ``high``, at the two ends of the inputs, over (m,) increasing codes.

    Two of them are equal if all their numbers are.
    """

    codes: NDArray[np.int64]
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
        values = np.zeros(int(self.codes[-1]) + 1)
        values[self.codes] = weights
        return values
