"""Tuning of mechanisms with one rate: the best rate inside a privacy budget, by exact audit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_privquant.design.search import Evaluation
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.law.density import Density
from fl_privquant.law.law import Law

_REFINEMENTS = 6
_POINTS = 9


@dataclass(frozen=True)
class Tuned:
    """The best rate found, its law and its error."""

    rate: float
    law: Law
    evaluation: Evaluation


def tune_rate(
    law_of: Callable[[float], Law], rates: NDArray[np.float64], epsilon: float, density: Density, power: int
) -> Tuned:
    """The rate with the least error among those whose exact privacy loss is at most ``epsilon``.

    The loss need not be monotone in the rate: all of ``rates`` (increasing) are audited, then the
    neighbourhood of the best one, ever finer.
    """
    best: Tuned | None = None
    grid = rates
    for _ in range(_REFINEMENTS):
        for rate in grid.tolist():
            law = law_of(rate)
            if law.epsilon > epsilon:
                continue
            error = law.mae(density) if power == 1 else law.mse(density)
            if best is None or error < best.evaluation.objective:
                best = Tuned(rate, law, Evaluation(error))
        if best is None:
            break
        at = int(np.searchsorted(grid, best.rate))
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, grid.size - 1)]
        if math.isclose(low, high, rel_tol=1e-12):
            break
        grid = np.linspace(low, high, _POINTS)
    if best is None:
        raise InfeasibleDesignError(
            f"no rate in [{rates[0]:g}, {rates[-1]:g}] has a privacy loss below {epsilon:g}"
        )
    return best
