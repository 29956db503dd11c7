"""What clients told the server about their seeds and the roots of their masks, by which it opens them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.secagg import keys, shamir
from fl_privquant.secagg.messages import RosterEntry, SharedSeeds
from fl_privquant.secagg.sharing import commitment, corrected_holders


class Seed(IntEnum):
    """The two seeds of a client, in the order in which they are shared."""

    SELF_MASK = 0
    WRAPPING = 1


class DealtShares:
    """The graph of a round with its threshold, and the messages by which clients shared their seeds.

    Attributes
    ----------
    points
        For each client the point at which each holder of its seeds has its shares, by increasing ids.
    messages
        What each client sent.
    """

    def __init__(self, graph: Mapping[int, Sequence[int]], threshold: int) -> None:
        self.points = {
            client: {holder: i + 1 for i, holder in enumerate(sorted([*neighbours, client]))}
            for client, neighbours in graph.items()
        }
        self.messages: dict[int, SharedSeeds] = {}
        self._graph = graph
        self._threshold = threshold

    def take(self, message: SharedSeeds) -> None:
        """Keep a client's message if it has a correction or a root for everybody who needs one."""
        dealer = message.client_id
        corrected, neighbours = self._corrected(dealer), self._graph[dealer]
        if len(message.corrections) != len(corrected):
            raise InvalidUpdateError(
                f"SharedSeeds: {len(message.corrections)} corrections for {len(corrected)} neighbours"
            )
        if len(message.wrapped) != len(neighbours):
            raise InvalidUpdateError(
                f"SharedSeeds: {len(message.wrapped)} roots for {len(neighbours)} neighbours"
            )
        if not shamir.are_shares(b"".join(message.corrections)):
            raise InvalidUpdateError("SharedSeeds: a correction holds a number outside the field")
        self.messages[dealer] = message

    def shares(self, dealer: int, revealed: Mapping[int, bytes], which: Seed) -> dict[int, bytes]:
        """The shares of one of a dealer's seeds by point, of what holders derived and revealed."""
        corrections = dict(zip(self._corrected(dealer), self.messages[dealer].corrections, strict=True))
        part = slice(which * shamir.SHARE_BYTES, (which + 1) * shamir.SHARE_BYTES)
        points = self.points[dealer]
        return {
            points[holder]: shamir.corrected(share, corrections[holder][part])
            if holder in corrections
            else share
            for holder, share in revealed.items()
        }

    def is_committed(self, entry: RosterEntry, round_digest: bytes, seed: bytearray, which: Seed) -> bool:
        """Whether this is the seed that a client committed to."""
        message = self.messages[entry.client_id]
        if which is Seed.SELF_MASK:
            committed, purpose = message.seed_commitment, keys.SEED_COMMITMENT
        else:
            committed, purpose = message.wrapping_commitment, keys.WRAPPING_COMMITMENT
        return commitment(seed, round_digest, purpose, entry.public_key) == committed

    def roots(self, entry: RosterEntry, graph_digest: bytes, wrapping_seed: bytearray) -> dict[int, bytes]:
        """The roots of the masks that a client has in common with its neighbours."""
        wrapped = self.messages[entry.client_id].wrapped
        roots = keys.wrap(wrapping_seed, graph_digest, entry.public_key, wrapped)
        return dict(zip(self._graph[entry.client_id], roots, strict=True))

    def _corrected(self, dealer: int) -> list[int]:
        return corrected_holders(dealer, list(self.points[dealer]), self._threshold)


def members_left(
    graph: Mapping[int, tuple[int, ...]], members: set[int], threshold: int
) -> dict[int, tuple[int, ...]]:
    """The members that have enough holders among the members, each with its neighbours.

    >>> graph = {1: (2, 3), 2: (1, 3), 3: (1, 2)}
    >>> members_left(graph, {1, 3}, threshold=2)
    {1: (3,), 3: (1,)}
    >>> members_left(graph, {1, 2}, threshold=3)
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
