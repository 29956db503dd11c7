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
from fl_privquant.secagg import ClientPolicy, ClientRound, Stage, draw_session
from fl_privquant.secagg._wire import RoundId, Subset
from fl_privquant.secagg.crypto import keys
from fl_privquant.secagg.messages import Invitation, MaskRequest, Roster, UnmaskReply, UnmaskRequest
from tests.secagg.driver import CONTEXT, Lost, Round, open_round

CLIENT = 3


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
    tables = [*client._held_shares.values(), *client._roots.values()]
    held = [client._private, client._seed, *tables]
    return [bytes(secret) for secret in held if secret]


def check_erased(client: ClientRound, secrets: list[bytes]) -> None:
    assert client.stage is Stage.ENDED
    assert not secrets_of(client)
    stored = client.to_bytes()
    assert not any(secret in stored for secret in secrets)
    for call in (client.share_keys, client.settle, client.unmask):
        with pytest.raises(SecureAggregationError, match="unmasks once"):
            call(b"")
    with pytest.raises(SecureAggregationError, match="unmasks once"):
        client.mask(np.zeros(20, dtype=int))


def invitation(**changes: object) -> bytes:
    base = Invitation(RoundId(draw_session(), 1), 5, 20, 7, 15, False)
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
    session = draw_session()
    first = ClientRound.join(invitation(round_id=RoundId(session, 1)), CLIENT)
    first.advertise_keys()
    for number in (0, 1):
        for previous in (first, None):
            with pytest.raises(SecureAggregationError, match="once"):
                ClientRound.join(invitation(round_id=RoundId(session, number)), CLIENT, previous=previous)
    assert first.stage is Stage.ADVERTISED
    ClientRound.join(invitation(round_id=RoundId(session, 2)), CLIENT, previous=first)
    assert first.stage is Stage.ENDED
    ClientRound.join(invitation(round_id=RoundId(draw_session(), 0)), CLIENT, previous=first)


def changed_roster(round_: Round, change: Callable[[Roster], Roster]) -> bytes:
    roster = Roster.from_bytes(round_.server.rosters()[CLIENT])
    return change(roster).to_bytes()


ROSTERS: dict[str, Callable[[Roster], Roster]] = {
    "missing from its own roster": lambda r: replace(r, ids=r.ids[1:]),
    "is on the roster twice": lambda r: replace(r, public_keys=(*r.public_keys[:-1], r.public_keys[0])),
    "3 public keys on the roster, expected those of 4": lambda r: replace(r, public_keys=r.public_keys[1:]),
    "more than half": lambda r: replace(r, threshold=2),
    "threshold 3 of 5 holders among 5 clients": lambda r: replace(r, threshold=3),
    "threshold: 6 of 5": lambda r: replace(r, threshold=6),
    "could exceed the modulus": lambda r: replace(r, num_clients=6),
    "roster of 5 among 4": lambda r: replace(r, num_clients=4),
    "2 neighbors among 5 clients": lambda r: replace(
        r, ids=r.ids[:3], public_keys=r.public_keys[:2], num_neighbors=2, threshold=2
    ),
    "3 holders, expected 4 neighbors": lambda r: replace(r, ids=r.ids[:3], public_keys=r.public_keys[:2]),
    "below the 3 of this client's min_clients": lambda r: replace(
        r, ids=r.ids[:2], public_keys=r.public_keys[:1], num_clients=2, num_neighbors=1, threshold=2
    ),
    "path of 1 nodes": lambda r: replace(r, path=(bytes(32),)),
    "a spread graph": lambda r: replace(r, spread=True, num_clients=5, num_neighbors=4),
    "another session": lambda r: replace(r, round_id=RoundId(bytes(16), 1)),
    "a message of round 2": lambda r: replace(r, round_id=RoundId(r.round_id.session, 2)),
}


@pytest.mark.parametrize("reason", ROSTERS)
def test_rosters(reason: str) -> None:
    round_ = open_round(until="share")
    roster = changed_roster(round_, ROSTERS[reason])
    refused(round_, reason, lambda client: client.share_keys(roster))


def test_a_key_of_small_order_on_the_roster() -> None:
    round_ = open_round(until="share")

    roster = changed_roster(round_, lambda r: replace(r, public_keys=(*r.public_keys[:-1], bytes(32))))
    refused(round_, "usable", lambda client: client.share_keys(roster))


CHANGED_IDENTITIES: dict[str, Callable[[Roster], Roster]] = {
    "identity key that this client's list does not have": lambda r: replace(
        r, identified=Subset(4, (3,)), identities=(bytes(32),)
    ),
    "no known identity": lambda r: replace(r, ids=(3, 10, 17, 24, 1000), present=Subset()),
    "a list of 4 clients, expected the 5": lambda r: replace(r, present=Subset(5, (0, 1, 2, 3))),
    "a subset of a list of 6 clients": lambda r: replace(r, present=Subset(6, (0, 1, 2, 3, 5))),
}


@pytest.mark.parametrize("reason", CHANGED_IDENTITIES)
def test_rosters_of_clients_that_are_not_known(reason: str) -> None:
    round_ = open_round(signed=True, until="share")
    roster = changed_roster(round_, CHANGED_IDENTITIES[reason])
    refused(round_, reason, lambda client: client.share_keys(roster))


@pytest.mark.parametrize("attack", ["own key", "other round"])
def test_keys_that_are_not_their_clients_keys_of_this_round(attack: str) -> None:
    """A server that invents or replays a neighbor's key for one client gains a root that nobody has."""
    round_ = open_round(signed=True, restore=False, until="share")
    wrong = keys.public_key(keys.draw_secret())
    if attack == "other round":
        other = open_round(signed=True, number=2)
        other.policies = round_.policies
        other.server._config.identities.update(round_.server._config.identities)
        other.advertise()
        wrong = other.server._entries[10].public_key

    def wire(kind: str, client: int, data: bytes) -> bytes:
        if kind != "Roster" or client != CLIENT:
            return data
        roster = Roster.from_bytes(data)
        return replace(roster, public_keys=(wrong, *roster.public_keys[1:])).to_bytes()

    round_.wire = wire
    round_.share()
    assert "not signed by the identity" in round_.server.rejected[CLIENT]
    roots = {(i, j): bytes(root) for i, client in round_.clients.items() for j, root in client._roots.items()}
    assert all(roots[i, j] != roots[j, i] for i, j in roots if CLIENT in (i, j))
    assert all(roots[i, j] == roots[j, i] for i, j in roots if CLIENT not in (i, j))


def test_a_second_roster() -> None:
    round_ = open_round(until="share")
    rosters = round_.server.rosters()
    client = round_.client(CLIENT)
    client.share_keys(rosters[CLIENT])
    secrets = secrets_of(client)
    with pytest.raises(SecureAggregationError, match="stage SHARED"):
        client.share_keys(rosters[CLIENT])
    check_erased(client, secrets)


def test_a_client_that_is_told_another_threshold_has_masks_of_its_own() -> None:
    """A server that tells clients different thresholds gets masks that do not cancel."""
    round_ = open_round(restore=False, until="share")
    for i, data in round_.server.rosters().items():
        roster = Roster.from_bytes(data)
        told = replace(roster, threshold=roster.threshold + 1) if i == CLIENT else roster
        round_.clients[i].share_keys(told.to_bytes())
    roots = {i: client._roots for i, client in round_.clients.items()}
    assert all(roots[CLIENT][i] != roots[i][CLIENT] for i in round_.inputs if i != CLIENT)
    assert roots[10][17] == roots[17][10]


def accepted_round() -> tuple[Round, MaskRequest]:
    round_ = open_round(until="mask")
    return round_, MaskRequest.from_bytes(round_.server.mask_requests(CONTEXT)[CLIENT])


MASK_REQUESTS: dict[str, Callable[[MaskRequest], MaskRequest]] = {
    "is not on the list of members": lambda r: replace(r, members=Subset(5, (1, 2, 3, 4))),
    "a list of 6": lambda r: replace(r, members=Subset(6, (0, 1, 2, 3, 4, 5))),
    "3 of 5 clients are left, below the 4": lambda r: replace(r, members=Subset(5, (0, 1, 2))),
    "another session": lambda r: replace(r, round_id=RoundId(bytes(16), 1)),
}


@pytest.mark.parametrize("reason", MASK_REQUESTS)
def test_mask_requests(reason: str) -> None:
    round_, request = accepted_round()
    wrong = MASK_REQUESTS[reason](request).to_bytes()
    refused(round_, reason, lambda client: client.settle(wrong, CONTEXT))


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
    round_ = open_round(8, dropout_fraction=0.25, until="mask")
    round_.mask(lost)
    round_.confirm()
    return round_, UnmaskRequest.from_bytes(round_.server.unmask_requests()[CLIENT])


REQUESTS: dict[str, Callable[[UnmaskRequest], UnmaskRequest]] = {
    "not called active": lambda r: replace(r, active=Subset(8, r.active.places[1:])),
    "a list of 7 clients, but this client knows a list of 8": lambda r: replace(
        r, active=Subset(7, r.active.places[:-1])
    ),
    "a list of 9 clients, but this client knows a list of 8": lambda r: replace(
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
    held = {i: bytes(share) for i, share in client._held_shares.items()}
    reply = UnmaskReply.from_bytes(client.unmask(request.to_bytes()))
    assert request.active == Subset.of(held.keys() - {10, 17}, sorted(held))
    assert reply.seed_shares == tuple(held[i][:20] for i in sorted(held) if i not in (10, 17))
    assert reply.wrapping_shares == tuple(held[i][20:] for i in (10, 17))


def test_stages_come_in_order() -> None:
    for calls in ("share_keys", "settle", "unmask"):
        client = ClientRound.join(invitation(), CLIENT)
        with pytest.raises(SecureAggregationError, match="at stage JOINED"):
            getattr(client, calls)(b"")
    client = ClientRound.join(invitation(), CLIENT)
    client.advertise_keys()
    with pytest.raises(SecureAggregationError, match="at stage ADVERTISED"):
        client.advertise_keys()


def test_secrets_last_no_longer_than_they_are_needed() -> None:
    round_ = open_round(restore=False, until="share")
    client = round_.clients[CLIENT]
    assert client._private
    round_.share()
    assert not client._private
    assert len(client._roots) == 4
    round_.mask()
    assert not client._roots
    assert not client._seed
    secrets = secrets_of(client)
    assert len(secrets) == 5
    round_.run(since="confirm")
    check_erased(client, secrets)
    assert not round_.server._dealt.messages
    assert not round_.server._replies


def test_nothing_secret_is_shown_logged_or_pickled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    round_ = open_round(signed=True)
    shown = []
    for step in (round_.advertise, round_.share, round_.mask, round_.confirm):
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
    round_, request = accepted_round()
    stored = bytearray(round_.clients[CLIENT].to_bytes())
    with pytest.raises(InvalidUpdateError):
        ClientRound.from_bytes(bytes(stored[: data.draw(st.integers(0, len(stored) - 1))]))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        client = ClientRound.from_bytes(bytes(stored))
        client.settle(request.to_bytes(), CONTEXT)
    except PrivQuantError:
        return


def test_a_client_that_refuses_counts_as_lost() -> None:
    round_ = open_round(6)
    round_.wire = lambda kind, client, data: (
        replace(MaskRequest.from_bytes(data), members=Subset(5, (1, 2, 3, 4))).to_bytes()
        if kind == "MaskRequest" and client == CLIENT
        else data
    )
    result = round_.run(Lost())
    assert result.survivors == (10, 17, 24, 31, 38)
    np.testing.assert_array_equal(result.total, round_.expected(result.survivors))
    assert "a list of 5" in round_.refusals[CLIENT]
