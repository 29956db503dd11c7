"""CSGM: sampled coordinates as noised bits; its distribution, its table, and what a sum of it costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Release, UpdateNorms
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.tables.csgm import csgm_distribution
from fl_privquant.statement import LOCAL, View


def test_the_distribution_is_sampling_a_bit_noise_rounding_and_a_clamp() -> None:
    share, noise, half = 0.3, 2.0, 4
    distribution = csgm_distribution(half, share, noise)
    edges = np.array([-np.inf, *(np.arange(-half, half) + 0.5), np.inf])
    for x in (-1.0, -0.2, 0.7):
        told = {0.0: 1.0 - share, 1.0: share * (1.0 + x) / 2.0, -1.0: share * (1.0 - x) / 2.0}
        expected = sum(chance * np.diff(norm.cdf(edges, bit, noise)) for bit, chance in told.items())
        assert distribution.pmf(x)[0] == pytest.approx(expected, abs=1e-12)
        assert float(distribution.pmf(x)[0] @ distribution.values) == pytest.approx(x, abs=1e-12)


def test_the_certified_table_has_the_asked_loss_and_the_min_noise() -> None:
    mechanism = pq.design("csgm", epsilon=1.0, levels=8)
    assert (mechanism.num_levels, mechanism.distribution.max_bias < 1e-8) == (7, True)
    assert 0.999 < mechanism.epsilon <= 1.0
    noise = mechanism.parameters["noise"]
    assert csgm_distribution(3, 0.5, 0.99 * noise).epsilon > 1.0
    given = pq.design("csgm", noise=noise, levels=8)
    assert given.epsilon == pytest.approx(1.0, abs=1e-4)


def test_sampling_that_nobody_sees_lowers_the_loss_at_the_same_noise() -> None:
    """Amplification: telling a tenth of the coordinates costs about a tenth of telling all."""
    all_told, tenth = (pq.design("csgm", noise=3.0, levels=9, share=share).epsilon for share in (1.0, 0.1))
    assert 0.08 * all_told < tenth < 0.13 * all_told


def test_a_sum_costs_less_than_a_code_and_more_than_normal_noise_of_its_variance() -> None:
    clients, dimension, delta = 50, 20, 1e-5
    mechanism = pq.design("csgm", noise=2.0, levels=3)
    statements = {}
    for view in (LOCAL, View.aggregate(clients)):
        accountant = Accountant()
        accountant.add(Release(mechanism, dimension, view, norms=UpdateNorms(l2=1.0)), 1)
        statements[view.is_local] = accountant.statement(delta).epsilon
    assert statements[False] < 0.5 * statements[True]
    # The least that a normal count allows: inputs 2 apart, and from each client the variance at an end.
    rows = mechanism.distribution.end_rows[-1]
    variance = float(rows @ mechanism.values**2) - 1.0
    separation = 2.0 / math.sqrt(clients * variance)
    normal = norm.cdf(separation / 2 - statements[False] / separation) - math.exp(
        statements[False]
    ) * norm.cdf(-separation / 2 - statements[False] / separation)
    assert normal < delta


@pytest.mark.parametrize(
    ("parameters", "error", "named"),
    [
        ({}, InvalidSpecError, "epsilon"),
        ({"epsilon": 1.0, "levels": 2}, InvalidSpecError, "levels"),
        ({"epsilon": 1.0, "share": 0.0}, InvalidSpecError, "share"),
        ({"epsilon": 1.0, "share": 1.5}, InvalidSpecError, "share"),
        ({"noise": 0.0}, InvalidSpecError, "noise"),
        ({"epsilon": 1e-5}, InfeasibleDesignError, "epsilon"),
        ({"noise": 1.0, "epsilon": 0.1}, InfeasibleDesignError, "noise"),
    ],
)
def test_bad_input_is_named(parameters: dict[str, float], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        pq.design("csgm", **parameters)
