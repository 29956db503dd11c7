"""The graph of neighbours: a ring whose order nobody can choose, with edges to the nearest, or to all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from fl_privquant.secagg.parameters import GraphParameters

# Two numbers of 64 bits: two clients draw the same rank with odds of n^2 / 2^129, and their ids then decide.
_RANK: Final = np.dtype(("<u8", 2))


def ring_order(seed: bytes, clients: Sequence[int]) -> list[int]:
    """The order on the ring of clients that increase: a permutation drawn by SHAKE-256 from a public seed.

    >>> ring_order(b"seed", [1, 3, 5, 7, 9])
    [3, 5, 1, 7, 9]
    """
    drawn = hashlib.shake_256(b"ring\0" + seed).digest(_RANK.itemsize * len(clients))
    high, low = np.frombuffer(drawn, dtype=_RANK).T
    return [clients[i] for i in np.lexsort((low, high)).tolist()]


def neighbors_of(client: int, order: Sequence[int], num_neighbors: int) -> tuple[int, ...]:
    """The neighbours of one client, increasing, where ``order`` is the order on the ring.

    >>> neighbors_of(9, [5, 3, 9, 1, 7], num_neighbors=2)
    (1, 3)
    """
    size = len(order)
    if num_neighbors == size - 1:
        return tuple(sorted(other for other in order if other != client))
    at, reach = order.index(client), range(1, num_neighbors // 2 + 1)
    return tuple(sorted(order[(at + step) % size] for d in reach for step in (-d, d)))


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
