"""The bound on cuts of a spread graph, term by term and against the best of all cuts of small graphs.

And two more things that a server may choose: the number of witnesses, and keys of neighbors that it shows a
client whose state was put back.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fl_privquant.secagg import ClientRound, GraphParameters
from fl_privquant.secagg import client as client_module
from fl_privquant.secagg._answer_log import AnsweredStages
from fl_privquant.secagg.crypto import keys, shamir
from fl_privquant.secagg.graph.neighbors import Graph
from fl_privquant.secagg.graph.parameters import (
    _CHERNOFF,
    _SMALL,
    _Cohort,
    _cut_off_odds,
    _distinct_neighbor_odds,
)
from fl_privquant.secagg.messages import Roster, SharedSeeds
from fl_privquant.secagg.signed.witnesses import quorum_size
from tests.secagg.driver import open_round

# A frequency this many standard errors above its odds has odds below 10^-6.
FAR = 4.9


def few_apart(cohort: _Cohort, threshold: int, size: int) -> float:
    """The module's first bound for a given group: each has threshold - size corrupt neighbors."""
    if size > _SMALL:
        return 1.0
    odds = _distinct_neighbor_odds(cohort.n, cohort.corrupt, cohort.k, 2 * (size - 1))
    return float(odds[max(threshold - size, 0) :].sum()) ** size


def inner_holders_bound(cohort: _Cohort, threshold: int, size: int) -> float:
    """The second: together they have size * (threshold - 1) holders among themselves and the corrupt."""
    pool = max(cohort.n - 1 - 2 * size, 1)
    logs = [
        cohort.k * math.log1p((math.exp(x) - 1) * cohort.corrupt / pool + (math.exp(2 * x) - 1) * size / pool)
        - x * (threshold - 1)
        for x in _CHERNOFF.tolist()
    ]
    return math.exp(min(0.0, size * min(logs)))


def other_side(cohort: _Cohort, size: int) -> int:
    return max(size, cohort.n - cohort.corrupt - cohort.lost - size)


def no_edge(cohort: _Cohort, size: int) -> float:
    """The third: none of them is joined to the other side, which is given."""
    return float((1 - other_side(cohort, size) / (cohort.n - 1)) ** (size * cohort.k // 2))


@pytest.mark.parametrize("numbers", [(40, 8, 12, 4), (60, 12, 10, 9), (24, 8, 3, 2)])
def test_the_bound_is_the_sum_of_the_smallest_terms(numbers: tuple[int, int, int, int]) -> None:
    n, k, corrupt, lost = numbers
    cohort, honest = _Cohort(*numbers, True), n - corrupt
    for threshold in range(k // 2 + 1, k + 2):
        total = 0.0
        for size in range(1, honest // 2 + 1):
            others = honest - size
            ways = (lost + 1) * math.comb(others, min(lost, others // 2))
            term = min(
                few_apart(cohort, threshold, size),
                inner_holders_bound(cohort, threshold, size),
                ways * no_edge(cohort, size),
            )
            total += min(1.0, term * math.comb(honest, size))
        found = float(_cut_off_odds(cohort, np.array([threshold]))[0])
        assert found == pytest.approx(total, rel=1e-6, abs=1e-200)


def neighbors_of_group(cohort: _Cohort, size: int, rounds: int) -> np.ndarray:
    """(rounds, size, k) neighbors of the first honest clients in simulated cycles; the first are corrupt."""
    rng, n = np.random.default_rng(size), cohort.n
    orders = rng.permuted(np.broadcast_to(np.arange(n), (rounds, cohort.k // 2, n)), axis=2)
    places = np.argsort(orders, axis=2)[:, :, cohort.corrupt : cohort.corrupt + size]
    sides = [np.take_along_axis(orders, (places + step) % n, axis=2) for step in (-1, 1)]
    return np.sort(np.concatenate(sides, axis=1).transpose(0, 2, 1), axis=2)


@pytest.mark.parametrize(
    ("numbers", "threshold", "size"),
    [((40, 8, 10, 4), 5, 1), ((40, 8, 14, 4), 6, 2), ((40, 6, 16, 10), 6, 3), ((20, 6, 6, 5), 6, 4)],
)
def test_each_term_bounds_what_happens_to_a_given_group(
    numbers: tuple[int, int, int, int], threshold: int, size: int
) -> None:
    """Simulated cycles; the first term is so sharp that it fails for one corrupt neighbor more."""
    cohort, rounds = _Cohort(*numbers, True), 20000
    near = neighbors_of_group(cohort, size, rounds)
    different = np.ones(near.shape, dtype=bool)
    different[..., 1:] = near[..., 1:] != near[..., :-1]
    group_end = cohort.corrupt + size
    corrupt = ((near < cohort.corrupt) & different).sum(axis=2)
    held = ((near < group_end) & different).sum(axis=2)
    across = (near >= group_end) & (near < group_end + other_side(cohort, size))
    seen = {
        "few": (corrupt >= threshold - size).all(axis=1).mean(),
        "held": (held.sum(axis=1) >= size * (threshold - 1)).mean(),
        "edge": (~across.any(axis=(1, 2))).mean(),
    }
    bounds = {
        "few": few_apart(cohort, threshold, size),
        "held": inner_holders_bound(cohort, threshold, size),
        "edge": no_edge(cohort, size),
    }
    for name, bound in bounds.items():
        assert seen[name] <= bound + FAR * math.sqrt(bound / rounds)
    assert seen["few"] > few_apart(cohort, threshold + 1, size) * 1.5


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


@pytest.mark.parametrize(("num_clients", "corrupt"), [(40, 4), (151, 16), (200, 60), (500, 50)])
def test_any_number_of_witnesses_that_a_server_chooses_is_safe(num_clients: int, corrupt: int) -> None:
    """In whole numbers: two quorums share only corrupt witnesses with odds of at most 2^-81 a graph."""
    possible = 0
    for count in (*range(40), *range(40, num_clients, 23), num_clients):
        quorum = quorum_size(num_clients, count, corrupt, 2.0**-41)
        if quorum > count:
            continue
        possible += 1
        ways = sum(
            math.comb(corrupt, x) * math.comb(num_clients - corrupt, count - x)
            for x in range(2 * quorum - count, min(corrupt, count) + 1)
        )
        assert Fraction(ways, math.comb(num_clients, count)) <= Fraction(1, 1 << 81)
    assert possible > 5


def test_a_state_that_is_put_back_and_shown_another_key_tells_one_unknown_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The digest of the graph does not hold keys as they are shown, so that the two answers can differ.

    The seeds are the same. The corrections differ by a multiple of a polynomial that is 0 at 0, namely by
    the difference of two shares that only an honest holder, and nobody at all, can derive.
    """
    round_, victim = open_round(47, signed=True, restore=False), 3
    round_.advertise()
    roster = Roster.from_bytes(round_.server.rosters()[victim])
    state, answers = round_.clients[victim].to_bytes(), []
    invented = (keys.public_key(keys.draw_secret()), *roster.public_keys[1:])
    for public_keys in (roster.public_keys, invented):
        monkeypatch.setattr(client_module, "answered_stages", AnsweredStages())
        client = ClientRound.from_bytes(state, round_.policies[victim])
        shown = replace(roster, public_keys=public_keys).to_bytes()
        answers.append(SharedSeeds.from_bytes(client.share_keys(shown)))
    first, second = answers
    assert (first.seed_commitment, first.wrapping_commitment) == (
        second.seed_commitment,
        second.wrapping_commitment,
    )
    assert first.corrections != second.corrections
    assert first.sealed_roots[0] != second.sealed_roots[0]
    assert first.sealed_roots[1:] == second.sealed_roots[1:]
    holders = sorted([*round_.server._graph[victim], victim])
    threshold, changed = roster.threshold, holders.index(round_.server._graph[victim][0]) + 1
    points = [i + 1 for i in range(threshold - 1, len(holders)) if holders[i] != victim]
    found = set()
    for x, one, other in zip(points, first.corrections, second.corrections, strict=True):
        weight = 1
        for node in set(range(threshold)) - {changed}:
            weight = weight * (x - node) * pow(changed - node, -1, shamir.PRIME) % shamir.PRIME
        words = np.frombuffer(shamir.subtract_shares(one, other), dtype="<u4").tolist()
        found.add(tuple(word * pow(weight, -1, shamir.PRIME) % shamir.PRIME for word in words))
    assert len(found) == 1 < len(points)
