"""Keys: known answers against the RFCs' definitions, and what a seal and a signature are bound to."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import example, given
from hypothesis import strategies as st

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import ClientRound
from fl_privquant.secagg._wire import RoundId
from fl_privquant.secagg.crypto import keys
from fl_privquant.secagg.messages import Invitation
from tests.secagg.driver import open_round

SALT = bytes(range(32))
# RFC 7748, section 6.1: Bob's private key, Alice's public key, and the secret they share.
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869, for one block of output."""
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def test_derived_keys_are_hkdf_with_the_stated_info() -> None:
    info = b"fl_privquant secagg v3\0self mask\0" + ALICE_PUBLIC
    key = keys.derive(SHARED, SALT, keys.SELF_MASK, ALICE_PUBLIC)
    assert key == hkdf(SHARED, SALT, info)
    assert key.hex() == "c42896565c5447f5c299389ac2c46fca039f5eb878de6c245d964ea3374332f9"


def test_agreed_keys_are_x25519_and_hkdf_with_the_public_keys_in_order() -> None:
    assert keys.public_key(BOB) == BOB_PUBLIC
    key = keys.agree(BOB, BOB_PUBLIC, ALICE_PUBLIC, SALT)
    info = b"fl_privquant secagg v3\0pair\0" + ALICE_PUBLIC + BOB_PUBLIC
    assert ALICE_PUBLIC < BOB_PUBLIC
    assert key == hkdf(SHARED, SALT, info)
    assert key.hex() == "e0fe44fdee310864cef187d8f5c50ee13ed06e2bcec36f86865d38875344fbd7"


def test_both_sides_agree_and_every_part_matters() -> None:
    one, two = keys.draw_secret(), keys.draw_secret()
    first, second = keys.public_key(one), keys.public_key(two)
    key = keys.agree(one, first, second, SALT)
    assert key == keys.agree(two, second, first, SALT)
    assert key != keys.agree(one, first, second, SALT, bytes(32))
    assert key != keys.agree(one, first, second, SALT[::-1])


def test_what_comes_from_a_pair_secret_is_hkdf_expanded_with_the_stated_info() -> None:
    found = keys.expand(SHARED, 16, keys.MASK_ROOT, b"part")
    expected = hmac.new(SHARED, b"fl_privquant secagg v3\0mask root\0part\x01", hashlib.sha256).digest()
    assert found == expected[:16]
    assert keys.expand(SHARED, 16, keys.DEALT_SHARE, b"part") != found
    assert len(keys.expand(SHARED, 200, keys.DEALT_SHARE)) == 200


def test_what_was_wrapped_opens_with_its_seed_round_and_owner_only() -> None:
    seed, roots = bytes(range(16)), tuple(bytes(range(at, at + 16)) for at in (0, 16, 32))
    wrapped = keys.wrap(seed, SALT, ALICE_PUBLIC, roots)
    assert keys.wrap(seed, SALT, ALICE_PUBLIC, wrapped) == roots
    others = (
        keys.wrap(seed[::-1], SALT, ALICE_PUBLIC, roots),
        keys.wrap(seed, SALT[::-1], ALICE_PUBLIC, roots),
        keys.wrap(seed, SALT, BOB_PUBLIC, roots),
    )
    for other in others:
        # No block of the pad is that of another one.
        assert not set(other) & set(wrapped)


def test_the_digest_of_a_round_is_fixed() -> None:
    """All keys hang on it: session, number, clients, dimension, width, largest code, signed or not."""
    invitation = Invitation(RoundId(bytes(range(16)), 7), 10, 1000, 8, 15, False)
    assert invitation.to_bytes().hex() == (
        "53410601000102030405060708090a0b0c0d0e0f07000000000000000a000000e803000000000000080f0000000000000000"
    )
    expected = hashlib.sha256(b"fl_privquant secagg v3\0" + invitation.to_bytes()).digest()
    assert keys.digest(invitation.to_bytes()) == expected


PRIME = 2**255 - 19
# A point of order 8 on the curve of X25519: doubled, it has the coordinate 1, which is of order 4.
ORDER_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504


def doubled(u: int) -> int:
    """The coordinate of twice a point (RFC 7748, section 5)."""
    return (u * u - 1) ** 2 * pow(4 * u * (u * u + 486662 * u + 1), -1, PRIME) % PRIME


def agrees_by_openssl(public: bytes) -> bool:
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("u", [0, 1, PRIME - 1, ORDER_8, pow(ORDER_8, -1, PRIME)])
def test_a_point_of_small_order_is_no_key(u: int) -> None:
    """However it is written: not reduced, or with the bit that is not part of it. OpenSSL says the same."""
    assert u in (0, 1, PRIME - 1) or doubled(u) == 1
    for written in (u, u + PRIME):
        for bit in (0, 1 << 255):
            if written < 1 << 255:
                public = (written + bit).to_bytes(32, "little")
                assert not keys.is_usable(public)
                assert not agrees_by_openssl(public)
                with pytest.raises(SecureAggregationError, match="usable"):
                    keys.agree(keys.draw_secret(), ALICE_PUBLIC, public, SALT)


@given(st.binary(min_size=32, max_size=32))
@example(ALICE_PUBLIC)
@example((2).to_bytes(32, "little"))
@example((PRIME - 2).to_bytes(32, "little"))
def test_every_other_point_is_a_key(public: bytes) -> None:
    assert keys.is_usable(public) == agrees_by_openssl(public)
    if keys.is_usable(public):
        assert len(keys.agree(keys.draw_secret(), ALICE_PUBLIC, public, SALT)) == 32


@pytest.mark.parametrize("size", [0, 31, 33])
def test_keys_of_another_size_are_refused(size: int) -> None:
    """The library reads 32 bytes, however few it is given."""
    assert not keys.is_usable(bytes([9]) * size)
    assert not keys.is_usable_identity(bytes([9]) * size)
    assert not keys.is_valid_signature(bytes(size), bytes(64), b"text")
    assert not keys.is_valid_signature(bytes(32), bytes(32 + size), b"text")
    with pytest.raises(SecureAggregationError, match=f"a key of {size} bytes"):
        keys.public_key(bytes(size))
    for private, public in ((BOB, bytes(size)), (bytes(size), ALICE_PUBLIC)):
        with pytest.raises(SecureAggregationError, match=f"a key of {size} bytes"):
            keys.agree(private, BOB_PUBLIC, public, SALT)


def test_signatures_are_those_of_openssl() -> None:
    identity = Ed25519PrivateKey.generate()
    signature = keys.sign(identity, SALT, b"body")
    assert signature == identity.sign(keys.digest(b"signature", SALT, b"body"))


def test_a_signature_is_bound_to_identity_round_and_body() -> None:
    identity = Ed25519PrivateKey.generate()
    public = identity.public_key().public_bytes_raw()
    signature = keys.sign(identity, SALT, b"body")
    assert keys.verify(public, signature, SALT, b"body")
    assert not keys.verify(public, signature, SALT[::-1], b"body")
    assert not keys.verify(public, signature, SALT, b"bodY")
    assert not keys.verify(public, b"", SALT, b"body")
    assert not keys.verify(BOB_PUBLIC, signature, SALT, b"body")
    assert not keys.verify(b"short", signature, SALT, b"body")


def test_wiped_secrets_are_gone() -> None:
    one, two = bytearray(b"secret"), bytearray(b"other")
    keys.wipe(one, two)
    assert one == two == b""


def public(identity: Ed25519PrivateKey) -> bytes:
    return identity.public_key().public_bytes_raw()


def pair(own: Ed25519PrivateKey, peer: bytes) -> bytes:
    return keys.derive_identity_pair_keys(own, [peer])[peer]


def test_two_identities_share_a_key_that_no_third_derives() -> None:
    one, two, three = (Ed25519PrivateKey.generate() for _ in range(3))
    assert pair(one, public(two)) == pair(two, public(one))
    assert (
        len({pair(*ends) for ends in ((one, public(two)), (one, public(three)), (three, public(two)))}) == 3
    )


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


@pytest.mark.parametrize("owned", [True, False])
def test_a_client_goes_by_its_own_identity(owned: bool) -> None:
    """The server learns by which of its keys a client goes from the signature: another's key is none."""
    round_ = open_round(6, signed=True)
    client = ClientRound.join(round_.server.invitation(), 3, round_.policies[3 if owned else 10])
    assert round_.server.receive(3, client.advertise_keys()) == owned
    assert ("not signed by the identity of client 3" in round_.server.rejected.get(3, "")) != owned
    if owned:
        assert round_.server._entries[3].identity == public(round_.policies[3].identity)
