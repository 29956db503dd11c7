"""How the seeds of a client are shared without sending a share: holders derive it, the server corrects it.

A client shares two seeds among its holders, who are its neighbours and itself, by increasing ids: holder i of
them has the shares at the point i. Every holder derives its shares from the pair secret that it has in
common with the dealer. Any threshold - 1 shares of a polynomial may be chosen freely, so that those of the
first threshold - 1 holders are right as they are. The polynomial then gives the shares of the others
(:func:`~fl_privquant.secagg.shamir.complete`), and the dealer tells the server what their derived ones are
off by: *corrections*, in the field. When a holder reveals a share, the server adds its correction.

A correction shows nothing without the derived share, of which it is the sum with the share that is right: to
whoever does not have the pair secret, derived shares cannot be told from uniform ones, so that neither can
corrections. What fewer than threshold holders know, together with all corrections, is therefore independent
of the seeds. A holder reveals the share of one seed and not of the other; the two are derived apart.

A corrupt dealer can give wrong corrections, as it could give wrong shares in any scheme. The commitment to
the seed tells, and the dealer is named (:mod:`fl_privquant.secagg.opening`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl_privquant.secagg import keys, shamir

_ENDS: Final = struct.Struct("<QQ")
_NUM_SECRETS: Final = 2


def corrected_holders(dealer: int, holders: Sequence[int], threshold: int) -> list[int]:
    """The holders whose derived shares need a correction, where ``holders`` are all, increasing.

    >>> corrected_holders(30, [10, 20, 30, 40], threshold=2)
    [20, 40]
    """
    return [holder for holder in holders[threshold - 1 :] if holder != dealer]


def derived_share(pair: bytes | bytearray, dealer: int, holder: int) -> bytes:
    """The shares of the dealer's two seeds that the holder has, before their correction: both derive them."""
    size = _NUM_SECRETS * shamir.STREAM_BYTES
    return shamir.share_from(keys.expand(pair, size, keys.DEALT_SHARE, _ENDS.pack(dealer, holder)))


def draw_dealing(private: bytes | bytearray, graph_digest: bytes) -> bytes:
    """The two seeds of a client, and uniform bytes for the share that it keeps, from its key of the round."""
    root = keys.derive(private, graph_digest, keys.DEALING)
    return keys.expand(root, _NUM_SECRETS * (keys.SEED_BYTES + shamir.STREAM_BYTES), keys.DEALING)


def deal(
    secrets: bytes | bytearray,
    kept: bytes,
    threshold: int,
    dealer: int,
    holders: Sequence[int],
    pairs: Mapping[int, bytes | bytearray],
) -> tuple[bytes, list[bytes]]:
    """The dealer's own shares of its two seeds, and the corrections of :func:`corrected_holders`.

    ``kept`` are uniform bytes for the share of the dealer itself, where that is among the first.
    """
    derived = {
        holder: shamir.share_from(kept) if holder == dealer else derived_share(pairs[holder], dealer, holder)
        for holder in holders
    }
    first = [derived[holder] for holder in holders[: threshold - 1]]
    given = np.frombuffer(b"".join(first), dtype=np.uint8).reshape(-1, _NUM_SECRETS * shamir.SHARE_BYTES)
    rest: NDArray[np.uint8] = shamir.complete(secrets, given, len(holders))
    shares = dict(zip(holders[threshold - 1 :], rest, strict=True))
    corrections = [
        shamir.difference(shares[holder].tobytes(), derived[holder])
        for holder in corrected_holders(dealer, holders, threshold)
    ]
    own = shares[dealer].tobytes() if dealer in shares else derived[dealer]
    rest.fill(0)
    return own, corrections


def commitment(seed: bytes | bytearray, round_digest: bytes, purpose: bytes, owner: bytes) -> bytes:
    """(16 bytes) what the owner of a public key says of a seed, so that the server knows it when it opens."""
    return keys.derive(seed, round_digest, purpose, owner)[: keys.SEED_BYTES]
