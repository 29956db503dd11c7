"""Programs handed to HiGHS as a whole, changed and solved again: solutions are those of PuLP, bit for bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pulp
import pytest

from fl_privquant.design.free import FreeFamily, design_free
from fl_privquant.design.linear_program import _TOLERANCE, LinearProgram
from fl_privquant.design.search import Evaluation, evaluated_once
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.law.density import UniformDensity

UNIFORM = UniformDensity()


def random_rows(rng: np.random.Generator) -> tuple[list[float], list[tuple[list[tuple[int, float]], float]]]:
    """Costs, and rows with their bounds, some of whose coefficients are 0; x = 0 is feasible."""
    costs = (-rng.uniform(0.1, 1.0, 6)).tolist()
    rows = []
    for _ in range(9):
        weights = rng.uniform(0.0, 1.0, 6) * (rng.random(6) < 0.8)
        rows.append((list(enumerate(weights.tolist())), float(rng.uniform(0.5, 2.0))))
    return costs, rows


def by_pulp(costs: list[float], rows: list[tuple[list[tuple[int, float]], float]]) -> list[float]:
    """The solution by PuLP and its own way to HiGHS, of variables from 0 to 3."""
    problem = pulp.LpProblem("plain", pulp.LpMinimize)
    x = [problem.add_variable(f"v{i:09d}", 0.0, 3.0) for i in range(len(costs))]
    problem.setObjective(pulp.LpAffineExpression(list(zip(x, costs, strict=True))))
    for terms, bound in rows:
        expression = pulp.LpAffineExpression([(x[i], weight) for i, weight in terms])
        problem.addConstraint(pulp.LpConstraint(expression, pulp.LpConstraintLE, rhs=bound))
    tolerances: dict[str, Any] = dict.fromkeys(
        ("primal_feasibility_tolerance", "dual_feasibility_tolerance"), _TOLERANCE
    )
    problem.solve(pulp.HiGHS(msg=False, solver="simplex", threads=1, **tolerances))
    return [variable.varValue for variable in x]


def program_of(costs: list[float], rows: list[tuple[list[tuple[int, float]], float]]) -> LinearProgram:
    program = LinearProgram()
    program.variables("x", costs, upper=3.0)
    for number, (terms, bound) in enumerate(rows):
        program.at_most(terms, bound, f"row_{number}")
    return program


def test_a_program_has_the_solution_that_pulp_finds() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        costs, rows = random_rows(rng)
        assert program_of(costs, rows).solve().x.tolist() == by_pulp(costs, rows)


def test_a_changed_program_has_the_solution_of_a_new_one() -> None:
    rng = np.random.default_rng(4)
    costs, rows = random_rows(rng)
    program = program_of(costs, rows)
    first = program.solve().x.tolist()
    for _ in range(10):
        costs, weights = random_rows(rng)
        rows = [(terms, bound) for (terms, _), (_, bound) in zip(weights, rows, strict=True)]
        program.change_costs(range(6), costs)
        for number, (terms, _) in enumerate(rows):
            program.change_row(f"row_{number}", terms)
        solution = program.solve()
        assert solution.x.tolist() == program_of(costs, rows).solve().x.tolist() != first
        assert solution.objective == float(np.dot(solution.x, costs))


def test_a_program_without_a_solution_leaves_nothing_behind() -> None:
    """A thread's solver goes on to the next program, which is solved as if it were the first."""
    costs, rows = random_rows(np.random.default_rng(5))
    expected = by_pulp(costs, rows)
    for _ in range(3):
        impossible = program_of(costs, rows)
        impossible.equal([(0, 1.0)], 4.0)
        with pytest.raises(InfeasibleDesignError, match="no solution"):
            impossible.solve()
        assert program_of(costs, rows).solve().x.tolist() == expected


def test_threads_do_not_share_a_solver() -> None:
    programs = [random_rows(np.random.default_rng(seed)) for seed in range(24)]
    expected = [by_pulp(*program) for program in programs]
    with ThreadPoolExecutor(4) as pool:
        solved = pool.map(lambda program: program_of(*program).solve().x.tolist(), programs)
        assert list(solved) == expected


@pytest.mark.parametrize("metric", ["none", "l1"])
def test_a_family_designs_what_single_programs_do(metric: str) -> None:
    """Numbers of values and symmetry change in between, as they may in a search."""
    knots = np.linspace(-1.0, 1.0, 9)
    family = FreeFamily(1.0, UNIFORM, 2, knots, metric=metric)
    for values in (
        [-4.0, 4.0],
        [-4.0, -0.3, 0.5, 3.0],
        [-4.0, 0.0, 4.0],
        [-3.0, 3.0],
        [-5.0, -1.0, 1.0, 5.0],
    ):
        kept, single = (
            family.best(np.array(values)),
            design_free(np.array(values), 1.0, UNIFORM, 2, knots, metric=metric),
        )
        assert kept.objective == single.objective
        assert np.array_equal(kept.law.start_rows, single.law.start_rows)
        assert np.array_equal(kept.gradient, single.gradient)


def test_values_are_evaluated_once() -> None:
    seen: list[float] = []

    def evaluate(values: np.ndarray) -> Evaluation:
        seen.append(float(values[0]))
        return Evaluation(float(values @ values))

    once = evaluated_once(evaluate)
    assert [once(np.array([x, 1.0])).objective for x in (2.0, 3.0, 2.0)] == [5.0, 10.0, 5.0]
    assert seen == [2.0, 3.0]
