"""Digests of what a client was told so far, which keys and signatures depend on.

Each digest holds the one before it, so that two clients with the same digest were told the same from the
start. A server that tells clients different things finds that their masks do not cancel, that shares sealed
by one do not open at another, and that signatures given by one do not count for another: advertised keys are
signed with the digest of the invitation (for the server), all that follows with that of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fl_privquant.secagg.keys import digest
from fl_privquant.secagg.messages import RosterEntry, pack_ids


def listing_digest(clients: Sequence[int], fingerprints: Iterable[bytes]) -> bytes:
    """Digest of the increasing ids of all clients of the round and the fingerprints of their keys."""
    return digest(b"listing", pack_ids(clients), b"".join(fingerprints))


def listing_of(entries: Sequence[RosterEntry]) -> bytes:
    """The digest of a list that consists of these entries."""
    return listing_digest([entry.client_id for entry in entries], [entry.fingerprint for entry in entries])


def graph_digest(
    round_digest: bytes,
    num_clients: int,
    num_neighbors: int,
    threshold: int,
    num_witnesses: int,
    listing: bytes,
) -> bytes:
    """Digest of the invitation, the graph's parameters and the list of all clients; it orders the ring.

    Signatures are no part of it: their owner could make many for one key, and so try many graphs.
    """
    numbers = (num_clients, num_neighbors, threshold, num_witnesses)
    return digest(b"graph", round_digest, *(number.to_bytes(8, "little") for number in numbers), listing)


def masks_digest(graph: bytes, members: Sequence[int], context: bytes) -> bytes:
    """Digest of the graph, the members that mask, and the request that they answer; masks depend on it."""
    return digest(b"masks", graph, digest(context), pack_ids(members))


def agreement_digest(masks: bytes, survivors: Sequence[int]) -> bytes:
    """Digest of all that came before and of the clients whose inputs arrived; confirmations sign it."""
    return digest(b"agreement", masks, pack_ids(survivors))
