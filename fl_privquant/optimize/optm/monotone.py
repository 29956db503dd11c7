"""The paper's program for many levels: theorem "constraint2", with bounds for three probabilities only.

Constraints of monotonicity leave few candidates for the largest and the smallest output probability, so that
only the bounds u_{s-1}(s-1), o_{t-1}(1) and o_t(1) have to be searched, whatever the number of levels.

These constraints are restrictive. With k = m - 2 and r = m they force
q_2(1) >= (B_m - B_{m-1}) / (B_m - B_{m-2}), while monotonicity forces q_2(1) <= 1/2. So the program is
infeasible whenever the outer gap exceeds the next one, as in every bin set that the paper prints. On uniform
bins it is feasible from an epsilon of about 2 on, but its errors are large.

Symbols of the paper: q_n(i) the probability of bin i among n, B_s and B_t the outermost bins inside
[-1, 1], o and u lower and upper bounds.

Reference: Cai, Zhang, Khalili, UAI 2024, theorem "constraint2".
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.distributions.input_density import Density
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.optimize.linear_program import LinearProgram
from fl_privquant.optimize.optm.bin_selection import Selections, interval_mass, intervals
from fl_privquant.optimize.optm.free import is_symmetric, require_reach
from fl_privquant.statement import PrivacyStatement, Unit

Numbers = dict[tuple[int, int], int]
Terms = list[tuple[int, float]]

_COARSE = np.linspace(0.05, 1.0, 20)
_REFINEMENTS = 4


def design_monotone(values: Floats, epsilon: float, density: Density, power: int) -> OutputDistribution:
    """The best distribution of theorem "constraint2" on symmetric bins.

    Parameters
    ----------
    values, epsilon, density, power
        As for :func:`~fl_privquant.optimize.optm.free.design_free`.

    Returns
    -------
    OutputDistribution
        The distribution.

    Raises
    ------
    InfeasibleDesignError
        The bins are not symmetric, or the theorem has no solution there.
    """
    require_reach(values, epsilon)
    if not is_symmetric(values, density):
        raise InfeasibleDesignError(
            "theorem constraint2 is for symmetric bins and densities only; use constraints='constraint1'"
        )
    inside = np.flatnonzero(np.abs(values) <= 1.0) + 1
    if inside.size < 2:
        raise InfeasibleDesignError(
            "theorem constraint2 needs two bins inside [-1, 1]; narrow the inner bins or use "
            "constraints='constraint1'"
        )
    first, last = int(inside[0]), int(inside[-1])
    best: OutputDistribution | None = None
    best_error = math.inf
    # If only one bin lies outside on each side, u = q_1(1) = 1 need not be searched.
    uppers = np.ones(1) if first == 2 else np.linspace(0.2, 1.0, 5)
    axes = [uppers, _COARSE, _COARSE]
    step = float(_COARSE[1] - _COARSE[0])
    for _ in range(_REFINEMENTS):
        center: tuple[float, ...] | None = None
        for bounds in itertools.product(*axes):
            distribution = _solve(values, epsilon, density, first, last, bounds)
            if distribution is None or distribution.epsilon > epsilon * (1.0 + 1e-12):
                continue
            error = distribution.error(power, density)
            if error < best_error:
                best, best_error, center = distribution, error, bounds
        if center is None:
            break
        step /= 3.0
        nearby = step * np.arange(-2, 3)
        axes = [uppers, *(np.clip(bound + nearby, 1e-6, 1.0) for bound in center[1:])]
    if best is None:
        raise _make_error(values, epsilon, first, last)
    return best


def _make_error(values: Floats, epsilon: float, first: int, last: int) -> InfeasibleDesignError:
    levels = values.size
    outer, following = values[-1] - values[-2], values[-2] - values[-3]
    if outer > following * (1.0 + 1e-12) and first <= levels - 2 <= last:
        return InfeasibleDesignError(
            f"theorem constraint2 is infeasible at every epsilon: the outer gap {outer:.4g} exceeds the "
            f"next one {following:.4g}; use uniform bins or constraints='constraint1'",
            every_epsilon=True,
        )
    budget = PrivacyStatement(epsilon, 0.0, Unit.COORDINATE)
    return InfeasibleDesignError(
        f"theorem constraint2 has no solution with {budget.brief} on bins up to {values[-1]:.4g}; "
        "raise epsilon, change the margin, or use constraints='constraint1'"
    )


def _solve(
    values: Floats, epsilon: float, density: Density, first: int, last: int, bounds: tuple[float, ...]
) -> OutputDistribution | None:
    levels = values.size
    costs = _bound_costs(values, density)
    program = LinearProgram()
    # q[n, i] is the number of the variable q_n(i), where n and i count from 1 as in the paper.
    q: Numbers = {}
    for n in range(1, levels):
        numbers = program.variables(f"q{n}", costs[n - 1])
        q.update({(n, i + 1): number for i, number in enumerate(numbers)})
        program.equal([(number, 1.0) for number in numbers], 1.0)
    _require_monotone(program, q, values, first, last)
    _require_private(program, q, values, epsilon, first, last, bounds)
    try:
        solution = np.maximum(program.solve().x, 0.0)
    except InfeasibleDesignError:
        return None
    selection = [solution[[q[n, i] for i in range(1, n + 1)]] for n in range(1, levels)]
    return Selections(values).mirror([weights / weights.sum() for weights in selection])


def _at_least(program: LinearProgram, terms: Terms, other: Terms) -> None:
    program.at_most(other + [(number, -share) for number, share in terms], 0.0)


def _require_monotone(program: LinearProgram, q: Numbers, values: Floats, first: int, last: int) -> None:
    """Add the constraints that leave few candidates for the largest and the smallest output probability."""
    levels = values.size
    for n, i in q:
        if (n + 1, i) in q:
            _at_least(program, [(q[n, i], 1.0)], [(q[n + 1, i], 1.0)])
        if (n, i + 1) in q:
            _at_least(program, [(q[n, i + 1], 1.0)], [(q[n, i], 1.0)])
    for i in range(first, last):
        _at_least(program, [(q[i, i], 1.0)], [(q[i + 1, i + 1], 1.0)])
    for k, r in itertools.product(range(first, last + 1), range(1, levels + 1)):
        if r <= k + 1:
            continue
        near, far = values[r - 1] - values[k], values[r - 1] - values[k - 1]
        for n in (levels - k + 1, levels - k):
            wide, narrow = (n, levels - r + 1), (n - 1, levels - r + 1)
            if wide in q and narrow in q:
                _at_least(program, [(q[wide], far)], [(q[narrow], near)])


def _require_private(
    program: LinearProgram,
    q: Numbers,
    values: Floats,
    epsilon: float,
    first: int,
    last: int,
    bounds: tuple[float, ...],
) -> None:
    """Bound every candidate for the largest probability by e^epsilon times each one for the smallest."""
    levels = values.size
    upper, lower_before, lower_last = bounds
    program.bound(q[first - 1, first - 1], 0.0, upper)
    program.bound(q[last - 1, 1], lower_before, 1.0)
    program.bound(q[last, 1], lower_last, 1.0)
    outer = values[first - 2]
    largest = [
        [(q[first, first], 1.0)],
        [
            (q[levels - first + 1, levels - r + 1], upper * (values[r - 1] + 1.0) / (values[r - 1] - outer))
            for r in range(first, levels + 1)
        ],
    ]
    right = range(last + 1, levels + 1)
    span = values - values[0]
    smallest = [
        [
            (
                q[levels - last + 1, levels - r + 1],
                lower_before * (values[r - 1] - values[last - 1]) / span[r - 1],
            )
            for r in right
        ],
        [(q[levels - last, levels - r + 1], lower_last * (values[r - 1] - 1.0) / span[r - 1]) for r in right],
    ]
    scale = math.exp(epsilon)
    for high, low in itertools.product(largest, smallest):
        _at_least(program, [(number, scale * share) for number, share in low], high)


def _bound_costs(values: Floats, density: Density) -> list[Floats]:
    """Theorem "uniform": the bound of the mean absolute error, as costs of q_n(i)."""
    levels = values.size
    costs = [np.zeros(n) for n in range(1, levels)]
    for piece in intervals(values):
        mass = interval_mass(density, piece)
        for n in (piece.split, levels - piece.split):
            costs[n - 1] += 0.5 * mass * (values[n - 1] - values[:n])
    return costs
