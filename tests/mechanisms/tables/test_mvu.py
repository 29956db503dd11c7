"""MVU: the alphabets in print, local minima, metrics, lattices, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.distributions.input_density import UniformDensity
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.tables.mvu import MvuSpec, mvu_distribution
from fl_privquant.optimize.mvu import design_alphabet
from fl_privquant.optimize.optm.free import design_free

GRID = np.linspace(-1.0, 1.0, 51)


@pytest.mark.parametrize(
    ("epsilon", "inner", "outer", "mae"),
    [(0.5, 3.60, 4.34, 3.959), (1.0, 1.69, 2.42, 1.930), (1.5, 1.11, 1.83, 1.254)],
)
def test_the_alphabets_in_print(epsilon: float, inner: float, outer: float, mae: float) -> None:
    mechanism = pq.design("mvu", epsilon=epsilon, bits=2, input_bits=2)
    assert mechanism.epsilon <= epsilon
    assert mechanism.values == pytest.approx([-outer, -inner, inner, outer], abs=0.0055)
    assert mechanism.distribution.error_at(GRID).mean() == pytest.approx(mae, abs=0.005)
    assert mechanism.table.knots == pytest.approx(np.linspace(-1, 1, 4), abs=1e-8)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_free_is_at_or_below_it_with_as_many_values(epsilon: float) -> None:
    mvu = pq.design("mvu", epsilon=epsilon, bits=2)
    free = pq.design("optm", epsilon=epsilon, bits=2)
    assert free.mse() <= mvu.mse()
    # On MVU's own values, with knots between its grid points, it can only gain.
    same_values = design_free(mvu.values, epsilon, UniformDensity(), 2, np.linspace(-1, 1, 31))
    assert same_values.objective <= mvu.mse() * (1 + 1e-6)


def test_the_mean_error_in_the_papers_vector_experiment() -> None:
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (10_000, 10))
    for epsilon, expected in ((1.0, 6.42), (2.0, 2.93), (3.0, 1.64)):
        mechanism = pq.design("mvu", epsilon=epsilon, bits=2)
        estimates = mechanism.decode(mechanism.encode(x, rng=pq.RandomStream.seeded(1)))
        assert np.linalg.norm(estimates - x, axis=1).mean() == pytest.approx(expected, rel=0.01)


def test_values_that_coincide_count_as_one() -> None:
    mechanism = pq.design("mvu", epsilon=2.0, bits=2)
    assert mechanism.values == pytest.approx([-1.417, 0.0, 1.417], abs=1e-3)
    assert mechanism.bits_per_coordinate == 2


@pytest.mark.parametrize("levels", [2, 3, 5, 8])
def test_any_number_of_values_on_a_symmetric_lattice(levels: int) -> None:
    mechanism = pq.design("mvu", epsilon=1.0, levels=levels)
    codes = mechanism.codes
    assert np.array_equal(codes, codes[-1] - codes[::-1])
    assert codes[-1] <= 4095
    assert mechanism.sum_bits(100) <= 19
    assert mechanism.distribution.max_bias < 1e-8


def test_two_values_are_the_two_point_mechanism() -> None:
    assert pq.design("mvu", epsilon=1.0, levels=2).mse() == pytest.approx(
        pq.design("one_bit", epsilon=1.0).mse(), rel=1e-4
    )


@pytest.mark.parametrize(("metric", "divisor"), [("l1", 2.0), ("l2-grid", 4.0)])
def test_metric_constraints(metric: str, divisor: float) -> None:
    mechanism = pq.design("mvu", epsilon=2.0, bits=2, metric=metric)
    assert mechanism.metric_epsilon <= 2.0 / divisor
    assert mechanism.metric_epsilon == pytest.approx(2.0 / divisor, rel=1e-3)
    assert mechanism.mse() > pq.design("mvu", epsilon=2.0, bits=2).mse()


def test_the_rows_are_optimal_for_the_values() -> None:
    """A local minimum in both: moving a value does not help by more than the lattice does."""
    spec = MvuSpec(epsilon=1.0, levels=4)
    values = pq.design("mvu", epsilon=1.0).values

    def variance(values: np.ndarray) -> float:
        distribution = mvu_distribution(spec, values, 1.0)
        return float(distribution.error_at(spec.grid, 2).mean())

    at = variance(values)
    for inner, outer in ((0.02, 0.0), (-0.02, 0.0), (0.0, 0.02), (0.0, -0.02)):
        assert variance(values + np.array([-outer, -inner, inner, outer])) > at - 2e-4


def test_the_same_every_time() -> None:
    found = [design_alphabet(1.3, 4, np.linspace(-1, 1, 4)) for _ in range(2)]
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"input_bits": 0}, "input_bits: 0"),
        ({"input_bits": 7}, "input_bits: 7"),
        ({"levels": 128}, "levels: 128 is not a whole number from 2 to 64"),
        ({"metric": "l3"}, "metric"),
        ({"max_code": 9}, "max_code: 9"),
    ],
)
def test_bad_input(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        pq.design("mvu", epsilon=1.0, **parameters)
