"""HiGHS behind PuLP, for many small programs: each is handed over as a whole.

PuLP adds variables and rows one by one, asks every row for its variables three times a solution, and makes a
new solver for each program, which together takes longer than solving a small program. The program that HiGHS
is given is the same, number by number and in the same order, and so is its solution.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pulp

__all__ = ["WholeProblem", "WholeProgramHighs"]


class _Solvers(threading.local):
    """The solvers of a thread, by their options: to make one takes a tenth of the time of a small program."""

    def __init__(self) -> None:
        self.by_options: dict[tuple[Any, ...], Any] = {}


_SOLVERS = _Solvers()


class WholeProblem(pulp.LpProblem):  # type: ignore[misc]
    """A program whose variables are all made by :meth:`add_variable`, in the order of their names."""

    def add_variable(self, *args: Any, **keywords: Any) -> Any:
        """A new variable, which the program knows from then on."""
        variable = super().add_variable(*args, **keywords)
        self._register_variable(variable)
        return variable

    def variables(self) -> list[Any]:
        """The variables, without a search for them in every row."""
        return list(self._variables)

    def _add_variables(self, variables: Any) -> None:
        """Nothing: the variables of a new row are known already."""


class WholeProgramHighs(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS, given all variables in one call and all rows in another one."""

    def createAndConfigureSolver(self, lp: Any) -> None:  # noqa: N802
        """A solver with these options: the one that this thread has, which forgets its last program."""
        options = (self.msg, self.threads, *sorted(self.optionsDict.items()))
        solvers = _SOLVERS.by_options
        if options in solvers:
            lp.solverModel = solvers[options]
            lp.solverModel.clearModel()
        else:
            super().createAndConfigureSolver(lp)
            solvers[options] = lp.solverModel

    def buildSolverModel(self, lp: Any) -> None:  # noqa: N802
        """Hand the program over."""
        variables, rows = lp.variables(), lp.constraints()
        costs = [lp.objective.get(variable, 0.0) for variable in variables]
        lower = [-math.inf if variable.lowBound is None else variable.lowBound for variable in variables]
        upper = [math.inf if variable.upBound is None else variable.upBound for variable in variables]
        for i, variable in enumerate(variables):
            variable.index = i
        none = np.empty(0, dtype=np.int32)
        lp.solverModel.addCols(len(costs), _floats(costs), _floats(lower), _floats(upper), 0, none, none, [])
        starts: list[int] = []
        terms: list[tuple[int, float]] = []
        for i, row in enumerate(rows):
            row.index = i
            starts.append(len(terms))
            terms += [(variable.index, weight) for variable, weight in row.items() if weight != 0]
        indices, coefficients = zip(*terms, strict=True) if terms else ((), ())
        bounds = [(row.getLb(), row.getUb()) for row in rows]
        lp.solverModel.addRows(
            len(rows),
            _floats([-math.inf if low is None else low for low, _ in bounds]),
            _floats([math.inf if high is None else high for _, high in bounds]),
            len(indices),
            np.array(starts, dtype=np.int32),
            np.array(indices, dtype=np.int32),
            _floats(coefficients),
        )


def _floats(numbers: Sequence[float]) -> Any:
    return np.array(numbers, dtype=np.float64)
