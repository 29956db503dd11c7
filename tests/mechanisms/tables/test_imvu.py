"""I-MVU: unbiased and certified, smooth enough for L2-bounded vectors; bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.tables.imvu import interpolate
from fl_privquant.privacy_loss.tables.renyi_by_distance import fisher_information, renyi_per_squared_distance


@pytest.mark.parametrize(("epsilon", "levels"), [(0.5, 4), (1.0, 2), (1.0, 8), (3.0, 4)])
def test_certified_and_unbiased(epsilon: float, levels: int) -> None:
    mechanism = pq.design("imvu", epsilon=epsilon, levels=levels)
    assert mechanism.epsilon <= epsilon
    assert mechanism.distribution.max_bias < 1e-8
    assert mechanism.parameters["fisher_information"] == fisher_information(mechanism.distribution)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_it_reveals_less_per_squared_distance_than_mvu(epsilon: float) -> None:
    """At the same mean squared error: a Gaussian has rate * error = order / 2, which is 1 here."""
    mvu, imvu = (pq.design(name, epsilon=epsilon, bits=2) for name in ("mvu", "imvu"))
    costs = [renyi_per_squared_distance(each.distribution, 2.0) * each.mse() for each in (mvu, imvu)]
    assert 1.0 < costs[1] < 0.5 * costs[0]


def test_exponents_are_interpolated() -> None:
    grid = np.array([[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.1, 0.3, 0.6]])
    values = np.array([-2.0, 0.0, 2.0])
    distribution = interpolate(pq.OutputDistribution.from_knots(values, grid @ values, grid), 8)
    half = np.sqrt(grid[0] * grid[1])
    half /= half.sum()
    assert distribution.pmf(half @ values)[0] == pytest.approx(half)
    assert distribution.max_bias < 1e-12
    assert distribution.pmf(grid @ values) == pytest.approx(grid)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rows_per_cell": 0}, "rows_per_cell: 0"),
        ({"input_bits": 9}, "input_bits: 9"),
        ({"metric": "l1"}, "not a parameter of"),
    ],
)
def test_bad_input(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        pq.design("imvu", epsilon=1.0, **parameters)
