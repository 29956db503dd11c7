"""The table that is sampled from: integer weights whose privacy is certified in exact arithmetic.

A proof about real numbers does not hold for rounded floating-point probabilities. Here a row of output
probabilities is a row of integers that sum to 2^32, drawn exactly with a 32-bit uniform integer. Then

* the privacy loss of one release is log(largest / smallest) of two integers of one column, and its
  certified value is rounded up. Any mixture of rows is at least as private as the worst pair, so that
  rounding of the input, or of the random choice between two rows, cannot harm privacy;
* each row is unbiased for its own mean: knots are *derived* from the rows (they are not stored and
  cannot be forged), so integer rounding moves a knot by some 1e-10 instead of adding bias.

Guarantee: for all inputs x, x' and every output i, P[M(x) = i] <= e^epsilon P[M(x') = i].
Assumes: 32-bit words that are uniform and independent (see :mod:`fl_privquant.sampling`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from typing import Self

import numpy as np

from fl_privquant._array_types import Floats, Ints
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import CertificationError
from fl_privquant.statement import PrivacyStatement, Unit

TOTAL_WEIGHT = 1 << 32
"""The sum of every row of weights."""

COVERAGE_TOLERANCE = 1e-8
"""How far inside [-1, 1] the outermost knots may lie, which is the largest bias at the ends."""

_MAX_PIECES = 1 << 20
# Columns whose probability is everywhere below this many units of 2^-32 are solver errors, not outputs.
_DUST = 16
# Rounding should move a probability by a few units of 2^-32, times e^epsilon; more is refused.
_MAX_MOVED = 1e-4
# At most this many entries of a row, those with the most room, are used to correct its mean.
_CORRECTION_ENTRIES = 24
# Descriptions list the output values if there are at most this many.
_MAX_SHOWN = 32


@dataclass(frozen=True, eq=False)
class CertifiedTable:
    """Rows of integer weights, and the pieces between them. A table that is not valid cannot be built.

    >>> book = Codebook(np.array([0, 1]), step=4.0, offset=-2.0)
    >>> quarter = 1 << 30
    >>> table = CertifiedTable(book, np.array([[3 * quarter, quarter], [quarter, 3 * quarter]]),
    ...                        np.array([0]), np.array([1]))
    >>> round(table.epsilon, 6), table.knots
    (1.098612, array([-1.,  1.]))
    """

    codebook: Codebook
    """The codes and values that the m columns stand for."""
    weights: Ints
    """(R, m) integers >= 0, each row summing to 2^32."""
    start_rows: Ints
    """(K,) for each piece, from left to right, the row at its start."""
    end_rows: Ints
    """(K,) for each piece, the row at its end."""

    def __post_init__(self) -> None:
        for name in ("weights", "start_rows", "end_rows"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.int64))
        levels = self.codebook.num_levels
        if self.weights.ndim != 2 or self.weights.shape[1] != levels:
            raise CertificationError(
                f"weights of shape {self.weights.shape}, expected one column for each of {levels} levels"
            )
        if self.weights.min() < 0 or np.any(self.weights > TOTAL_WEIGHT):
            raise CertificationError(f"weights must lie in 0..2^32, found {self.weights.min()}")
        if np.any(self.weights.sum(axis=1) != TOTAL_WEIGHT):
            raise CertificationError("each row of weights must sum to 2^32")
        pieces = self.start_rows.size
        if self.start_rows.ndim != 1 or self.end_rows.shape != (pieces,) or not 1 <= pieces <= _MAX_PIECES:
            raise CertificationError(
                f"pieces: {self.start_rows.shape} starts and {self.end_rows.shape} ends, expected two "
                f"vectors of the same length, 1 to {_MAX_PIECES}"
            )
        for rows in (self.start_rows, self.end_rows):
            if rows.min() < 0 or rows.max() >= len(self.weights):
                raise CertificationError(f"pieces: a row index is outside 0..{len(self.weights) - 1}")
        starts, ends = self.knots[self.start_rows], self.knots[self.end_rows]
        if np.any(ends <= starts) or np.any(np.diff(starts) <= 0.0):
            raise CertificationError("pieces: knots (row means) do not increase from piece to piece")
        gaps = starts[1:] - ends[:-1]
        reach = max(1.0 + starts[0], 1.0 - ends[-1], float(np.abs(gaps).max(initial=0.0)))
        if reach > COVERAGE_TOLERANCE:
            raise CertificationError(
                f"pieces from {starts[0]:.12g} to {ends[-1]:.12g} miss a part of [-1, 1], or overlap, by "
                f"{reach:.3g}, which is more than {COVERAGE_TOLERANCE:g}"
            )

    @cached_property
    def knots(self) -> Floats:
        """(R,) mean of each row: the input for which that row is unbiased."""
        mean_code = (self.weights @ self.codebook.codes).astype(np.float64) / TOTAL_WEIGHT
        return self.codebook.offset + self.codebook.step * mean_code

    @cached_property
    def worst_ratio(self) -> tuple[int, int]:
        """The two weights of one column with the largest ratio; if the second is 0, the ratio is infinite."""
        largest, smallest = self.weights.max(axis=0), self.weights.min(axis=0)
        used = largest > 0
        largest, smallest = largest[used], smallest[used]
        if np.any(smallest == 0):
            return int(largest[smallest == 0].max()), 0
        approximate = largest / smallest
        # Floats select candidate columns; these are compared in integers.
        close = approximate >= approximate.max() * (1.0 - 1e-12)
        top, bottom = 1, 1
        for a, b in zip(largest[close].tolist(), smallest[close].tolist(), strict=True):
            if a * bottom > top * b:
                top, bottom = a, b
        return top, bottom

    @cached_property
    def epsilon(self) -> float:
        """Certified privacy loss of one release, local view: never below the exact one."""
        return log_ratio_upper(*self.worst_ratio)

    @cached_property
    def distribution(self) -> OutputDistribution:
        """The exact distribution of what is sampled: dividing weights by 2^32 does not round."""
        rows = self.weights.astype(np.float64) / TOTAL_WEIGHT
        return OutputDistribution(
            self.codebook.values,
            self.knots[self.start_rows],
            self.knots[self.end_rows],
            rows[self.start_rows],
            rows[self.end_rows],
        )

    def certify(self, epsilon: float) -> Self:
        """The table itself, if its certified privacy loss is at most ``epsilon``."""
        if not self.epsilon <= epsilon:
            top, bottom = self.worst_ratio
            certified = PrivacyStatement(self.epsilon, 0.0, Unit.COORDINATE)
            raise CertificationError(f"{certified.above(epsilon)}; it is log({top}/{bottom})")
        return self

    @classmethod
    def from_distribution(
        cls, distribution: OutputDistribution, codebook: Codebook, epsilon: float
    ) -> CertifiedTable:
        """The distribution rounded to integers, certified at ``epsilon`` (infinity claims no privacy).

        Raises CertificationError where rounding does not fit into the budget; then the distribution must be
        designed for a slightly smaller epsilon.
        """
        rows, inputs, start_rows, end_rows = _distinct_rows(distribution)
        weights = _integer_rows(rows, inputs, codebook, epsilon)
        return cls(codebook, weights, start_rows, end_rows).certify(epsilon)

    def details(self) -> dict[str, str]:
        """The certificate of the table and its contents, in words."""
        top, bottom = self.worst_ratio
        book = self.codebook
        lines = {
            "certificate": f"log({top} / {bottom}), integers of one column of the table",
            "largest bias": f"{self.distribution.max_bias:.2g} of the clip",
        }
        if book.num_levels <= _MAX_SHOWN:
            lines["values"] = "  ".join(f"{value:.6g}" for value in book.values)
            lines["codes"] = "  ".join(str(code) for code in book.codes)
        return lines


@dataclass(frozen=True, eq=False)
class BiasedTable(CertifiedTable):
    """A table whose rows may be biased: the input of each row is given, not derived from its mean.

    Privacy is certified as for any table, as it does not depend on the inputs of rows. The bias is computed
    from rows and inputs, by
    :attr:`fl_privquant.distributions.output_distribution.OutputDistribution.max_bias`.
    """

    inputs: Floats
    """(R,) the input in [-1, 1] of each row."""

    def __post_init__(self) -> None:
        inputs = np.ascontiguousarray(self.inputs, dtype=np.float64)
        object.__setattr__(self, "inputs", inputs)
        if inputs.shape != self.weights.shape[:1] or not np.all(np.isfinite(inputs)):
            raise CertificationError(
                f"inputs of shape {inputs.shape}, expected a finite one for each of {len(self.weights)} rows"
            )
        super().__post_init__()

    @property
    def knots(self) -> Floats:
        """(R,) the input of each row."""
        return self.inputs

    @classmethod
    def from_distribution(
        cls, distribution: OutputDistribution, codebook: Codebook, epsilon: float
    ) -> BiasedTable:
        """The distribution rounded to integers, certified at ``epsilon``; rows keep their own means."""
        rows, inputs, start_rows, end_rows = _distinct_rows(distribution)
        weights = _integer_rows(rows, rows @ codebook.values, codebook, epsilon)
        return cls(codebook, weights, start_rows, end_rows, inputs).certify(epsilon)


def _integer_rows(rows: Floats, means: Floats, codebook: Codebook, epsilon: float) -> Ints:
    """The rows as integers whose ratios stay within epsilon, with means as near to ``means`` as possible."""
    if codebook.num_levels != rows.shape[1]:
        raise CertificationError(
            f"{rows.shape[1]} values in the distribution, {codebook.num_levels} codes in the codebook"
        )
    lower, upper = _bounds(rows, epsilon)
    weights = np.clip(np.rint(rows * TOTAL_WEIGHT), lower, upper).astype(np.int64)
    target_codes = (means - codebook.offset) / codebook.step * TOTAL_WEIGHT
    for row, target in zip(weights, target_codes.tolist(), strict=True):
        _settle_sum(row, lower, upper, codebook.codes, target)
        _settle_mean(row, lower, upper, codebook.codes, target)
    moved = float(np.abs(weights / TOTAL_WEIGHT - rows).max())
    if moved > _MAX_MOVED:
        raise CertificationError(
            f"a probability would have to move by {moved:.2g} to fit into "
            f"{PrivacyStatement(epsilon, 0.0, Unit.COORDINATE).brief}; design the distribution for that"
        )
    return weights


def log_ratio_upper(numerator: int, denominator: int, power: int = 1) -> float:
    """The smallest float that is certainly >= ``power`` * log(numerator / denominator).

    >>> log_ratio_upper(1, 1), log_ratio_upper(1, 0)
    (0.0, inf)
    >>> log_ratio_upper(3, 2, 100) == log_ratio_upper(3**100, 2**100)
    True
    """
    if denominator == 0:
        return math.inf
    if numerator == denominator:
        return 0.0
    with localcontext() as context:
        # Each operation is correctly rounded at 50 digits, or at 60 if the result has up to 10 digits before
        # the point; one more unit in the 45th place covers them all.
        context.prec = 50 if power == 1 else 60
        return round_up(power * (Decimal(numerator) / Decimal(denominator)).ln() + Decimal(10) ** -45)


def round_up(exact: Fraction | Decimal) -> float:
    """The nearest float that is not below an exact number.

    >>> round_up(Fraction(1, 2)), round_up(Fraction(1, 10)) >= Fraction(1, 10)
    (0.5, True)
    """
    nearest = float(exact)
    return nearest if nearest >= exact else math.nextafter(nearest, math.inf)


def _distinct_rows(distribution: OutputDistribution) -> tuple[Floats, Floats, Ints, Ints]:
    """Rows with their inputs, and the rows of each piece; pieces that continue each other share a row."""
    rows = np.stack([distribution.start_rows, distribution.end_rows], axis=1)
    inputs = np.stack([distribution.starts, distribution.ends], axis=1)
    continues = (inputs[1:, 0] == inputs[:-1, 1]) & (rows[1:, 0] == rows[:-1, 1]).all(axis=1)
    distinct = np.ones(inputs.shape, dtype=bool)
    distinct[1:, 0] = ~continues
    # Whether the start of a piece is a row of its own or that of the end before, its end is the next row.
    ends = np.cumsum(distinct.sum(axis=1)) - 1
    return rows[distinct], inputs[distinct], ends - 1, ends


def _bounds(rows: Floats, epsilon: float) -> tuple[Ints, Ints]:
    """Integers lo, hi for each column with hi <= e^epsilon lo, between which its weights are kept."""
    largest, smallest = rows.max(axis=0) * TOTAL_WEIGHT, rows.min(axis=0) * TOTAL_WEIGHT
    if math.isinf(epsilon):
        return np.zeros(rows.shape[1], np.int64), np.full(rows.shape[1], TOTAL_WEIGHT, np.int64)
    # The part of epsilon that a column does not use is room for rounding, half below and half above.
    spare = np.maximum(math.exp(epsilon) * smallest / np.maximum(largest, 1.0), 1.0)
    lower = np.maximum(np.floor(smallest / np.sqrt(spare)), 1.0)
    upper = np.floor(np.minimum(lower * math.exp(epsilon) * (1.0 - 1e-15), TOTAL_WEIGHT))
    dust = largest < _DUST
    lower[dust] = upper[dust] = 0.0
    return lower.astype(np.int64), upper.astype(np.int64)


def _settle_sum(row: Ints, lower: Ints, upper: Ints, codes: Ints, target: float) -> None:
    """Make the row sum to 2^32, taking first the entries that also move its mean to the target."""
    missing = TOTAL_WEIGHT - int(row.sum())
    if missing == 0:
        return
    sign = 1 if missing > 0 else -1
    off_target = target - float(row @ codes) - missing * float(codes.mean())
    order = np.argsort(codes if (off_target > 0) != (sign > 0) else -codes, kind="stable")
    for i in order:
        room = int(upper[i] - row[i]) if sign > 0 else int(row[i] - lower[i])
        units = min(abs(missing), room)
        row[i] += sign * units
        missing -= sign * units
        if missing == 0:
            return
    raise CertificationError(
        f"{abs(missing)} of 2^32 units do not fit within epsilon; design for a slightly smaller one"
    )


def _settle_mean(row: Ints, lower: Ints, upper: Ints, codes: Ints, target: float) -> None:
    """Move units between pairs of entries, far pairs first, until the mean is at the target."""
    entries = np.arange(row.size)
    if row.size > _CORRECTION_ENTRIES:
        roomiest = np.argsort(np.minimum(upper - row, row - lower), kind="stable")
        entries = np.sort(roomiest[-_CORRECTION_ENTRIES:])
    pairs = [(i, j) for i in entries for j in entries if i < j]
    pairs.sort(key=lambda pair: int(codes[pair[0]] - codes[pair[1]]))
    off_target = target - float(row @ codes)
    for low, high in pairs:
        distance = int(codes[high] - codes[low])
        wanted = round(abs(off_target) / distance)
        if wanted == 0:
            continue
        source, sink = (low, high) if off_target > 0 else (high, low)
        units = min(wanted, int(row[source] - lower[source]), int(upper[sink] - row[sink]))
        row[source] -= units
        row[sink] += units
        off_target = target - float(row @ codes)
