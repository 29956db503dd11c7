"""Whose confirmations count in a signed round, and how many of them must agree.

Before a client unmasks, it must know that no other honest client unmasks by another list of survivors: two
lists could open both secrets of one client. Not all n clients need to confirm for that. In the graph's first
random order, which follows from the keys of all clients, the first m clients are *witnesses*. A client goes
on once a quorum of q witnesses signed the list that it was shown, with all that was told before.

- *There is one list.* Two quorums among m witnesses share at least 2 q - m of them. If at most X witnesses
  are corrupt and 2 q - m > X, the quorums share an honest witness, which signs only one list. The witnesses
  are a uniform set of m clients, of which HG(n, C, m) are corrupt: q is the smallest number for which
  P[HG(n, C, m) >= 2 q - m] is at most 2^-41, after all the graphs that a server may try. In small rounds X =
  C. This holds for any m that the server chooses; m must only be the same for all, and is therefore part of
  the graph's digest. Clients that assume different numbers of corrupt clients demand different quorums q1
  and q2, which share at least q1 + q2 - m > X witnesses if neither assumes too few.
- *The round ends well.* m is the smallest number for which more than m - q witnesses are lost with at most
  2^-21. In small rounds m = C + 2 D + 1: all D lost clients may be witnesses.

Clients that were shown different lists of *all clients* have nothing in common that could be opened: masks of
one graph do not cancel with those of another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from fl_privquant.secagg.graph.parameters import (
    GRINDING_TRIES,
    MAX_SECURITY_FAILURE,
    ROUNDING,
    hypergeometric_tail,
)

WITNESS_FAILURE: Final = MAX_SECURITY_FAILURE / 2
"""The part of the odds of a failure that is left to the witnesses."""


@lru_cache(maxsize=1024)
def quorum_size(num_clients: int, num_witnesses: int, corrupt: int, max_failure: float) -> int:
    """Witnesses that must agree, so that two sets of as many have an honest client in common.

    ``max_failure`` are the odds that this may fail after all tries; for 0 it never fails.

    >>> quorum_size(100, 31, corrupt=10, max_failure=0.0)
    21
    >>> quorum_size(500, 84, corrupt=50, max_failure=2.0**-41)
    62
    """
    odds = GRINDING_TRIES * ROUNDING * hypergeometric_tail(num_clients, corrupt, num_witnesses)
    never_corrupt = int(np.argmax(odds <= max_failure))
    return (num_witnesses + never_corrupt + 1) // 2


@lru_cache(maxsize=256)
def min_witnesses(
    num_clients: int, corrupt: int, lost: int, max_failure: float, max_correctness_failure: float
) -> int:
    """The fewest witnesses such that a quorum is left when clients drop out; all clients if no fewer will do.

    >>> min_witnesses(100, 10, 10, max_failure=0.0, max_correctness_failure=0.0)
    31
    """
    for count in range(1, num_clients):
        spare = count - quorum_size(num_clients, count, corrupt, max_failure)
        if spare >= 0:
            odds = hypergeometric_tail(num_clients, lost, count)[spare + 1]
            if odds <= max_correctness_failure:
                return count
    return num_clients
