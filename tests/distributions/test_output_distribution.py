"""The distribution: sanity values, exact errors against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.tables.erm import erm_distribution
from fl_privquant.mechanisms.tables.rqm import rqm_distribution
from tests.exact import random_distribution


@pytest.mark.parametrize(
    ("distribution", "epsilon", "mae", "mse"),
    [
        (rqm_distribution(np.array([-2.7, -0.9, 0.9, 2.7]), 0.22), 0.99877, 1.99734, 4.98059),
        (rqm_distribution(np.linspace(-2.6, 2.6, 4), 0.498), 1.49964, 1.31388, None),
        (erm_distribution(np.array([-5.1, -0.1, 0.1, 5.1]), 0.026), 0.99974, 2.20617, None),
        (erm_distribution(np.array([-2.7, -0.4, 0.4, 2.7]), 0.043), 1.49978, 1.29822, None),
    ],
)
def test_sanity_values(
    distribution: OutputDistribution, epsilon: float, mae: float, mse: float | None
) -> None:
    assert distribution.epsilon == pytest.approx(epsilon, abs=6e-6)
    assert distribution.mae() == pytest.approx(mae, abs=6e-6)
    if mse is not None:
        assert distribution.mse() == pytest.approx(mse, abs=6e-6)


def test_epsilon_is_not_attained_on_a_grid_only() -> None:
    """A fine grid over x approaches the exact loss from below and never exceeds it."""
    distribution = rqm_distribution(np.array([-2.7, -0.9, 0.9, 2.7]), 0.22)
    rows = distribution.pmf(np.linspace(-1.0, 1.0, 20001))
    on_grid = np.log(rows.max(axis=0) / rows.min(axis=0)).max()
    assert on_grid <= distribution.epsilon + 1e-12
    assert on_grid == pytest.approx(distribution.epsilon, abs=1e-3)


@given(seed=st.integers(0, 10_000), levels=st.integers(3, 7), knots=st.integers(2, 9))
def test_rows_are_unbiased_distributions(seed: int, levels: int, knots: int) -> None:
    distribution = random_distribution(seed, levels, knots)
    x = np.linspace(-1.0, 1.0, 57)
    assert distribution.pmf(x).sum(axis=1) == pytest.approx(np.ones(57))
    assert distribution.mean_at(x) == pytest.approx(x, abs=1e-12)
    assert distribution.max_bias < 1e-12


def test_max_bias_sees_a_biased_row() -> None:
    distribution = OutputDistribution.from_knots([-2.0, 2.0], [-1.0, 1.0], [[0.75, 0.25], [0.2, 0.8]])
    assert distribution.max_bias == pytest.approx(0.2)


@pytest.mark.parametrize("power", [1, 2])
def test_errors_match_numerical_integration(power: int) -> None:
    distribution = random_distribution(5, 5, 6)
    breaks = sorted(
        {-1.0, 1.0, *distribution.starts.tolist(), *[v for v in distribution.values if abs(v) < 1]}
    )
    pieces = itertools.pairwise(breaks)
    total = sum(
        integrate.quad(lambda x: float(distribution.error_at(x, power)[0]) / 2, a, b)[0] for a, b in pieces
    )
    assert (distribution.mae() if power == 1 else distribution.mse()) == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("sigma", [0.02, 0.3, 5.0])
def test_density_clips_what_lies_outside(sigma: float) -> None:
    distribution = random_distribution(2, 4, 5)
    density = stats.norm(0.5, sigma)
    quantiles = density.ppf((np.arange(400_000) + 0.5) / 400_000)
    assert distribution.mae(density) == pytest.approx(distribution.mae(quantiles), rel=1e-4)
    assert distribution.mse(density) == pytest.approx(distribution.mse(quantiles), rel=1e-4)


def test_samples_are_averaged_exactly() -> None:
    distribution = random_distribution(3, 4, 5)
    samples = np.array([-0.7, 0.1, 0.1, 4.0])
    expected = distribution.error_at(np.array([-0.7, 0.1, 0.1, 1.0])).mean()
    assert distribution.mae(samples) == pytest.approx(expected, rel=1e-14)


def test_an_output_that_one_input_cannot_give_has_infinite_loss() -> None:
    distribution = OutputDistribution.from_knots([-1.0, 1.0], [-1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]])
    assert distribution.epsilon == math.inf


def test_an_unused_output_costs_nothing() -> None:
    distribution = OutputDistribution.from_knots(
        [-2.0, 0.0, 2.0], [-1.0, 1.0], [[0.75, 0.0, 0.25], [0.25, 0.0, 0.75]]
    )
    assert distribution.epsilon == pytest.approx(math.log(3.0))


def test_jumps_keep_both_limits() -> None:
    distribution = erm_distribution(np.array([-2.7, -0.4, 0.4, 2.7]), 0.043)
    before, after = distribution.pmf([-0.4 - 1e-9])[0], distribution.pmf([-0.4])[0]
    assert np.abs(before - after).max() > 0.05
    assert before @ distribution.values == pytest.approx(-0.4, abs=1e-8)
    assert after @ distribution.values == pytest.approx(-0.4, abs=1e-12)


def test_malformed_distributions_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match="rows of shape"):
        OutputDistribution.from_knots([-1.0, 1.0], [-1.0, 1.0], [[1.0], [1.0]])
    with pytest.raises(InvalidSpecError, match="increasing"):
        OutputDistribution.from_knots([-1.0, 1.0], [1.0, -1.0], [[0.5, 0.5], [0.5, 0.5]])
