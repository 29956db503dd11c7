"""Digests of what a client was told so far, which keys and signatures depend on.

Each digest holds the one before it, so that two clients with the same digest were told the same from the
start. A server that tells clients different things finds that their masks do not cancel, that shares which
one derives open nothing of another, and that signatures given by one do not count for another: advertised
keys are signed with the digest of the invitation (for the server), all that follows with that of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fl_privquant.secagg._wire import pack_blocks, pack_ids
from fl_privquant.secagg.crypto.keys import Identity, digest, public_keys_of
from fl_privquant.secagg.graph.parameters import GraphParameters


def known_digest(identities: Mapping[int, Identity]) -> bytes:
    """Digest of a list of known clients: the ids, and the keys of each in their order."""
    listed = [
        pack_ids([client]) + pack_blocks(public_keys_of(identities[client])) for client in sorted(identities)
    ]
    return digest(b"known", b"".join(listed))


def listing_digest(clients: Sequence[int], root: bytes) -> bytes:
    """Digest of the increasing ids of all clients of the round and of the tree of their keys."""
    return digest(b"listing", root, pack_ids(clients))


def graph_digest(
    round_digest: bytes, parameters: GraphParameters, num_witnesses: int, listing: bytes
) -> bytes:
    """Digest of the invitation, the graph's parameters and the list of all clients; it draws the graph.

    Signatures are no part of it: their owner could make many for one key, and so try many graphs.
    """
    graph = parameters
    numbers = (graph.num_clients, graph.num_neighbors, graph.threshold, graph.spread, num_witnesses)
    return digest(b"graph", round_digest, *(int(number).to_bytes(8, "little") for number in numbers), listing)


def masks_digest(graph: bytes, members: Sequence[int], context: bytes) -> bytes:
    """Digest of the graph, the members that mask, and the request that they answer; masks depend on it."""
    return digest(b"masks", graph, digest(context), pack_ids(members))


def agreement_digest(masks: bytes, survivors: Sequence[int]) -> bytes:
    """Digest of all that came before and of the clients whose inputs arrived; confirmations sign it."""
    return digest(b"agreement", masks, pack_ids(survivors))
