"""Keys that two identities share: the same on both sides, of these two only, and kept from round to round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st
from nacl.bindings import (
    crypto_scalarmult,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_ed25519_sk_to_curve25519,
)

from fl_privquant.errors import InvalidUpdateError, SecureAggregationError
from fl_privquant.secagg import ClientRound, ServerRound, draw_session
from fl_privquant.secagg.crypto import keys
from fl_privquant.secagg.crypto.pair_keys import CAPACITY, PairKeys
from tests.secagg.driver import Round, open_round


def public(identity: Ed25519PrivateKey) -> bytes:
    return identity.public_key().public_bytes_raw()


def pair(own: Ed25519PrivateKey, peer: bytes) -> bytes:
    return keys.derive_identity_pair_keys(own, [peer])[peer]


def test_both_sides_derive_the_same_key_and_no_third() -> None:
    one, two, three = (Ed25519PrivateKey.generate() for _ in range(3))
    assert pair(one, public(two)) == pair(two, public(one))
    assert len({pair(*ends) for ends in ((one, public(two)), (one, public(three)))}) == 2
    assert pair(three, public(two)) != pair(one, public(two))


def test_the_map_between_the_curves_is_that_of_libsodium() -> None:
    for _ in range(20):
        one, two = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        there = crypto_sign_ed25519_pk_to_curve25519(public(two))
        secret = crypto_scalarmult(
            crypto_sign_ed25519_sk_to_curve25519(one.private_bytes_raw() + public(one)), there
        )
        expected = keys.derive(secret, b"", keys.IDENTITY_PAIR, *sorted((public(one), public(two))))
        assert pair(one, public(two)) == expected


PRIME = 2**255 - 19
# The y of a point of order 8: twice it has y = 0, which is of order 4.
ORDER_8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
SMALL_ORDER = (0, 1, PRIME - 1, PRIME, PRIME + 1, ORDER_8, PRIME - ORDER_8)


@pytest.mark.parametrize("y", SMALL_ORDER)
@pytest.mark.parametrize("bit", [0, 1 << 255])
def test_points_of_small_order_are_no_identities(y: int, bit: int) -> None:
    identity = (y + bit).to_bytes(32, "little")
    assert not keys.is_usable_identity(identity)
    for peers in ([identity], [public(Ed25519PrivateKey.generate()), identity]):
        with pytest.raises(SecureAggregationError, match=f"identity {identity.hex()}: no usable Ed25519 key"):
            keys.derive_identity_pair_keys(Ed25519PrivateKey.generate(), peers)


@given(st.binary(min_size=32, max_size=32))
@example((2).to_bytes(32, "little"))
@example(bytes(range(32)))
def test_an_identity_is_usable_if_clients_can_agree_on_a_key_with_it(identity: bytes) -> None:
    """The server lets pass what clients can agree on, and nothing else."""
    if keys.is_usable_identity(identity):
        assert len(pair(Ed25519PrivateKey.generate(), identity)) == 32
    else:
        with pytest.raises(SecureAggregationError, match="no usable Ed25519 key"):
            pair(Ed25519PrivateKey.generate(), identity)


def test_a_generated_identity_is_usable() -> None:
    assert all(keys.is_usable_identity(public(Ed25519PrivateKey.generate())) for _ in range(20))


def test_keys_come_back_from_bytes_and_are_not_derived_again(monkeypatch: pytest.MonkeyPatch) -> None:
    own, peers = Ed25519PrivateKey.generate(), [public(Ed25519PrivateKey.generate()) for _ in range(3)]
    pairs = PairKeys()
    found = pairs.of(own, peers)
    again = PairKeys(pairs.to_bytes())
    monkeypatch.setattr(keys, "derive_identity_pair_keys", lambda *ends: pytest.fail("derived again"))
    assert again.of(own, peers) == found
    assert again.to_bytes() == pairs.to_bytes() == PairKeys(pairs.to_bytes()).to_bytes()
    assert not any(key.hex() in repr(pairs) for key in found.values())
    with pytest.raises(InvalidUpdateError, match="multiple of 64"):
        PairKeys(bytes(65))


def test_a_replaced_identity_has_another_key() -> None:
    """On either side: what was kept for the former one is not found."""
    own, new, peer, other = (Ed25519PrivateKey.generate() for _ in range(4))
    pairs = PairKeys()
    former = pairs.of(own, [public(peer)])[public(peer)]
    assert pairs.of(new, [public(peer)])[public(peer)] == pair(peer, public(new)) != former
    assert pairs.of(own, [public(other)])[public(other)] == pair(other, public(own)) != former


def test_no_more_than_the_capacity_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Ed25519PrivateKey.generate()
    monkeypatch.setattr(
        keys, "derive_identity_pair_keys", lambda identity, peers: {each: each for each in peers}
    )
    pairs = PairKeys()
    peers = [keys.digest(i.to_bytes(8, "little")) for i in range(CAPACITY + 5)]
    pairs.of(own, peers[:10])
    assert set(pairs.of(own, peers)) == set(peers)
    assert len(pairs.to_bytes()) == 64 * CAPACITY
    assert peers[4] not in pairs.to_bytes()
    assert peers[5] in pairs.to_bytes()


def next_round(round_: Round, **identities: Ed25519PrivateKey) -> Round:
    """Another round of the same clients, who keep their states; some have a new identity (``c3=...``)."""
    replaced = {int(name[1:]): identity for name, identity in identities.items()}
    known = dict(next(iter(round_.policies.values())).known_identities or {})
    known |= {i: public(identity) for i, identity in replaced.items()}
    config = replace(round_.server._config, session=draw_session(), identities=known)
    later = Round(ServerRound(config, round_.inputs), round_.inputs, {}, restore=False)
    later.policies = {
        i: replace(policy, known_identities=known, identity=replaced.get(i, policy.identity))
        for i, policy in round_.policies.items()
    }
    for i, client in round_.clients.items():
        state = ClientRound.from_bytes(client.to_bytes(), later.policies[i])
        later.clients[i] = ClientRound.join(later.server.invitation(), i, later.policies[i], previous=state)
        later.server.receive(i, later.clients[i].advertise_keys())
    return later


def finish(round_: Round) -> None:
    for stage in (round_.share, round_.mask, round_.confirm, round_.unmask):
        stage()
    opened = round_.server.finish()
    assert not round_.refusals
    np.testing.assert_array_equal(opened.total, round_.expected(round_.inputs))


def test_a_later_round_derives_no_pair_key_again(monkeypatch: pytest.MonkeyPatch) -> None:
    round_ = open_round(6, signed=True)
    round_.run()
    assert all(len(client._pair_keys.to_bytes()) == 5 * 64 for client in round_.clients.values())
    monkeypatch.setattr(keys, "derive_identity_pair_keys", lambda *ends: pytest.fail("derived again"))
    finish(next_round(round_))


def test_an_identity_that_is_replaced_between_rounds() -> None:
    round_ = open_round(6, signed=True)
    round_.run()
    finish(next_round(round_, c3=Ed25519PrivateKey.generate()))


def test_a_client_that_lost_its_state_takes_part_again() -> None:
    round_ = open_round(6, signed=True)
    round_.run()
    round_.clients[3]._pair_keys = PairKeys()
    finish(next_round(round_))


@pytest.mark.parametrize("owned", [True, False])
def test_a_client_goes_by_its_own_identity(owned: bool) -> None:
    """The server learns by which of its keys a client goes from the signature: another's key is none."""
    round_ = open_round(6, signed=True)
    client = ClientRound.join(round_.server.invitation(), 3, round_.policies[3 if owned else 10])
    assert round_.server.receive(3, client.advertise_keys()) == owned
    assert ("not signed by the identity of client 3" in round_.server.rejected.get(3, "")) != owned
    if owned:
        assert round_.server._entries[3].identity == public(round_.policies[3].identity)


def test_a_wrong_key_in_the_state_opens_nothing() -> None:
    round_ = open_round(6, signed=True)
    round_.run()
    state = round_.clients[3]
    state._pair_keys = PairKeys(
        bytes(each ^ (at % 64 >= 32) for at, each in enumerate(state._pair_keys.to_bytes()))
    )
    later = next_round(round_)
    for stage in (later.share, later.mask, later.confirm, later.unmask):
        stage()
    # Nobody derives the shares that it dealt: the round ends without a sum, and it is named.
    with pytest.raises(SecureAggregationError, match="do not open its secret"):
        later.server.finish()
    assert set(later.server.culprits) == {3}
