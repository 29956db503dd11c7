"""The free family: the best of *all* unbiased epsilon-DP mechanisms on given values, by one program.

Unknowns are the rows P[k, :] of output probabilities at inputs x_k, the *knots*, and the least probability
lo_i (the *floor*) of each output:

    minimize  E|M(X) - X|^power
    subject to  sum_i P[k, i] = 1,   sum_i P[k, i] B_i = x_k,   lo_i <= P[k, i] <= e^epsilon lo_i.

Between knots the distribution interpolates, which keeps it unbiased and no less private. With more and more
knots the optimum becomes that over every unbiased epsilon-DP mechanism with these outputs.

Given the floors, the best row is known for every input, so that no knot must be guessed. Lay the largest
excesses (e^epsilon - 1) lo_i side by side, in the order of the values. A row is its floors and excesses of
mass R = 1 - sum_i lo_i in all, and the best one with mean x takes an interval of length R of this line. Any
other choice with the same mass and mean has less inside the interval and more on both sides of it, hence a
larger expectation of every convex function. As the interval moves, row and mean are linear in its position
until one of its ends passes from one output to the next. These are the only inputs at which the distribution
bends, at most 2 m (:func:`concentrated_distribution`). So the program's knots only decide how good its floors
are.

Under a metric (:mod:`fl_privquant.optimize.metric_privacy`) the bounds are between the rows of two knots
instead: P[k, i] <= bound(k, k') P[k', i].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fl_privquant._array_types import Floats
from fl_privquant.distributions.input_density import Density
from fl_privquant.distributions.output_distribution import OutputDistribution, error_costs
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.optimize.linear_program import LinearProgram, Method, Solution
from fl_privquant.optimize.metric_privacy import min_outer_value, ratio_bounds

# Pieces narrower than this could vanish when rows are rounded to integers.
_MIN_PIECE = 1e-4
_VALUE_STEP = 1e-5


@dataclass(frozen=True, eq=False)
class FreeOptimum:
    """The best distribution, its objective, and how the objective changes with each value."""

    objective: float
    _family: FreeFamily
    _values: Floats
    _floors: Floats
    _rows: Floats
    _prices: Floats

    @cached_property
    def distribution(self) -> OutputDistribution:
        """The best distribution that is linear between the knots."""
        return OutputDistribution.from_knots(self._values, self._family.knots, np.maximum(self._rows, 0.0))

    @cached_property
    def concentrated(self) -> OutputDistribution:
        """The best distribution with the same floors, which bends where it should, and has no more error."""
        return concentrated_distribution(self._values, self._family.epsilon, np.maximum(self._floors, 0.0))

    @cached_property
    def gradient(self) -> Floats:
        """(m,) slopes of the objective, by the envelope theorem: those of the cost and the constraints."""
        wider = self._family.costs(self._values + _VALUE_STEP)
        narrower = self._family.costs(self._values - _VALUE_STEP)
        slopes = (wider - narrower) / (2.0 * _VALUE_STEP)
        return np.asarray((slopes * self._rows).sum(axis=0) - self._prices @ self._rows)


def require_reach(values: Floats, epsilon: float, metric: str = "none", knots: Floats | None = None) -> None:
    """Raise InfeasibleDesignError unless the outermost values reach far enough, for a metric on its knots."""
    least, under, advice = min_outer_value(epsilon, metric, knots), "", ""
    if metric != "none" and knots is not None:
        # With the tolerance of the solver, because the search starts at the bound itself.
        least *= 1.0 - 1e-12
        under = f" under metric {metric!r} on {knots.size} knots"
        advice = "" if metric == "l1" else ", or lower num_knots"
    if values[0] > -least or values[-1] < least:
        raise InfeasibleDesignError(
            f"bins from {values[0]:.6g} to {values[-1]:.6g}: an unbiased mechanism with epsilon {epsilon:g}"
            f"{under} needs bins that reach ±{least:.6g} or beyond; widen the bins or raise epsilon{advice}"
        )


def is_symmetric(values: Floats, density: Density) -> bool:
    """Whether values and density are symmetric around 0, so that a symmetric distribution is optimal."""
    scale = float(np.abs(values).max())
    return density.symmetric and bool(np.allclose(values, -values[::-1], rtol=0.0, atol=1e-12 * scale))


def place_knots(values: Floats, count: int) -> Floats:
    """``count`` equidistant knots on [-1, 1], moved onto the values that lie near one.

    >>> place_knots(np.array([-3.0, -0.4, 0.4, 3.0]), 5)
    array([-1. , -0.4,  0. ,  0.4,  1. ])
    """
    knots = np.linspace(-1.0, 1.0, count)
    spacing = 2.0 / (count - 1)
    inside = values[np.abs(values) < 1.0 - _MIN_PIECE]
    filler = knots[1:-1]
    if inside.size:
        distance = np.abs(filler[:, None] - inside).min(axis=1)
        filler = filler[distance > spacing * 0.5]
    points = np.sort(np.concatenate([knots[[0, -1]], filler, inside]))
    wide = np.concatenate([[True], np.diff(points) > _MIN_PIECE])
    return np.asarray(points[wide])


def concentrated_distribution(values: Floats, epsilon: float, floors: Floats) -> OutputDistribution:
    """The best unbiased distribution on (m,) values, with rows between floors and e^epsilon times them.

    >>> values, floors = np.array([-2.0, 0.0, 2.0]), np.array([0.25, 0.0, 0.25])
    >>> distribution = concentrated_distribution(values, math.log(3.0), floors)
    >>> distribution.starts, distribution.start_rows[0]
    (array([-1.]), array([0.75, 0.  , 0.25]))
    """
    mass = 1.0 - float(floors.sum())
    # No row has more than all of the mass in one excess.
    widths = np.minimum(math.expm1(epsilon) * floors, mass)
    bounds = np.concatenate([[0.0], np.cumsum(widths)])
    moments = np.concatenate([[0.0], np.cumsum(widths * values)])
    last = bounds[-1] - mass

    def means(starts: Floats) -> Floats:
        above_floors = np.interp(starts + mass, bounds, moments) - np.interp(starts, bounds, moments)
        return np.asarray(floors @ values + above_floors)

    bends = np.unique(np.clip(np.concatenate([bounds, bounds - mass]), 0.0, last))
    inputs = means(bends)
    ends = np.interp([-1.0, 1.0], inputs, bends)
    inner = np.abs(inputs) < 1.0 - _MIN_PIECE
    groups = np.cumsum(np.diff(inputs[inner], prepend=-1.0) > _MIN_PIECE)
    centers = np.bincount(groups, bends[inner]) / np.maximum(np.bincount(groups), 1)
    starts = np.concatenate([ends[:1], centers[np.unique(groups)], ends[1:]])
    knots = np.concatenate([[-1.0], means(starts[1:-1]), [1.0]])
    excesses = np.minimum(bounds[1:], (starts + mass)[:, None]) - np.maximum(bounds[:-1], starts[:, None])
    return OutputDistribution.from_knots(values, knots, floors + np.maximum(excesses, 0.0))


def design_free(
    values: Floats,
    epsilon: float,
    density: Density,
    power: int,
    knots: Floats,
    method: Method = "simplex",
    metric: str = "none",
    room: float = 0.0,
) -> FreeOptimum:
    """The best unbiased distribution on these (m,) increasing values, at ``epsilon`` in the local view.

    Parameters
    ----------
    values
        (m,) output values, which increase.
    epsilon
        The bound on the loss of a coordinate, in the local view.
    density
        The density of inputs.
    power
        1 for the least mean absolute error, 2 for the least mean squared error.
    knots
        Inputs at which output probabilities are chosen, increasing from -1 to 1; symmetric around 0 if
        values and density are.
    method
        Of the solver: "simplex" or, faster from some 32 levels on, "ipm".
    metric
        One of :data:`~fl_privquant.optimize.metric_privacy.METRICS`.
    room
        What bounds on probabilities are tightened by, for their rounding.

    Returns
    -------
    FreeOptimum
        The distribution, with its error and gradient.

    Raises
    ------
    InfeasibleDesignError
        The values do not reach far enough for an unbiased mechanism.
    """
    return FreeFamily(epsilon, density, power, knots, method, metric, room).best(values)


@dataclass(frozen=True, eq=False)
class FreeFamily:
    """The distributions of :func:`design_free` on any values; only costs and means are made anew."""

    epsilon: float
    density: Density
    power: int
    knots: Floats
    method: Method = "simplex"
    metric: str = "none"
    room: float = 0.0
    _programs: dict[tuple[int, bool], _Program] = field(default_factory=dict, init=False)

    def best(self, values: Floats) -> FreeOptimum:
        """The best distribution with these output values."""
        require_reach(values, self.epsilon, self.metric, self.knots)
        symmetric = is_symmetric(values, self.density)
        key = values.size, symmetric
        if key not in self._programs:
            self._programs[key] = _Program(self, values.size, symmetric)
        program = self._programs[key]
        solution = program.solve(values, self.costs(values), self.method)
        floors = solution.x[program.floor_of]
        rows = floors + solution.x[program.excess_of]
        prices = _mean_prices(solution, program.mean_rows, self.knots.size, symmetric)
        return FreeOptimum(solution.objective, self, values, floors, rows, prices)

    def costs(self, values: Floats) -> Floats:
        """(K, m) what each entry of the rows at the knots adds to the objective."""
        at_start, at_end = error_costs(values, self.knots[:-1], self.knots[1:], self.power, self.density)
        costs = np.zeros((self.knots.size, values.size))
        costs[:-1] += at_start
        costs[1:] += at_end
        return costs


class _Program:
    """The linear program for any values of one number, all symmetric or none."""

    def __init__(self, family: FreeFamily, levels: int, symmetric: bool) -> None:
        epsilon, knots, metric = family.epsilon, family.knots, family.metric
        self._program = program = LinearProgram()
        # Numbers of the variables, floors (m,) and excesses (K, m); mirror images share one.
        self.floor_of, self.excess_of = _numbering(knots, levels, symmetric)
        self._floors = program.variables("floor", np.zeros(int(self.floor_of.max()) + 1))
        self._excesses = program.variables(
            "excess", np.zeros(int(self.excess_of.max()) - self._floors.stop + 1)
        )
        # Names of the rows for means, and the variables in them, by knot.
        self.mean_rows: dict[int, str] = {}
        self._entries: dict[int, list[int]] = {}
        # Row k is floor + excess. With the excess bounded by 0, each entry needs one further constraint only.
        reach = math.expm1(epsilon)
        seen: set[int] = set()
        for k in range(knots.size // 2 if symmetric else 0, knots.size):
            entries = [*self.floor_of.tolist(), *self.excess_of[k].tolist()]
            program.equal([(entry, 1.0) for entry in entries], 1.0)
            if not (symmetric and knots[k] == 0.0):  # there the mean is 0 by symmetry
                self.mean_rows[k], self._entries[k] = f"mean_{k}", entries
                program.equal([(entry, 0.0) for entry in entries], float(knots[k]), self.mean_rows[k])
            for i in range(levels if metric == "none" else 0):
                if self.excess_of[k, i] not in seen:
                    seen.add(self.excess_of[k, i])
                    program.at_most([(int(self.excess_of[k, i]), 1.0), (int(self.floor_of[i]), -reach)], 0.0)
        if metric != "none":
            _bound_ratios(program, family, self.floor_of, self.excess_of)

    def solve(self, values: Floats, costs: Floats, method: Method) -> Solution:
        """The optimum for these (m,) values and (K, m) costs."""
        floor_costs = np.bincount(self.floor_of, costs.sum(axis=0))
        excess_costs = np.bincount(self.excess_of.ravel() - self._floors.stop, costs.ravel())
        self._program.change_costs(self._floors, floor_costs.astype(np.float64))
        self._program.change_costs(self._excesses, excess_costs.astype(np.float64))
        weights = np.tile(values, 2).tolist()
        for k, entries in self._entries.items():
            self._program.change_row(self.mean_rows[k], list(zip(entries, weights, strict=True)))
        return self._program.solve(method)


def _mean_prices(solution: Solution, mean_rows: dict[int, str], count: int, symmetric: bool) -> Floats:
    """(K,) the dual price of the mean at each knot; 0 where no constraint fixes the mean."""
    prices = np.zeros(count)
    for k, name in mean_rows.items():
        prices[k] = solution.duals[name] / (2.0 if symmetric else 1.0)
        if symmetric:
            prices[count - 1 - k] = -prices[k]
    return prices


def _bound_ratios(
    program: LinearProgram, family: FreeFamily, floor_of: NDArray[np.intp], excess_of: NDArray[np.intp]
) -> None:
    """Bound the rows of knots by each other. Floors are set to 0, so that the excesses are the rows."""
    for floor in set(floor_of.tolist()):
        program.bound(floor, 0.0, 0.0)
    seen: set[tuple[int, int]] = set()
    for row, other, bound in ratio_bounds(family.metric, family.epsilon, family.knots):
        for pair in zip(excess_of[row].tolist(), excess_of[other].tolist(), strict=True):
            # Mirror images share their variables, so one bound serves both.
            if pair not in seen and pair[0] != pair[1]:
                seen.add(pair)
                program.at_most([(pair[0], 1.0), (pair[1], -bound)], -family.room)


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
