"""Biased quantization: exponential mechanism, stated bias, tuning, forged tables, bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, BiasedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.errors import CertificationError, InvalidSpecError
from fl_privquant.mechanisms.tables.biased import BiasedTableMechanism, biased_distribution


def test_two_bins_are_a_logistic_curve() -> None:
    rate = 0.7
    distribution = biased_distribution(np.array([-1.0, 1.0]), 0.5, rate, 9)
    at = np.linspace(-1.0, 1.0, 9)
    expected = np.exp(-rate * np.abs(at - 1)) / (
        np.exp(-rate * np.abs(at - 1)) + np.exp(-rate * np.abs(at + 1))
    )
    assert distribution.pmf(at)[:, 1] == pytest.approx(expected)
    assert distribution.epsilon == pytest.approx(2 * rate)


def test_selection_is_that_of_rqm() -> None:
    """Kept or not, each inner bin on its own: counted by hand for four bins."""
    bins, keep, rate = np.linspace(-1.5, 1.5, 4), 0.3, 1.1
    x = 0.2  # between the inner bins
    row = np.zeros(4)
    for kept in ((1, 1), (1, 0), (0, 1), (0, 0)):
        chance = math.prod(keep if each else 1 - keep for each in kept)
        left, right = (1 if kept[0] else 0), (2 if kept[1] else 3)
        scores = np.exp(-rate * np.abs(x - bins[[left, right]]))
        row[[left, right]] += chance * scores / scores.sum()
    assert biased_distribution(bins, keep, rate, 257).pmf(x)[0] == pytest.approx(row, abs=1e-5)


@pytest.mark.parametrize(("epsilon", "levels"), [(0.2, 4), (1.0, 2), (1.0, 8), (4.0, 4)])
def test_certified_with_a_stated_bias(epsilon: float, levels: int) -> None:
    mechanism = pq.design("biased", epsilon=epsilon, levels=levels)
    assert epsilon * 0.99 < mechanism.epsilon <= epsilon
    x = np.linspace(-1.0, 1.0, 501)
    bias = mechanism.pmf(x) @ mechanism.values - x
    assert mechanism.bias(x) == pytest.approx(bias, abs=1e-12)
    assert np.abs(bias).max() <= mechanism.max_bias + 1e-12
    assert mechanism.max_bias == pytest.approx(np.abs(bias).max(), rel=0.02)
    assert "bias up to" in repr(mechanism)
    # One estimate is nearer than that of any unbiased mechanism; for many clients the bias stays.
    unbiased = pq.design("optm", epsilon=epsilon, levels=levels)
    assert unbiased.max_bias == 0.0
    assert (mechanism.mse() < unbiased.mse()) == (epsilon < 3.0)


def test_parameters_as_given() -> None:
    mechanism = pq.design("biased", epsilon=2.0, levels=4, margin=0.5, keep=0.4)
    assert (mechanism.parameters["margin"], mechanism.parameters["keep"]) == (0.5, 0.4)
    assert mechanism.values == pytest.approx([-1.5, -0.5, 0.5, 1.5])
    assert 1.99 < mechanism.epsilon <= 2.0


def test_round_trip_and_forgery() -> None:
    mechanism = pq.design("biased", epsilon=1.0)
    again = pq.Mechanism.from_bytes(mechanism.to_bytes())
    assert type(again) is BiasedTableMechanism
    assert again.max_bias == mechanism.max_bias
    book = Codebook(np.array([0, 1]), 2.0, -1.0)
    weights = np.array([[3, 1], [1, 3]]) * (TOTAL_WEIGHT // 4)
    for inputs in ([-1.0], [-1.0, np.nan], [-0.5, 1.0], [1.0, -1.0], [-1.0, -1.0]):
        with pytest.raises(CertificationError):
            BiasedTable(book, weights, np.array([0]), np.array([1]), np.array(inputs))
    table = BiasedTable(book, weights, np.array([0]), np.array([1]), np.array([-1.0, 1.0]))
    assert table.distribution.max_bias == pytest.approx(0.5)
    with pytest.raises(CertificationError, match="above the claimed"):
        BiasedTableMechanism("biased", table, 1.0)
    blob = BiasedTableMechanism("biased", table, 1.2).to_bytes()
    assert pq.Mechanism.from_bytes(blob).epsilon == pytest.approx(math.log(3))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"margin": -0.1}, "margin: -0.1"),
        ({"keep": 1.0}, "keep: 1.0"),
        ({"objective": "rmse"}, "did you mean 'mse'"),
        ({"rows_per_interval": 1}, "rows_per_interval: 1"),
    ],
)
def test_bad_input(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        pq.design("biased", epsilon=1.0, **parameters)


def test_too_much_selection_is_infeasible() -> None:
    with pytest.raises(pq.PrivQuantError, match=r"raise epsilon or lower keep"):
        pq.design("biased", epsilon=0.1, keep=0.9)
