"""Who is whose neighbour: a ring in random order with edges to the nearest, or everyone."""

from __future__ import annotations

from collections.abc import Sequence

from fl_privquant.secagg.parameters import GraphParameters

__all__ = ["ring_graph"]


def ring_graph(order: Sequence[int], parameters: GraphParameters) -> dict[int, tuple[int, ...]]:
    """The neighbours of each client, increasing, where ``order`` is the order on the ring.

    What :mod:`~fl_privquant.secagg.parameters` computes holds if the order is uniformly random.

    >>> ring_graph([5, 3, 9, 1, 7], GraphParameters(num_clients=5, num_neighbors=2, threshold=2))
    {5: (3, 7), 3: (5, 9), 9: (1, 3), 1: (7, 9), 7: (1, 5)}
    """
    size = len(order)
    if parameters.num_neighbors == size - 1:
        members = sorted(order)
        return {client: tuple(other for other in members if other != client) for client in order}
    reach = range(1, parameters.num_neighbors // 2 + 1)
    return {
        client: tuple(sorted(order[(i + step) % size] for d in reach for step in (-d, d)))
        for i, client in enumerate(order)
    }
