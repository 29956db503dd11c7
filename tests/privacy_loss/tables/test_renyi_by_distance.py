"""Rényi divergence per squared distance: an upper bound, tight, and additive over coordinates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

import fl_privquant as pq
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.privacy_loss.sums.gaussian_bound import UpdateBound
from fl_privquant.privacy_loss.tables.renyi_by_distance import (
    _box_bounds,
    fisher_information,
    renyi_per_squared_distance,
)
from fl_privquant.privacy_loss.update_bounds import continuous_distribution_loss


def divergence(p: np.ndarray, q: np.ndarray, order: float) -> Any:
    return np.log((p**order * q ** (1.0 - order)).sum(axis=-1)) / (order - 1.0)


@pytest.mark.parametrize("order", [1.1, 2.0, 3.5, 8.0, 32.0])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("one_bit", {}), ("mvu", {}), ("imvu", {}), ("optm", {"metric": "l1"}), ("optm", {})],
)
def test_it_bounds_every_pair_and_little_more(name: str, parameters: dict[str, Any], order: float) -> None:
    distribution = pq.design(name, epsilon=1.0, **parameters).distribution
    bound = renyi_per_squared_distance(distribution, order)
    x = np.unique(np.concatenate([np.linspace(-1.0, 1.0, 161), distribution.starts, distribution.ends]))
    rows = distribution.pmf(x)
    distance = (x[:, None] - x) ** 2
    apart = distance > 1e-5
    quotient = divergence(rows[:, None], rows[None], order)[apart] / distance[apart]
    assert quotient.max() <= bound
    assert bound <= max(quotient.max(), order / 2 * fisher_information(distribution)) * 1.03


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3), min_size=2, max_size=5),
    st.floats(1.05, 12.0),
)
def test_it_bounds_random_distributions(rows: list[list[float]], order: float) -> None:
    table = np.array(rows) / np.sum(rows, axis=1, keepdims=True)
    distribution = OutputDistribution.from_knots([-2.0, 0.0, 2.0], np.linspace(-1.0, 1.0, len(rows)), table)
    bound = renyi_per_squared_distance(distribution, order)
    x = np.sort(np.random.default_rng(0).uniform(-1.0, 1.0, 60))
    sampled = distribution.pmf(x)
    distance = (x[:, None] - x) ** 2
    apart = distance > 1e-4
    found = divergence(sampled[:, None], sampled[None], order)[apart] / distance[apart]
    assert np.all(found <= bound * (1 + 1e-9) + 1e-9)


def rare_output(knots: list[float], rare: list[float]) -> OutputDistribution:
    """A rare output has the given probability at each knot; two others share the rest."""
    first = np.array(rare)
    return OutputDistribution.from_knots(
        [-2.0, 0.3, 2.0], knots, np.stack([first, 0.5 - first / 2, 0.5 - first / 2], axis=1)
    )


@pytest.mark.parametrize(
    ("distribution", "box", "order"),
    [
        # The rare output is constant in one of the two pieces, and its weight overflows.
        (rare_output([-1.0, 0.0, 1.0], [1e-6, 1e-6, 4e-4]), [0.0, 1.0, -1.0, 0.0], 256.0),
        # A steep piece lies between the two, so narrow that they nearly meet.
        (rare_output([-1.0, 0.0, 3e-8, 6e-8, 1.0], [0.1, 0.1, 0.1001, 0.2, 0.2001]), [0, 3e-8, 6e-8, 1], 2.0),
    ],
    ids=["overflow", "narrow piece"],
)
def test_no_pair_of_inputs_in_a_box_exceeds_its_bound(
    distribution: OutputDistribution, box: list[float], order: float
) -> None:
    (bound,), _ = _box_bounds(distribution, np.array([box]), order)
    first, second = (np.linspace(*ends, 40) for ends in (box[:2], box[2:]))
    apart = np.abs(first[:, None] - second) > 0.0
    p, q = np.log(distribution.pmf(first))[:, None], np.log(distribution.pmf(second))[None]
    divergences = logsumexp(order * p + (1.0 - order) * q, axis=-1) / (order - 1.0)
    assert (divergences[apart] / ((first[:, None] - second)[apart] ** 2)).max() <= bound


@pytest.mark.parametrize(("name", "epsilon"), [("optm", 0.3), ("optm", 2.0), ("mvu", 1.0)])
def test_moments_of_updates_bound_every_pair_at_rates_between_the_known_ones(
    name: str, epsilon: float
) -> None:
    """They are computed at a few orders; in between they still bound, and by less than the next order."""
    mechanism = pq.design(name, epsilon=epsilon)
    assert isinstance(mechanism, TableMechanism)
    named = continuous_distribution_loss(mechanism.table, distance=1.0, dimension=1, num_honest=1)
    assert named is not None
    x = np.linspace(-1.0, 1.0, 201)
    rows = mechanism.distribution.pmf(x)
    # One coordinate, and neighbors whose updates differ by at most twice the norm.
    near = np.abs(x[:, None] - x) <= 1.0
    known = np.array([1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0])
    for order in np.concatenate([[1.01], known, np.sqrt(known[1:] * known[:-1]), [4.5, 8.9, 9.1]]):
        largest = divergence(rows[:, None], rows[None], order)[near].max() * (order - 1.0)
        moment = named.loss.log_moment(order - 1.0)
        assert largest <= moment
        above = known[known >= order].min() if order <= known[-1] else 33.0
        assert moment <= (order - 1.0) / (above - 1.0) * named.loss.log_moment(above - 1.0) * (1.0 + 1e-9)


def renyi_of_update(distribution: OutputDistribution, order: float, distance: float, dimension: int) -> float:
    """The bound for whole updates at that L2 distance, as update losses have it."""
    return renyi_per_squared_distance(distribution, order) * UpdateBound(distance, dimension).widened ** 2


def test_updates_cost_by_their_distance_whatever_the_dimension() -> None:
    distribution = pq.design("imvu", epsilon=1.0).distribution
    generator = np.random.default_rng(1)
    for dimension in (1, 10, 400):
        x, y = generator.normal(size=(2, dimension))
        x, y = (0.5 * each / np.linalg.norm(each) for each in (x, y))
        exact = divergence(distribution.pmf(x), distribution.pmf(y), 4.0).sum()
        assert exact <= renyi_of_update(distribution, 4.0, float(np.linalg.norm(x - y)), dimension)
    assert renyi_of_update(distribution, 4.0, 1.0, 10**6) == pytest.approx(
        renyi_of_update(distribution, 4.0, 1.0, 1), rel=1e-5
    )


def test_distributions_that_jump_have_none() -> None:
    distribution = pq.design("erm", gamma=0.043, bins=(-2.7, -0.4, 0.4, 2.7)).distribution
    assert renyi_per_squared_distance(distribution, 2.0) == math.inf
    assert fisher_information(distribution) == math.inf
    impossible = OutputDistribution.from_knots([-1.0, 1.0], [-1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]])
    assert renyi_per_squared_distance(impossible, 2.0) == math.inf


def test_no_unbiased_distribution_beats_cramer_rao() -> None:
    for name in ("one_bit", "mvu", "imvu"):
        mechanism = pq.design(name, epsilon=1.0)
        assert mechanism.distribution.error_at(np.linspace(-1, 1, 99), 2).max() >= 1 / fisher_information(
            mechanism.distribution
        )


@pytest.mark.parametrize("order", [1.0, 0.5, math.nan])
def test_bad_orders(order: float) -> None:
    with pytest.raises(InvalidSpecError, match="order"):
        renyi_per_squared_distance(pq.design("one_bit", epsilon=1.0).distribution, order)
