"""A server that chooses whom to call lost, once it knows the graph: on a ring this attack succeeded.

It calls those lost that complete two runs of neighbors around a group of clients, all of them lost or
corrupt, and opens the sum of the group alone. Every client has signed the list of survivors, which has as
many as it must.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import ClientPolicy, GraphParameters, choose_parameters, security_failure
from fl_privquant.secagg._wire import Subset
from fl_privquant.secagg.graph.neighbors import Graph, cached_graph
from fl_privquant.secagg.messages import SurvivorList
from tests.secagg.driver import at

HALF = {"corrupt_fraction": 0.1, "dropout_fraction": 0.1}


def groups(graph: Graph, survivors: set[int]) -> list[set[int]]:
    """The honest survivors, by who is connected with whom."""
    left, found = set(survivors), []
    while left:
        todo, group = [left.pop()], set[int]()
        while todo:
            group.add(at := todo.pop())
            near = left & set(graph.neighbors(at))
            left -= near
            todo += near
        found.append(group)
    return found


def cut_ring(graph: Graph, n: int, k: int, corrupt: set[int], threshold: int, most: int) -> set[int] | None:
    """The clients to call lost so that the ring falls into two groups that both open, if it can."""
    order, run = graph.witnesses(n), k // 2
    runs = []
    for start in range(n):
        clients = {order[(start + step) % n] for step in range(run)}
        # Clients beside the run need holders. The corrupt ones in the run count, as they are not called lost.
        if len(clients & corrupt) >= threshold - run - 1:
            runs.append((start, clients))
    for (start, first), (other, second) in itertools.product(runs, runs):
        lost = (first | second) - corrupt
        enough = run < (other - start) % n < n - run and len(lost) <= most
        if enough and graph.min_holders(set(range(n)) - lost) >= threshold:
            return lost
    return None


def test_a_ring_is_cut_by_the_dropouts_that_a_round_allows() -> None:
    """The graph that signed rounds of 500 clients had: every tenth one falls apart, without any grinding."""
    n, k, threshold, rng, cuts = 500, 54, 35, np.random.default_rng(1), 0
    parameters = GraphParameters(n, k, threshold)
    for _ in range(40):
        corrupt = set(rng.choice(n, 50, replace=False).tolist())
        graph = Graph(rng.bytes(8), parameters)
        lost = cut_ring(graph, n, k, corrupt, threshold, most=50)
        if lost is not None:
            apart = groups(graph, set(range(n)) - lost - corrupt)
            cuts += len(apart) == 2 and max(map(len, apart)) < n - 100
    assert cuts >= 2


def test_clients_that_sign_refuse_a_ring_that_can_be_cut() -> None:
    policy = ClientPolicy(known_identities={})
    for n, k, threshold in ((500, 54, 35), (500, 100, 60), (1000, 62, 40), (200, 34, 21)):
        with pytest.raises(SecureAggregationError, match="the odds of a failure"):
            policy.check_graph(n, k, threshold)
    # With more neighbors than can be gone there is no cut, and the ring is taken.
    policy.check_graph(500, 102, 74)
    for n in (151, 200, 250, 300, 500, 1000, 5000):
        chosen = choose_parameters(n, signed=True)
        assert chosen.spread or chosen.num_neighbors > 2 * math.ceil(n / 10)
        assert security_failure(chosen, **HALF, signed=True) <= 2.0**-40
        policy.check_graph(n, chosen.num_neighbors, chosen.threshold, chosen.spread)


def test_a_spread_graph_is_not_taken_for_a_ring_or_a_complete_one() -> None:
    """A client of a spread graph may have fewer neighbors than edges, so that other odds hold."""
    with pytest.raises(SecureAggregationError, match="complete, not spread"):
        ClientPolicy(known_identities={}).check_graph(33, 32, 19, True)
    odds = {"corrupt_fraction": 0.05, "dropout_fraction": 0.05, "signed": True}
    ring, spread = (GraphParameters(300, 40, 29, spread) for spread in (False, True))
    assert security_failure(ring, **odds) == 0.0 < security_failure(spread, **odds)


def greedily_lost(graph: Graph, n: int, corrupt: set[int], threshold: int, most: int, start: int) -> set[int]:
    """An attack on any graph: grow a group around a client, and lose the honest ones at its border."""
    group, lost = {start}, set[int]()
    neighbors = cache(graph.neighbors)
    for _ in range(n // 2):
        border = {peer for member in group for peer in neighbors(member)} - group - corrupt
        if len(border) <= most and graph.min_holders(set(range(n)) - border) >= threshold:
            lost = border
        # The client whose neighbors add least to the border joins the group.
        inside = group | corrupt | border
        joins = min(border, key=lambda client: len(set(neighbors(client)) - inside), default=None)
        if joins is None:
            break
        group.add(joins)
    return lost


@pytest.mark.parametrize(("spread", "falls"), [(False, True), (True, False)])
def test_a_greedy_cut_finds_rings_and_not_spread_graphs(spread: bool, falls: bool) -> None:
    """200 clients, 12 neighbors, 20 corrupt, 30 lost: on rings the attack works, on spread graphs never."""
    n, rng, cuts = 200, np.random.default_rng(2), 0
    parameters = GraphParameters(n, 12, 7, spread)
    for _ in range(6):
        corrupt = set(rng.choice(n, 20, replace=False).tolist())
        graph = Graph(rng.bytes(8), parameters)
        for start in [client for client in range(n) if client not in corrupt][:8]:
            lost = greedily_lost(graph, n, corrupt, 7, 30, start)
            survivors = set(range(n)) - lost - corrupt
            if lost and graph.min_holders(set(range(n)) - lost) >= 7:
                cuts += len(groups(graph, survivors)) > 1
    assert (cuts > 0) == falls


@pytest.mark.parametrize("one_less", [False, True])
def test_a_list_on_which_a_survivor_has_too_few_holders_is_not_confirmed(one_less: bool) -> None:
    """Enough survivors in all, but the neighbors of one of them are among the lost; with one less it is."""
    round_ = at("confirm", 30, graph=(8, 6))
    server, client = round_.server, round_.clients[min(round_.inputs)]
    graph, needed = cached_graph(server._graph_digest, server.graph_parameters), 6
    lonely = next(i for i in range(30) if i != 0 and 0 not in graph.neighbors(i))
    neighbors = graph.neighbors(lonely)
    lost = neighbors[: len(neighbors) + 2 - needed - one_less]
    assert len(lost) == 4 - one_less
    survivors = tuple(i for i in range(30) if i not in lost)
    listed = SurvivorList(client.round_id, Subset(30, survivors)).to_bytes()
    assert (graph.min_holders(survivors) >= needed) == one_less
    if one_less:
        assert client.confirm(listed)
        return
    with pytest.raises(SecureAggregationError, match="has 5 holders among them, below the threshold"):
        client.confirm(listed)
