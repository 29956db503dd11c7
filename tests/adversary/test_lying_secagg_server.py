"""A server that lies in secure aggregation, and clients that seal garbage: attacks that once succeeded.

Each starts from a round as it should run, in which the server sends something else to some clients.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl_privquant.cohort import count_clients
from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import (
    ClientPolicy,
    ClientRound,
    GraphParameters,
    choose_parameters,
    security_failure,
)
from fl_privquant.secagg import client as client_module
from fl_privquant.secagg._wire import Subset
from fl_privquant.secagg.crypto import keys, shamir
from fl_privquant.secagg.crypto.sharing import derive_share
from fl_privquant.secagg.graph.neighbors import Graph
from fl_privquant.secagg.graph.roster_tree import merkle_root
from fl_privquant.secagg.messages import Roster, SharedSeeds, SurvivorList
from fl_privquant.secagg.signed.transcript import graph_digest, listing_digest
from tests.secagg.driver import CONTEXT, Round, at, open_round, shown

VICTIM = 3


def roster_of(round_: Round, client: int = VICTIM) -> Roster:
    return Roster.from_bytes(round_.server.rosters()[client])


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("claimed", [3, 20])
def test_a_roster_of_three_out_of_twenty(signed: bool, claimed: int) -> None:
    """With two colluders on it, the server would open the victim's two secrets and read its codes."""
    round_ = at("share", 20, signed=signed)
    round_.policies = {i: replace(policy, min_clients=20) for i, policy in round_.policies.items()}
    victim = ClientRound.from_bytes(round_.clients[VICTIM].to_bytes(), round_.policies[VICTIM])
    roster = roster_of(round_)
    small = shown(roster, list(round_.inputs)[:3], round_.public_keys(), VICTIM)
    small = replace(small, num_clients=claimed, threshold=2)
    with pytest.raises(SecureAggregationError, match=r"min_clients|neighbors among 20 clients|list of 3"):
        victim.share_keys(small.to_bytes())


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("num_clients", "threshold"), [(20, 11), (20, 2), (25, 14), (33, 18)])
def test_a_threshold_below_what_the_corrupt_clients_demand(
    signed: bool, num_clients: int, threshold: int
) -> None:
    """2 t > n + C: with 11 of 20, two colluders and two lists of dropouts open both secrets of a client."""
    round_ = at("share", num_clients, signed=signed)
    rosters = round_.server.rosters()
    roster = Roster.from_bytes(rosters[VICTIM])
    assert not 2 * threshold > num_clients + count_clients(0.1, num_clients)
    with pytest.raises(SecureAggregationError, match="threshold"):
        round_.client(VICTIM).share_keys(replace(roster, threshold=threshold).to_bytes())
    assert round_.client(10).share_keys(rosters[10])


def test_a_stricter_client_refuses_what_others_take() -> None:
    round_ = at("share", 25)
    roster = roster_of(round_)
    strict = replace(round_.policies[VICTIM], corrupt_fraction=0.3)
    victim = ClientRound.from_bytes(round_.clients[VICTIM].to_bytes(), strict)
    with pytest.raises(SecureAggregationError, match=r"corrupt_fraction \(0.3\)"):
        victim.share_keys(roster.to_bytes())


# Sparse graphs: see also test_roster_tree.py and test_chosen_dropouts.py


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


def test_what_grinding_gains_is_paid_for_in_neighbors() -> None:
    odds = {"corrupt_fraction": 0.1, "dropout_fraction": 0.1, "signed": True}
    for num_clients in (34, 100, 150, 151, 300, 1000):
        assert security_failure(choose_parameters(num_clients, signed=True), **odds) <= 2.0**-40
    assert security_failure(choose_parameters(1000), **odds) > 2.0**-40
    # Up to 150 clients every graph is good, however many were tried.
    assert security_failure(choose_parameters(150, signed=True), **odds) == 0.0
    policy = ClientPolicy(known_identities={})
    for graph in ((44, 26, False), (62, 40, False), (62, 40, True), (72, 44, True)):
        with pytest.raises(SecureAggregationError, match="the odds of a failure"):
            policy.check_graph(1000, *graph)
    policy.check_graph(1000, 202, 136)


# Different words to different clients


@pytest.mark.parametrize("change", ["too few", "another list", "not itself"])
def test_a_list_of_survivors_that_is_not_confirmed(change: str) -> None:
    round_ = at("confirm", 25)
    told = {
        "too few": Subset(25, tuple(range(21))),
        "another list": Subset(26, tuple(range(26))),
        # The victim is the first of all.
        "not itself": Subset(25, tuple(range(1, 25))),
    }[change]
    message = SurvivorList(round_.clients[VICTIM].round_id, told).to_bytes()
    with pytest.raises(SecureAggregationError, match=r"survivors|of 25 clients are left|a list of 26"):
        round_.client(VICTIM).confirm(message)


@pytest.mark.parametrize("signed", [False, True])
def test_clients_that_were_asked_for_different_things_do_not_cancel(signed: bool) -> None:
    """One client is sent another model: the masks between it and the others stay in the sum."""
    round_ = at("mask", 7, signed=signed, max_code=1, width=20, dimension=200)
    for i, request in round_.server.mask_requests(CONTEXT).items():
        client = round_.client(i)
        client.settle(request, CONTEXT if i != VICTIM else b"another model")
        assert round_.server.receive(i, client.mask(round_.inputs[i]))
    for i, told in round_.server.survivor_lists().items():
        round_.server.receive(i, round_.client(i).confirm(told))
    assert ("not of what this client was shown" in round_.server.rejected.get(VICTIM, "")) == signed
    for i, request in round_.server.unmask_requests().items():
        round_.server.receive(i, round_.client(i).unmask(request))
    with pytest.raises(SecureAggregationError, match="exceeds what the clients' codes can add up to"):
        round_.server.finish()


# Garbage


def deals_wrongly(round_: Round, culprit: int, wrong: Collection[int]) -> None:
    """The client gives these holders corrections by which their shares open nothing, and signs them."""

    def wire(kind: str, client: int, data: bytes) -> bytes:
        if kind != "SharedSeeds" or client != culprit:
            return data
        message, corrected = SharedSeeds.from_bytes(data), round_.server._dealt._holders_to_correct(culprit)
        corrections = [
            shamir.subtract_shares(correction, bytes([1, 0, 0, 0] * 10)) if holder in wrong else correction
            for holder, correction in zip(corrected, message.corrections, strict=True)
        ]
        commitments = message.seed_commitment, message.wrapping_commitment
        return round_.clients[culprit]._sign_message(
            SharedSeeds, *commitments, message.sealed_roots, tuple(corrections)
        )

    round_.wire = wire


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4, 5, 8])
def test_garbage_for_some_neighbors(signed: bool, count: int) -> None:
    """Up to half of the shares beyond the threshold are corrected; with more, the dealer is named."""
    round_ = open_round(20, signed=signed)
    clients = list(round_.inputs)
    # At a threshold of twelve the first eleven of twenty derive shares that are right as they are.
    deals_wrongly(round_, clients[4], clients[11 : 11 + count])
    if count > 4:
        with pytest.raises(SecureAggregationError, match="more than 4 of 20 are wrong"):
            round_.run()
        assert set(round_.server.culprits) == {clients[4]}
        return
    result = round_.run()
    assert not round_.server.culprits
    assert set(round_.server.rejected) == set(clients[11 : 11 + count])
    np.testing.assert_array_equal(result.total, round_.expected(round_.inputs))


@pytest.mark.parametrize("signed", [False, True])
def test_a_dealer_of_shares_that_do_not_fit_is_named(signed: bool) -> None:
    """Together they are of no secret: the round is lost, the dealer is known."""
    round_ = open_round(7, signed=signed, restore=False)
    culprit, deal = list(round_.inputs)[2], client_module.deal

    def wrong(secret: bytes, *arguments: Any) -> tuple[bytes, list[bytes]]:
        return deal(np.random.default_rng(0).bytes(32), *arguments)

    share_keys = ClientRound.share_keys

    def dealing(client: ClientRound, roster: bytes) -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            if client._client_id == culprit:
                patch.setattr(client_module, "deal", wrong)
            return share_keys(client, roster)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientRound, "share_keys", dealing)
        with pytest.raises(SecureAggregationError, match="do not open its secret"):
            round_.run()
    assert set(round_.server.culprits) == {culprit}


def test_keys_that_the_server_put_in_the_place_of_clients_keys_open_nothing() -> None:
    """Pair secrets need an identity: the server, which has none, knows no share and no root of a mask."""
    round_ = at("share", 20)
    private = {i: keys.draw_secret() for i in round_.inputs}
    public = {i: keys.public_key(key) for i, key in private.items()}
    victim, own_key = round_.client(VICTIM), round_.public_keys()[VICTIM]
    roster = shown(roster_of(round_), list(round_.inputs), public, VICTIM)
    victim.share_keys(roster.to_bytes())
    for i in round_.inputs.keys() - {VICTIM}:
        pair = keys.agree(private[i], public[i], own_key, victim._graph_digest)
        assert keys.expand(pair, keys.SEED_BYTES, keys.MASK_ROOT) != victim._roots[i]
        assert derive_share(pair, i, VICTIM) != victim._held_shares[i]
        # With the identities of the two it would know both: the check above can fail.
        identities = keys.derive_identity_pair_keys(
            round_.policies[i].identity, [round_.server._entries[VICTIM].identity]
        )
        pair = keys.agree(private[i], public[i], own_key, victim._graph_digest, *identities.values())
        assert keys.expand(pair, keys.SEED_BYTES, keys.MASK_ROOT) == victim._roots[i]
        assert derive_share(pair, i, VICTIM) == victim._held_shares[i]


def test_graph_parameters_that_a_client_accepts_are_never_weaker_than_computed() -> None:
    """Every threshold of every complete graph: accepted if and only if 2 t > n + C, and enough are left."""
    policy = ClientPolicy()
    for num_clients in range(3, 34):
        corrupt, lost = count_clients(0.1, num_clients), count_clients(0.1, num_clients)
        for threshold in range(1, num_clients + 1):
            good = 2 * threshold > num_clients + corrupt and num_clients - corrupt - lost >= 2
            try:
                policy.check_graph(num_clients, num_clients - 1, threshold)
            except SecureAggregationError:
                assert not good
            else:
                assert good
                GraphParameters(num_clients, num_clients - 1, threshold)
