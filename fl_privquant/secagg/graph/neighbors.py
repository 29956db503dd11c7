"""The graph of neighbors, drawn from a public seed that nobody can choose: a ring, or many cycles.

Clients are named by their *places* here: 0, 1, ... in the order of their ids. A *ring* is one random order,
in which each client is joined to the nearest on either side. A *spread* graph consists of many random orders,
each of them a cycle through all clients, and joins a client to those before and after it in each. Neighbors
on a ring are neighbors of one another, so that whoever chooses the clients that are lost can cut it with few
of them; a spread graph has no such place (:mod:`fl_privquant.secagg.graph.parameters`). Two cycles may have
an edge in common, so that a client of a spread graph can have fewer neighbors than edges.

Clients of signed rounds draw the graph that the server proposes. That costs them time and memory in
proportion to n times the number of neighbors for spread graphs, for which that number is bounded
(:data:`~fl_privquant.secagg.graph.parameters.MAX_CYCLE_NEIGHBORS`), and to n for rings and complete graphs.
(On a complete graph the order only says who witnesses.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl_privquant.secagg.graph.parameters import GraphParameters

# Two numbers of 64 bits: two clients draw the same rank with odds of n^2 / 2^129, and their places decide.
_RANK: Final = np.dtype(("<u8", 2))


def random_orders(seed: bytes, num_clients: int, count: int) -> NDArray[np.int64]:
    """(count, num_clients) permutations of the places, drawn by SHAKE-256 from a public seed.

    >>> random_orders(b"seed", 5, 2).tolist()
    [[1, 2, 0, 3, 4], [0, 2, 4, 1, 3]]
    """
    drawn = hashlib.shake_256(b"ring\0" + seed).digest(_RANK.itemsize * num_clients * count)
    ranks = np.frombuffer(drawn, dtype=_RANK).reshape(count, num_clients, 2)
    return np.lexsort((ranks[..., 1], ranks[..., 0]), axis=-1)


class Graph:
    """Which clients are neighbors, by places, and which are witnesses: all follows from the seed of a round.

    >>> Graph(b"seed", GraphParameters(num_clients=5, num_neighbors=2, threshold=2)).neighbors(0)
    [2, 3]
    """

    def __init__(self, seed: bytes, parameters: GraphParameters) -> None:
        n, k = parameters.num_clients, parameters.num_neighbors
        orders = random_orders(seed, n, k // 2 if parameters.spread else 1)
        self._order = orders[0]
        self._is_complete = k == n - 1
        # On a ring: how many neighbors a client has on either side, and where on it each client stands.
        self._reach, self._places = k // 2, np.argsort(self._order)
        # The order with its ends repeated: a client and its neighbors are one stretch of it.
        self._ring = np.concatenate([self._order[n - self._reach :], self._order, self._order[: self._reach]])
        # On a spread graph a row of neighbors for each client, increasing.
        self._table: NDArray[np.int32] | None = None
        if parameters.spread:
            self._table = np.empty((n, k), dtype=np.int32)
            columns = iter(range(k))
            for order in orders:
                for step in (-1, 1):
                    self._table[order, next(columns)] = np.roll(order, step)
            self._table.sort(axis=1)

    def neighbors(self, place: int) -> list[int]:
        """The neighbors of one client, increasing."""
        if self._is_complete:
            return [other for other in range(len(self._order)) if other != place]
        if self._table is None:
            first = self._places[place]
            around: list[int] = self._ring[first : first + 2 * self._reach + 1].tolist()
            del around[self._reach]
            return sorted(around)
        # Where cycles have an edge in common, a neighbor stands in a row more than once.
        return list(dict.fromkeys(self._table[place].tolist()))

    def witnesses(self, count: int) -> list[int]:
        """The first clients of the first order, whose confirmations count in signed rounds."""
        return list(map(int, self._order[:count]))

    def min_holders(self, alive: Collection[int]) -> int:
        """The fewest holders of their secrets that any of these clients has among these clients."""
        if self._is_complete:
            return len(alive)
        marked, places = np.zeros(len(self._order), dtype=bool), sorted(alive)
        marked[places] = True
        if self._table is None:
            counted = np.concatenate([[0], np.cumsum(marked[self._ring])])
            first = self._places[places]
            return int((counted[first + 2 * self._reach + 1] - counted[first]).min())
        rows = self._table[places]
        holders = marked[rows]
        holders[:, 1:] &= rows[:, 1:] != rows[:, :-1]
        return 1 + int(holders.sum(axis=1).min())


cached_graph = lru_cache(maxsize=4)(Graph)
"""The graph of a seed; clients that share a process, as in a simulation, draw it once."""
