"""Attacks on the short roster of signed rounds: clients see all ids, but only their neighbors' keys.

What a client no longer sees are the keys of others. So a server tries other trees, paths and lists, shows
keys otherwise than they are in the tree, and shows two trees to two groups of clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fl_privquant.errors import InvalidUpdateError, SecureAggregationError
from fl_privquant.secagg import GraphParameters
from fl_privquant.secagg._wire import Subset
from fl_privquant.secagg.crypto import keys
from fl_privquant.secagg.graph.neighbors import Graph
from fl_privquant.secagg.graph.roster_tree import (
    merkle_levels,
    merkle_path,
    merkle_root,
    merkle_root_from_path,
)
from fl_privquant.secagg.messages import Roster
from fl_privquant.secagg.signed.transcript import graph_digest, listing_digest
from tests.secagg.driver import Round, at

VICTIM, NUM_CLIENTS = 3, 47


def rosters(round_: Round) -> dict[int, Roster]:
    return {i: Roster.from_bytes(data) for i, data in round_.server.rosters().items()}


def ids(roster: Roster, clients: tuple[int, ...]) -> Roster:
    """The roster with a list of ids in place of marks on the list of known clients."""
    return replace(roster, ids=clients, present=Subset())


EVERYONE = tuple(7 * i + 3 for i in range(NUM_CLIENTS))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: ids(r, (*EVERYONE[:5], EVERYONE[4], *EVERYONE[6:])), "increase strictly"),
        (lambda r: replace(r, path=r.path[:-1]), "too short"),
        (lambda r: replace(r, path=(*r.path, bytes(32))), "too long"),
    ],
    ids=["a client twice", "short path", "long path"],
)
def test_rosters_that_a_client_refuses(change: Callable[[Roster], Roster], reason: str) -> None:
    """More of them, of complete graphs, are in tests/secagg/test_refusals.py."""
    round_ = at("share", NUM_CLIENTS)
    roster = change(rosters(round_)[VICTIM])
    with pytest.raises((SecureAggregationError, InvalidUpdateError), match=reason):
        round_.client(VICTIM).share_keys(roster.to_bytes())


OTHER_ROOTS: dict[str, Callable[[Roster], Roster]] = {
    "another node on the path": lambda r: replace(r, path=(bytes(32), *r.path[1:])),
    "the path of another": lambda r: replace(r, path=r.path[::-1]),
    "a client left out": lambda r: ids(replace(r, num_clients=46), EVERYONE[:-1]),
    "another number of witnesses": lambda r: replace(r, num_witnesses=3),
}


@pytest.mark.parametrize("change", OTHER_ROOTS)
def test_split_views_have_no_mask_in_common(change: str) -> None:
    """What a client cannot refuse changes its graph's digest: its masks are nobody else's."""
    round_ = at("share", NUM_CLIENTS)
    told = rosters(round_)
    roster = OTHER_ROOTS[change](told[VICTIM])
    for i in EVERYONE:
        if i != VICTIM:
            assert round_.server.receive(i, round_.clients[i].share_keys(told[i].to_bytes()))
    # The client draws another graph; whose keys the server shows for the neighbors there does not matter.
    client = round_.client(VICTIM)
    shares = client.share_keys(roster.to_bytes())
    assert client._graph_digest != round_.server._graph_digest
    assert not round_.server.receive(VICTIM, shares)
    assert "not signed by the identity" in round_.server.rejected[VICTIM]
    theirs = {bytes(root) for i in EVERYONE if i != VICTIM for root in round_.clients[i]._roots.values()}
    assert not theirs & {bytes(root) for root in client._roots.values()}


@pytest.mark.parametrize("shown_otherwise", [False, True])
def test_a_key_that_is_shown_otherwise_than_in_the_tree_opens_nothing(shown_otherwise: bool) -> None:
    """The victim gets the right path, and for an honest neighbor a key that the server invented.

    All clients have the same digest and mask, and the server is given every self mask. The two clients have
    different masks in common, which the server does not know: no sum with either of them opens.
    """
    round_ = at("share", NUM_CLIENTS, dimension=50, max_code=1, width=20)
    told, private = rosters(round_), keys.draw_secret()
    peer = round_.server._graph[VICTIM][0]
    if shown_otherwise:
        changed = (keys.public_key(private), *told[VICTIM].public_keys[1:])
        told[VICTIM] = replace(told[VICTIM], public_keys=changed)
    for i in EVERYONE:
        assert round_.server.receive(i, round_.clients[i].share_keys(told[i].to_bytes()))
    assert len({client._graph_digest for client in round_.clients.values()}) == 1
    victims, peers = round_.clients[VICTIM]._roots[peer], round_.clients[peer]._roots[VICTIM]
    assert (victims != peers) == shown_otherwise
    pair = keys.agree(
        private, keys.public_key(private), round_.public_keys()[VICTIM], round_.server._graph_digest
    )
    assert keys.expand(pair, keys.SEED_BYTES, keys.MASK_ROOT) not in (victims, peers)
    left = round_.bare_sum(width=20, dimension=50)
    assert (np.count_nonzero(left) > 45) == left.any() == shown_otherwise


def test_a_client_with_another_list_is_told_names_and_identities_in_full() -> None:
    """A list with one client more: its roster is longer, and the sum is that of all."""
    round_ = at("advertise", NUM_CLIENTS)
    longer = dict(round_.policies[VICTIM].known_identities or {}) | {10**6: bytes(range(32))}
    round_.policies[VICTIM] = replace(round_.policies[VICTIM], known_identities=longer)
    result = round_.run()
    assert set(result.survivors) == set(round_.inputs)
    np.testing.assert_array_equal(result.total, round_.expected(round_.inputs))
    sizes = {i: len(data) for i, data in round_.sent["Roster"].items()}
    neighbors = len(round_.server._graph[VICTIM])
    assert sizes[VICTIM] - max(sizes[i] for i in sizes if i != VICTIM) > 32 * neighbors


def test_the_graph_follows_from_all_keys() -> None:
    """Another key anywhere, threshold, number of witnesses or round: another graph altogether."""
    clients = list(range(5, 5 + 3 * 60, 3))
    leaves = [keys.digest(bytes([i])) for i in range(60)]
    listing = listing_digest(clients, merkle_root(leaves))
    graph, other = GraphParameters(60, 32, 17), GraphParameters(60, 32, 18)
    seeds = [
        graph_digest(bytes(32), graph, 19, listing),
        graph_digest(
            bytes(32), graph, 19, listing_digest(clients, merkle_root([keys.digest(b"new"), *leaves[1:]]))
        ),
        graph_digest(bytes(32), graph, 19, listing_digest([4, *clients[1:]], merkle_root(leaves))),
        graph_digest(bytes(32), other, 19, listing),
        graph_digest(bytes(32), replace(graph, spread=True), 19, listing),
        graph_digest(bytes(32), graph, 20, listing),
        graph_digest(bytes([1]) * 32, graph, 19, listing),
    ]
    assert len(set(seeds)) == 7
    graphs = [Graph(seed, graph) for seed in seeds]
    assert len({tuple(each.witnesses(60)) for each in graphs}) == 7
    assert len({frozenset(each.neighbors(5)) for each in graphs}) == 7


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 47, 500])
def test_a_path_proves_one_leaf_at_one_place(size: int) -> None:
    leaves = [keys.digest(i.to_bytes(8, "little")) for i in range(size)]
    levels = merkle_levels(leaves)
    assert levels[-1] == [merkle_root(leaves)]
    for place in {0, size // 2, size - 1}:
        path = merkle_path(levels, place)
        assert len(path) <= math.ceil(math.log2(size)) if size > 1 else not path
        assert merkle_root_from_path(leaves[place], place, size, path) == merkle_root(leaves)
        assert merkle_root_from_path(bytes(32), place, size, path) != merkle_root(leaves)
        for other in range(min(size, 9)):
            if other != place:
                try:
                    found = merkle_root_from_path(leaves[place], other, size, path)
                except SecureAggregationError:
                    continue
                assert found != merkle_root(leaves)


def test_trees_of_different_leaves_have_different_roots() -> None:
    """Of another number, in another order, or with one of them twice."""
    leaves = [bytes([i]) * 32 for i in range(6)]
    roots = {merkle_root(leaves[:size]) for size in range(1, 7)}
    roots |= {merkle_root([*leaves[:4], leaves[5], leaves[4]]), merkle_root([*leaves[:5], leaves[4]])}
    assert len(roots) == 8


@pytest.mark.parametrize("spread", [False, True])
def test_grinding_gains_what_luck_gains_and_no_more(spread: bool) -> None:
    """A server tries keys of its corrupt clients: corrupt neighbors of a client are distributed as computed.

    3000 trees that differ in one corrupt key only, each with its graph, of 60 clients of which 12 are
    corrupt: the chi-square test of the number of corrupt neighbors has odds of 10^-6 of failing by chance.
    In the negative control the server chooses the seed itself, and takes the best of ten.
    """
    n, k, corrupt = 60, 12, set(range(12))
    graph, rng = GraphParameters(n, k, 7, spread), np.random.default_rng(3)
    leaves = [rng.bytes(32) for _ in range(n)]

    def counted(tries: int) -> int:
        counts = []
        for _ in range(tries):
            leaves[0] = rng.bytes(32)
            seed = graph_digest(bytes(32), graph, 5, listing_digest(range(n), merkle_root(leaves)))
            counts.append(len(corrupt & set(Graph(seed, graph).neighbors(n - 1))))
        return max(counts)

    odds = stats.hypergeom(n - 1, 12, k).pmf(np.arange(k + 1)) if not spread else _distinct_odds(n, 12, k)

    def p_value(counts: list[int]) -> float:
        seen = np.bincount(counts, minlength=k + 1)[: k + 1]
        kept = odds * len(counts) >= 5
        seen = np.append(seen[kept], seen[~kept].sum())
        expected = np.append(odds[kept], odds[~kept].sum()) * len(counts)
        return float(stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue)

    assert p_value([counted(1) for _ in range(3000)]) > 1e-6
    assert p_value([counted(10) for _ in range(300)]) < 1e-6


def _distinct_odds(n: int, marked: int, k: int) -> np.ndarray:
    """Different marked neighbors in k / 2 cycles, by enumeration of what each cycle adds."""
    odds = np.zeros(k + 1)
    odds[0] = 1.0
    for _ in range(k // 2):
        after = np.zeros(k + 1)
        for x, p in enumerate(odds[: k - 1]):
            distribution = stats.hypergeom(n - 1, marked - x, 2)
            after[x : x + 3] += p * distribution.pmf([0, 1, 2])
        odds = after
    return odds
