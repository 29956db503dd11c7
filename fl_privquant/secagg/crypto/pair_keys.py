"""Keys that a client shares with other identities, derived once and kept from round to round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.secagg.crypto import keys

CAPACITY: Final = 1024
"""How many keys are kept; the oldest are dropped first."""

_BLOCK: Final = keys.DIGEST_BYTES + keys.KEY_BYTES


class PairKeys:
    """The keys that pairs of identities can derive, stored by a digest of both identities.

    A key is found only by the two identities that it belongs to: once either is replaced, another one is
    derived. Most stages of a round need no key, so the bytes are read only when a key is asked for.
    """

    def __init__(self, kept: bytes = b"") -> None:
        if len(kept) % _BLOCK:
            raise InvalidUpdateError(f"PairKeys: {len(kept)} bytes, expected a multiple of {_BLOCK}")
        self._kept = kept
        self._keys: dict[bytes, bytes] | None = None

    def __repr__(self) -> str:
        # Secrets are never shown.
        return f"PairKeys({len(self.to_bytes()) // _BLOCK} keys)"

    def to_bytes(self) -> bytes:
        """All keys that are kept. They are secret: whoever has one can pose as either to the other."""
        if self._keys is None:
            return self._kept
        return b"".join([label + key for label, key in self._keys.items()])

    def of(self, identity: Ed25519PrivateKey, peers: Sequence[bytes]) -> dict[bytes, bytes]:
        """The key that this identity shares with each of its peers, by the public key of the peer."""
        stored, own = self._read(), identity.public_key().public_bytes_raw()
        labels = {peer: keys.digest(keys.IDENTITY_PAIR, own, peer) for peer in peers}
        if strangers := [peer for peer, label in labels.items() if label not in stored]:
            pairs = keys.derive_identity_pair_keys(identity, strangers)
            stored |= {labels[peer]: key for peer, key in pairs.items()}
        pair_keys = {peer: stored[label] for peer, label in labels.items()}
        for label in list(stored)[: max(0, len(stored) - CAPACITY)]:
            del stored[label]
        return pair_keys

    def _read(self) -> dict[bytes, bytes]:
        if self._keys is None:
            blocks = (self._kept[at : at + _BLOCK] for at in range(0, len(self._kept), _BLOCK))
            self._keys = {block[: keys.DIGEST_BYTES]: block[keys.DIGEST_BYTES :] for block in blocks}
        return self._keys
