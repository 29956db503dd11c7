"""Generalised randomized response: weights by algebra, what it equals at its ends, where it is refused."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.distributions.certified_table import TOTAL_WEIGHT
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError


@pytest.mark.parametrize("levels", [2, 3, 4, 7, 64])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 5.0, 30.0])
def test_weights_are_private_unbiased_and_use_the_budget(epsilon: float, levels: int) -> None:
    mechanism = pq.design("grr", epsilon=epsilon, levels=levels)
    weights = mechanism.table.weights
    common, rare = int(weights[0, 0]), int(weights[0, 1])
    assert np.array_equal(np.diag(weights), np.full(levels, common))
    assert np.all(weights + (common - rare) * (1 - np.eye(levels, dtype=np.int64)) == common)
    assert common + (levels - 1) * rare == TOTAL_WEIGHT
    with localcontext() as context:
        context.prec = 50
        assert (Decimal(common) / rare).ln() <= Decimal(epsilon)
        if rare > 1:
            assert (Decimal(common + levels - 1) / (rare - 1)).ln() > Decimal(epsilon)
    assert mechanism.distribution.max_bias < 1e-9
    points = np.linspace(-1.0, 1.0, levels)
    assert mechanism.pmf(points) @ mechanism.values == pytest.approx(points, abs=1e-9)
    assert mechanism.values == pytest.approx(points * TOTAL_WEIGHT / (common - rare))


def test_two_levels_are_one_bit() -> None:
    grr, one_bit = pq.design("grr", epsilon=1.3, levels=2), pq.design("one_bit", epsilon=1.3)
    assert np.array_equal(grr.table.weights, one_bit.table.weights)
    assert np.array_equal(grr.values, one_bit.values)


def test_without_privacy_it_is_randomized_rounding() -> None:
    assert pq.design("grr", epsilon=600.0, levels=8).mse() == pytest.approx(
        pq.design("stochastic", levels=8).mse(), rel=1e-6
    )


def test_more_levels_pay_at_a_large_epsilon_only() -> None:
    def errors(epsilon: float) -> list[float]:
        return [pq.design("grr", epsilon=epsilon, levels=levels).mse() for levels in (2, 4, 8)]

    low, high = errors(1.0), errors(6.0)
    assert low == sorted(low)
    assert high == sorted(high, reverse=True)
    assert pq.design("optm", epsilon=1.0, levels=4, num_knots=17).mse() < low[1]


@pytest.mark.parametrize("levels", [1, 0, 2.5, 1025])
def test_levels_that_are_none(levels: float) -> None:
    with pytest.raises(InvalidSpecError, match="levels"):
        pq.design("grr", epsilon=1.0, levels=levels)


def test_an_epsilon_that_is_too_small() -> None:
    with pytest.raises((InvalidSpecError, InfeasibleDesignError), match="epsilon"):
        pq.design("grr", epsilon=1e-12, levels=4)
