"""A Merkle tree over the keys of all clients, by which each checks that its own key is part of the seed.

The leaves are the clients of a round by increasing ids, each with its keys. Two
neighboring nodes are hashed to one of the next level; a last node without a partner moves up as it is. A
client is sent the partners on the way from its leaf to the root, 32 bytes for each of log2(n) levels, and
computes the root from its own keys: the root, and so the graph, cannot have been found before the client drew
its key of the round.

Clients do not check the leaves of others. A server gains nothing if it shows a client other keys than those
in the tree: the pair secret of two clients depends on both their keys, on the root and, in signed rounds, on
their identities, so that the two then have different masks, which do not cancel and which nobody else knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg.crypto.keys import digest


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """The root of the tree with these leaves."""
    return merkle_levels(leaves)[-1][0]


def merkle_levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """All levels of the tree, the leaves first and the root last."""
    levels = [list(leaves)]
    while len(below := levels[-1]) > 1:
        pairs = zip(below[::2], below[1::2], strict=False)
        levels.append([_hash_node(*pair) for pair in pairs] + below[len(below) & ~1 :])
    return levels


def merkle_path(levels: Sequence[Sequence[bytes]], place: int) -> tuple[bytes, ...]:
    """The nodes by which the leaf at this place is hashed to the root."""
    return tuple(
        level[place >> height ^ 1]
        for height, level in enumerate(levels[:-1])
        if place >> height ^ 1 < len(level)
    )


def merkle_root_from_path(leaf: bytes, place: int, num_leaves: int, path: Sequence[bytes]) -> bytes:
    """The root of a tree of ``num_leaves`` leaves that has this leaf at its place, by its path.

    >>> levels = merkle_levels([bytes([i]) * 32 for i in range(5)])
    >>> roots = {merkle_root_from_path(levels[0][i], i, 5, merkle_path(levels, i)) for i in range(5)}
    >>> roots == {levels[-1][0]}
    True
    """
    node, left = leaf, list(path)
    while num_leaves > 1:
        if place ^ 1 < num_leaves:
            if not left:
                raise SecureAggregationError(f"a path of {len(path)} nodes: too short for this tree of keys")
            partner = left.pop(0)
            node = _hash_node(partner, node) if place & 1 else _hash_node(node, partner)
        place, num_leaves = place >> 1, (num_leaves + 1) >> 1
    if left:
        raise SecureAggregationError(f"a path of {len(path)} nodes: too long for this tree of keys")
    return node


def _hash_node(left: bytes, right: bytes) -> bytes:
    return digest(b"node", left, right)
