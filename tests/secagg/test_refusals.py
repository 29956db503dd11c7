"""What a client refuses, and that a refusal ends its round with everything erased."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_privquant.errors import InvalidUpdateError, PrivQuantError, SecureAggregationError
from fl_privquant.secagg import ClientPolicy, ClientRound, Stage, keys, new_session
from fl_privquant.secagg.messages import (
    Invitation,
    MaskRequest,
    Roster,
    RoundId,
    ShareDelivery,
    ShareReceipt,
    Subset,
    UnmaskReply,
    UnmaskRequest,
)
from fl_privquant.secagg.transcript import listing_of
from tests.secagg.driver import CONTEXT, Lost, Round, open_round

CLIENT = 3
# The last of five by id: what others share with it is sealed, not derived.
LAST = 31


def refused(
    round_: Round, reason: str, call: Callable[[ClientRound], object], client_id: int = CLIENT
) -> None:
    """The call is refused for this reason, and the client has nothing left to give."""
    client = round_.client(client_id)
    secrets = secrets_of(client)
    with pytest.raises((SecureAggregationError, InvalidUpdateError), match=reason) as caught:
        call(client)
    assert not any(secret in str(caught.value).encode() for secret in secrets)
    assert not any(secret.hex() in str(caught.value) for secret in secrets)
    check_erased(client, secrets)


def secrets_of(client: ClientRound) -> list[bytes]:
    tables = [*client._pairs.values(), *client._held.values(), *client._roots.values()]
    held = [client._private, client._seed, *tables]
    return [bytes(secret) for secret in held if secret]


def check_erased(client: ClientRound, secrets: list[bytes]) -> None:
    assert client.stage is Stage.ENDED
    assert not secrets_of(client)
    stored = client.to_bytes()
    assert not any(secret in stored for secret in secrets)
    for call in (client.share_keys, client.accept_shares, client.settle, client.unmask):
        with pytest.raises(SecureAggregationError, match="unmasks once"):
            call(b"")
    with pytest.raises(SecureAggregationError, match="unmasks once"):
        client.mask(np.zeros(20, dtype=int))


def invitation(**changes: object) -> bytes:
    base = Invitation(RoundId(new_session(), 1), 5, 20, 7, 15, False)
    return replace(base, **changes).to_bytes()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"width": 6}, "too small"),
        ({"num_clients": 9}, "too small"),
        ({"max_code": 26}, "too small"),
        ({"width": 0}, "expected 1 to 32"),
        ({"width": 33}, "expected 1 to 32"),
        ({"signed": True}, "no identity key"),
        ({"num_clients": 2}, "below the 3 of this client's min_clients"),
    ],
)
def test_invitations(changes: dict[str, object], reason: str) -> None:
    ClientRound.join(invitation(), CLIENT)
    with pytest.raises(SecureAggregationError, match=reason):
        ClientRound.join(invitation(**changes), CLIENT)


def test_an_unsigned_round_where_identities_are_known() -> None:
    policy = ClientPolicy(identity=Ed25519PrivateKey.generate(), known_identities={})
    with pytest.raises(SecureAggregationError, match="not signed"):
        ClientRound.join(invitation(), CLIENT, policy)


def test_a_round_is_joined_once() -> None:
    session = new_session()
    first = ClientRound.join(invitation(round_id=RoundId(session, 1)), CLIENT)
    first.advertise_keys()
    for number in (0, 1):
        for previous in (first, None):
            with pytest.raises(SecureAggregationError, match="once"):
                ClientRound.join(invitation(round_id=RoundId(session, number)), CLIENT, previous=previous)
    assert first.stage is Stage.ADVERTISED
    ClientRound.join(invitation(round_id=RoundId(session, 2)), CLIENT, previous=first)
    assert first.stage is Stage.ENDED
    ClientRound.join(invitation(round_id=RoundId(new_session(), 0)), CLIENT, previous=first)


def changed_roster(round_: Round, change: Callable[[Roster], Roster]) -> bytes:
    roster = Roster.from_bytes(round_.server.rosters()[CLIENT])
    return change(roster).to_bytes()


ROSTERS: dict[str, Callable[[Roster], Roster]] = {
    "missing from its own roster": lambda r: replace(
        r, entries=tuple(e for e in r.entries if e.client_id != CLIENT)
    ),
    "stands twice": lambda r: replace(
        r, entries=(*r.entries[:-1], replace(r.entries[-1], public_key=r.entries[1].public_key))
    ),
    "other keys for client 3": lambda r: replace(
        r, entries=(replace(r.entries[0], public_key=bytes([9]) * 32), *r.entries[1:])
    ),
    "more than half": lambda r: replace(r, threshold=2),
    "threshold 3 of 5 holders among 5 clients": lambda r: replace(r, threshold=3),
    "threshold: 6 of 5": lambda r: replace(r, threshold=6),
    "could exceed the modulus": lambda r: replace(r, num_clients=6),
    "roster of 5 among 4": lambda r: replace(r, num_clients=4),
    "2 neighbours among 5 clients": lambda r: replace(r, entries=r.entries[:3], threshold=3),
    "below the 3 of this client's min_clients": lambda r: replace(
        r, entries=r.entries[:2], num_clients=2, threshold=2
    ),
    "not the list of clients": lambda r: replace(r, listing=bytes(32)),
    "another session": lambda r: replace(r, round_id=RoundId(bytes(16), 1)),
    "a message of round 2": lambda r: replace(r, round_id=RoundId(r.round_id.session, 2)),
}


@pytest.mark.parametrize("reason", ROSTERS)
def test_rosters(reason: str) -> None:
    round_ = open_round()
    round_.advertise()
    roster = changed_roster(round_, ROSTERS[reason])
    refused(round_, reason, lambda client: client.share_keys(roster))


def test_a_key_of_small_order_on_the_roster() -> None:
    round_ = open_round()
    round_.advertise()

    def change(roster: Roster) -> Roster:
        entries = (*roster.entries[:-1], replace(roster.entries[-1], public_key=bytes(32)))
        return replace(roster, entries=entries, listing=listing_of(entries))

    roster = changed_roster(round_, change)
    refused(round_, "usable", lambda client: client.share_keys(roster))


@pytest.mark.parametrize("attack", ["other identity", "unknown client"])
def test_rosters_of_clients_that_are_not_known(attack: str) -> None:
    round_ = open_round(signed=True)
    round_.advertise()

    def change(roster: Roster) -> Roster:
        last = roster.entries[-1]
        changed = {"identity": bytes(32)} if attack == "other identity" else {"client_id": 1000}
        entries = (*roster.entries[:-1], replace(last, **changed))
        return replace(roster, entries=entries, listing=listing_of(entries))

    reason = "no known identity" if attack == "unknown client" else "another identity than is known"
    roster = changed_roster(round_, change)
    refused(round_, reason, lambda client: client.share_keys(roster))


@pytest.mark.parametrize("attack", ["own key", "other round"])
def test_keys_that_are_not_their_clients_keys_of_this_round(attack: str) -> None:
    """A server that invents or replays a neighbour's keys is noticed: what others sealed does not open."""
    round_ = open_round(signed=True)
    round_.advertise()

    def wire(kind: str, client: int, data: bytes) -> bytes:
        if kind != "Roster" or client != LAST:
            return data
        roster = Roster.from_bytes(data)
        first = replace(roster.entries[0], public_key=bytes([9]) * 32)
        if attack == "other round":
            other = open_round(signed=True, number=2)
            other.policies = round_.policies
            other.server._config.identities.update(round_.server._config.identities)
            other.advertise()
            first = other.server._entries[first.client_id]
        entries = (first, *roster.entries[1:])
        return replace(roster, entries=entries, listing=listing_of(entries)).to_bytes()

    round_.wire = wire
    round_.share()
    server = round_.server
    delivery = server._dealt.delivery(server._round_id, LAST, server._graph[LAST]).to_bytes()
    refused(round_, "those of 4 do not open", lambda client: client.accept_shares(delivery), LAST)


def test_a_second_roster() -> None:
    round_ = open_round()
    round_.advertise()
    rosters = round_.server.rosters()
    client = round_.client(CLIENT)
    client.share_keys(rosters[CLIENT])
    secrets = secrets_of(client)
    with pytest.raises(SecureAggregationError, match="stage SHARED"):
        client.share_keys(rosters[CLIENT])
    check_erased(client, secrets)


def shared_round() -> tuple[Round, ShareDelivery]:
    round_ = open_round()
    round_.advertise()
    round_.share()
    return round_, ShareDelivery.from_bytes(round_.server.deliveries()[LAST])


def flipped(sealed: bytes) -> bytes:
    return sealed[:-1] + bytes([sealed[-1] ^ 1])


DELIVERIES: dict[str, Callable[[ShareDelivery], ShareDelivery]] = {
    "a list of 6, where this client knows a list of 5": lambda d: replace(d, senders=Subset(6, (0, 1, 2, 3))),
    "handed a share of its own": lambda d: replace(d, senders=Subset(5, (0, 1, 2, 3, 4))),
    "those of 2 do not open": lambda d: replace(d, sealed=(d.sealed[1], d.sealed[0], *d.sealed[2:])),
    "those of 4 do not open": lambda d: replace(d, sealed=tuple(flipped(each) for each in d.sealed)),
    "fewer than the threshold": lambda d: replace(
        d, senders=Subset(5, (0,)), sealing=Subset(5, (0,)), sealed=d.sealed[:1]
    ),
    "another session": lambda d: replace(d, round_id=RoundId(bytes(16), 1)),
}


@pytest.mark.parametrize("reason", DELIVERIES)
def test_deliveries(reason: str) -> None:
    round_, delivery = shared_round()
    wrong = DELIVERIES[reason](delivery).to_bytes()
    refused(round_, reason, lambda client: client.accept_shares(wrong), LAST)


def test_a_share_that_does_not_open_is_disputed_by_its_digest() -> None:
    round_, delivery = shared_round()
    wrong = replace(delivery, sealed=(flipped(delivery.sealed[0]), *delivery.sealed[1:]))
    receipt = ShareReceipt.from_bytes(round_.client(LAST).accept_shares(wrong.to_bytes()))
    assert receipt.disputed == (CLIENT,)
    assert receipt.digests == (keys.digest(wrong.sealed[0]),)


def test_shares_of_another_round_do_not_open() -> None:
    """Those of an earlier attempt with the same clients, replayed."""
    round_, delivery = shared_round()
    _, foreign = shared_round()
    mixed = replace(delivery, sealed=foreign.sealed).to_bytes()
    refused(round_, "do not open", lambda client: client.accept_shares(mixed), LAST)


def test_shares_sealed_under_another_threshold_do_not_open() -> None:
    """A server that tells clients different thresholds is noticed."""
    round_ = open_round()
    round_.advertise()
    rosters = round_.server.rosters()
    for i, data in rosters.items():
        roster = Roster.from_bytes(data)
        told = replace(roster, threshold=roster.threshold + 1) if i == LAST else roster
        round_.server.receive_shares(i, round_.client(i).share_keys(told.to_bytes()))
    server = round_.server
    delivery = server._dealt.delivery(server._round_id, LAST, server._graph[LAST]).to_bytes()
    refused(round_, "those of 4 do not open", lambda client: client.accept_shares(delivery), LAST)


def accepted_round() -> tuple[Round, MaskRequest]:
    round_ = open_round()
    round_.advertise()
    round_.share()
    round_.accept()
    return round_, MaskRequest.from_bytes(round_.server.mask_requests(CONTEXT)[CLIENT])


MASK_REQUESTS: dict[str, Callable[[MaskRequest], MaskRequest]] = {
    "is no member": lambda r: replace(r, members=Subset(5, (1, 2, 3, 4))),
    "a list of 6": lambda r: replace(r, members=Subset(6, (0, 1, 2, 3, 4, 5))),
    "3 of 5 clients are left, below the 4": lambda r: replace(r, members=Subset(5, (0, 1, 2))),
    "another session": lambda r: replace(r, round_id=RoundId(bytes(16), 1)),
}


@pytest.mark.parametrize("reason", MASK_REQUESTS)
def test_mask_requests(reason: str) -> None:
    round_, request = accepted_round()
    wrong = MASK_REQUESTS[reason](request).to_bytes()
    refused(round_, reason, lambda client: client.settle(wrong, CONTEXT))


def test_a_member_whose_share_was_not_delivered() -> None:
    round_, delivery = shared_round()
    without_first = Subset(5, (1, 2, 3))
    short = replace(delivery, senders=without_first, sealing=without_first, sealed=delivery.sealed[1:])
    round_.client(LAST).accept_shares(short.to_bytes())
    request = MaskRequest(short.round_id, Subset(5, (0, 1, 2, 3, 4))).to_bytes()
    refused(round_, r"clients \[3\] are members and neighbours", lambda client: client.settle(request), LAST)


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        (np.full(20, 16), "outside 0..15"),
        (np.full(20, -1), "outside 0..15"),
        (np.zeros(19, dtype=int), "shape"),
        (np.zeros((4, 5), dtype=int), "shape"),
        (np.zeros(20), "expected integers"),
        (np.zeros(20, dtype=bool), "expected integers"),
    ],
)
def test_codes(codes: np.ndarray, reason: str) -> None:
    round_, request = accepted_round()
    round_.client(CLIENT).settle(request.to_bytes(), CONTEXT)
    refused(round_, reason, lambda client: client.mask(codes))


def masked_round(lost: tuple[int, ...] = ()) -> tuple[Round, UnmaskRequest]:
    round_ = open_round(8, dropout_fraction=0.25)
    round_.advertise()
    round_.share()
    round_.accept()
    round_.mask(lost)
    round_.confirm()
    return round_, UnmaskRequest.from_bytes(round_.server.unmask_requests()[CLIENT])


REQUESTS: dict[str, Callable[[UnmaskRequest], UnmaskRequest]] = {
    "not called active": lambda r: replace(r, active=Subset(8, r.active.places[1:])),
    "a list of 7, where this client knows a list of 8": lambda r: replace(
        r, active=Subset(7, r.active.places[:-1])
    ),
    "a list of 9, where this client knows a list of 8": lambda r: replace(
        r, active=Subset(9, r.active.places)
    ),
    "below the threshold 5": lambda r: replace(r, active=Subset(8, r.active.places[:4])),
    "5 of 8 clients are left, below the 6": lambda r: replace(r, active=Subset(8, r.active.places[:5])),
    "another session": lambda r: replace(r, round_id=RoundId(bytes(16), 1)),
}


@pytest.mark.parametrize("reason", REQUESTS)
def test_unmask_requests(reason: str) -> None:
    round_, request = masked_round(lost=(10,))
    wrong = REQUESTS[reason](request).to_bytes()
    refused(round_, reason, lambda client: client.unmask(wrong))


def test_a_client_unmasks_once() -> None:
    """A second request, with the lists exchanged, would open the other secret."""
    round_, request = masked_round()
    client = round_.client(CLIENT)
    secrets = secrets_of(client)
    reply = UnmaskReply.from_bytes(client.unmask(request.to_bytes()))
    assert len(reply.seed_shares) == 8
    assert not reply.wrapping_shares
    check_erased(client, secrets)
    restored = ClientRound.from_bytes(client.to_bytes())
    with pytest.raises(SecureAggregationError, match="unmasks once"):
        restored.unmask(request.to_bytes())


def test_a_reply_has_one_share_for_each_neighbor() -> None:
    round_, request = masked_round(lost=(10, 17))
    client = round_.client(CLIENT)
    held = {i: bytes(share) for i, share in client._held.items()}
    reply = UnmaskReply.from_bytes(client.unmask(request.to_bytes()))
    assert request.active == Subset.of(held.keys() - {10, 17}, sorted(held))
    assert reply.seed_shares == tuple(held[i][:20] for i in sorted(held) if i not in (10, 17))
    assert reply.wrapping_shares == tuple(held[i][20:] for i in (10, 17))


def test_stages_come_in_order() -> None:
    for calls in ("share_keys", "accept_shares", "unmask"):
        client = ClientRound.join(invitation(), CLIENT)
        with pytest.raises(SecureAggregationError, match="at stage JOINED"):
            getattr(client, calls)(b"")
    client = ClientRound.join(invitation(), CLIENT)
    client.advertise_keys()
    with pytest.raises(SecureAggregationError, match="at stage ADVERTISED"):
        client.advertise_keys()


def test_secrets_last_no_longer_than_they_are_needed() -> None:
    round_ = open_round(restore=False)
    round_.advertise()
    client = round_.clients[CLIENT]
    assert client._private
    round_.share()
    assert not client._private
    assert len(client._pairs) == len(client._roots) == 4
    round_.accept()
    assert not client._pairs
    round_.mask()
    assert not client._roots
    assert not client._seed
    secrets = secrets_of(client)
    assert len(secrets) == 5
    round_.confirm()
    round_.unmask()
    round_.server.finish()
    check_erased(client, secrets)
    assert not round_.server._dealt.messages
    assert not round_.server._replies


def test_nothing_secret_is_shown_logged_or_pickled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    round_ = open_round(signed=True)
    shown = []
    for step in (round_.advertise, round_.share, round_.accept, round_.mask, round_.confirm):
        step()
        client = round_.client(CLIENT)
        shown.append((repr(client) + repr(round_.server) + repr(client._policy), secrets_of(client)))
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(client)
    for text, secrets in shown:
        assert not any(repr(secret)[2:-1] in text or secret.hex() in text for secret in secrets)
    round_.unmask()
    reply = UnmaskReply.from_bytes(round_.sent["UnmaskReply"][CLIENT])
    assert repr(reply) == "UnmaskReply(client_id=3)"
    assert not caplog.records


@settings(max_examples=40)
@given(st.data())
def test_a_damaged_state_is_refused_or_plays_on_without_a_wrong_error(data: st.DataObject) -> None:
    round_, delivery = shared_round()
    stored = bytearray(round_.clients[LAST].to_bytes())
    with pytest.raises(InvalidUpdateError):
        ClientRound.from_bytes(bytes(stored[: data.draw(st.integers(0, len(stored) - 1))]))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        client = ClientRound.from_bytes(bytes(stored))
        client.accept_shares(delivery.to_bytes())
    except PrivQuantError:
        return


def test_a_client_that_refuses_counts_as_lost() -> None:
    round_ = open_round(6)
    round_.wire = lambda kind, client, data: (
        replace(ShareDelivery.from_bytes(data), senders=Subset(5, (1, 2, 3, 4))).to_bytes()
        if kind == "ShareDelivery" and client == CLIENT
        else data
    )
    result = round_.run(Lost())
    assert result.survivors == (10, 17, 24, 31, 38)
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))
    assert "a list of 5" in round_.refusals[CLIENT]
