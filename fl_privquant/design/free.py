"""The free family: the best of *all* unbiased epsilon-DP laws on given values, by one linear program.

Unknowns are the rows P[k, :] of output probabilities at inputs x_k, the *knots*, and the least probability
lo_i (the *floor*) of each output:

    minimise  E|M(X) - X|^power
    subject to  sum_i P[k, i] = 1,   sum_i P[k, i] B_i = x_k,   lo_i <= P[k, i] <= e^epsilon lo_i.

Between knots the law interpolates, which keeps it unbiased and no less private. With more and more knots the
optimum becomes that over every unbiased epsilon-DP mechanism with these outputs.

Under a metric (:mod:`fl_privquant.design.metric`) the bounds are between the rows of two knots instead:
P[k, i] <= bound(k, k') P[k', i].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_privquant.array_types import Floats
from fl_privquant.design.linear_program import LinearProgram, Method, Solution
from fl_privquant.design.metric import least_metric_value, ratio_bounds
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.law.density import Density
from fl_privquant.law.law import Law, error_costs

# Pieces narrower than this could vanish when rows are rounded to integers.
_LEAST_PIECE = 1e-4
_VALUE_STEP = 1e-5


@dataclass(frozen=True)
class FreeOptimum:
    """The best law, its objective, and how the objective changes with each value."""

    law: Law
    objective: float
    gradient: Floats


def least_outer_value(epsilon: float) -> float:
    """How far out the outermost values must lie: (e^epsilon + 1) / (e^epsilon - 1).

    This is necessary for every unbiased mechanism M: B_m - M is non-negative with mean B_m - 1 at x = 1 and
    B_m + 1 at x = -1, and the ratio of the two means is at most e^epsilon. It is sufficient by the two-point
    mechanism.
    """
    return 1.0 / math.tanh(epsilon / 2.0)


def require_reach(values: Floats, epsilon: float, metric: str = "none", knots: Floats | None = None) -> None:
    """Raise InfeasibleDesignError unless the outermost values reach far enough, for a metric on its knots."""
    least, under, advice = least_outer_value(epsilon), "", ""
    if metric != "none" and knots is not None:
        # With the tolerance of the solver, because the search starts at the bound itself.
        least = least_metric_value(metric, epsilon, knots) * (1.0 - 1e-12)
        under = f" under metric {metric!r} on {knots.size} knots"
        advice = "" if metric == "l1" else ", or lower num_knots"
    if values[0] > -least or values[-1] < least:
        raise InfeasibleDesignError(
            f"bins from {values[0]:.6g} to {values[-1]:.6g}: an unbiased mechanism with epsilon {epsilon:g}"
            f"{under} needs bins that reach ±{least:.6g} or beyond; widen the bins or raise epsilon{advice}"
        )


def is_symmetric(values: Floats, density: Density) -> bool:
    """Whether values and density are symmetric around 0, so that a symmetric law is optimal."""
    scale = float(np.abs(values).max())
    return density.symmetric and bool(np.allclose(values, -values[::-1], rtol=0.0, atol=1e-12 * scale))


def place_knots(values: Floats, count: int) -> Floats:
    """``count`` equidistant knots on [-1, 1], moved onto the values that lie near one.

    >>> place_knots(np.array([-3.0, -0.4, 0.4, 3.0]), 5)
    array([-1. , -0.4,  0. ,  0.4,  1. ])
    """
    knots = np.linspace(-1.0, 1.0, count)
    spacing = 2.0 / (count - 1)
    inside = values[np.abs(values) < 1.0 - _LEAST_PIECE]
    filler = knots[1:-1]
    if inside.size:
        distance = np.abs(filler[:, None] - inside).min(axis=1)
        filler = filler[distance > spacing * 0.5]
    points = np.sort(np.concatenate([knots[[0, -1]], filler, inside]))
    wide = np.concatenate([[True], np.diff(points) > _LEAST_PIECE])
    return np.asarray(points[wide])


def design_free(
    values: Floats,
    epsilon: float,
    density: Density,
    power: int,
    knots: Floats,
    method: Method = "simplex",
    metric: str = "none",
) -> FreeOptimum:
    """The best unbiased law with these (m,) increasing output values, at ``epsilon`` in the local view.

    For inputs of that density, ``power`` 1 minimises the mean absolute error, 2 the mean squared error. Knots
    increase from -1 to 1, symmetric around 0 if values and density are. Of the methods, "ipm" is faster from
    some 32 levels on. The metric is one of :data:`~fl_privquant.design.metric.METRICS`.
    """
    require_reach(values, epsilon, metric, knots)
    symmetric = is_symmetric(values, density)
    costs = _knot_costs(values, knots, power, density)
    program, unknowns = _program(values, epsilon, knots, costs, symmetric, metric)
    solution = program.solve(method)
    rows = solution.x[unknowns.floor_of] + solution.x[unknowns.excess_of]
    law = Law.from_knots(values, knots, np.maximum(rows, 0.0))
    # By the envelope theorem, the slope of the optimum in a value is that of the costs and mean constraints.
    wider = _knot_costs(values + _VALUE_STEP, knots, power, density)
    narrower = _knot_costs(values - _VALUE_STEP, knots, power, density)
    slopes = (wider - narrower) / (2.0 * _VALUE_STEP)
    prices = _mean_prices(solution, unknowns.mean_rows, knots.size, symmetric)
    gradient = (slopes * rows).sum(axis=0) - prices @ rows
    return FreeOptimum(law, solution.objective, gradient)


class _Unknowns(NamedTuple):
    """Where to find the unknowns of a program: variable numbers, and names of the constraints on means.

    A probability is the floor of its output plus an excess. Floors are (m,), excesses (K, m).
    """

    floor_of: NDArray[np.intp]
    excess_of: NDArray[np.intp]
    mean_rows: dict[int, str]


def _program(
    values: Floats, epsilon: float, knots: Floats, costs: Floats, symmetric: bool, metric: str
) -> tuple[LinearProgram, _Unknowns]:
    # Row k is floor + excess. As the excess is at least 0, each entry needs only one further constraint.
    levels, count = values.size, knots.size
    floor_of, excess_of = _numbering(knots, levels, symmetric)
    program = LinearProgram()
    program.variables("floor", np.bincount(floor_of, costs.sum(axis=0)).astype(np.float64))
    num_floors = int(floor_of.max()) + 1
    excess_costs = np.bincount(excess_of.ravel() - num_floors, costs.ravel())
    program.variables("excess", excess_costs.astype(np.float64))
    reach = math.expm1(epsilon)
    mean_rows: dict[int, str] = {}
    seen: set[int] = set()
    for k in range(count // 2 if symmetric else 0, count):
        entries = [*floor_of.tolist(), *excess_of[k].tolist()]
        program.equal([(entry, 1.0) for entry in entries], 1.0)
        if not (symmetric and knots[k] == 0.0):  # there the mean is 0 by symmetry
            mean_rows[k] = f"mean_{k}"
            weighted = zip(entries, np.tile(values, 2).tolist(), strict=True)
            program.equal(list(weighted), float(knots[k]), mean_rows[k])
        for i in range(levels if metric == "none" else 0):
            if excess_of[k, i] not in seen:
                seen.add(excess_of[k, i])
                program.at_most([(int(excess_of[k, i]), 1.0), (int(floor_of[i]), -reach)], 0.0)
    if metric != "none":
        _bound_ratios(program, metric, epsilon, knots, floor_of, excess_of)
    return program, _Unknowns(floor_of, excess_of, mean_rows)


def _mean_prices(solution: Solution, mean_rows: dict[int, str], count: int, symmetric: bool) -> Floats:
    """(K,) the dual price of the mean at each knot; 0 where no constraint fixes the mean."""
    prices = np.zeros(count)
    for k, name in mean_rows.items():
        prices[k] = solution.duals[name] / (2.0 if symmetric else 1.0)
        if symmetric:
            prices[count - 1 - k] = -prices[k]
    return prices


def _bound_ratios(
    program: LinearProgram,
    metric: str,
    epsilon: float,
    knots: Floats,
    floor_of: NDArray[np.intp],
    excess_of: NDArray[np.intp],
) -> None:
    """Bound the rows of knots by each other. Floors are set to 0, so that the excesses are the rows."""
    for floor in set(floor_of.tolist()):
        program.bound(floor, 0.0, 0.0)
    seen: set[tuple[int, int]] = set()
    for row, other, bound in ratio_bounds(metric, epsilon, knots):
        for pair in zip(excess_of[row].tolist(), excess_of[other].tolist(), strict=True):
            # Mirror images share their variables, so one bound serves both.
            if pair not in seen and pair[0] != pair[1]:
                seen.add(pair)
                program.at_most([(pair[0], 1.0), (pair[1], -bound)], 0.0)


def _knot_costs(values: Floats, knots: Floats, power: int, density: Density) -> Floats:
    """(K, m) the coefficient of each entry of the rows at the knots in the objective."""
    at_start, at_end = error_costs(values, knots[:-1], knots[1:], power, density)
    costs = np.zeros((knots.size, values.size))
    costs[:-1] += at_start
    costs[1:] += at_end
    return costs


def _numbering(knots: Floats, levels: int, symmetric: bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Variable numbers of floors (m,) and of excesses (K, m); mirror images share a variable."""
    count = knots.size
    column = np.arange(levels)
    if not symmetric:
        return column, levels + np.arange(count * levels).reshape(count, levels)
    floor_of = np.minimum(column, levels - 1 - column)
    own = np.arange(count * levels).reshape(count, levels)
    own = np.maximum(own, own[::-1, ::-1])
    _, excess_of = np.unique(own, return_inverse=True)
    return floor_of, int(floor_of.max()) + 1 + excess_of.reshape(count, levels)
