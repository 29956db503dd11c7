"""The odds behind the graph: against exact enumeration, scipy, and simulated graphs."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_privquant.cohort import count_clients
from fl_privquant.errors import InvalidSpecError
from fl_privquant.secagg import GraphParameters, choose_parameters, security_failure
from fl_privquant.secagg.graph import parameters
from fl_privquant.secagg.graph.neighbors import Graph
from fl_privquant.secagg.graph.parameters import _disconnection_odds, hypergeometric_tail


def correctness_failure(graph: GraphParameters, *, dropout_fraction: float) -> float:
    """Bound on the odds that a round of this graph ends without a sum."""
    n, k = graph.num_clients, graph.num_neighbors
    lost = count_clients(dropout_fraction, n)
    return float(parameters._correctness_failures(n, k, np.array([graph.threshold]), lost, graph.spread)[0])


def draw_graph(parameters: GraphParameters, seed: bytes = b"seed") -> dict[int, tuple[int, ...]]:
    """The neighbors of all clients."""
    graph = Graph(seed, parameters)
    return {place: tuple(graph.neighbors(place)) for place in range(parameters.num_clients)}


def connected(members: set[int], graph: dict[int, tuple[int, ...]]) -> bool:
    if not members:
        return True
    seen, todo = set(), [next(iter(members))]
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += [peer for peer in graph[at] if peer in members]
    return seen == members


@given(st.integers(1, 300), st.data())
def test_tails_are_scipys(population: int, data: st.DataObject) -> None:
    marked = data.draw(st.integers(0, population))
    drawn = data.draw(st.integers(0, population))
    expected = stats.hypergeom(population, marked, drawn).sf(np.arange(-1, drawn + 1))
    np.testing.assert_allclose(
        hypergeometric_tail(population, marked, drawn), expected, rtol=1e-7, atol=1e-290
    )


def test_small_tails_are_exact() -> None:
    """Against whole numbers, down to odds where floating point would lose a difference to 1."""
    exact = math.comb(100, 60) / math.comb(1000, 60)
    assert hypergeometric_tail(1000, 100, 60)[60] == pytest.approx(exact, rel=1e-9)
    assert exact < 1e-60


@pytest.mark.parametrize(("n", "k", "gone"), [(10, 4, 4), (10, 4, 5), (12, 4, 6), (12, 6, 6), (13, 4, 7)])
def test_odds_of_falling_apart_bound_the_exact_ones(n: int, k: int, gone: int) -> None:
    """Over all sets of clients that can be gone: the bound holds, and is within a factor of 20."""
    graph = draw_graph(GraphParameters(n, k, k + 1))
    everyone = set(range(n))
    sets = list(itertools.combinations(range(n), gone))
    apart = sum(not connected(everyone - set(removed), graph) for removed in sets) / len(sets)
    assert 0 < apart <= _disconnection_odds(n, k, gone) <= 20 * apart


def test_too_few_gone_never_cut_the_ring() -> None:
    graph = draw_graph(GraphParameters(11, 4, 4))
    for removed in itertools.combinations(range(11), 3):
        assert connected(set(range(11)) - set(removed), graph)
    assert _disconnection_odds(11, 4, 3) == 0.0
    assert _disconnection_odds(11, 4, 4) > 0.0


def simulate(
    parameters: GraphParameters, corrupt: int, lost: int, rounds: int, lies: bool
) -> tuple[float, float]:
    """Shares of simulated graphs in which security, and correctness, fail by their definitions."""
    generator = random.Random(5)
    n, t = parameters.num_clients, parameters.threshold
    insecure = incorrect = 0
    for _ in range(rounds):
        graph = draw_graph(parameters, generator.randbytes(8))
        bad = set(range(corrupt))
        dead = set(range(corrupt, corrupt + lost))
        honest = set(range(n)) - bad
        given_both = {i: len(bad.intersection(graph[i])) for i in honest}
        # Corrupt holders give both shares, honest ones (itself too) one: which, a server that lies decides.
        opened = any(
            2 * t <= len(graph[i]) + 1 + both if lies else both >= t for i, both in given_both.items()
        )
        insecure += opened or not connected(honest - dead, graph)
        incorrect += any(len({*graph[i], i} - dead) < t for i in range(n))
    return insecure / rounds, incorrect / rounds


@pytest.mark.parametrize("lies", [False, True])
@pytest.mark.parametrize(
    ("parameters", "corrupt", "lost"),
    [
        (GraphParameters(40, 8, 5), 12, 4),
        (GraphParameters(40, 12, 9), 8, 4),
        (GraphParameters(40, 12, 8), 4, 10),
        (GraphParameters(60, 20, 15), 12, 6),
        (GraphParameters(50, 10, 9), 3, 2),
    ],
)
def test_bounds_hold_in_simulated_graphs(
    parameters: GraphParameters, corrupt: int, lost: int, lies: bool
) -> None:
    """What is simulated stays below the bound, and within its union bound's factor where it is small.

    1500 graphs: a frequency 4.9 standard errors above its odds has odds below 10^-6.
    """
    n, rounds = parameters.num_clients, 1500
    insecure, incorrect = simulate(parameters, corrupt, lost, rounds, lies)
    bounds = (
        security_failure(
            parameters, corrupt_fraction=corrupt / n, dropout_fraction=lost / n, server_may_lie=lies
        ),
        correctness_failure(parameters, dropout_fraction=lost / n),
    )
    for seen, bound in zip((insecure, incorrect), bounds, strict=True):
        odds = min(bound, 1.0)
        assert seen <= odds + 4.9 * math.sqrt(odds * (1 - odds) / rounds) + 1e-12
        if bound < 0.3:
            assert seen >= 0.2 * bound - 4.9 * math.sqrt(bound / rounds)


@pytest.mark.parametrize(
    ("lies", "parameters", "corrupt"),
    [(True, GraphParameters(40, 12, 9), 8), (False, GraphParameters(40, 8, 5), 12)],
)
def test_the_simulation_would_notice_a_bound_that_is_too_low(
    lies: bool, parameters: GraphParameters, corrupt: int
) -> None:
    """Negative control: the odds for a threshold two higher do not bound what is seen."""
    n, k, t = parameters.num_clients, parameters.num_neighbors, parameters.threshold
    insecure, _ = simulate(parameters, corrupt, 4, 1500, lies)
    wrong = security_failure(
        GraphParameters(n, k, t + 2),
        corrupt_fraction=corrupt / n,
        dropout_fraction=0.1,
        server_may_lie=lies,
    )
    assert insecure > wrong + 4.9 * math.sqrt(wrong / 1500)


def test_a_server_that_lies_needs_more_neighbors_but_on_a_complete_graph() -> None:
    """There it is covered without being asked for; on a sparse one the odds say that it is not."""
    assert choose_parameters(20) == choose_parameters(20, server_may_lie=True)
    trusted, lying = choose_parameters(1000), choose_parameters(1000, server_may_lie=True)
    assert (trusted.num_neighbors, lying.num_neighbors) == (44, 94)
    odds = {"corrupt_fraction": 0.1, "dropout_fraction": 0.1}
    assert security_failure(lying, server_may_lie=True, **odds) <= 2.0**-40
    assert security_failure(trusted, server_may_lie=True, **odds) >= 1.0


@pytest.mark.parametrize(
    ("n", "corrupt", "dropout"),
    [
        (3, 0.0, 0.1),
        (4, 0.1, 0.1),
        (10, 0.3, 0.3),
        (33, 0.1, 0.1),
        (34, 0.1, 0.1),
        (100, 0.1, 0.3),
        (300, 1 / 3, 0.05),
    ],
)
@pytest.mark.parametrize("lies", [False, True])
def test_chosen_parameters_meet_the_odds_and_fewer_neighbors_do_not(
    n: int, corrupt: float, dropout: float, lies: bool
) -> None:
    odds = {"corrupt_fraction": corrupt, "dropout_fraction": dropout, "server_may_lie": lies}
    chosen = choose_parameters(n, **odds)
    assert security_failure(chosen, **odds) <= 2.0**-40
    assert correctness_failure(chosen, dropout_fraction=dropout) <= 2.0**-20
    fewer = chosen.num_neighbors - (2 if chosen.num_neighbors % 2 == 0 else 1)
    if fewer < 32:
        return
    for threshold in range(fewer // 2 + 1, fewer + 2):
        other = GraphParameters(n, fewer, threshold)
        insecure = security_failure(other, **odds)
        assert insecure > 2.0**-40 or correctness_failure(other, dropout_fraction=dropout) > 2.0**-20


def test_neighbors_grow_slowly() -> None:
    """What makes the cost of a client near-flat: ten times the clients, a fifth more neighbors."""
    counts = {n: choose_parameters(n).num_neighbors for n in (10, 33, 100, 1000, 10_000, 100_000)}
    assert counts == {10: 9, 33: 32, 100: 32, 1000: 44, 10_000: 52, 100_000: 56}


def test_complete_graphs_withstand_exactly_what_is_counted() -> None:
    chosen = choose_parameters(9, corrupt_fraction=1 / 3, dropout_fraction=0.2)
    assert chosen == GraphParameters(9, 8, 7)
    assert security_failure(chosen, corrupt_fraction=1 / 3, dropout_fraction=0.2) == 0.0
    assert security_failure(chosen, corrupt_fraction=5 / 9, dropout_fraction=0.2) >= 1.0
    assert correctness_failure(chosen, dropout_fraction=2 / 9) == 0.0
    assert correctness_failure(chosen, dropout_fraction=3 / 9) >= 1.0


def test_refusals() -> None:
    for wrong in (
        {"corrupt_fraction": 0.5, "dropout_fraction": 0.5},
        {"corrupt_fraction": 0.5, "dropout_fraction": 0.4, "server_may_lie": True},
        {"corrupt_fraction": -0.1},
        {"dropout_fraction": 1.0},
    ):
        with pytest.raises(InvalidSpecError):
            choose_parameters(50, **wrong)
    with pytest.raises(InvalidSpecError, match="from 2 to"):
        choose_parameters(1)
    for n, k, t in ((5, 5, 4), (6, 3, 3), (6, 4, 2), (6, 4, 6), (1, 0, 1)):
        with pytest.raises(InvalidSpecError):
            GraphParameters(n, k, t)


@given(st.integers(2, 40), st.data())
def test_graphs_are_regular_unless_spread_and_mutual(n: int, data: st.DataObject) -> None:
    k = data.draw(st.sampled_from([k for k in range(1, n) if k == n - 1 or k % 2 == 0]))
    spread = k % 2 == 0 and k < n - 1 and data.draw(st.booleans())
    graph = draw_graph(GraphParameters(n, k, k + 1, spread), data.draw(st.binary(max_size=8)))
    for client, peers in graph.items():
        assert len(set(peers)) == len(peers) <= k
        assert spread or len(peers) == k
        assert client not in peers
        assert list(peers) == sorted(peers)
        assert all(client in graph[peer] for peer in peers)
