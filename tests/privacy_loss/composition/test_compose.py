"""Composition against closed forms and enumeration: never below the exact answer, and close to it."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.errors import InvalidSpecError
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta
from fl_privquant.privacy_loss.closed_forms import NOT_PRIVATE, gaussian_loss, laplace_loss, response_loss
from fl_privquant.privacy_loss.composition.compose import (
    Part,
    compose_epsilon,
    pld_epsilon,
    pure_epsilon,
    renyi_epsilon,
)
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss
from fl_privquant.privacy_loss.tables.dominating_pair import dominating_loss, hull_corners
from tests.exact import (
    epsilon_of,
    hockey_stick,
    power,
    product,
    random_table,
    response_epsilon,
    worst_hockey_stick,
)

DELTAS = (1e-2, 1e-5, 1e-10)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 3.0])
@pytest.mark.parametrize("count", [2, 3, 12, 100, 10_000])
@pytest.mark.parametrize("delta", DELTAS)
def test_randomized_response_by_binomials(epsilon: float, count: int, delta: float) -> None:
    exact = response_epsilon(epsilon, count, delta)
    found = compose_epsilon([Part(response_loss(epsilon), count)], delta).epsilon
    assert exact - 1e-9 * count <= found <= exact * (1.0 + 1e-5) + 1e-6


@pytest.mark.parametrize("separation", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("count", [2, 100, 10_000])
def test_normal_pairs_compose_exactly(separation: float, count: int) -> None:
    """Also of two kinds, and with a probability that reveals everything; the grid bounds them from above."""
    loss, charge = gaussian_loss(separation), 1e-7 / count
    charged = dataclasses.replace(gaussian_loss(2.0 * separation), infinity=charge)
    parts = [Part(loss, count), Part(charged, count)]
    total = separation * math.sqrt(5.0 * count)
    for refine in (True, False):
        bound = compose_epsilon(parts, 1e-6, refine)
        assert bound.method == "exact"
        assert gaussian_delta(total, bound.epsilon) <= 1e-6 - 1e-7
        assert gaussian_delta(total, bound.epsilon * (1.0 - 1e-9)) > (1e-6 - 1e-7) * (1.0 - 1e-8)
    on_grid = pld_epsilon(parts, 1e-6, renyi_epsilon(parts, 1e-6)[1])
    assert bound.epsilon <= on_grid <= bound.epsilon * (1.0 + 1e-3)
    # Beside another kind of loss, and at no delta, the other bounds hold.
    assert compose_epsilon([*parts, Part(response_loss(0.1), 3)], 1e-6).method == "pld"
    assert compose_epsilon(parts, 0.0).epsilon == math.inf
    assert compose_epsilon(parts, 0.5e-7).epsilon == math.inf


def test_many_small_losses_tend_to_a_gaussian() -> None:
    count = 40_000
    loss = response_loss(0.01)
    # A loss of 0.01 with mean 0.01 tanh(0.005) and nearly unit variance in units of 0.01.
    limit = compose_epsilon([Part(gaussian_loss(0.01 * math.sqrt(count)), 1)], 1e-6).epsilon
    assert compose_epsilon([Part(loss, count)], 1e-6).epsilon == pytest.approx(limit, rel=2e-3)


def test_laplace_loss_is_the_closed_form() -> None:
    for epsilon in (0.0, 0.3, 0.9, 1.0):
        assert laplace_loss(1.0).delta(epsilon) == pytest.approx(-math.expm1((epsilon - 1.0) / 2.0), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("levels", [2, 3, 4])
def test_dominating_loss_is_the_worst_pair_at_every_epsilon(seed: int, levels: int) -> None:
    table = random_table(seed, levels, rows=4)
    loss = dominating_loss(table)
    assert loss.masses.sum() == pytest.approx(1.0, abs=1e-12)
    for epsilon in np.linspace(0.0, 1.05 * table.epsilon, 40):
        exact = worst_hockey_stick(table.distribution.rows, float(epsilon))
        assert exact - 1e-15 <= loss.delta(float(epsilon)) <= exact + 1e-12
    rows = table.distribution.rows
    for order in (1.1, 2.0, 7.0):
        moments = (rows[:, None] ** order * rows ** (1.0 - order)).sum(axis=-1)
        assert loss.log_moment(order - 1.0) >= math.log(moments.max()) - 1e-12
    assert loss.max_loss <= table.epsilon


def test_no_single_pair_of_rows_need_be_the_worst() -> None:
    """The negative control: the worst pair at one epsilon is not enough, which is what the hull is for."""
    rows = np.array([[44, 14, 6], [14, 44, 6], [30, 33, 1]]) << 26
    corners = hull_corners(rows)
    steps = np.diff(corners, axis=0) / 2.0**32
    hull = PrivacyLoss(np.log(steps[::-1, 1] / steps[::-1, 0]), steps[::-1, 1])
    distributions = rows / 2.0**32
    pairs = list(itertools.permutations(range(3), 2))
    below = dict.fromkeys(pairs, False)
    for epsilon in np.linspace(0.0, 1.75, 60):
        curves = {
            pair: hockey_stick(distributions[pair[0]], distributions[pair[1]], float(epsilon))
            for pair in pairs
        }
        assert hull.delta(float(epsilon)) >= max(curves.values()) - 1e-15
        for pair, value in curves.items():
            below[pair] |= value < max(curves.values()) - 1e-6
    assert all(below.values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("levels", "count"), [(2, 12), (3, 7), (4, 5), (4, 12)])
@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_one_table_by_enumeration(seed: int, levels: int, count: int, delta: float) -> None:
    table = random_table(seed, levels, rows=2)
    loss = dominating_loss(table)
    rows = table.distribution.rows
    exact = max(epsilon_of(power((rows[i], rows[1 - i]), count), delta) for i in (0, 1))
    found = compose_epsilon([Part(loss, count)], delta).epsilon
    assert exact - 1e-9 <= found
    # The two orders of a pair dominate each other in different places: one pair for both costs a little.
    assert found <= exact * 1.05 + 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_different_tables_and_pairs_by_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = [random_table(100 + seed + i, 3, rows=3) for i in range(3)]
    found = compose_epsilon([Part(dominating_loss(table), 2) for table in tables], 1e-3).epsilon
    for _ in range(30):
        pairs = []
        for table in tables:
            for _ in range(2):
                i, j = rng.choice(len(table.distribution.rows), 2, replace=False)
                pairs.append((table.distribution.rows[i], table.distribution.rows[j]))
        assert epsilon_of(product(pairs), 1e-3) <= found + 1e-9


@pytest.mark.parametrize("delta", DELTAS)
def test_pld_is_not_below_dp_accounting_by_more_than_its_grid(delta: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    rows = mechanism.distribution.rows
    first, second = ({i: math.log(p) for i, p in enumerate(row)} for row in (rows[0], rows[-1]))
    theirs = pld.from_two_probability_mass_functions(first, second, value_discretization_interval=1e-3)
    loss = dominating_loss(mechanism.table)
    other = theirs.self_compose(500).get_epsilon_for_delta(delta)
    assert compose_epsilon([Part(loss, 500)], delta).epsilon == pytest.approx(other, rel=2e-3)


def test_rounding_errors_of_the_transform_are_charged() -> None:
    """At 10^9 releases errors of 1e-16 add up; the figure stays above the exact one."""
    exact = response_epsilon(0.5, 10**6, 1e-6)
    parts = [Part(response_loss(0.5), 10**6)]
    _, rate = renyi_epsilon(parts, 1e-6)
    assert exact <= pld_epsilon(parts, 1e-6, rate) * (1.0 + 1e-12) <= exact * (1.0 + 1e-6)
    many = compose_epsilon([Part(response_loss(0.5), 10**9)], 1e-6)
    mean = 10**9 * 0.5 * math.tanh(0.25)
    assert mean < many.epsilon < mean + 10.0 * 0.5 * math.sqrt(10**9)


def test_any_tilt_gives_a_bound() -> None:
    parts = [Part(response_loss(1.0), 50)]
    exact = response_epsilon(1.0, 50, 1e-4)
    for rate in (1e-3, 0.1, 0.5, 1.0, 3.0, 10.0):
        assert pld_epsilon(parts, 1e-4, rate) >= exact - 1e-9


def test_bounds_and_their_names() -> None:
    part = Part(response_loss(1.0), 4)
    assert compose_epsilon([part], 0.0) == compose_epsilon([part], 0.0, refine=False)
    assert compose_epsilon([part], 0.0).method == "pure"
    assert compose_epsilon([part], 0.0).epsilon == pure_epsilon([part]) == 4.0
    assert compose_epsilon([], 1e-5).epsilon == 0.0
    assert compose_epsilon([Part(response_loss(1.0), 1)], 1e-5).method == "exact"
    assert compose_epsilon([Part(NOT_PRIVATE, 1)], 1e-5).epsilon == math.inf
    assert compose_epsilon([Part(response_loss(1.0, delta=1e-6), 20)], 1e-5).epsilon == math.inf
    assert compose_epsilon([Part(response_loss(1.0, delta=1e-7), 20)], 1e-5).epsilon < 20.0
    with pytest.raises(InvalidSpecError, match="outside"):
        compose_epsilon([part], -1e-5)


def test_monotone_in_count_and_delta() -> None:
    loss = dominating_loss(pq.design("optm", epsilon=1.0, bits=2).table)
    by_count = [
        compose_epsilon([Part(loss, n)], 1e-6).epsilon for n in (1, 2, 5, 20, 100, 10**4, 10**6, 10**9)
    ]
    by_delta = [compose_epsilon([Part(loss, 300)], d).epsilon for d in (0.0, 1e-15, 1e-9, 1e-5, 1e-2, 0.5)]
    assert by_count == sorted(by_count)
    assert by_delta == sorted(by_delta, reverse=True)


def test_golden_figures_for_a_thousand_coordinates() -> None:
    """Local view, delta 1e-5, epsilon 1 a coordinate: the paper's OPTM, ours, and the worst there is."""
    paper = pq.design("optm", family="independent", objective="mae", epsilon=1.0, bins=(-3, -0.5, 0.5, 3))
    ours = pq.design("optm", epsilon=1.0, bits=2)
    figures = [
        compose_epsilon([Part(dominating_loss(each.table), 1000)], 1e-5).epsilon for each in (paper, ours)
    ]
    worst = compose_epsilon([Part(response_loss(1.0), 1000)], 1e-5).epsilon
    assert figures[0] == pytest.approx(450.9, abs=0.2)
    assert figures[1] == pytest.approx(505.5, abs=0.2)
    assert max(figures) < worst == pytest.approx(577.83, abs=0.01)


def test_the_epsilon_of_one_release_is_the_min_that_is_enough() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        losses = np.unique(rng.normal(0.5, 2.0, size=rng.integers(1, 40)))
        masses = rng.random(losses.size)
        masses /= masses.sum() * rng.uniform(1.0, 1.2)
        loss = PrivacyLoss(losses, masses, infinity=float(rng.choice([0.0, 1e-7])))
        delta = float(10.0 ** rng.uniform(-6.0, 0.0))
        epsilon = compose_epsilon([Part(loss, 1)], delta).epsilon
        assert loss.delta(epsilon) <= delta
        assert epsilon == 0.0 or loss.delta(epsilon * (1.0 - 1e-9)) > delta * (1.0 - 1e-12)


def test_moments_do_not_depend_on_numbers_close_to_underflow() -> None:
    """Far from the largest term they are rounded up, to what is nothing next to it."""
    losses = np.linspace(-900.0, 900.0, 4001)
    masses = np.exp(-0.5 * np.abs(losses)) + 1e-300
    loss = PrivacyLoss(losses, masses / masses.sum())
    for rate in (1e-3, 0.4, 1.0, 7.0, 1e3):
        exponents = rate * losses + np.log(loss.masses)
        exact = exponents.max() + math.log(math.fsum(np.exp(exponents - exponents.max())))
        assert exact <= loss.log_moment(rate) <= exact + 1e-13 * (1.0 + abs(exact))
