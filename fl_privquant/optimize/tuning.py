"""The best parameter of a family within a privacy budget, and a margin for rounding to integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.distributions.input_density import Density
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import CertificationError, InfeasibleDesignError
from fl_privquant.statement import PrivacyStatement, Unit

# How far below the budget distributions are designed, as a share; most need no slack.
_SLACKS = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
_REFINEMENTS = 6
_POINTS = 9

CertifiedT = TypeVar("CertifiedT")


def design_with_slack(
    distribution_of: Callable[[float], OutputDistribution],
    certify: Callable[[OutputDistribution], CertifiedT],
    epsilon: float,
) -> CertifiedT:
    """The first distribution that ``certify`` accepts, of several ever further below ``epsilon``.

    ``distribution_of`` gives a distribution whose privacy loss is at most its argument. ``certify`` rounds a
    distribution to integers and certifies them at ``epsilon`` itself, or raises CertificationError.
    """
    failure: CertificationError | None = None
    for slack in _SLACKS:
        distribution = distribution_of(epsilon * (1.0 - slack))
        try:
            return certify(distribution)
        except CertificationError as error:
            failure = error
    budget = PrivacyStatement(epsilon, 0.0, Unit.COORDINATE)
    raise CertificationError(f"no integer table within {budget.brief} was found: {failure}")


@dataclass(frozen=True)
class Tuned:
    """The best rate found, its distribution and its error."""

    rate: float
    distribution: OutputDistribution
    error: float


def tune_rate(
    distribution_of: Callable[[float], OutputDistribution],
    rates: Floats,
    epsilon: float,
    density: Density,
    power: int,
) -> Tuned:
    """The rate with the least error among those whose exact privacy loss is at most ``epsilon``.

    The loss need not be monotone in the rate: all of ``rates`` (increasing) are tried, and then ever finer
    grids around the best one.
    """
    best: Tuned | None = None
    grid = rates
    for _ in range(_REFINEMENTS):
        for rate in grid.tolist():
            distribution = distribution_of(rate)
            if distribution.epsilon > epsilon:
                continue
            error = distribution.error(power, density)
            if best is None or error < best.error:
                best = Tuned(rate, distribution, error)
        if best is None:
            break
        at = int(np.searchsorted(grid, best.rate))
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, grid.size - 1)]
        if math.isclose(low, high, rel_tol=1e-12):
            break
        grid = np.linspace(low, high, _POINTS)
    if best is None:
        raise InfeasibleDesignError(
            f"no rate in [{rates[0]:g}, {rates[-1]:g}] keeps epsilon at {epsilon:g} or below; raise epsilon"
        )
    return best
