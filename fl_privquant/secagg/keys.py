"""Keys of a round: agreed with X25519, derived with HKDF-SHA256, used for AEAD and signatures.

Every key is derived for one purpose in one round. The salt is a digest of what the two were told so far
(:mod:`fl_privquant.secagg.transcript`): the invitation, for a channel also the graph, for a mask also the
members and the request. Clients that were told different things derive different keys. The info is

    ``fl_privquant secagg v1`` 00 purpose 00 part part ...

with parts of 32 bytes each. For a key that two clients agree on the parts are their two public keys,
the smaller one first as bytes, so that both derive the same.

In signed rounds the channel between two clients is derived from two secrets: one of keys drawn for the round,
which are erased with it, and one of their identities (:func:`identity_pair`), which nobody else can have.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from fl_privquant.errors import SecureAggregationError

__all__ = [
    "CHANNEL",
    "DIGEST_BYTES",
    "IDENTITY_PAIR",
    "KEY_BYTES",
    "PAIRWISE_MASK",
    "SEAL_BYTES",
    "SELF_MASK",
    "SELF_MASK_COMMITMENT",
    "SIGNATURE_BYTES",
    "Identity",
    "agree",
    "derive",
    "digest",
    "exchange_key",
    "forget_signatures",
    "identity_pair",
    "is_signature",
    "is_usable",
    "public_key",
    "seal",
    "sign",
    "unseal",
    "verifies",
    "wipe",
]

Identity = bytes | tuple[bytes, ...]
"""A client's public Ed25519 key, or the several that it may sign with while it changes its key."""

KEY_BYTES: Final = 32
"""Bytes of every key, public or secret, and of every seed."""

DIGEST_BYTES: Final = 32
"""Bytes of a SHA-256 digest."""

SIGNATURE_BYTES: Final = 64
"""Bytes of an Ed25519 signature."""

CHANNEL: Final = b"channel"
"""Purpose of a key that seals shares for a neighbour."""

PAIRWISE_MASK: Final = b"pairwise mask"
"""Purpose of a key that two neighbours mask with, one adding what the other subtracts."""

IDENTITY_PAIR: Final = b"identity pair"
"""Purpose of a key that two clients share for good, by their identities: it proves who seals for whom."""

SELF_MASK: Final = b"self mask"
"""Purpose of a key that a client masks with by itself."""

SELF_MASK_COMMITMENT: Final = b"self mask commitment"
"""Purpose of what a client publishes of its self-mask seed, so that a wrong share is noticed."""

_DOMAIN: Final = b"fl_privquant secagg v1"
_PRIME: Final = 2**255 - 19
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16

SEAL_BYTES: Final = _NONCE_BYTES + _TAG_BYTES
"""Bytes that sealing adds to a text."""


def derive(secret: bytes | bytearray, salt: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """(32 bytes) the key for one purpose, from a secret that others cannot guess."""
    info = b"\0".join([_DOMAIN, purpose, b"".join(parts)])
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)


def agree(
    private: X25519PrivateKey,
    own_public: bytes,
    peer_public: bytes,
    salt: bytes,
    purpose: bytes,
    pair: bytes | bytearray = b"",
) -> bytes:
    """(32 bytes) the key that the owners of two public keys, and nobody else, can derive.

    With the ``pair`` key of two identities, nobody who has not also one of these identities.
    """
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError:
        # A point of small order: the "shared secret" would be known to everyone.
        raise SecureAggregationError("a public key of the roster is not a usable X25519 key") from None
    low, high = sorted((own_public, peer_public))
    return derive(secret + pair, salt, purpose, low, high)


def identity_pair(identity: Ed25519PrivateKey, peer: bytes) -> bytes:
    """(32 bytes) the key that the owners of two identities, and nobody else, can derive: always the same.

    Ed25519 keys are points of the curve of X25519 in other coordinates (RFC 7748): u = (1 + y) / (1 - y).
    """
    private = X25519PrivateKey.from_private_bytes(hashlib.sha512(identity.private_bytes_raw()).digest()[:32])
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(exchange_key(peer)))
    except ValueError:
        raise SecureAggregationError(f"identity {peer.hex()}: no usable Ed25519 key") from None
    low, high = sorted((identity.public_key().public_bytes_raw(), peer))
    return derive(secret, b"", IDENTITY_PAIR, low, high)


def exchange_key(identity: bytes) -> bytes:
    """The X25519 public key of an Ed25519 public key."""
    y = int.from_bytes(identity, "little") & ((1 << 255) - 1)
    try:
        u = (1 + y) * pow(1 - y, -1, _PRIME) % _PRIME
    except ValueError:
        # The neutral point, which is no key.
        u = 0
    return u.to_bytes(KEY_BYTES, "little")


def is_usable(public: bytes) -> bool:
    """Whether a key can be agreed on with the owner of this public key."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def public_key(private: bytes | bytearray) -> bytes:
    """The X25519 public key of 32 private bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def seal(key: bytes | bytearray, text: bytes, bound_to: bytes) -> bytes:
    """The text encrypted with ChaCha20-Poly1305: only with this key and ``bound_to`` does it open."""
    # A random nonce, though a key seals one text: a state that is restored must not reuse one.
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, bound_to)


def unseal(key: bytes | bytearray, sealed: bytes, bound_to: bytes) -> bytes | None:
    """The text, or None if anything was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to)
    except InvalidTag:
        return None


def digest(*parts: bytes) -> bytes:
    """SHA-256 of the parts, which must be of fixed lengths or only the last one free."""
    state = hashlib.sha256(_DOMAIN + b"\0")
    for part in parts:
        state.update(part)
    return state.digest()


def sign(identity: Ed25519PrivateKey, told: bytes, body: bytes) -> bytes:
    """The signature of a message by one who was told what this digest stands for."""
    return identity.sign(_signed(told, body))


def verifies(identity: Identity, signature: bytes, told: bytes, body: bytes) -> bool:
    """Whether the owner of a 32-byte Ed25519 public key, or of one of several, signed this when told that."""
    text = _signed(told, body)
    if isinstance(identity, bytes):
        return _verifies(identity, signature, text)
    return any(_verifies(key, signature, text) for key in identity)


def is_signature(identity: bytes, signature: bytes, text: bytes) -> bool:
    """Whether the owner of an Ed25519 public key signed this text.

    By libsodium, which takes half the time of OpenSSL; keys and signatures are the same bytes in both.
    """
    try:
        VerifyKey(identity).verify(text, signature)
    except (CryptoError, ValueError):
        return False
    return True


def forget_signatures() -> None:
    """Forget which signatures were verified in this process: for measurements of a client by itself."""
    _verifies.cache_clear()


def wipe(*secrets: bytearray) -> None:
    """Overwrite and empty: as far as Python lets us, since copies inside libraries stay."""
    for secret in secrets:
        secret[:] = bytes(len(secret))
        secret.clear()


def _signed(told: bytes, body: bytes) -> bytes:
    return digest(b"signature", told, body)


# Clients that share a process, as in a simulation, are shown the same signatures: each is verified once.
_verifies = lru_cache(maxsize=1 << 14)(is_signature)
