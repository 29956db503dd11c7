"""The histogram bound: above every sum, and not by much."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import multinomial

import fl_privquant as pq
from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss
from fl_privquant.privacy_loss.sums import blanket
from fl_privquant.privacy_loss.sums.histogram import from_curve, histogram_loss
from fl_privquant.privacy_loss.tables.dominating_pair import dominating_loss
from tests.exact import hockey_stick, random_table


def bound(table: CertifiedTable, clients: int) -> PrivacyLoss:
    low = table.weights.min(axis=0)
    share = float(low.sum()) / 2**32
    found = histogram_loss(table.weights / 2**32, clients - 1, share, dominating_loss(table))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("levels", "clients"), [(2, 3), (3, 4), (4, 3)])
def test_never_below_the_worst_inputs_of_the_others(seed: int, levels: int, clients: int) -> None:
    """All histograms of the codes of all inputs of the others, by enumeration: more than any sum shows."""
    table = random_table(seed, levels, rows=3)
    rows = table.distribution.rows
    loss = bound(table, clients)
    for others in itertools.combinations_with_replacement(range(len(rows)), clients - 1):
        distributions = {
            i: _histograms([rows[i], *(rows[each] for each in others)]) for i in range(len(rows))
        }
        for i, j in itertools.permutations(distributions, 2):
            pair = np.array(
                [(distributions[i][key], distributions[j].get(key, 0.0)) for key in distributions[i]]
            )
            for epsilon in np.linspace(0.0, table.epsilon, 9):
                exact = hockey_stick(pair[:, 0], pair[:, 1], float(epsilon))
                assert exact <= loss.delta(float(epsilon)) * (1.0 + 1e-9) + 1e-13


def _histograms(distributions: list[np.ndarray]) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], float] = {}
    for outputs in itertools.product(range(distributions[0].size), repeat=len(distributions)):
        key = tuple(outputs.count(i) for i in range(distributions[0].size))
        found[key] = found.get(key, 0.0) + math.prod(
            distribution[i] for distribution, i in zip(distributions, outputs, strict=True)
        )
    return found


def test_the_bound_itself_by_enumeration() -> None:
    """Ten draws of three outputs: the expectation over all multinomial outcomes, for the worst pair."""
    table = random_table(1, 3, rows=3)
    rows = table.distribution.rows
    low = rows.min(axis=0)
    share, base = low.sum(), low / low.sum()
    loss, clients = bound(table, 10), 10
    for epsilon in (0.0, 0.05, 0.2):
        exact = 0.0
        for i, j in itertools.permutations(range(len(rows)), 2):
            total = 0.0
            for draws in range(clients):
                chance = math.comb(clients - 1, draws) * share**draws * (1 - share) ** (clients - 1 - draws)
                counts = [n for n in itertools.product(range(draws + 2), repeat=3) if sum(n) == draws + 1]
                gains = (np.array(counts) / base) @ (rows[i] - math.exp(epsilon) * rows[j]) / (draws + 1)
                total += chance * float(multinomial.pmf(counts, draws + 1, base) @ np.maximum(gains, 0.0))
            exact = max(exact, total)
        assert exact <= loss.delta(epsilon) <= 1.15 * exact + 1e-4


@pytest.mark.parametrize(
    ("name", "epsilon", "clients", "room"),
    # Few draws, and a large epsilon, of which few are from the blanket, are what it is worst for.
    [("optm", 1.0, 20, 1.1), ("rqm", 1.0, 20, 1.1), ("optm", 1.0, 300, 1.04), ("optm", 4.0, 300, 1.5)],
)
def test_next_to_the_sum(name: str, epsilon: float, clients: int, room: float) -> None:
    table = pq.design(name, epsilon=epsilon, levels=8 if epsilon > 2.0 else 4).table
    summed, seen, local = (
        compose_epsilon([Part(loss, 500)], 1e-6).epsilon
        for loss in (blanket.blanket_loss(table, clients), bound(table, clients), dominating_loss(table))
    )
    assert summed * 0.999 <= seen <= room * summed
    assert seen <= local


def test_fine_lattices_take_it_and_lose_little() -> None:
    """The same rows on codes up to 20 000 and up to 7: the sums differ, the histograms do not."""
    fine = pq.design("optm", epsilon=1.0, bits=2, lattice=False).table
    assert fine.codebook.max_code > 10**4
    found = compose_epsilon([Part(blanket.blanket_loss(fine, 1000), 100)], 1e-6).epsilon
    coarse = blanket.blanket_loss(pq.design("optm", epsilon=1.0, bits=2).table, 1000)
    assert found <= 1.05 * compose_epsilon([Part(coarse, 100)], 1e-6).epsilon


def test_many_outputs_go_pair_by_pair() -> None:
    table = pq.design("rqm", epsilon=1.0, bits=4).table
    assert table.codebook.num_levels > 12
    found, summed = (
        compose_epsilon([Part(loss, 100)], 1e-6).epsilon
        for loss in (bound(table, 50), blanket.blanket_loss(table, 50))
    )
    assert summed * 0.999 <= found <= 1.08 * summed


def test_a_curve_becomes_a_loss_that_has_it() -> None:
    response = dominating_loss(pq.design("one_bit", epsilon=1.0).table)
    losses = np.linspace(0.0, response.max_loss, 9)
    found = from_curve(losses, np.array([response.delta(float(each)) for each in losses]))
    for epsilon in np.linspace(0.0, 1.2, 25):
        assert response.delta(float(epsilon)) <= found.delta(float(epsilon)) * (1.0 + 1e-9)
        assert found.delta(float(epsilon)) <= response.delta(float(epsilon)) + 0.01
    # A bound that is too high in the middle does no harm: the chord below it holds for a convex curve.
    heights = np.array([response.delta(float(each)) for each in losses])
    heights[4] += 0.05
    again = from_curve(losses, heights)
    assert again.delta(float(losses[4])) < heights[4]
    assert again.delta(float(losses[4])) >= response.delta(float(losses[4])) * (1.0 - 1e-9)
