"""The shares that clients deal to one another, as the server passes them on: sealed or derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.secagg import keys
from fl_privquant.secagg.messages import RosterEntry, RoundId, SealedShares, ShareDelivery, Subset
from fl_privquant.secagg.sharing import commitment, sealed_for


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
        self.messages: dict[int, SealedShares] = {}
        self._graph = graph
        self._threshold = threshold

    def take(self, message: SealedShares) -> None:
        """Keep a client's message if it has a share or a root for everybody who needs one."""
        dealer = message.client_id
        receivers, neighbours = self.receivers(dealer), self._graph[dealer]
        if len(message.sealed) != len(receivers):
            raise InvalidUpdateError(
                f"SealedShares: {len(message.sealed)} shares for {len(receivers)} neighbours"
            )
        if len(message.wrapped) != keys.SEED_BYTES * len(neighbours):
            raise InvalidUpdateError(
                f"SealedShares: {len(message.wrapped)} bytes of roots for {len(neighbours)} neighbours"
            )
        self.messages[dealer] = message

    def receivers(self, dealer: int) -> list[int]:
        """The holders that a client seals shares for; the others derive theirs."""
        return sealed_for(dealer, list(self.points[dealer]), self._threshold)

    def block(self, dealer: int, holder: int) -> bytes | None:
        """What a client sealed for a holder of its seeds; None if that one derives its share."""
        receivers = self.receivers(dealer)
        return self.messages[dealer].sealed[receivers.index(holder)] if holder in receivers else None

    def delivery(self, round_id: RoundId, holder: int, dealers: Sequence[int]) -> ShareDelivery:
        """The message that tells a client about its shares of these neighbours."""
        blocks = {dealer: self.block(dealer, holder) for dealer in dealers}
        sealed = {dealer: block for dealer, block in blocks.items() if block is not None}
        known = list(self.points[holder])
        return ShareDelivery(
            round_id, Subset.of(dealers, known), Subset.of(sealed, known), tuple(sealed.values())
        )

    def is_seed(self, entry: RosterEntry, round_digest: bytes, seed: bytearray) -> bool:
        """Whether this is the self-mask seed that a client committed to."""
        (committed, _) = self.messages[entry.client_id].commitments
        return commitment(seed, round_digest, keys.SEED_COMMITMENT, entry.public_key) == committed

    def is_wrapping_seed(self, entry: RosterEntry, round_digest: bytes, seed: bytearray) -> bool:
        """Whether this is the wrapping seed that a client committed to."""
        (_, committed) = self.messages[entry.client_id].commitments
        return commitment(seed, round_digest, keys.WRAPPING_COMMITMENT, entry.public_key) == committed

    def roots(self, entry: RosterEntry, graph_digest: bytes, wrapping_seed: bytearray) -> dict[int, bytes]:
        """The roots of the masks that a client has in common with its neighbours."""
        wrapped, size = self.messages[entry.client_id].wrapped, keys.SEED_BYTES
        roots = keys.wrap(wrapping_seed, graph_digest, entry.public_key, wrapped)
        neighbours = self._graph[entry.client_id]
        return {peer: roots[at * size : (at + 1) * size] for at, peer in enumerate(neighbours)}
