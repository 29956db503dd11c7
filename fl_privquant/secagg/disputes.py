"""Shares that do not open: which pairs of clients do not mask with each other, and who is to blame.

A share that does not open was sealed badly by its sender or is disputed falsely by its receiver; nobody but
the two can tell. Either way one of them is corrupt, and neither masks with the other or holds a share of it.
So a false accusation costs the accused client that one edge, and does not evict it: an honest client is in
dispute with corrupt clients only, and only a client with more disputes than there can be corrupt clients is
blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from fl_privquant.secagg.messages import ShareReceipt

Pairs = Set[frozenset[int]]


def pairs_apart(receipts: Iterable[ShareReceipt]) -> set[frozenset[int]]:
    """The pairs of clients that do not mask with each other."""
    return {frozenset((receipt.client_id, peer)) for receipt in receipts for peer in receipt.disputed}


def blamed(apart: Pairs, corrupt: int, threshold: int) -> dict[int, str]:
    """Clients in dispute with more neighbours than can be corrupt, each with the reason.

    An honest client has ``threshold`` or more corrupt neighbours with negligible odds only.
    """
    excusable = max(1, min(corrupt, threshold - 1))
    clients = {client for pair in apart for client in pair}
    quarrels = {client: sum(client in pair for pair in apart) for client in sorted(clients)}
    return {
        client: f"{count} shares that it sealed or was given do not open, more than the {excusable} that "
        f"corrupt clients can be blamed for"
        for client, count in quarrels.items()
        if count > excusable
    }


def members_left(
    graph: Mapping[int, tuple[int, ...]], members: Set[int], apart: Pairs, threshold: int
) -> dict[int, tuple[int, ...]]:
    """The members that have enough holders among the members, each with its neighbours.

    >>> graph = {1: (2, 3), 2: (1, 3), 3: (1, 2)}
    >>> members_left(graph, {1, 2, 3}, {frozenset({1, 3})}, threshold=2)
    {1: (2,), 2: (1, 3), 3: (2,)}
    >>> members_left(graph, {1, 2}, set(), threshold=3)
    {}
    """
    while True:
        peers = {
            client: tuple(
                peer
                for peer in graph[client]
                if peer in members and not (apart and frozenset((client, peer)) in apart)
            )
            for client in sorted(members)
        }
        enough = {client for client, left in peers.items() if len(left) + 1 >= threshold}
        if enough == members:
            return peers
        members = enough
