"""Whose confirmations count in a signed round, and how many of them must agree.

Before a client unmasks, it must know that no other honest client unmasks by another list of survivors: two
lists could open both secrets of one client. Not all n clients need to confirm for that. Of the graph's ring,
which follows from the keys of all clients, the first m are *witnesses*; a client goes on once a quorum of q
witnesses signed the list that it was shown, with all that was told before.

- *There is one list.* With q > (m + C) / 2, two quorums among m witnesses share at least 2 q - m > C clients,
  so an honest one, which signs once. This holds for any m that the server chooses, and whichever clients are
  witnesses, so that nothing is gained by trying many rings; m must only be the same for all, and is therefore
  part of the graph's digest. Clients that assume different numbers C1, C2 of corrupt clients demand different
  quorums, which share more than (C1 + C2) / 2: an honest client, if neither is below the true number.
- *The round ends well.* With m = C + 2 D + 1 a quorum takes q = C + D + 1 = m - D: all D lost clients may be
  witnesses.

Clients with different lists of *all clients* have nothing in common to open: shares sealed under one graph do
not open under another.
"""

from __future__ import annotations


def witnesses_needed(num_clients: int, corrupt: int, lost: int) -> int:
    """The fewest witnesses such that a quorum is left if ``lost`` drop out; all clients, if these are fewer.

    >>> witnesses_needed(100, corrupt=10, lost=10)
    31
    """
    return min(num_clients, corrupt + 2 * lost + 1)


def quorum_of(num_witnesses: int, corrupt: int) -> int:
    """Witnesses that must agree: two sets of as many have more than ``corrupt`` clients in common.

    >>> quorum_of(31, corrupt=10)
    21
    """
    return (num_witnesses + corrupt) // 2 + 1
