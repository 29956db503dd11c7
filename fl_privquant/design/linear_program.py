"""A linear program, solved by HiGHS (or by CBC through PuLP), its status checked before values are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import highspy
import numpy as np
from numpy.typing import NDArray

from fl_privquant.errors import InfeasibleDesignError, PrivQuantError

Method = Literal["simplex", "ipm", "cbc"]
"""What solves a program: HiGHS by simplex or interior points, or CBC."""

# Tighter than the solvers' defaults (1e-7): what they leave over is moved inside epsilon by integer
# rounding, and the less there is, the less the knots move.
_TOLERANCE = 1e-9
_OPTIMAL, _INFEASIBLE = "Optimal", "Infeasible"


@dataclass(frozen=True)
class Solution:
    """An optimal point: ``x`` the variables, ``objective`` its cost, ``duals`` of the named rows."""

    x: NDArray[np.float64]
    objective: float
    duals: dict[str, float]


@dataclass(frozen=True)
class _Row:
    """``lower <= sum of coefficient * variable <= upper``."""

    coefficients: dict[int, float]
    lower: float
    upper: float


class LinearProgram:
    """Minimise cost . x subject to linear rows, x >= 0 unless said.

    >>> program = LinearProgram()
    >>> first, second = program.variables([1.0, 2.0])
    >>> program.equal([(first, 1.0), (second, 1.0)], 1.0)
    >>> program.solve().x
    array([1., 0.])
    """

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._rows: list[_Row] = []
        self._named: dict[str, int] = {}

    def variables(
        self,
        costs: Sequence[float] | NDArray[np.float64],
        lower: float = 0.0,
        upper: float | None = None,
    ) -> range:
        """Numbers of new variables, one for each cost, bounded by ``lower`` and ``upper``."""
        first = len(self._costs)
        self._costs += [float(cost) for cost in costs]
        self._lower += [lower] * len(costs)
        self._upper += [math.inf if upper is None else upper] * len(costs)
        return range(first, len(self._costs))

    def at_most(self, terms: Sequence[tuple[int, float]], bound: float, name: str | None = None) -> None:
        """Require sum of coefficient * variable <= bound."""
        self._add(terms, -math.inf, bound, name)

    def equal(self, terms: Sequence[tuple[int, float]], value: float, name: str | None = None) -> None:
        """Require sum of coefficient * variable = value."""
        self._add(terms, value, value, name)

    def bound(self, variable: int, lower: float, upper: float) -> None:
        """Require lower <= variable <= upper."""
        self._lower[variable], self._upper[variable] = lower, upper

    def solve(self, method: Method = "simplex") -> Solution:
        """The optimum.

        Raises
        ------
        InfeasibleDesignError
            The rows contradict each other. A solver still hands out plausible numbers.
        PrivQuantError
            The solver stopped for any other reason.
        """
        status, x, duals = self._by_cbc() if method == "cbc" else self._by_highs(method)
        if method == "simplex" and status not in (_OPTIMAL, _INFEASIBLE):
            # Degenerate programs can end without a verdict at this tolerance; the other method gives one.
            status, x, duals = self._by_highs("ipm")
        if status == _INFEASIBLE:
            raise InfeasibleDesignError("the linear program has no solution")
        if status != _OPTIMAL:
            raise PrivQuantError(
                f"the linear program was not solved (status {status!r} of {method}): its numbers lie too far "
                "apart for floating point; raise epsilon, or lower levels or max_value"
            )
        named = {name: float(duals[row]) for name, row in self._named.items()}
        return Solution(x, float(np.dot(x, self._costs)), named)

    def _add(self, terms: Sequence[tuple[int, float]], lower: float, upper: float, name: str | None) -> None:
        # Mirror images share a variable, so that one may come twice.
        merged: dict[int, float] = {}
        for i, coefficient in terms:
            merged[i] = merged.get(i, 0.0) + coefficient
        if name is not None:
            self._named[name] = len(self._rows)
        self._rows.append(_Row({i: c for i, c in merged.items() if c != 0.0}, lower, upper))

    def _by_highs(self, method: str) -> tuple[str, NDArray[np.float64], Sequence[float]]:
        """Status, variables and duals of the rows. Programs are small: PuLP takes longer than the solver."""
        solver = highspy.Highs()
        # One thread: the same pivots, hence the same design, on every machine.
        options: dict[str, Any] = {"output_flag": False, "threads": 1, "solver": method}
        options |= dict.fromkeys(("primal_feasibility_tolerance", "dual_feasibility_tolerance"), _TOLERANCE)
        for name, value in options.items():
            solver.setOptionValue(name, value)
        none = np.zeros(0)
        columns = self._costs, self._lower, self._upper
        solver.addCols(len(self._costs), *map(np.array, columns), 0, np.zeros(len(self._costs)), none, none)
        sizes = [len(row.coefficients) for row in self._rows]
        solver.addRows(
            len(self._rows),
            np.array([row.lower for row in self._rows]),
            np.array([row.upper for row in self._rows]),
            sum(sizes),
            np.cumsum([0, *sizes[:-1]]),
            np.array([i for row in self._rows for i in row.coefficients], dtype=np.int32),
            np.array([c for row in self._rows for c in row.coefficients.values()], dtype=np.float64),
        )
        solver.run()
        verdict, found = solver.getModelStatus(), solver.getSolution()
        contradicting = highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible
        status = _INFEASIBLE if verdict in contradicting else str(solver.modelStatusToString(verdict))
        return status, np.array(found.col_value, dtype=np.float64), found.row_dual

    def _by_cbc(self) -> tuple[str, NDArray[np.float64], Sequence[float]]:
        """The same by another solver, to compare with."""
        import pulp

        problem = pulp.LpProblem("design", pulp.LpMinimize)
        # Names sort as numbers do: PuLP orders variables by name.
        columns = [
            problem.add_variable(f"v{i:09d}", low, None if math.isinf(high) else high)
            for i, (low, high) in enumerate(zip(self._lower, self._upper, strict=True))
        ]
        problem.setObjective(pulp.LpAffineExpression(list(zip(columns, self._costs, strict=True))))
        rows = []
        for row in self._rows:
            terms = pulp.LpAffineExpression([(columns[i], c) for i, c in row.coefficients.items()])
            sense = pulp.LpConstraintEQ if row.lower == row.upper else pulp.LpConstraintLE
            rows.append(pulp.LpConstraint(terms, sense, rhs=row.upper))
            problem.addConstraint(rows[-1])
        options = [f"primalT {_TOLERANCE}", f"dualT {_TOLERANCE}"]
        problem.solve(pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path, msg=False, options=options))
        status = pulp.LpStatus[problem.status]
        if status == _OPTIMAL and problem.sol_status != pulp.LpSolutionOptimal:
            status = "Stopped"
        x = np.array([column.varValue for column in columns], dtype=np.float64)
        return status, x, [row.pi for row in rows]
