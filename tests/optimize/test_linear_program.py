"""Linear programs have the optimum of another solver, also after they were changed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

from fl_privquant.distributions.input_density import UniformDensity
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.optimize.bin_search import Evaluation, memoize_evaluations
from fl_privquant.optimize.linear_program import LinearProgram
from fl_privquant.optimize.optm.free import FreeFamily, design_free

UNIFORM = UniformDensity()


def random_rows(rng: np.random.Generator) -> tuple[list[float], list[tuple[list[tuple[int, float]], float]]]:
    """Costs, and rows with their bounds, some of whose coefficients are 0; x = 0 is feasible."""
    costs = (-rng.uniform(0.1, 1.0, 6)).tolist()
    rows = []
    for _ in range(9):
        weights = rng.uniform(0.0, 1.0, 6) * (rng.random(6) < 0.8)
        rows.append((list(enumerate(weights.tolist())), float(rng.uniform(0.5, 2.0))))
    return costs, rows


def program_of(costs: list[float], rows: list[tuple[list[tuple[int, float]], float]]) -> LinearProgram:
    program = LinearProgram()
    program.variables("x", costs, upper=3.0)
    for number, (terms, bound) in enumerate(rows):
        program.at_most(terms, bound, f"row_{number}")
    return program


def test_a_program_has_the_optimum_that_scipy_finds() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        costs, rows = random_rows(rng)
        weights = [[weight for _, weight in terms] for terms, _ in rows]
        bounds = [bound for _, bound in rows]
        expected = scipy.optimize.linprog(costs, A_ub=weights, b_ub=bounds, bounds=(0.0, 3.0)).fun
        assert program_of(costs, rows).solve().objective == pytest.approx(expected)


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


def test_contradicting_rows_are_refused() -> None:
    program = program_of(*random_rows(np.random.default_rng(5)))
    program.equal([(0, 1.0)], 4.0)
    with pytest.raises(InfeasibleDesignError, match="no solution"):
        program.solve()


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
        assert np.array_equal(kept.distribution.start_rows, single.distribution.start_rows)
        assert np.array_equal(kept.gradient, single.gradient)


def test_values_are_evaluated_once() -> None:
    seen: list[float] = []

    def evaluate(values: np.ndarray) -> Evaluation:
        seen.append(float(values[0]))
        return Evaluation(float(values @ values))

    once = memoize_evaluations(evaluate)
    assert [once(np.array([x, 1.0])).objective for x in (2.0, 3.0, 2.0)] == [5.0, 10.0, 5.0]
    assert seen == [2.0, 3.0]
