"""Keys of a round: agreed with X25519, derived with HKDF-SHA256, used for masks, shares and signatures.

Every key is derived for one purpose in one round. HKDF's salt is a digest of what the clients were told so
far (:mod:`fl_privquant.secagg.signed.transcript`): the invitation, for a pair secret also the graph, for a
mask also the members and the request. Clients that were told different things derive different keys. HKDF's
info is

    ``fl_privquant secagg v3`` 00 purpose 00 part part ...

with parts of fixed sizes. For a key that two clients agree on the parts are their two public keys,
the smaller one first as bytes, so that both derive the same.

Two neighbors agree on one *pair secret* per round (:func:`agree`). What they use is derived from it by
HKDF's second half (:func:`expand`), each for a purpose of its own: the shares of one another's seeds, and the
root of their mask. In signed rounds the pair secret is derived from two secrets: one of keys drawn for the
round, which are erased with it, and one of their identities (:func:`derive_identity_pair_keys`), which
nobody else can have.

X25519 and Ed25519 are libsodium's, which needs no time to set up a private key, and draws, signs and verifies
in half the time of OpenSSL; HKDF and AES are OpenSSL's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from nacl.bindings import (
    crypto_scalarmult,
    crypto_scalarmult_base,
    crypto_sign,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_ed25519_sk_to_curve25519,
    crypto_sign_open,
)
from nacl.exceptions import CryptoError

from fl_privquant.errors import SecureAggregationError

Identity = bytes | tuple[bytes, ...]
"""A client's public Ed25519 key, or the several that it may sign with while it changes its key."""

KEY_BYTES: Final = 32
"""Bytes of every key, public or secret, except for seeds."""

SEED_BYTES: Final = 16
"""Bytes of secrets that are shared or wrapped: with the round and the owner they derive keys of 32 bytes."""

DIGEST_BYTES: Final = 32
"""Bytes of a SHA-256 digest."""

SIGNATURE_BYTES: Final = 64
"""Bytes of an Ed25519 signature."""

# What keys are derived for. From a private key and what another client published:
PAIR: Final = b"pair"  # the secret of a round that two neighbors agree on
IDENTITY_PAIR: Final = b"identity pair"  # the key that two identities share for good: it proves who they are
# From the pair secret, and from the root of a mask:
DEALT_SHARE: Final = b"dealt share"  # a share that dealer and holder derive, so that it is not sent
MASK_ROOT: Final = b"mask root"  # the root of the mask that two neighbors have in common
PAIRWISE_MASK: Final = b"pairwise mask"  # the key of that mask, which one adds and the other subtracts
# From secrets of one client:
DEALING: Final = b"dealing"  # its two seeds, and the share that it keeps
SELF_MASK: Final = b"self mask"  # the key of the mask that it adds by itself
WRAPPING: Final = b"wrapping"  # what it adds to its mask roots before it leaves them with the server
# What it publishes of its self-mask seed and of its wrapping seed, so that wrong shares are noticed:
SEED_COMMITMENT: Final = b"self mask commitment"
WRAPPING_COMMITMENT: Final = b"wrapping commitment"

_DOMAIN: Final = b"fl_privquant secagg v3"
_SHA256: Final = hashes.SHA256()
# Any private key will do to find out whether a public key gives a secret.
_ANY_PRIVATE: Final = bytes(KEY_BYTES)


def public_keys_of(identity: Identity) -> tuple[bytes, ...]:
    """The public keys of an identity."""
    return identity if isinstance(identity, tuple) else (identity,)


def derive(secret: bytes | bytearray, salt: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """(32 bytes) the key for one purpose, from a secret that others cannot guess."""
    info = b"\0".join([_DOMAIN, purpose, b"".join(parts)])
    return HKDF(algorithm=_SHA256, length=KEY_BYTES, salt=salt, info=info).derive(secret)


def expand(secret: bytes | bytearray, size: int, purpose: bytes, *parts: bytes) -> bytes:
    """(size bytes) for one purpose, from a secret that :func:`derive` or :func:`agree` gave."""
    info = b"\0".join([_DOMAIN, purpose, b"".join(parts)])
    return HKDFExpand(algorithm=_SHA256, length=size, info=info).derive(secret)


def wrap(
    seed: bytes | bytearray, salt: bytes, owner: bytes, roots: Sequence[bytes | bytearray]
) -> tuple[bytes, ...]:
    """The roots, wrapped under a seed that is used once; wrapping the result again gives the roots back."""
    pad = hashlib.shake_256(derive(seed, salt, WRAPPING, owner)).digest(SEED_BYTES * len(roots))
    wrapped = np.frombuffer(b"".join(roots), np.uint8) ^ np.frombuffer(pad, np.uint8)
    return tuple(row.tobytes() for row in wrapped.reshape(-1, SEED_BYTES))


def draw_secret() -> bytearray:
    """32 private bytes of X25519, from the operating system."""
    return bytearray(os.urandom(KEY_BYTES))


def public_key(private: bytes | bytearray) -> bytes:
    """The X25519 public key of 32 private bytes."""
    _check_size(private)
    return crypto_scalarmult_base(bytes(private))


def agree(
    private: bytes | bytearray,
    own_public: bytes,
    peer_public: bytes,
    salt: bytes,
    pair: bytes | bytearray = b"",
) -> bytes:
    """(32 bytes) the pair secret that the owners of two public keys, and nobody else, can derive.

    With the ``pair`` key of two identities, one of these identities is needed too.
    """
    secret = _exchange(bytes(private), peer_public)
    if secret is None:
        raise SecureAggregationError("a public key of the roster is not a usable X25519 key")
    low, high = sorted((own_public, peer_public))
    return derive(secret + pair, salt, PAIR, low, high)


def derive_identity_pair_keys(own: Ed25519PrivateKey, peers: Collection[bytes]) -> dict[bytes, bytes]:
    """The lasting key of 32 bytes that each of these identities shares with the client's own one.

    Nobody else can derive it. Ed25519 keys are points of the curve of X25519 in other coordinates (RFC 7748).
    """
    own_public, pairs = own.public_key().public_bytes_raw(), {}
    private = crypto_sign_ed25519_sk_to_curve25519(own.private_bytes_raw() + own_public)
    for peer in peers:
        public = _to_x25519(peer)
        secret = None if public is None else _exchange(private, public)
        if secret is None:
            raise SecureAggregationError(f"identity {peer.hex()}: no usable Ed25519 key")
        pairs[peer] = derive(secret, b"", IDENTITY_PAIR, *sorted((own_public, peer)))
    return pairs


def is_usable(public: bytes) -> bool:
    """Whether a key can be agreed on with the owner of this X25519 public key: not one of small order."""
    return len(public) == KEY_BYTES and _exchange(_ANY_PRIVATE, public) is not None


def is_usable_identity(identity: bytes) -> bool:
    """Whether :func:`derive_identity_pair_keys` can agree on a key with this Ed25519 public key."""
    return len(identity) == KEY_BYTES and _to_x25519(identity) is not None


def digest(*parts: bytes) -> bytes:
    """SHA-256 of the parts; all but the last one must have fixed lengths."""
    return hashlib.sha256(b"".join([_DOMAIN, b"\0", *parts])).digest()


def sign(identity: Ed25519PrivateKey, told: bytes, body: bytes) -> bytes:
    """The signature of a message together with ``told``, the digest of what the signer was told before."""
    secret = identity.private_bytes_raw() + identity.public_key().public_bytes_raw()
    return crypto_sign(_signed_digest(told, body), secret)[:SIGNATURE_BYTES]


def verify(identity: Identity, signature: bytes, told: bytes, body: bytes | memoryview) -> bool:
    """Whether the owner of an Ed25519 public key, or of one of several, signed ``told`` and ``body``."""
    return find_signer(identity, signature, told, body) is not None


def find_signer(identity: Identity, signature: bytes, told: bytes, body: bytes | memoryview) -> bytes | None:
    """The key of this identity by which ``told`` and ``body`` were signed, or None."""
    text = _signed_digest(told, body)
    return next(
        (key for key in public_keys_of(identity) if _is_valid_signature_cached(key, signature, text)), None
    )


def is_valid_signature(identity: bytes, signature: bytes, text: bytes) -> bool:
    """Whether the owner of an Ed25519 public key signed this text."""
    if len(identity) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + text, identity)
    except CryptoError:
        return False
    return True


def wipe(*secrets: bytearray) -> None:
    """Overwrite secrets and empty them, as far as Python allows: copies inside libraries remain."""
    for secret in secrets:
        secret[:] = bytes(len(secret))
        secret.clear()


def _exchange(private: bytes, public: bytes) -> bytes | None:
    """(32 bytes) X25519, or None for a point of small order: the "secret" would be known to everyone."""
    _check_size(private)
    _check_size(public)
    try:
        return crypto_scalarmult(private, public)
    except CryptoError:
        return None


def _check_size(key: bytes | bytearray) -> None:
    # The library reads 32 bytes, however long its argument is.
    if len(key) != KEY_BYTES:
        raise SecureAggregationError(f"a key of {len(key)} bytes, expected {KEY_BYTES}")


def _to_x25519(identity: bytes) -> bytes | None:
    """The X25519 public key of an Ed25519 one (RFC 7748), or None if this is no point of prime order."""
    _check_size(identity)
    try:
        return crypto_sign_ed25519_pk_to_curve25519(identity)
    except CryptoError:
        return None


def _signed_digest(told: bytes, body: bytes | memoryview) -> bytes:
    # The same as digest(), but a body of megabytes is not copied.
    text = hashlib.sha256(b"".join([_DOMAIN, b"\0signature", told]))
    text.update(body)
    return text.digest()


# Clients that share a process, as in a simulation, are shown the same signatures: each is verified once.
_is_valid_signature_cached = lru_cache(maxsize=1 << 14)(is_valid_signature)
