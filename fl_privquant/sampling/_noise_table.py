"""Tables of symmetric integer noise whose distance to the ideal distribution is certified.

A distribution with P[X = k] = P[X = -k] and falling ratios P[X = k+1] / P[X = k] (all three noises of
:mod:`fl_privquant.sampling.integer_noise`) is determined by those ratios. They are computed in fixed point
of 256 bits, always rounded down, together with a bound of the error, so that every probability is known to
lie between two integers. The magnitude |X| is then tabulated in units of 2^-127 and cut where the rest is
below 2^-100.

Guarantee: :attr:`NoiseTable.total_variation` bounds the total-variation distance between the table
and the ideal distribution, in exact arithmetic. For N draws together it is at most N times as large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Final

import numpy as np

from fl_privquant._array_types import Floats, Words
from fl_privquant.errors import MISSING, InvalidSpecError

MAX_MAGNITUDES: Final = 1 << 18
"""Size of the largest table, whose cells take 2 MB, and some seconds to compute."""

_PRECISION: Final = 256
_ONE: Final = 1 << _PRECISION
# The part of the distribution that is cut off is at most 2^-101, half of the stated distance.
_TAIL_BITS: Final = 101
# 63 bits of a word choose the magnitude (one is the sign), and 64 of a second word decide ties.
_UNIT_BITS: Final = 127
_DECIMAL: Final = Context(prec=110, rounding=ROUND_FLOOR, Emax=MAX_EMAX, Emin=MIN_EMIN)

Ratios = Iterable[tuple[int, int]]
"""For k = 0, 1, ...: P[X = k+1] / P[X = k] in units of 2^-256, as (lower bound, largest error)."""


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """Alias cells from which a magnitude is drawn with one word, two if the first one is a tie."""

    cells: Words
    """(2^b,) for each cell, ``alias << (63 - b) | threshold``. The highest b bits of a word choose the cell,
    the next 63 - b bits choose the cell's own number where they are below the threshold and its alias where
    they are above; the lowest bit is the sign."""
    ties: Words
    """(2^b,) where those bits equal the threshold, a second word below this chooses the own number."""
    probabilities: Floats
    """(largest + 1,) probability of 0, 1, ... under the ideal distribution, to the last digit of a float."""
    total_variation: float
    """Upper bound of the total-variation distance to the ideal distribution."""

    @property
    def largest(self) -> int:
        """Largest magnitude that is drawn."""
        return int(self.probabilities.size) - 1

    @property
    def cell_bits(self) -> int:
        """Number b of bits that choose a cell."""
        return int(self.cells.size).bit_length() - 1

    def units(self) -> list[int]:
        """Probability of each magnitude in units of 2^-127, as it is drawn: exact, for audits."""
        rest_bits = _UNIT_BITS - 64 - self.cell_bits
        capacity = 1 << (rest_bits + 64)
        units = [0] * self.cells.size
        for own, (cell, tie) in enumerate(zip(self.cells.tolist(), self.ties.tolist(), strict=True)):
            alias, high = cell >> rest_bits, cell & ((1 << rest_bits) - 1)
            threshold = high << 64 | tie
            units[own] += threshold
            units[alias] += capacity - threshold
        return units


def laplace_ratios(scale: Fraction) -> Iterator[tuple[int, int]]:
    """Ratios of P[X = k] proportional to exp(-|k| / scale)."""
    ratio = _exp_minus(1 / scale)
    while True:
        yield ratio, 1


def gaussian_ratios(sigma_squared: Fraction) -> Iterator[tuple[int, int]]:
    """Ratios of P[X = k] proportional to exp(-k^2 / (2 sigma^2)): exp(-(2k+1) / (2 sigma^2))."""
    step = _exp_minus(1 / sigma_squared)
    ratio, error = _exp_minus(1 / (2 * sigma_squared)), 1
    while True:
        yield ratio, error
        ratio, error = _product(ratio, error, step, 1)


def skellam_ratios(variance: Fraction) -> Iterator[tuple[int, int]]:
    """Ratios of P[X = k] = exp(-v) I_k(v), v the variance: the modified Bessel functions' ratios.

    From I_{k-1} - I_{k+1} = (2k/v) I_k, the ratio r_k = I_k / I_{k-1} is 1 / (2k/v + r_{k+1}).
    Going backward from anywhere in 0 <= r <= 1 (I_k falls with k), each step contracts the distance of
    bounds by r_k^2, and lower and upper bounds swap. The last ratios, whose bounds have not contracted, are
    not returned.
    """
    keep, start = _skellam_reach(variance)
    scale = 2 * Fraction(_ONE) / variance
    numerator, denominator = scale.numerator, scale.denominator
    square = _ONE * _ONE
    low, high = 0, _ONE
    bounds: list[tuple[int, int]] = []
    for k in range(start, 0, -1):
        coefficient = k * numerator // denominator
        low, high = square // (coefficient + 1 + high), min(square // (coefficient + low) + 1, _ONE)
        if k <= keep:
            bounds.append((low, high - low))
    return iter(reversed(bounds))


def build_table(ratios: Ratios) -> NoiseTable:
    """The table of the distribution with these ratios, which must end within MAX_MAGNITUDES."""
    weights, errors, total, tail = [_ONE], 0, _ONE, 0
    weight, error = _ONE, 0
    for ratio, ratio_error in ratios:
        weight, error = _product(weight, error, ratio, ratio_error)
        # Ratios fall, so from here on the distribution is below a geometric one.
        gap = _ONE - ratio - ratio_error
        if gap > 0 and (weight + error) << 1 <= total >> _TAIL_BITS:
            tail = 2 * (weight + error) * _ONE // gap + 1
            if tail <= total >> _TAIL_BITS:
                break
        if len(weights) == MAX_MAGNITUDES:
            raise InvalidSpecError(
                "noise", MISSING, f"it needs a table of more than {MAX_MAGNITUDES} magnitudes"
            )
        weights.append(weight)
        total += 2 * weight
        errors += 2 * error
    scale = 1 << _UNIT_BITS
    units = [(weight << (_UNIT_BITS + 1)) // total for weight in weights]
    # Each number but 0 stands for two signs. The remainder of the rounding goes to 0.
    units[0] = scale - sum(units[1:])
    # The distance is the sum of what each number lacks: its error, its rounding, or, beyond the cut, all of
    # it.
    distance = Fraction(errors + tail, total) + Fraction(len(units), scale)
    cells, ties = _alias_cells(units)
    # Division of integers rounds once, whatever their size.
    probabilities = np.array([weight / total for weight in weights])
    return NoiseTable(cells, ties, probabilities, math.nextafter(float(distance), math.inf))


def _exp_minus(x: Fraction) -> int:
    """A lower bound of exp(-x) in units of 2^-256, less than 1 unit below it."""
    if x > _PRECISION:
        return 0
    # 110 digits, correctly rounded twice, exceed the 78 of a unit: the error is about 10^-30 units.
    quotient = _DECIMAL.divide(Decimal(-x.numerator), Decimal(x.denominator))
    units = _DECIMAL.multiply(_DECIMAL.exp(quotient), Decimal(_ONE))
    return int(_DECIMAL.subtract(units, Decimal("1e-20")))


def _product(a: int, a_error: int, b: int, b_error: int) -> tuple[int, int]:
    """Lower bound and error of a product of two numbers in [0, 1], given their lower bounds and errors."""
    # (a + e)(b + f) <= ab + e + f + ef, where ef is below a unit; rounding down adds another unit.
    return a * b >> _PRECISION, a_error + b_error + 2


def _skellam_reach(variance: Fraction) -> tuple[int, int]:
    """How many ratios are needed, and where to start so that these are accurate to about 2^-230.

    This is an estimate in floats; the true accuracy is measured by the bounds themselves.
    """
    v = float(variance)
    k = np.arange(1.0, 2.0 * MAX_MAGNITUDES)
    falls = -np.log2(v / (k + np.sqrt(k * k + v * v)))
    fallen = np.cumsum(falls)
    keep = int(np.searchsorted(fallen, _TAIL_BITS + 20)) + 2
    start = int(np.searchsorted(fallen, fallen[min(keep, k.size - 1)] + 120)) + 2
    return keep, start


def _alias_cells(units: list[int]) -> tuple[Words, Words]:
    """Walker's alias method in integers: cells that draw each number with exactly its units."""
    cell_bits = max(1, (len(units) - 1).bit_length())
    rest_bits = _UNIT_BITS - 64 - cell_bits
    capacity = 1 << (rest_bits + 64)
    left = units + [0] * ((1 << cell_bits) - len(units))
    short = [c for c, own in enumerate(left) if own < capacity]
    full = [c for c, own in enumerate(left) if own >= capacity]
    # A cell that holds a single number is its own alias, with threshold 0, so that thresholds always fit.
    cells = [c << rest_bits for c in range(len(left))]
    ties = [0] * len(left)
    while short:
        cell, donor = short.pop(), full[-1]
        cells[cell] = donor << rest_bits | left[cell] >> 64
        ties[cell] = left[cell] & ((1 << 64) - 1)
        left[donor] -= capacity - left[cell]
        if left[donor] < capacity:
            short.append(full.pop())
    return np.array(cells, dtype=np.uint64), np.array(ties, dtype=np.uint64)
