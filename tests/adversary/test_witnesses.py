"""A server that lies about who confirmed what, and corrupt clients that sign twice.

One of these attacks succeeded once: with two pairs of keys that a corrupt client gave it, the server
showed two lists of clients, and set honest clients apart by shares that each had sealed for the other list.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import keys
from fl_privquant.secagg.messages import (
    Confirmation,
    MaskRequest,
    Roster,
    RosterEntry,
    SealedShares,
    ShareDelivery,
    Subset,
    SurvivorList,
    UnmaskRequest,
)
from fl_privquant.secagg.sharing import sealed_for
from fl_privquant.secagg.transcript import listing_of
from fl_privquant.secagg.witnesses import quorum_of, witnesses_needed
from tests.secagg.driver import CONTEXT, Lost, Round, open_round

NUM_CLIENTS = 20


def confirming(round_: Round | None = None) -> Round:
    """A signed round of twenty (two corrupt, two lost at most) whose masked inputs have arrived."""
    round_ = open_round(NUM_CLIENTS, signed=True, restore=False) if round_ is None else round_
    for stage in (round_.advertise, round_.share, round_.accept, round_.mask):
        stage()
    return round_


def confirmation(round_: Round, client: int, agreement: bytes) -> bytes:
    """The signature of a client that signs whatever the server wants."""
    body = Confirmation(round_.server._round_id, client, b"", agreement).body()
    identity = round_.policies[client].identity
    assert identity is not None
    return keys.sign(identity, round_.server._graph_digest, body)


def asked(round_: Round, survivors: Collection[int], signatures: dict[int, bytes]) -> bytes:
    everyone = sorted(round_.inputs)
    return UnmaskRequest(
        round_.server._round_id,
        Subset.of(survivors, everyone),
        Subset.of(signatures, everyone),
        tuple(signatures[i] for i in everyone if i in signatures),
    ).to_bytes()


def test_two_quorums_share_an_honest_client_and_lost_clients_leave_one() -> None:
    for num_clients in range(2, 60):
        for corrupt in range(num_clients):
            for witnesses in range(num_clients + 1):
                assert 2 * quorum_of(witnesses, corrupt) - witnesses > corrupt
            for lost in range((num_clients - corrupt) // 2):
                witnesses = witnesses_needed(num_clients, corrupt, lost)
                assert witnesses - lost >= quorum_of(witnesses, corrupt)
                # With one witness less, that many lost clients could end the round.
                assert witnesses - 1 - lost < quorum_of(witnesses - 1, corrupt)


@pytest.mark.parametrize("honest_in_first", range(6))
def test_of_two_lists_at_most_one_is_opened(honest_in_first: int) -> None:
    """Two corrupt witnesses sign both lists; the five honest ones are told one or the other."""
    round_ = confirming()
    witnesses, survivors = sorted(round_.server._witnesses), tuple(round_.inputs)
    assert len(witnesses) == 7
    corrupt, honest = witnesses[:2], witnesses[2:]
    first = {*honest[:honest_in_first], *(i for i in survivors[::2] if i not in witnesses)}
    gone = [i for i in survivors if i not in witnesses][:2]
    lists = {True: tuple(i for i in survivors if i != gone[0])}
    lists[False] = tuple(i for i in survivors if i != gone[1])
    given: dict[bool, dict[int, bytes]] = {True: {}, False: {}}
    told = {i: i in first for i in survivors if i not in (*corrupt, *gone)}
    for i, side in told.items():
        named = Subset.of(lists[side], survivors)
        message = SurvivorList(round_.server._round_id, named).to_bytes()
        given[side][i] = round_.clients[i].confirm(message)[-64:]
    opened, refusals = set(), set()
    for i, side in told.items():
        agreement = round_.clients[i]._agreement
        signatures = {j: mark for j, mark in given[side].items() if j in witnesses}
        signatures |= {j: confirmation(round_, j, agreement) for j in corrupt}
        try:
            round_.clients[i].unmask(asked(round_, lists[side], signatures))
        except SecureAggregationError as error:
            refusals.add(str(error)[2:].split(" that")[0])
        else:
            opened.add(side)
    assert refusals == {"of 7 witnesses confirmed the survivors, below the 5"}
    assert opened == ({True} if honest_in_first >= 3 else {False})


@pytest.mark.parametrize(
    "change",
    ["forged", "another list", "another round", "another client's", "no witness", "advertised"],
)
def test_confirmations_that_do_not_count(change: str) -> None:
    """A quorum in which one signature is not that witness's word on this list in this round."""
    round_ = confirming()
    round_.confirm()
    server, policies = round_.server, round_.policies
    victim = next(i for i in round_.inputs if i not in server._witnesses)
    request = UnmaskRequest.from_bytes(server.unmask_requests()[victim])
    signers = request.signers.among(sorted(round_.inputs))
    given = dict(zip(signers, request.signatures, strict=True))
    one, other, *_ = signers
    agreement = round_.clients[victim]._agreement
    if change == "forged":
        given[one] = bytes(64)
    elif change == "another list":
        given[one] = confirmation(round_, one, bytes(32))
    elif change == "another round":
        earlier = replace(server._round_id, number=server._round_id.number - 1)
        body = Confirmation(earlier, one, b"", agreement).body()
        given[one] = keys.sign(policies[one].identity, server._graph_digest, body)
    elif change == "another client's":
        given[one] = given[other]
    elif change == "no witness":
        del given[one]
        given[victim] = confirmation(round_, victim, agreement)
    else:
        # Signed for the invitation, as keys are, and not for the graph.
        body = Confirmation(server._round_id, one, b"", agreement).body()
        given[one] = keys.sign(policies[one].identity, server._digest, body)
    with pytest.raises(SecureAggregationError, match=r"did not sign the list|are no witnesses"):
        round_.clients[victim].unmask(asked(round_, request.active.among(sorted(round_.inputs)), given))


@pytest.mark.parametrize("told", [0, 1, 6, 20])
def test_a_server_that_tells_one_client_of_other_witnesses(told: int) -> None:
    """The number is part of the graph's digest: no share that others sealed opens, and nothing is masked."""
    round_ = open_round(NUM_CLIENTS, signed=True, restore=False)
    round_.advertise()
    victim = max(round_.inputs)

    def wire(kind: str, client: int, data: bytes) -> bytes:
        if kind == "Roster" and client == victim:
            return replace(Roster.from_bytes(data), num_witnesses=told).to_bytes()
        return data

    round_.wire = wire
    round_.share()
    assert "not signed by the identity" in round_.server.rejected[victim]
    server = round_.server
    delivery = server._dealt.delivery(server._round_id, victim, server._graph[victim])
    with pytest.raises(SecureAggregationError, match="those of 19 do not open"):
        round_.clients[victim].accept_shares(delivery.to_bytes())


@pytest.mark.parametrize("count", [2, 3])
def test_as_many_witnesses_may_be_lost_as_clients(count: int) -> None:
    round_ = open_round(NUM_CLIENTS, signed=True)
    round_.advertise()
    round_.share()
    lost = sorted(round_.server._witnesses)[:count]
    round_.accept()
    round_.mask()
    round_.confirm(lost)
    if count == 3:
        with pytest.raises(
            SecureAggregationError, match="4 of 7 witnesses confirmed the survivors, below the 5"
        ):
            round_.unmask()
        return
    round_.unmask()
    assert (round_.server.finish().total == round_.expected(round_.inputs)).all()


def test_any_clients_but_witnesses_may_be_silent_as_long_as_secrets_open() -> None:
    round_ = open_round(NUM_CLIENTS, signed=True)
    round_.advertise()
    round_.share()
    silent = [i for i in round_.inputs if i not in round_.server._witnesses][:8]
    round_.accept()
    round_.mask()
    round_.confirm(silent)
    round_.unmask()
    assert (round_.server.finish().total == round_.expected(round_.inputs)).all()


# Two lists of clients


def two_lists(round_: Round) -> tuple[list[int], list[int], dict[int, bytes]]:
    """The first two clients have two pairs of keys each; ten honest clients see one list, eight the other.

    The ids of the first group with the corrupt clients, of the second group, and what all sealed.
    """
    round_.advertise()
    clients = list(round_.inputs)
    corrupt, first, second = clients[:2], clients[:12], clients[12:]
    roster = Roster.from_bytes(round_.server.rosters()[clients[0]])

    def again(entry: RosterEntry) -> RosterEntry:
        if entry.client_id not in corrupt:
            return entry
        public = X25519PrivateKey.generate().public_key().public_bytes_raw()
        return RosterEntry(entry.client_id, public, entry.identity)

    entries = tuple(again(entry) for entry in roster.entries)
    other = replace(roster, entries=entries, listing=listing_of(entries))
    sealed = {i: round_.clients[i].share_keys((other if i in second else roster).to_bytes()) for i in clients}
    return first, second, sealed


def delivered(round_: Round, receiver: int, sealed: dict[int, bytes]) -> bytes:
    """What all others sealed for a client, and that it holds shares of all of them."""
    everyone, blocks = list(sealed), {}
    for sender, message in sealed.items():
        receivers = sealed_for(sender, everyone, round_.server._threshold)
        if receiver in receivers:
            blocks[sender] = SealedShares.from_bytes(message).sealed[receivers.index(receiver)]
    senders = Subset.of([i for i in everyone if i != receiver], everyone)
    sealing = Subset.of(blocks, everyone)
    return ShareDelivery(round_.server._round_id, senders, sealing, tuple(blocks.values())).to_bytes()


def test_two_lists_of_clients_do_not_set_honest_clients_apart() -> None:
    """Else the ten would unmask a sum without the eight: a quorum of theirs, with the corrupt, is enough."""
    round_ = open_round(NUM_CLIENTS, signed=True, restore=False)
    first, second, sealed = two_lists(round_)
    evidence = tuple(sealed[i] for i in second)
    everyone = Subset(NUM_CLIENTS, tuple(range(NUM_CLIENTS)))
    request = MaskRequest(round_.server._round_id, everyone, (), evidence).to_bytes()
    for i in first:
        client = round_.clients[i]
        client.accept_shares(delivered(round_, i, sealed))
        # At a threshold of twelve the first eleven derive their shares.
        assert sorted(client._disputed) == (second if i == first[-1] else [])
        with pytest.raises(SecureAggregationError, match="SealedShares that is not the word of a neighbour"):
            client.settle(request, CONTEXT)


def test_receipts_of_another_list_are_no_accusations() -> None:
    """The other way round: the second group cannot open what the first sealed, and says so."""
    round_ = open_round(NUM_CLIENTS, signed=True, restore=False)
    first, second, sealed = two_lists(round_)
    accuser, accused = second[0], first[-1]
    state = round_.clients[accuser]
    # It would refuse by itself, as too few shares open; its word is what is tested.
    state._terms = replace(state._known_terms(), threshold=1)
    receipt = state.accept_shares(delivered(round_, accuser, sealed))
    round_.clients[accused].accept_shares(delivered(round_, accused, sealed))
    everyone = Subset(NUM_CLIENTS, tuple(range(NUM_CLIENTS)))
    request = MaskRequest(round_.server._round_id, everyone, (receipt,)).to_bytes()
    with pytest.raises(SecureAggregationError, match="ShareReceipt that is not the word of a neighbour"):
        round_.clients[accused].settle(request, CONTEXT)


def test_a_signed_round_with_losses_at_every_stage_still_opens() -> None:
    round_ = open_round(40, signed=True)
    clients = list(round_.inputs)
    result = round_.run(Lost(share=clients[:1], mask=clients[1:2], confirm=clients[2:3], unmask=clients[3:4]))
    assert set(result.survivors) == set(clients[2:])
    assert (result.total == round_.expected(result.survivors)).all()
