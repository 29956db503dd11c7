"""Which clients are sent a share and which derive it, and what a share is bound to.

A client shares two seeds among its holders, who are its neighbours and itself, by increasing ids: holder i of
them has the shares at the point i. Any threshold - 1 shares of a polynomial may be chosen freely. The first
threshold - 1 holders therefore get shares that the dealer and they derive from their pair secret, without a
message; those of the others follow (:func:`~fl_privquant.secagg.shamir.complete`) and are sealed for them.
Without the pair secrets, derived shares cannot be told from uniform ones, so that what fewer than threshold
holders know is independent of the seeds.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl_privquant.secagg import keys, shamir

_CONTEXT: Final = struct.Struct("<32sQQ32s32s")
_ENDS: Final = struct.Struct("<QQ")
_NUM_SECRETS: Final = 2


def sealed_for(dealer: int, holders: Sequence[int], threshold: int) -> list[int]:
    """The holders for whom a dealer seals shares, where ``holders`` are all, increasing.

    >>> sealed_for(30, [10, 20, 30, 40], threshold=2)
    [20, 40]
    """
    return [holder for holder in holders[threshold - 1 :] if holder != dealer]


def channel(pair: bytes | bytearray) -> bytes:
    """The key under which two clients with this pair secret seal shares for each other."""
    return keys.expand(pair, keys.SEAL_KEY_BYTES, keys.CHANNEL)


def derived_share(pair: bytes | bytearray, dealer: int, holder: int) -> bytes:
    """The shares of the dealer's two seeds that the holder is not sent: both derive them."""
    size = _NUM_SECRETS * shamir.STREAM_BYTES
    return shamir.share_from(keys.expand(pair, size, keys.DEALT_SHARE, _ENDS.pack(dealer, holder)))


def deal(
    secrets: bytes | bytearray,
    threshold: int,
    dealer: int,
    holders: Sequence[int],
    pairs: Mapping[int, bytes | bytearray],
) -> NDArray[np.uint8]:
    """(len(holders), 40) the shares of the dealer's two seeds: what holders derive or are sent."""
    first = [
        # A share that the dealer keeps for itself is drawn.
        shamir.share_from(os.urandom(_NUM_SECRETS * shamir.STREAM_BYTES))
        if holder == dealer
        else derived_share(pairs[holder], dealer, holder)
        for holder in holders[: threshold - 1]
    ]
    given = np.frombuffer(b"".join(first), dtype=np.uint8).reshape(-1, _NUM_SECRETS * shamir.SHARE_BYTES)
    return np.concatenate([given, shamir.complete(secrets, given, len(holders))])


def share_context(graph: bytes, sender: tuple[int, bytes], receiver: tuple[int, bytes]) -> bytes:
    """What a sealed share is bound to: the round and its graph, and who sends it to whom (id, public key)."""
    return _CONTEXT.pack(graph, sender[0], receiver[0], sender[1], receiver[1])


def commitment(seed: bytes | bytearray, round_digest: bytes, purpose: bytes, owner: bytes) -> bytes:
    """(16 bytes) what the owner of a public key says of a seed, so that the server knows it when it opens."""
    return keys.derive(seed, round_digest, purpose, owner)[: keys.SEED_BYTES]
