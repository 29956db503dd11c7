"""The authors' own programs, from which their tables come; kept here to reproduce the printed figures.

For symmetric bins (table 1) the program is theorem "constraint1" for four bins, with bounds o and
u = o + 0.01 for q_2(1) only, where o runs over multiples of 0.01. The package does better with narrower
boxes, from the same theorem.

For asymmetric bins (table 2) the program differs from the theorem in three ways that cost accuracy:

* every output probability is kept within e^epsilon of every other one, of whatever output;
* where a product of two selection probabilities is bounded from above, one factor is taken as 1;
* the lower bound of the other factor runs over multiples of 0.05, and the factor itself may then
  only be up to 0.01 above it.

These facts are from the code that the paper links to (github.com/osu-srml/DP_Linprog).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.distributions.input_density import Density
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.optimize.linear_program import LinearProgram
from fl_privquant.optimize.optm.bin_selection import Selections, interval_mass, intervals

Terms = list[tuple[int, float]]

_BOUNDS = np.arange(1, 20) * 0.05
_SYMMETRIC_BOUNDS = np.arange(1, 100) * 0.01
_BOX = 0.01
_MIN_PROBABILITY = 1e-5


def design_symmetric_as_authors(values: Floats, epsilon: float) -> OutputDistribution:
    """What the authors' program finds for four symmetric bins, two of them inside [-1, 1]."""
    bounds = _SYMMETRIC_BOUNDS.tolist()
    return _best_solution((partial(_solve_symmetric, values, epsilon, bound) for bound in bounds), epsilon)


def design_as_authors(values: Floats, epsilon: float, density: Density) -> OutputDistribution:
    """The distribution that the authors' program finds for four bins, two of them inside [-1, 1]."""
    bounds = itertools.product(_BOUNDS.tolist(), repeat=2)
    return _best_solution(
        (partial(_solve, values, epsilon, density, left, right) for left, right in bounds), epsilon
    )


def _best_solution(
    programs: Iterable[Callable[[], tuple[float, OutputDistribution]]], epsilon: float
) -> OutputDistribution:
    """The first of the distributions with the least objective, of all programs that have a solution."""
    distributions = []
    for solve in programs:
        with contextlib.suppress(InfeasibleDesignError):
            distributions.append(solve())
    if not distributions:
        raise InfeasibleDesignError(f"the authors' program has no solution at epsilon {epsilon:g}")
    return min(distributions, key=lambda solution: solution[0])[1]


def _solve_symmetric(values: Floats, epsilon: float, bound: float) -> tuple[float, OutputDistribution]:
    """Theorem "constraint1" for four bins, with q_2(1) in [bound, bound + 0.01]."""
    inner, outer = float(values[2]), float(values[3])
    program = LinearProgram()
    # Bins 1 to 4 from the left; q2 chooses between two bins on a side, q3 between three, the nearest last.
    q2 = program.variables("q2", [2.0 * inner * (outer - inner), 0.0], _MIN_PROBABILITY)
    edge = 1.0 - inner
    q3 = program.variables("q3", [edge * (outer + inner), edge * 2.0 * inner, 0.0], _MIN_PROBABILITY)
    program.bound(q2[0], bound, bound + _BOX)
    for group in (q2, q3):
        program.equal([(number, 1.0) for number in group], 1.0)

    def share(right: int, x: float, left: int) -> float:
        """(B_r - x) / (B_r - B_l), bins counted from 1."""
        return float((values[right - 1] - x) / (values[right - 1] - values[left - 1]))

    first_largest = [
        [(q3[4 - r], share(r, -1.0, 1)) for r in (2, 3, 4)],
        [((q2[4 - r]), (bound + _BOX) * share(r, -inner, 1)) for r in (3, 4)],
        [(q3[0], share(4, inner, 1))],
    ]
    first_smallest = [
        [(q3[4 - r], share(r, -inner, 1)) for r in (3, 4)],
        [(q2[0], bound * share(4, inner, 1))],
        [(q3[0], share(4, 1.0, 1))],
    ]
    second_largest: list[Terms] = [[(q2[1], 1.0)], [(q3[2], 1.0)]]
    second_smallest: list[Terms] = [
        [(q2[1], bound * share(4, inner, 2))],
        [(q3[1], share(4, 1.0, 2))],
        [(q3[2], share(4, 1.0, 3))],
    ]
    scale = math.exp(epsilon)
    for largest, smallest in ((first_largest, first_smallest), (second_largest, second_smallest)):
        for high, low in itertools.product(largest, smallest):
            program.at_most([*high, *((number, -scale * part) for number, part in low)], 0.0)
    solution = program.solve()
    selection = [np.ones(1), solution.x[list(q2)], solution.x[list(q3)], np.full(4, 0.25)]
    return solution.objective, Selections(values).mirror([weights / weights.sum() for weights in selection])


def _solve(
    values: Floats, epsilon: float, density: Density, left_bound: float, right_bound: float
) -> tuple[float, OutputDistribution]:
    pieces = intervals(values)
    masses = [interval_mass(density, piece) for piece in pieces]
    program = LinearProgram()
    left, right, lower = [], [], {}
    for piece, mass in zip(pieces, masses, strict=True):
        split = piece.split
        left.append(program.variables("l", mass * (values[split - 1] - values[:split]), 1e-5))
        right.append(program.variables("r", mass * (values[split:] - values[split]), 1e-5))
        for group, bound, outermost in (
            (left[-1], left_bound, left[-1][0]),
            (right[-1], right_bound, right[-1][-1]),
        ):
            program.equal([(number, 1.0) for number in group], 1.0)
            if len(group) == 2:
                program.bound(outermost, bound, bound + _BOX)
                lower[outermost] = bound
    ceiling, floor = program.variables("bound", [0.0, 0.0])
    program.at_most([(ceiling, 1.0), (floor, -math.exp(epsilon))], 0.0)
    for k, piece in enumerate(pieces):
        for i in range(values.size):
            on_left = i < piece.split
            own = left[k][i] if on_left else right[k][i - piece.split]
            near, far = (piece.start, piece.end) if on_left else (piece.end, piece.start)
            others = right[k] if on_left else left[k]
            bins = values[piece.split :] if on_left else values[: piece.split]
            own_group = left[k] if on_left else right[k]
            for x, is_largest in ((near, True), (far, False)):
                shares = np.abs(bins - x) / np.abs(bins - values[i])
                product = list(zip(others, shares.tolist(), strict=True))
                if len(others) == 1:
                    terms: Terms = [(own, product[0][1])]
                elif len(own_group) == 1 or (is_largest and x != values[i]):
                    terms = product
                elif is_largest:
                    terms = [(own, 1.0)]
                else:
                    terms = [(own, sum(share * lower.get(number, 0.0) for number, share in product))]
                if is_largest:
                    program.at_most([*terms, (ceiling, -1.0)], 0.0)
                else:
                    program.at_most([(floor, 1.0), *((number, -share) for number, share in terms)], 0.0)
    solution = program.solve()
    weights = (
        [solution.x[list(group)] / solution.x[list(group)].sum() for group in side] for side in (left, right)
    )
    return solution.objective, Selections(values).independent(*weights)
