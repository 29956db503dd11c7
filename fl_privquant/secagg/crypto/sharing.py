"""How the seeds of a client are shared without sending a share: holders derive it, the server corrects it.

A client (the *dealer*) shares two seeds among its *holders*, who are its neighbors and itself: holder number
i, by increasing ids, has the shares at the point i. Every holder derives its shares from the pair secret
that it has in common with the dealer. Any threshold - 1 shares of a polynomial may be chosen freely, so
those of the first threshold - 1 holders are right as they are. The polynomial then gives the shares of the
others (:func:`~fl_privquant.secagg.crypto.shamir.complete_shares`), and the dealer tells the server what
their derived ones are off by: *corrections*, in the field. When a holder reveals a share, the server adds
its correction.

A correction is the difference between the right share and the derived one, and reveals nothing without the
derived share: without the pair secret, derived shares cannot be distinguished from uniform ones, and so
neither can corrections. What fewer than threshold holders know, together with all corrections, is therefore
independent of the seeds. A holder reveals its share of one seed and not of the other; the two shares are
derived independently.

A corrupt dealer can give wrong corrections, as it could give wrong shares in any scheme, and a corrupt holder
can reveal a wrong share. The server corrects a few wrong shares (:func:`open_secret`). Only a seed that the
dealer has committed to is ever opened; where none is found, the dealer is named.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.secagg.crypto import keys, shamir
from fl_privquant.secagg.messages import RosterEntry, SharedSeeds

_ENDS: Final = struct.Struct("<QQ")
_NUM_SECRETS: Final = 2
# Bytes of a holder's shares of both seeds.
_DEALT_BYTES: Final = _NUM_SECRETS * shamir.SHARE_BYTES


def holders_to_correct(dealer: int, holders: Sequence[int], threshold: int) -> list[int]:
    """The holders whose derived shares need a correction; ``holders`` are all of them, by increasing ids.

    >>> holders_to_correct(30, [10, 20, 30, 40], threshold=2)
    [20, 40]
    """
    return [holder for holder in holders[threshold - 1 :] if holder != dealer]


def derive_share(pair: bytes | bytearray, dealer: int, holder: int) -> bytes:
    """The holder's shares of the dealer's two seeds, before their correction: both can derive them."""
    return shamir.share_from_stream(_derive_stream(pair, dealer, holder))


def derive_held_shares(pairs: Mapping[int, bytes | bytearray], holder: int) -> dict[int, bytearray]:
    """What :func:`derive_share` gives for each dealer, at once, which is faster for many."""
    streams = b"".join([_derive_stream(pair, dealer, holder) for dealer, pair in pairs.items()])
    return dict(zip(pairs, map(bytearray, _split_shares(shamir.share_from_stream(streams))), strict=True))


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
    """The dealer's own shares of its two seeds, and the corrections of :func:`holders_to_correct`.

    ``kept`` are uniform bytes for the dealer's own share, for when it is among the first holders.
    """
    streams = [
        kept if holder == dealer else _derive_stream(pairs[holder], dealer, holder) for holder in holders
    ]
    derived = np.frombuffer(shamir.share_from_stream(b"".join(streams)), np.uint8).reshape(-1, _DEALT_BYTES)
    rest: NDArray[np.uint8] = shamir.complete_shares(secrets, derived[: threshold - 1], len(holders))
    place = holders.index(dealer)
    own = (derived[place] if place < threshold - 1 else rest[place - threshold + 1]).tobytes()
    others = [at for at in range(len(rest)) if at != place - threshold + 1]
    corrections = shamir.subtract_shares(rest[others].tobytes(), derived[threshold - 1 :][others].tobytes())
    rest.fill(0)
    return own, _split_shares(corrections)


def commit_to_seed(seed: bytes | bytearray, round_digest: bytes, purpose: bytes, owner: bytes) -> bytes:
    """(16 bytes) the commitment to a seed by which the server recognizes it when it is opened."""
    return keys.derive(seed, round_digest, purpose, owner)[: keys.SEED_BYTES]


class Seed(IntEnum):
    """The two seeds of a client, in the order in which they are shared."""

    SELF_MASK = 0
    WRAPPING = 1


class DealtShares:
    """The messages by which the clients on a graph shared their seeds."""

    def __init__(
        self,
        entries: Mapping[int, RosterEntry],
        graph: Mapping[int, Sequence[int]],
        threshold: int,
        round_digest: bytes,
    ) -> None:
        # For each client the point at which each holder of its seeds has its shares, by increasing ids.
        self.points = {
            client: {holder: i + 1 for i, holder in enumerate(sorted([*neighbors, client]))}
            for client, neighbors in graph.items()
        }
        # What each client sent.
        self.messages: dict[int, SharedSeeds] = {}
        self._entries = entries
        self._graph = graph
        self._threshold = threshold
        self._round_digest = round_digest

    def take(self, message: SharedSeeds) -> None:
        """Keep a client's message if it has a correction or a root for everybody who needs one."""
        dealer = message.client_id
        corrected, neighbors = self._holders_to_correct(dealer), self._graph[dealer]
        if len(message.corrections) != len(corrected):
            raise InvalidUpdateError(
                f"SharedSeeds: {len(message.corrections)} corrections for {len(corrected)} neighbors"
            )
        if len(message.sealed_roots) != len(neighbors):
            raise InvalidUpdateError(
                f"SharedSeeds: {len(message.sealed_roots)} roots for {len(neighbors)} neighbors"
            )
        if not shamir.are_shares(b"".join(message.corrections)):
            raise InvalidUpdateError("SharedSeeds: a correction holds a number outside the field")
        self.messages[dealer] = message

    def open_secret(
        self, dealer: int, revealed: Mapping[int, bytes], which: Seed, suspects: Container[int] = ()
    ) -> tuple[bytearray, list[int]] | None:
        """One of a dealer's seeds, and the holders whose shares of it were wrong; None if too many are.

        ``revealed`` are the shares that holders derived and revealed. Where one of them has to be guessed to
        be wrong, those of ``suspects`` are tried first.
        """
        points = self.points[dealer]
        opened = open_secret(
            self.shares(dealer, revealed, which),
            self._threshold,
            lambda seed: self.is_committed(dealer, seed, which),
            {point for holder, point in points.items() if holder in suspects},
        )
        if opened is None:
            return None
        seed, wrong = opened
        return seed, [holder for holder, point in points.items() if point in wrong]

    def is_committed(self, dealer: int, seed: bytearray, which: Seed) -> bool:
        """Whether this is the seed that a client committed to."""
        message = self.messages[dealer]
        if which is Seed.SELF_MASK:
            committed, purpose = message.seed_commitment, keys.SEED_COMMITMENT
        else:
            committed, purpose = message.wrapping_commitment, keys.WRAPPING_COMMITMENT
        return (
            commit_to_seed(seed, self._round_digest, purpose, self._entries[dealer].public_key) == committed
        )

    def roots(self, dealer: int, graph_digest: bytes, wrapping_seed: bytearray) -> dict[int, bytes]:
        """The roots of the masks that a client has in common with its neighbors."""
        wrapped, owner = self.messages[dealer].sealed_roots, self._entries[dealer].public_key
        roots = keys.wrap(wrapping_seed, graph_digest, owner, wrapped)
        return dict(zip(self._graph[dealer], roots, strict=True))

    def shares(self, dealer: int, revealed: Mapping[int, bytes], which: Seed) -> dict[int, bytes]:
        """The shares of a seed by point, with their corrections."""
        corrections = dict(
            zip(self._holders_to_correct(dealer), self.messages[dealer].corrections, strict=True)
        )
        part = slice(which * shamir.SHARE_BYTES, (which + 1) * shamir.SHARE_BYTES)
        points = self.points[dealer]
        return {
            points[holder]: shamir.add_corrections(share, corrections[holder][part])
            if holder in corrections
            else share
            for holder, share in revealed.items()
        }

    def _holders_to_correct(self, dealer: int) -> list[int]:
        return holders_to_correct(dealer, list(self.points[dealer]), self._threshold)


def remaining_members(
    graph: Mapping[int, tuple[int, ...]], members: set[int], threshold: int
) -> dict[int, tuple[int, ...]]:
    """The members that have enough holders among the members, each with its neighbors.

    >>> graph = {1: (2, 3), 2: (1, 3), 3: (1, 2)}
    >>> remaining_members(graph, {1, 3}, threshold=2)
    {1: (3,), 3: (1,)}
    >>> remaining_members(graph, {1, 2}, threshold=3)
    {}
    """
    while True:
        peers = {
            client: tuple(peer for peer in graph[client] if peer in members) for client in sorted(members)
        }
        enough = {client for client, left in peers.items() if len(left) + 1 >= threshold}
        if enough == members:
            return peers
        members = enough


def max_wrong_shares(num_shares: int, threshold: int) -> int:
    """How many of these shares may be wrong such that the secret can still be opened.

    With r shares beyond the threshold the code corrects floor(r / 2) wrong ones. If r is odd, one more can be
    corrected: each share in turn is left out, and the commitment tells when that was a wrong one.

    >>> [max_wrong_shares(shares, threshold=4) for shares in (4, 5, 6, 7)]
    [0, 1, 1, 2]
    """
    return (num_shares - threshold + 1) // 2


def open_secret(
    shares: Mapping[int, bytes],
    threshold: int,
    is_right: Callable[[bytearray], bool],
    suspects: Collection[int] = (),
) -> tuple[bytearray, list[int]] | None:
    """The secret and the points of wrong shares; None if more are wrong than :func:`max_wrong_shares` says.

    Parameters
    ----------
    shares
        The shares received, by point: at least ``threshold``, each as :func:`~shamir.are_shares` wants it.
    is_right
        Whether these bytes are what the owner committed to. Nothing else is ever returned.
    suspects
        Points to leave out first if one has to be guessed: those whose other shares were wrong.
    """
    secret = _combine(shares, is_right)
    if secret is not None:
        return secret, []
    left_out: list[int | None] = [None]
    if (len(shares) - threshold) % 2:
        left_out += sorted(shares, key=lambda point: point not in suspects)
    for without in left_out:
        kept = {point: share for point, share in shares.items() if point != without}
        for point in shamir.find_wrong(list(kept), _share_rows(kept), threshold) or ():
            del kept[point]
        if len(kept) < len(shares):
            secret = _combine(kept, is_right)
            if secret is not None:
                return secret, sorted(shares.keys() - kept.keys())
    return None


def _combine(shares: Mapping[int, bytes], is_right: Callable[[bytearray], bool]) -> bytearray | None:
    """The secret on which all these shares agree, if it is the right one."""
    try:
        secret = shamir.combine(list(shares), _share_rows(shares))
    except InvalidUpdateError:
        return None
    return secret if is_right(secret) else None


def _share_rows(shares: Mapping[int, bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(shares.values()), dtype=np.uint8).reshape(-1, shamir.SHARE_BYTES)


def _derive_stream(pair: bytes | bytearray, dealer: int, holder: int) -> bytes:
    """Uniform bytes that a dealer and a holder both derive for the holder's shares."""
    size = _NUM_SECRETS * shamir.STREAM_BYTES
    return keys.expand(pair, size, keys.DEALT_SHARE, _ENDS.pack(dealer, holder))


def _split_shares(shares: bytes) -> list[bytes]:
    """The shares of both seeds of each holder, which follow on one another."""
    return [shares[at : at + _DEALT_BYTES] for at in range(0, len(shares), _DEALT_BYTES)]
