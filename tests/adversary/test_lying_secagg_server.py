"""A server that lies in secure aggregation, and clients that seal garbage: attacks that once succeeded.

Each starts from a round as it should run, in which the server sends something else to some clients.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fl_privquant.cohort import count_of
from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import (
    ClientPolicy,
    ClientRound,
    GraphParameters,
    choose_parameters,
    keys,
    security_failure,
    shamir,
)
from fl_privquant.secagg import client as client_module
from fl_privquant.secagg.graph import neighbors_of, ring_order
from fl_privquant.secagg.messages import (
    MaskRequest,
    Roster,
    RosterEntry,
    SealedShares,
    ShareDelivery,
    ShareReceipt,
    Subset,
    SurvivorList,
    UnmaskRequest,
)
from fl_privquant.secagg.parameters import GRINDING_TRIES
from fl_privquant.secagg.sharing import channel, sealed_for, share_context
from fl_privquant.secagg.transcript import graph_digest, listing_digest, listing_of
from tests.secagg.driver import CONTEXT, Round, at, open_round

VICTIM = 3


def shown(entries: Collection[RosterEntry], roster: Roster, **changes: Any) -> bytes:
    """A roster of these entries that is right in itself."""
    listed = tuple(sorted(entries, key=lambda entry: entry.client_id))
    return replace(roster, entries=listed, listing=listing_of(listed), **changes).to_bytes()


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
    small = shown(roster.entries[:3], roster, num_clients=claimed, threshold=2)
    with pytest.raises(SecureAggregationError, match=r"min_clients|neighbours among 20 clients"):
        victim.share_keys(small)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("num_clients", "threshold"), [(20, 11), (20, 2), (25, 14), (33, 18)])
def test_a_threshold_below_what_the_corrupt_clients_demand(
    signed: bool, num_clients: int, threshold: int
) -> None:
    """2 t > n + C: with 11 of 20, two colluders and two lists of dropouts open both secrets of a client."""
    round_ = at("share", num_clients, signed=signed)
    roster = roster_of(round_)
    assert not 2 * threshold > num_clients + count_of(0.1, num_clients)
    with pytest.raises(SecureAggregationError, match="threshold"):
        round_.client(VICTIM).share_keys(replace(roster, threshold=threshold).to_bytes())
    assert round_.client(10).share_keys(replace(roster_of_again(round_, 10)).to_bytes())


def roster_of_again(round_: Round, client: int) -> Roster:
    entries = tuple(round_.server._entries[holder] for holder in round_.server._dealt.points[client])
    return Roster(
        round_.server._round_id,
        len(round_.inputs),
        round_.server._threshold,
        len(round_.server._witnesses),
        entries,
        listing_of(entries),
    )


def test_a_stricter_client_refuses_what_others_take() -> None:
    round_ = at("share", 25)
    roster = roster_of(round_)
    strict = replace(round_.policies[VICTIM], corrupt_fraction=0.3)
    victim = ClientRound.from_bytes(round_.clients[VICTIM].to_bytes(), strict)
    with pytest.raises(SecureAggregationError, match=r"corrupt_fraction \(0.3\)"):
        victim.share_keys(roster.to_bytes())


# Sparse graphs


def sparse_attack(name: str, roster: Roster, round_: Round) -> Roster:
    """A roster of the victim that does not follow from everyone's keys."""
    entries = {entry.client_id: entry for entry in roster.entries}
    stranger = next(i for i in roster.everyone if i not in entries)
    if name == "chosen neighbours":
        gone = next(i for i in entries if i != VICTIM)
        kept = [entry for i, entry in entries.items() if i != gone] + [round_.server._entries[stranger]]
        return replace(roster, entries=tuple(sorted(kept, key=lambda entry: entry.client_id)))
    if name == "no list":
        return replace(roster, everyone=(), fingerprints=())
    if name == "a list without one":
        return replace(roster, everyone=roster.everyone[:-1], fingerprints=roster.fingerprints[:-1])
    if name == "another digest":
        return replace(roster, listing=bytes(32))
    changed = (bytes(32), *roster.fingerprints[1:])
    return replace(roster, fingerprints=changed, listing=listing_digest(roster.everyone, changed))


@pytest.mark.parametrize(
    "name", ["chosen neighbours", "no list", "a list without one", "another digest", "other keys for itself"]
)
def test_neighbours_that_the_server_chose(name: str) -> None:
    round_ = at("share", 47)
    roster = roster_of(round_)
    assert len(roster.entries) == 33
    with pytest.raises(SecureAggregationError, match=r"list|neighbours"):
        round_.client(VICTIM).share_keys(sparse_attack(name, roster, round_).to_bytes())


def test_the_order_on_the_ring_follows_from_all_keys() -> None:
    """Another key anywhere, threshold, number of witnesses or round: another order altogether."""
    clients = list(range(5, 5 + 3 * 60, 3))
    fingerprints = [keys.digest(bytes([i])) for i in range(60)]
    listing = listing_digest(clients, fingerprints)
    base = graph_digest(bytes(32), 60, 32, 17, 19, listing)
    other = listing_digest(clients, [keys.digest(b"new"), *fingerprints[1:]])
    seeds = [
        base,
        graph_digest(bytes(32), 60, 32, 17, 19, other),
        graph_digest(bytes(32), 60, 32, 18, 19, listing),
        graph_digest(bytes(32), 60, 32, 17, 20, listing),
        graph_digest(bytes([1]) * 32, 60, 32, 17, 19, listing),
    ]
    orders = [ring_order(seed, clients) for seed in seeds]
    assert all(sorted(order) == clients for order in orders)
    assert len({tuple(order) for order in orders}) == 5
    neighbors = [set(neighbors_of(5, order, 32)) for order in orders]
    assert len({frozenset(each) for each in neighbors}) == 5


def test_what_grinding_gains_is_paid_for_in_neighbours() -> None:
    odds = {"corrupt_fraction": 0.1, "dropout_fraction": 0.1}
    for num_clients in (34, 100, 150, 151, 1000):
        signed = choose_parameters(num_clients, tries=GRINDING_TRIES)
        assert security_failure(signed, **odds, tries=GRINDING_TRIES) <= 2.0**-40
    assert security_failure(choose_parameters(1000), **odds, tries=GRINDING_TRIES) > 2.0**-40
    # Up to 150 clients every graph is good, however many were tried.
    assert security_failure(choose_parameters(150), **odds, tries=2.0**200) == 0.0
    policy = ClientPolicy(known_identities={})
    with pytest.raises(SecureAggregationError, match="max_security_failure"):
        policy.check_graph(1000, 45, 26)
    policy.check_graph(1000, 63, 40)


# Different words to different clients


@pytest.mark.parametrize("change", ["lists", "signature", "too few", "stranger"])
def test_an_unmask_request_that_was_not_confirmed(change: str) -> None:
    round_ = at("unmask", 20)
    request = UnmaskRequest.from_bytes(round_.server.unmask_requests()[VICTIM])
    if change == "lists":
        request = replace(request, active=Subset(20, request.active.places[:-1]))
    elif change == "signature":
        request = replace(request, signatures=(bytes(64), *request.signatures[1:]))
    elif change == "too few":
        fewer = Subset(20, request.signers.places[1:])
        request = replace(request, signers=fewer, signatures=request.signatures[1:])
    else:
        request = replace(request, signers=Subset(21, (*request.signers.places[1:], 20)))
    with pytest.raises(SecureAggregationError):
        round_.client(VICTIM).unmask(request.to_bytes())


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
        assert round_.server.receive_masked_input(i, client.mask(round_.inputs[i]))
    for i, told in round_.server.survivor_lists().items():
        round_.server.receive_confirmation(i, round_.client(i).confirm(told))
    assert ("something else" in round_.server.rejected.get(VICTIM, "")) == signed
    for i, request in round_.server.unmask_requests().items():
        round_.server.receive_unmask_reply(i, round_.client(i).unmask(request))
    with pytest.raises(SecureAggregationError, match="exceeds what the clients' codes can add up to"):
        round_.server.finish()


# Garbage


def garbage(sealed: bytes) -> bytes:
    return bytes(len(sealed))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("num_clients", [20, 25, 40])
def test_one_client_that_seals_garbage_is_named_and_the_round_goes_on(signed: bool, num_clients: int) -> None:
    round_ = open_round(num_clients, signed=signed, restore=True)
    culprit = list(round_.inputs)[4]
    seal_garbage(round_, culprit)
    result = round_.run()
    assert round_.server.culprits == {culprit}
    assert set(result.survivors) == round_.inputs.keys() - {culprit}
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))
    assert not round_.refusals


def seal_garbage(round_: Round, culprit: int, receivers: Collection[int] | None = None) -> None:
    """The client seals garbage for these neighbours, and signs it."""

    def wire(kind: str, client: int, data: bytes) -> bytes:
        if kind != "SealedShares" or client != culprit:
            return data
        message = SealedShares.from_bytes(data)
        peers = round_.server._dealt.receivers(culprit)
        blocks = [
            garbage(block) if receivers is None or peer in receivers else block
            for peer, block in zip(peers, message.sealed, strict=True)
        ]
        message = replace(message, sealed=tuple(blocks), signature=b"")
        state = round_.clients[culprit]
        # It knows what it sealed.
        state._sealed = b"".join(keys.digest(block) for block in blocks)
        return state._signed(message)

    round_.wire = wire


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9])
def test_garbage_for_some_neighbours(signed: bool, count: int) -> None:
    """Up to the number that corrupt clients could have accused falsely, it stays; beyond, it is named."""
    round_ = open_round(20, signed=signed)
    clients = list(round_.inputs)
    # The first eleven of twenty derive their shares, at a threshold of twelve.
    seal_garbage(round_, clients[4], clients[11 : 11 + count])
    result = round_.run()
    expected = {clients[4]} if count > 2 else set()
    assert round_.server.culprits == expected
    assert set(result.survivors) == round_.inputs.keys() - expected
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))


@pytest.mark.parametrize("signed", [False, True])
def test_false_accusations_evict_the_accuser_and_nobody_else(signed: bool) -> None:
    """Two accusers may quarrel with all; an honest client loses two edges and stays."""
    round_ = open_round(20, signed=signed)
    accusers = list(round_.inputs)[-2:]

    def wire(kind: str, client: int, data: bytes) -> bytes:
        if kind != "ShareReceipt" or client not in accusers:
            return data
        peers = round_.server._members[client]
        digests = tuple(keys.digest(round_.server._dealt.block(peer, client)) for peer in peers)
        message = ShareReceipt.from_bytes(data)
        message = replace(message, disputed=peers, digests=digests, signature=b"")
        return round_.clients[client]._signed(message)

    round_.wire = wire
    result = round_.run()
    assert round_.server.culprits == set(accusers)
    assert set(result.survivors) == round_.inputs.keys() - set(accusers)
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))


def test_a_single_false_accusation_costs_one_edge() -> None:
    round_ = open_round(20, signed=True)
    accused, *_, accuser = round_.inputs

    def wire(kind: str, client: int, data: bytes) -> bytes:
        if kind != "ShareReceipt" or client != accuser:
            return data
        digest = keys.digest(round_.server._dealt.block(accused, accuser))
        message = replace(
            ShareReceipt.from_bytes(data), disputed=(accused,), digests=(digest,), signature=b""
        )
        return round_.clients[client]._signed(message)

    round_.wire = wire
    round_.advertise()
    round_.share()
    round_.accept()
    requests = round_.server.mask_requests(CONTEXT)
    assert not round_.server.culprits
    round_.client(accused).settle(requests[accused], CONTEXT)
    assert accuser not in round_.clients[accused]._held
    assert len(round_.clients[accused]._held) == 19


def tampered(round_: Round, receiver: int, senders: Collection[int]) -> bytes:
    """The receiver's delivery with garbage in the place of some honest clients' shares."""
    delivery = ShareDelivery.from_bytes(round_.server.deliveries()[receiver])
    sealing = delivery.sealing.among(list(round_.server._dealt.points[receiver]))
    sealed = tuple(
        garbage(block) if sender in senders else block
        for sender, block in zip(sealing, delivery.sealed, strict=True)
    )
    return replace(delivery, sealed=sealed).to_bytes()


@pytest.mark.parametrize("num_clients", [20, 40])
def test_a_server_cannot_set_honest_clients_apart(num_clients: int) -> None:
    """It garbles a share on the way: neither the receiver nor the sender takes that for the other's fault."""
    round_ = at("accept", num_clients)
    dealt, victim = round_.server._dealt, max(round_.inputs)
    sender = next(peer for peer in round_.server._graph[victim] if dealt.block(peer, victim) is not None)
    receipt = round_.client(victim).accept_shares(tampered(round_, victim, [sender]))
    assert ShareReceipt.from_bytes(receipt).disputed == (sender,)
    round_.client(sender).accept_shares(
        dealt.delivery(round_.server._round_id, sender, round_.server._members[sender]).to_bytes()
    )
    members, evidence = Subset(num_clients, tuple(range(num_clients))), dealt.messages[sender].to_bytes()
    blame = MaskRequest(round_.server._round_id, members, (receipt,)).to_bytes()
    with pytest.raises(SecureAggregationError, match="another share than this client sealed"):
        round_.client(sender).settle(blame, CONTEXT)
    proof = MaskRequest(round_.server._round_id, members, (), (evidence,)).to_bytes()
    with pytest.raises(SecureAggregationError, match="another share than client"):
        round_.client(victim).settle(proof, CONTEXT)


def test_an_accusation_that_nobody_signed() -> None:
    round_ = at("mask", 20)
    requests = round_.server.mask_requests(CONTEXT)
    accuser = max(round_.inputs)
    digest = round_.clients[VICTIM]._sealed_for(accuser)
    assert len(digest) == 32
    forged = ShareReceipt(round_.server._round_id, accuser, bytes(64), (VICTIM,), (digest,)).to_bytes()
    request = replace(MaskRequest.from_bytes(requests[VICTIM]), accusations=(forged,)).to_bytes()
    with pytest.raises(SecureAggregationError, match="not the word of a neighbour"):
        round_.client(VICTIM).settle(request, CONTEXT)


@pytest.mark.parametrize("signed", [False, True])
def test_a_dealer_of_shares_that_do_not_fit_is_named(signed: bool) -> None:
    """Each opens, but together they are of no secret: the round is lost, the dealer is known."""
    round_ = open_round(7, signed=signed, restore=False)
    culprit = list(round_.inputs)[2]

    def wrong(secret: bytes, threshold: int, dealer: int, holders: list[int], pairs: Any) -> np.ndarray:
        return shamir.split(bytes(np.random.default_rng(0).bytes(32)), len(holders), len(holders))

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
    assert round_.server.culprits == {culprit}


def invented(roster: Roster, posing: bytes | None = None) -> bytes:
    """A roster on which all but the victim have keys of the server's, and an identity of it if given."""

    def own(entry: RosterEntry) -> RosterEntry:
        if entry.client_id == VICTIM:
            return entry
        public = keys.public_key(keys.draw_secret())
        return RosterEntry(entry.client_id, public, entry.identity if posing is None else posing)

    return shown([own(entry) for entry in roster.entries], roster)


def test_invented_clients_are_refused_where_identities_are_known() -> None:
    round_ = at("share", 20)
    posing = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    with pytest.raises(SecureAggregationError, match="another identity than is known of it"):
        round_.client(VICTIM).share_keys(invented(roster_of(round_), posing))


def test_keys_that_the_server_put_in_the_place_of_clients_keys_open_nothing() -> None:
    """Shares are sealed for identities: the server, which has none of them, can neither open nor seal one."""
    round_ = at("share", 20)
    roster = Roster.from_bytes(invented(roster_of(round_)))
    private = {entry.client_id: keys.draw_secret() for entry in roster.entries}
    entries = [
        entry
        if entry.client_id == VICTIM
        else replace(entry, public_key=keys.public_key(private[entry.client_id]))
        for entry in roster.entries
    ]
    victim = round_.client(VICTIM)
    sealed = SealedShares.from_bytes(victim.share_keys(shown(entries, roster))).sealed
    graph, own = victim._graph_digest, next(each for each in entries if each.client_id == VICTIM)
    holders = [entry.client_id for entry in entries]
    given = dict(zip(sealed_for(VICTIM, holders, roster.threshold), sealed, strict=True))
    blocks, roots = {}, {i: bytes(root) for i, root in victim._roots.items()}
    for entry in entries:
        if entry is own:
            continue
        pair = keys.agree(private[entry.client_id], entry.public_key, own.public_key, graph)
        ends = [(each.client_id, each.public_key) for each in (own, entry)]
        if entry.client_id in given:
            assert keys.unseal(channel(pair), given[entry.client_id], share_context(graph, *ends)) is None
        # Nor does it know a mask that the victim is going to add, or a share that the victim derives.
        assert keys.expand(pair, keys.SEED_BYTES, keys.MASK_ROOT) != roots[entry.client_id]
        assert pair != victim._pairs[entry.client_id]
        share = bytes(2 * shamir.SHARE_BYTES)
        blocks[entry.client_id] = keys.seal(channel(pair), share, share_context(graph, *ends[::-1]))
    sealing = Subset.of(blocks, holders)
    forged = ShareDelivery(victim.round_id, sealing, sealing, tuple(blocks.values()))
    with pytest.raises(SecureAggregationError, match="those of 19 do not open"):
        victim.accept_shares(forged.to_bytes())


def test_graph_parameters_that_a_client_accepts_are_never_weaker_than_computed() -> None:
    """Every threshold of every complete graph: accepted if and only if 2 t > n + C, and enough are left."""
    policy = ClientPolicy()
    for num_clients in range(3, 34):
        corrupt, lost = count_of(0.1, num_clients), count_of(0.1, num_clients)
        for threshold in range(1, num_clients + 1):
            good = 2 * threshold > num_clients + corrupt and num_clients - corrupt - lost >= 2
            try:
                policy.check_graph(num_clients, num_clients, threshold)
            except SecureAggregationError:
                assert not good
            else:
                assert good
                GraphParameters(num_clients, num_clients - 1, threshold)
