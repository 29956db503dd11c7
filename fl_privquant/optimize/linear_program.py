"""A linear program: built with PuLP, solved by HiGHS, its status checked before values are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.errors import InfeasibleDesignError, PrivQuantError

Method = Literal["simplex", "ipm"]
"""How HiGHS solves it: by the simplex method or by interior points."""

# Tighter than the solvers' defaults (1e-7). Rounding rows to integers repairs small violations of epsilon,
# and the smaller they are, the less the knots move.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Solution:
    """An optimal point: ``x`` the variables, ``objective`` its cost, ``duals`` of the named rows."""

    x: Floats
    objective: float
    duals: dict[str, float]


class LinearProgram:
    """Minimize cost . x subject to linear constraints (rows), with x >= 0 by default.

    >>> program = LinearProgram()
    >>> first, second = program.variables("x", [1.0, 2.0])
    >>> program.equal([(first, 1.0), (second, 1.0)], 1.0)
    >>> program.solve().x
    array([1., 0.])
    """

    def __init__(self) -> None:
        # Imported here because it takes a tenth of a second, which designs that are read from disk save.
        import pulp

        self._pulp = pulp
        self._problem = pulp.LpProblem("design", pulp.LpMinimize)
        self._columns: list[Any] = []
        self._costs: list[float] = []
        self._named: dict[str, Any] = {}
        self._solvers: dict[Method, Any] = {}

    def variables(
        self,
        prefix: str,
        costs: Sequence[float] | Floats,
        lower: float = 0.0,
        upper: float | None = None,
    ) -> range:
        """Numbers of new variables, one for each cost, bounded by ``lower`` and ``upper``."""
        first = len(self._columns)
        for i, cost in enumerate(costs):
            # PuLP orders variables by name, so names must sort as the numbers do.
            self._columns.append(self._problem.add_variable(f"v{first + i:09d}_{prefix}", lower, upper))
            self._costs.append(float(cost))
        return range(first, len(self._columns))

    def at_most(self, terms: Sequence[tuple[int, float]], bound: float, name: str | None = None) -> None:
        """Require sum of coefficient * variable <= bound."""
        self._add(terms, self._pulp.LpConstraintLE, bound, name)

    def equal(self, terms: Sequence[tuple[int, float]], value: float, name: str | None = None) -> None:
        """Require sum of coefficient * variable = value."""
        self._add(terms, self._pulp.LpConstraintEQ, value, name)

    def bound(self, variable: int, lower: float, upper: float) -> None:
        """Require lower <= variable <= upper."""
        self._columns[variable].lowBound = lower
        self._columns[variable].upBound = upper

    def change_costs(self, variables: range, costs: Sequence[float] | Floats) -> None:
        """Give the variables these costs instead of their own, for the next solution."""
        self._costs[variables.start : variables.stop] = [float(cost) for cost in costs]

    def change_row(self, name: str, terms: Sequence[tuple[int, float]]) -> None:
        """Give a named row these coefficients instead, of the same variables in the same order."""
        self._named[name].expr.update((self._columns[i], c) for i, c in _merge_rows(terms).items())

    def solve(self, method: Method = "simplex") -> Solution:
        """The optimum.

        Raises InfeasibleDesignError if the rows contradict each other, where PuLP would still return
        plausible numbers, and PrivQuantError if the solver stopped for any other reason.
        """
        costs = zip(self._columns, self._costs, strict=True)
        self._problem.setObjective(self._pulp.LpAffineExpression(list(costs)))
        self._run(method)
        if method == "simplex" and self._problem.status == self._pulp.LpStatusNotSolved:
            # At this tolerance the simplex method can end without a result; interior points then find one.
            self._run("ipm")
        status = self._pulp.LpStatus[self._problem.status]
        if status == "Infeasible":
            raise InfeasibleDesignError("the linear program has no solution")
        if status != "Optimal" or self._problem.sol_status != self._pulp.LpSolutionOptimal:
            raise PrivQuantError(
                f"the linear program was not solved (status {status!r} of {method}): its numbers lie too far "
                "apart for floating point; choose an epsilon nearer to 1, or lower levels or max_value"
            )
        x = np.array([column.varValue for column in self._columns], dtype=np.float64)
        duals = {name: float(row.pi) for name, row in self._named.items()}
        return Solution(x, float(np.dot(x, self._costs)), duals)

    def _run(self, method: Method) -> None:
        if method not in self._solvers:
            self._solvers[method] = self._pulp.HiGHS(
                msg=False,
                solver=method,
                primal_feasibility_tolerance=_TOLERANCE,
                dual_feasibility_tolerance=_TOLERANCE,
                # With one thread the pivots, and hence the design, are the same on every machine.
                threads=1,
            )
        try:
            self._problem.solve(self._solvers[method])
        except IndexError:
            # HiGHS stopped without a solution, whose values PuLP reads all the same.
            self._problem.assignStatus(self._pulp.LpStatusNotSolved)

    def _add(self, terms: Sequence[tuple[int, float]], sense: int, bound: float, name: str | None) -> None:
        expression = self._pulp.LpAffineExpression(
            [(self._columns[i], c) for i, c in _merge_rows(terms).items()]
        )
        row = self._pulp.LpConstraint(expression, sense, rhs=bound)
        self._problem.addConstraint(row, name)
        if name is not None:
            self._named[name] = row


def _merge_rows(terms: Sequence[tuple[int, float]]) -> dict[int, float]:
    # Mirror images share a variable, which may thus occur twice; PuLP would keep only the last.
    merged: dict[int, float] = {}
    for i, coefficient in terms:
        merged[i] = merged.get(i, 0.0) + coefficient
    return merged
