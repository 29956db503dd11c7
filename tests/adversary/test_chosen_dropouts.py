"""Graphs of signed rounds: a server that chooses whom to call lost, once it knows the graph, cuts nobody off.

It calls those lost that set a group of clients apart, and opens the sum of the group alone. Every client has
signed the list of survivors, which has as many as it must. On a ring this attack succeeded.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from fl_privquant.cohort import count_clients
from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import ClientPolicy, GraphParameters, choose_parameters, security_failure
from fl_privquant.secagg._wire import Subset
from fl_privquant.secagg.graph.neighbors import Graph, cached_graph
from fl_privquant.secagg.graph.parameters import _Cohort, _cut_off_odds
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


SIGNED: dict[str, Any] = {"known_identities": {}}


@pytest.mark.parametrize(
    ("policy", "graph", "reason"),
    [
        (SIGNED, (500, 54, 35), "the odds of a failure"),
        (SIGNED, (200, 34, 21), "the odds of a failure"),
        # A server grinds: it tries keys of its corrupt clients until the graph is one that can be cut.
        (SIGNED, (1000, 62, 40), "the odds of a failure"),
        (SIGNED, (1000, 62, 40, True), "the odds of a failure"),
        # A client of a spread graph may have fewer neighbors than edges, so that other odds hold.
        (SIGNED, (33, 32, 19, True), "complete, not spread"),
        # Of 17 shares each of two lists would have opened one secret, if witnesses signed both.
        (SIGNED, (40, 32, 17), "threshold 17 of 33 holders"),
        ({"server_may_lie": True}, (1000, 44, 26), "threshold 26 of 45 holders"),
        ({"corrupt_fraction": 0.3}, (25, 24, 14), r"corrupt_fraction \(0.3\)"),
    ],
)
def test_clients_refuse_graphs_that_are_too_weak(
    policy: dict[str, Any], graph: tuple[Any, ...], reason: str
) -> None:
    with pytest.raises(SecureAggregationError, match=reason):
        ClientPolicy(**policy).check_graph(*graph)


def test_clients_accept_graphs_of_the_stated_odds() -> None:
    # With more neighbors than can be gone there is no cut, and a ring is taken.
    for ring in ((500, 102, 74), (1000, 202, 136)):
        ClientPolicy(**SIGNED).check_graph(*ring)
    for n in (34, 100, 150, 151, 300, 1000, 5000):
        chosen = choose_parameters(n, signed=True)
        assert chosen.spread or chosen.num_neighbors > 2 * math.ceil(n / 10) or n < 151
        assert security_failure(chosen, **HALF, signed=True) <= (2.0**-40 if n > 150 else 0.0)
        ClientPolicy(**SIGNED).check_graph(n, chosen.num_neighbors, chosen.threshold, chosen.spread)
    # Grinding is paid for in neighbors: those of rounds without signatures would be too few.
    assert security_failure(choose_parameters(1000), **HALF, signed=True) > 2.0**-40
    # Without signatures, whether a server may lie is for clients to say.
    ClientPolicy().check_graph(1000, 44, 26)


def test_thresholds_that_a_client_accepts_on_a_complete_graph_are_those_that_are_enough() -> None:
    """With fewer, colluders and two lists of dropouts open both secrets of a client."""
    for num_clients in range(3, 34):
        corrupt = lost = count_clients(0.1, num_clients)
        for threshold in range(1, num_clients + 1):
            good = 2 * threshold > num_clients + corrupt and num_clients - corrupt - lost >= 2
            try:
                ClientPolicy().check_graph(num_clients, num_clients - 1, threshold)
            except SecureAggregationError:
                assert not good
            else:
                assert good


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


# A frequency this many standard errors above its odds has odds below 10^-6.
FAR = 4.9


def can_be_cut(graph: Graph, cohort: _Cohort, threshold: int) -> bool:
    """Whether any group of honest clients can be set apart: all of them are tried, each with all its border.

    That the clients outside keep their holders is not asked for, so that this is more than a server can do.
    """
    honest = cohort.n - cohort.corrupt
    subsets = np.arange(1 << honest, dtype=np.uint32)
    bits = [(subsets >> np.uint32(i)) & np.uint32(1) for i in range(honest)]
    sizes = np.stack(bits).sum(axis=0).astype(np.int64)
    joined, fine = np.zeros(1 << honest, dtype=np.uint32), sizes > 0
    for i in range(honest):
        near = graph.neighbors(cohort.corrupt + i)
        row = np.uint32(sum(1 << peer - cohort.corrupt for peer in near if peer >= cohort.corrupt))
        outside = sum(peer < cohort.corrupt for peer in near)
        inside = bits[i] == 1
        joined[inside] |= row
        fine &= ~inside | (sizes[subsets & row] + outside >= threshold - 1)
    border = sizes[joined & ~subsets]
    return bool((fine & (border <= cohort.lost) & (honest - sizes - border >= sizes)).any())


@pytest.mark.parametrize(
    ("numbers", "threshold"),
    [((16, 8, 3, 1), 5), ((16, 10, 2, 2), 6), ((18, 10, 4, 1), 6), ((20, 10, 6, 1), 7)],
)
def test_no_cut_is_found_more_often_than_the_bound(
    numbers: tuple[int, int, int, int], threshold: int
) -> None:
    """The best of all cuts, in 300 graphs."""
    cohort, rounds, rng = _Cohort(*numbers, True), 300, np.random.default_rng(7)
    parameters = GraphParameters(cohort.n, cohort.k, threshold, spread=True)
    bound = float(_cut_off_odds(cohort, np.array([threshold]))[0])
    assert bound < 0.7
    seen = sum(can_be_cut(Graph(rng.bytes(8), parameters), cohort, threshold) for _ in range(rounds))
    assert seen / rounds <= bound + FAR * math.sqrt(bound / rounds)


def test_cuts_are_found_where_the_bound_says_nothing() -> None:
    """Every third graph of six neighbors can be cut (the negative control of the test above)."""
    cohort, rng = _Cohort(20, 6, 6, 2, True), np.random.default_rng(7)
    parameters = GraphParameters(20, 6, 5, spread=True)
    assert sum(can_be_cut(Graph(rng.bytes(8), parameters), cohort, 5) for _ in range(60)) > 6
    assert float(_cut_off_odds(cohort, np.array([5]))[0]) > 1


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


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (Subset(25, tuple(range(21))), "of 25 clients are left"),
        (Subset(26, tuple(range(26))), "a list of 26"),
        (Subset(25, tuple(range(1, 25))), "survivors"),
    ],
    ids=["too few", "another list", "not itself"],
)
def test_a_list_of_survivors_that_is_not_confirmed(told: Subset, reason: str) -> None:
    client = at("confirm", 25).clients[3]
    with pytest.raises(SecureAggregationError, match=reason):
        client.confirm(SurvivorList(client.round_id, told).to_bytes())
