"""The aggregate view: never below the truth found by enumeration, never above the local view."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ive

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Release, UpdateNorms, View
from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.distributions.integer_distribution import (
    IntegerDistribution,
    convolve,
    power,
    round_count_down,
)
from fl_privquant.privacy_loss.additive.integer_noise import noise_sum, sum_gap
from fl_privquant.privacy_loss.closed_forms import gaussian_loss
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.privacy_loss.sums.blanket import blanket_loss
from fl_privquant.privacy_loss.tables.dominating_pair import dominating_loss
from fl_privquant.privacy_loss.update_bounds import NO_NORMS, WholeUpdate
from fl_privquant.sampling.integer_noise import DiscreteGaussian, DiscreteLaplace, Skellam
from tests.exact import blanket_delta, epsilon_of, hockey_stick, product, random_table, sums_of


def on_lattice(table: CertifiedTable) -> np.ndarray:
    """(rows, max_code + 1) distributions of the codes."""
    distributions = np.zeros((len(table.distribution.rows), table.codebook.max_code + 1))
    distributions[:, table.codebook.codes] = table.distribution.rows
    return distributions


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("levels", "clients"), [(2, 2), (3, 3), (4, 3), (2, 5)])
def test_never_below_the_worst_inputs_of_the_others(seed: int, levels: int, clients: int) -> None:
    table = random_table(seed, levels, rows=3)
    distributions = on_lattice(table)
    loss = blanket_loss(table, clients)
    found = compose_epsilon([Part(loss, 2)], 1e-3).epsilon
    for noise in sums_of(distributions, clients - 1):
        sums = [np.convolve(distribution, noise) for distribution in distributions]
        for i, j in itertools.permutations(range(len(distributions)), 2):
            for epsilon in np.linspace(0.0, table.epsilon, 12):
                assert hockey_stick(sums[i], sums[j], float(epsilon)) <= loss.delta(float(epsilon)) + 1e-12
            used = (sums[i] > 0.0) & (sums[j] > 0.0)
            pair = (sums[i][used], sums[j][used])
            assert epsilon_of(product([pair, pair]), 1e-3) <= found + 1e-9


@pytest.mark.parametrize(("clients", "room"), [(2, 2e-3), (7, 2e-3), (30, 2e-3), (100, 0.06)])
def test_the_blanket_bound_itself_by_enumeration(clients: int, room: float) -> None:
    """Randomized response, all numbers of blanket draws one by one; of 100 clients there are buckets."""
    table = pq.design("one_bit", epsilon=1.0).table
    loss = blanket_loss(table, clients)
    for epsilon in (0.1,) if clients == 100 else (0.0, 0.1, 0.4, 0.8):
        exact = blanket_delta(table.distribution.rows, clients, epsilon)
        assert exact * (1.0 - 1e-9) <= loss.delta(epsilon) <= exact * (1.0 + room) + 1e-12


@pytest.mark.parametrize("clients", [1, 2, 5, 64, 1000])
@pytest.mark.parametrize(
    "name", ["optm", "one_bit", "rqm", "pbm", "skellam", "discrete_gaussian", "discrete_laplace"]
)
def test_the_sum_never_costs_more_than_the_codes(name: str, clients: int) -> None:
    sized = {} if name == "one_bit" else {"levels": 4}
    mechanism = pq.design(name, epsilon=1.5, **sized)
    local, summed = mechanism.loss().loss, mechanism.loss(View(clients)).loss
    for epsilon in (0.0, 0.2, 0.7, 1.4):
        assert summed.delta(epsilon) <= local.delta(epsilon) * (1.0 + 1e-6) + 1e-12
    total = [compose_epsilon([Part(loss, 200)], 1e-6).epsilon for loss in (summed, local)]
    assert total[0] <= total[1] * (1.0 + 1e-6)


def test_more_clients_cost_less() -> None:
    table = pq.design("optm", epsilon=1.0, bits=2).table
    spent = [
        compose_epsilon([Part(blanket_loss(table, n), 100)], 1e-6).epsilon for n in (1, 2, 3, 10, 40, 300)
    ]
    assert spent == sorted(spent, reverse=True)
    assert spent[0] == compose_epsilon([Part(dominating_loss(table), 100)], 1e-6).epsilon


def test_a_large_sum_is_gaussian() -> None:
    """The blanket of 5000 clients is nearly normal noise of a known variance."""
    mechanism = pq.design("one_bit", epsilon=0.5)
    clients = 5000
    low = mechanism.distribution.rows.min(axis=0)
    variance = (clients - 1) * float(low @ mechanism.values**2)
    limit = compose_epsilon([Part(gaussian_loss(2.0 / math.sqrt(variance)), 1000)], 1e-6).epsilon
    found = compose_epsilon([Part(blanket_loss(mechanism.table, clients), 1000)], 1e-6).epsilon
    assert limit * 0.999 <= found <= limit * 1.03


def test_on_a_fine_lattice_fewer_clients_are_counted() -> None:
    """Sums of 10^4 codes up to 20 000 are wide: some of the clients are left out, which is a bound too."""
    fine = pq.design("optm", epsilon=1.0, bits=2, lattice=False).table
    coarse = pq.design("optm", epsilon=1.0, bits=2).table
    assert fine.codebook.max_code > 10**4
    spent = [
        compose_epsilon([Part(loss, 100)], 1e-6).epsilon
        for loss in (blanket_loss(coarse, 10_000), blanket_loss(fine, 10_000), dominating_loss(fine))
    ]
    assert spent[0] <= spent[1] <= spent[2]


def test_counts_are_rounded_down() -> None:
    assert [round_count_down(n) for n in (1, 127, 128, 129, 1000)] == [1, 127, 128, 128, 1000]
    assert all(round_count_down(n) <= n < 1.02 * round_count_down(n) + 1 for n in range(1, 5000))


def test_convolutions_do_not_lose_what_they_cannot_see() -> None:
    rng = np.random.default_rng(0)
    a = IntegerDistribution(0, rng.dirichlet(np.full(300, 0.3)))
    direct = convolve(a, a)
    assert direct.values.sum() + direct.lost >= 1.0 - 1e-12
    fast = convolve(a, a, direct=0)
    exact = np.zeros(700)
    exact[direct.first : direct.first + direct.values.size] = direct.values
    seen = exact[fast.first : fast.first + fast.values.size]
    assert np.all(fast.values <= seen + 1e-18)
    assert 0.0 < fast.lost < 1e-10
    assert fast.values.sum() + fast.lost >= 1.0 - 1e-12


@pytest.mark.parametrize("count", [2, 9])
def test_sums_of_noise_by_convolution(count: int) -> None:
    skellam = noise_sum(Skellam(6), count)
    k = np.arange(skellam.first, skellam.first + skellam.values.size)
    single = noise_sum(Skellam(6), 1)
    assert np.allclose(skellam.values, ive(np.abs(k), 6.0 * count), rtol=1e-9, atol=0.0)
    by_hand = power(single, count)
    shared = min(by_hand.values.size, skellam.values.size) // 2
    middle = [each.values[-each.first - shared : -each.first + shared] for each in (by_hand, skellam)]
    assert np.allclose(*middle, rtol=1e-8, atol=1e-22)


def test_sum_of_discrete_gaussians_is_nearly_one() -> None:
    wide, narrow = DiscreteGaussian(9), DiscreteGaussian(1)
    assert sum_gap(wide, 50) < 1e-12 < 1e-4 < sum_gap(narrow, 50)
    closed = noise_sum(wide, 5)
    by_hand = power(noise_sum(wide, 1), 5)
    shared = min(closed.values.size, by_hand.values.size) // 2 - 1
    middle = [each.values[-each.first - shared : -each.first + shared] for each in (closed, by_hand)]
    assert np.allclose(*middle, rtol=1e-10, atol=1e-21)
    assert noise_sum(narrow, 5).values.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", ["skellam", "discrete_gaussian", "discrete_laplace"])
def test_noise_loss_agrees_with_the_certificate(name: str) -> None:
    mechanism = pq.design(name, epsilon=1.0, levels=8)
    loss = mechanism.loss().loss
    for epsilon in (0.2, 0.7, 0.99):
        certified = mechanism.delta_at(epsilon)
        assert loss.delta(epsilon) == pytest.approx(certified, rel=1e-6, abs=1e-16)
    if name == "discrete_laplace":
        assert loss.max_loss <= mechanism.epsilon


def test_laplace_sum_is_charged_for_its_clamp() -> None:
    mechanism = pq.design("discrete_laplace", epsilon=1.0, levels=4, num_clients=100)
    loss = mechanism.loss(View(100)).loss
    assert isinstance(mechanism.noise, DiscreteLaplace)
    assert loss.infinity == 0.0
    assert 0.0 < loss.masses[-1] < 1e-10


@pytest.mark.parametrize(("trials", "clients"), [(1, 3), (1, 6), (2, 3), (3, 2)])
def test_the_own_theorem_of_pbm_is_never_below_the_worst_inputs(trials: int, clients: int) -> None:
    mechanism = pq.design("pbm", epsilon=2.0, levels=trials + 1)
    (theorem,) = mechanism.update_losses(WholeUpdate(NO_NORMS, 1, View(clients)))
    assert (theorem.name, theorem.count) == ("poisson binomial", 1)
    distributions = mechanism.pmf([-1.0, -0.4, 0.3, 1.0])
    for noise in sums_of(distributions, clients - 1):
        sums = [np.convolve(distribution, noise) for distribution in distributions]
        for p, q in itertools.permutations(sums, 2):
            # Rates between those that were computed too: chords of a convex function are above it.
            for rate in (0.1, 0.3, 1.0, 3.0, 11.0, 40.0):
                exact = math.log(float((p ** (rate + 1.0) * q**-rate).sum()))
                assert exact <= theorem.loss.log_moment(rate) + 1e-9


def test_the_smaller_of_two_bounds_is_stated_with_its_name() -> None:
    for levels, name in ((2, "poisson binomial+rdp"), (16, "blanket+pld")):
        mechanism = pq.design("pbm", epsilon=1.0, levels=levels)
        accountant = Accountant([Release(mechanism, 650, View(20))])
        stated = accountant.statement(1e-5)
        assert stated.method == name
        (theorem,) = mechanism.update_losses(WholeUpdate(NO_NORMS, 650, View(20)))
        assert theorem.count == 650
        bounds = [
            compose_epsilon([Part(loss, 650)], 1e-5).epsilon
            for loss in (theorem.loss, mechanism.loss(View(20)).loss)
        ]
        assert stated.epsilon == min(bounds)
    # Randomized response is that with two levels; more clients never cost more.
    one_bit = pq.design("one_bit", epsilon=1.0)
    spent = [Accountant([Release(one_bit, 650, View(n))]).statement(1e-5).epsilon for n in (20, 900, 2000)]
    assert spent == sorted(spent, reverse=True)
    assert pq.design("rqm", epsilon=1.0, bits=2).update_losses(WholeUpdate(NO_NORMS, 650, View(20))) == []


@pytest.mark.parametrize("name", ["skellam", "discrete_gaussian"])
def test_no_bound_for_norms_is_below_the_distribution_of_one_coordinate(name: str) -> None:
    """Coordinates in [-1, 1] have a norm of at most sqrt(d): then the bound applies, and is not smaller."""
    mechanism = pq.design(name, epsilon=1.0, levels=4)
    bound = mechanism.update_losses(WholeUpdate(UpdateNorms(l2=math.sqrt(50)), 50, View(20)))[0]
    exact = compose_epsilon([Part(mechanism.loss(View(20)).loss, 50)], 1e-5).epsilon
    assert exact <= compose_epsilon([Part(bound.loss, 1)], 1e-5).epsilon
