"""Seeds of noise that one client hands over to another: sealed, so that the server cannot read them.

The receiver makes a key pair for one round, and the sender seals the seed to its public key (libsodium's
sealed box: X25519 with a fresh key of the sender, XSalsa20-Poly1305). The sender stays anonymous, and the
seal does not say who it is: a server that lies could put in a seed of its own.
"""

from __future__ import annotations

from typing import Final

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from fl_privquant.errors import SecureAggregationError

KEY_BYTES: Final = 32
"""Size of a private and of a public key."""


def make_key() -> tuple[bytes, bytes]:
    """A fresh private key and its public key."""
    private = PrivateKey.generate()
    return bytes(private), bytes(private.public_key)


def seal_seed(seed: bytes, public_key: bytes) -> bytes:
    """The seed, readable only with the private key that belongs to the public one; 48 bytes longer."""
    if len(public_key) != KEY_BYTES:
        raise SecureAggregationError(f"noise seed: a key of {len(public_key)} bytes, expected {KEY_BYTES}")
    return SealedBox(PublicKey(public_key)).encrypt(seed)


def open_seed(sealed: bytes, private_key: bytes) -> bytes:
    """The seed in a sealed one.

    >>> private, public = make_key()
    >>> sealed = seal_seed(bytes(32), public)
    >>> len(sealed), open_seed(sealed, private) == bytes(32)
    (80, True)
    """
    try:
        return SealedBox(PrivateKey(private_key)).decrypt(sealed)
    except (CryptoError, ValueError, TypeError) as error:
        raise SecureAggregationError("noise seed: the sealed seed does not open with this key") from error
