"""Tables for the secure sum, in which as much as possible of the allowed error is noise that hides clients.

Under secure aggregation a client is protected by the noise of the other clients, above all by that of their
blankets: the part of a client's output law that does not depend on its data
(:mod:`fl_privquant.loss.secure_sum`). With low_i the least weight of output i over all rows, a client's
blanket adds noise of variance sum of low_i B_i^2 (for a blanket of mean 0), which is linear in low. So for
given output values B one linear program finds the best law whose mean squared error is at most s:

    maximise  sum_i low_i B_i^2
    subject to  low_i <= P[i],  low_i <= P[mirror i],  low_i >= floor,
                sum_i P[i] = 1,  sum_i P[i] B_i = 1,  sum_i P[i] B_i^2 <= s + E x^2.

P is the row at x = 1; the row at -1 is its mirror image, and between them the law is linear. The objective
never exceeds s, the variance of a central Gaussian with the same error.

**Why two rows.** Take any symmetric law with more knots. Replacing it by the line between its rows at -1 and
1 keeps it unbiased, and low, now the smaller of two rows instead of all, can only rise. More knots could only
save a part of the error in the middle of [-1, 1]. That part is small where s is large, as it is wherever a
whole run is private. And laws of two rows have a certificate that does not need a blanket
(:mod:`fl_privquant.loss.two_row_sums`), by which these tables are compared and accounted for.

**Floors.** Without floors the program would use some outputs for the signal only. No blanket covers these, so
the sum of codes modulo some number would reveal the signal. A least probability of some thousandths for every
output prevents this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fl_privquant.array_types import Floats
from fl_privquant.design.bits import out_of_reach
from fl_privquant.design.linear_program import LinearProgram
from fl_privquant.errors import CertificationError, InfeasibleDesignError
from fl_privquant.law.codebook import Codebook
from fl_privquant.law.law import Law
from fl_privquant.law.table import CertifiedTable
from fl_privquant.loss.two_row_sums import TwoRows, sum_separation

_SPREADS = tuple(np.geomspace(1.0, 3.0, 12).tolist())
_FLOORS = (0.001, 0.003, 0.01, 0.03, 0.1)
# More levels than this have not helped in any case that was tried.
_MOST_LEVELS = 6
# How much epsilon may grow by the rounding of rows to integers.
_EPSILON_ROOM = 1e-6
# Outputs with smaller probabilities are dropped.
_DUST = 1e-7
# Relative accuracy of the least mean squared error, which is rounded up, to the more private side.
_ERROR_TOLERANCE = 1e-4
# The factor between successive errors that are tried, and the largest one, as a multiple of the ideal error.
_STEP, _MOST_ERROR = 1.4, 1e3
# How far off, as a share, the error that is guessed from a separation may be.
_GUESS = 0.01


@dataclass(frozen=True)
class AggregateShape:
    """The variables of the outer search: how far out values lie, and the least weight of an output."""

    levels: int
    """Number of equidistant output values."""
    spread: float
    """The outermost value, divided by the root of the largest second moment; at least 1."""
    floor: float
    """Least probability of every output, whatever the input."""


def aggregate_law(values: Floats, second_moment: float, floor: float) -> Law:
    """The law on symmetric ``values`` with the largest blanket variance, E M^2 <= ``second_moment``."""
    levels = values.size
    low_of = np.minimum(np.arange(levels), np.arange(levels)[::-1])
    program = LinearProgram()
    low_costs = -np.bincount(low_of, values**2).astype(np.float64)
    low = program.variables("low", low_costs, lower=floor)
    excess = program.variables("excess", np.zeros(levels))
    # The row is ``low`` plus a nonnegative excess. As mirror images share ``low``, neither row is below it.
    entries = [(low[low_of[i]], excess[i]) for i in range(levels)]

    def total(weights: Floats) -> list[tuple[int, float]]:
        return [
            (variable, weight)
            for pair, weight in zip(entries, weights.tolist(), strict=True)
            for variable in pair
        ]

    program.equal(total(np.ones(levels)), 1.0)
    program.equal(total(values), 1.0)
    program.at_most(total(values**2), second_moment)
    solution = program.solve()
    row = np.array([solution.x[first] + solution.x[second] for first, second in entries])
    row = np.maximum(row, 0.0)
    return Law.from_knots(values, [-1.0, 1.0], np.stack([row[::-1], row]))


def aggregate_table(
    shape: AggregateShape, mean_squared_error: float, input_variance: float
) -> CertifiedTable:
    """The certified table of a shape with that error, for inputs of mean square ``input_variance``.

    Raises InfeasibleDesignError where the shape has no law with that error.
    """
    second_moment = mean_squared_error + input_variance
    outer = shape.spread * math.sqrt(second_moment)
    codes = np.arange(shape.levels)
    step = 2.0 * outer / (shape.levels - 1)
    law = aggregate_law(np.asarray(-outer + step * codes), second_moment, shape.floor)
    used = law.largest > _DUST
    first = int(np.flatnonzero(used)[0])
    rows = law.start_rows[:, used], law.end_rows[:, used]
    law = Law(law.values[used], law.starts, law.ends, *(part / part.sum(axis=1)[:, None] for part in rows))
    stride = max(int(np.gcd.reduce(codes[used] - first)), 1)
    codebook = Codebook((codes[used] - first) // stride, step * stride, -outer + step * first)
    try:
        return CertifiedTable.from_law(law, codebook, law.epsilon + _EPSILON_ROOM)
    except CertificationError as error:
        raise InfeasibleDesignError(f"mse {mean_squared_error:g}: {error}") from error


def best_shape(
    levels: int, mean_squared_error: float, input_variance: float, num_honest: int, rate: float
) -> tuple[AggregateShape, float]:
    """The shape, with up to ``levels`` values, that hides a client best at that error, and its separation.

    Raises InfeasibleDesignError where no shape has a finite separation.
    """
    shapes = [AggregateShape(2, 1.0, 0.0)]
    shapes += [
        AggregateShape(number, spread, floor)
        for number in range(3, min(levels, _MOST_LEVELS) + 1)
        for spread in _SPREADS
        for floor in _FLOORS
        if number * floor < 1.0
    ]
    best, least = None, math.inf
    for shape in shapes:
        try:
            table = aggregate_table(shape, mean_squared_error, input_variance)
        except InfeasibleDesignError:
            continue
        reached = _separation(table, num_honest, rate, probed=True, enough=least)
        if reached < least:
            best, least = shape, reached
    if best is None:
        raise InfeasibleDesignError(
            f"mse {mean_squared_error:g}: no law with up to {levels} levels hides one of {num_honest} "
            "clients; raise mse or the number of clients"
        )
    return best, least


def least_error_table(
    levels: int, separation: float, input_variance: float, num_honest: int, rate: float
) -> CertifiedTable:
    """The table with the least error whose certified separation is at most ``separation``.

    Separation and rate are those of :func:`~fl_privquant.loss.two_row_sums.sum_separation`.
    """
    shape, high = _start(levels, separation, input_variance, num_honest, rate)

    def reached(error: float) -> tuple[CertifiedTable | None, float]:
        try:
            table = aggregate_table(shape, error, input_variance)
        except InfeasibleDesignError:
            return None, math.inf
        return table, _separation(table, num_honest, rate, probed=False)

    # The separation falls about as the root of the error: few steps are needed.
    low, best = 0.0, None
    while high - low > _ERROR_TOLERANCE * high:
        error = high if best is None else 0.5 * (low + high)
        table, separated = reached(error)
        if table is not None and separated <= separation:
            high, best = error, table
            low = max(low, (separated / separation) ** 2 * high * (1.0 - _GUESS))
        else:
            low = error
            if best is None:
                high = error * min(max((separated / separation) ** 2, 1.0) * (1.0 + _GUESS), _STEP)
    if best is None:
        raise InfeasibleDesignError(out_of_reach(f"law of {levels} levels or fewer", separation, num_honest))
    return best


def _start(
    levels: int, separation: float, input_variance: float, num_honest: int, rate: float
) -> tuple[AggregateShape, float]:
    """A shape that hides a client well enough at some error, and about that error."""
    # The search starts at the error of a central Gaussian or of a fair coin, whichever is larger.
    ideal = 1.0 / (num_honest * separation**2)
    error = max(1.05 * ideal, 1.1 - input_variance)
    while error < _MOST_ERROR * max(ideal, 1.0):
        try:
            shape, best = best_shape(levels, error, input_variance, num_honest, rate)
        except InfeasibleDesignError:
            best = math.inf
        needed = error * (best / separation) ** 2
        if needed <= _STEP * error:
            return shape, needed
        error *= _STEP
    raise InfeasibleDesignError(out_of_reach(f"law of {levels} levels or fewer", separation, num_honest))


def _separation(
    table: CertifiedTable, num_honest: int, rate: float, probed: bool, enough: float = math.inf
) -> float:
    law = TwoRows.of(table)
    if law is None:
        return math.inf
    return sum_separation(law, num_honest, rate, probed=probed, enough=enough)
