"""Evidence against clients whose secrets did not open, collected over rounds.

A client that deals shares which fit no secret ends a round. It should be left out of later ones, but it is
not alone in being able to do so: on a sparse graph corrupt holders can be so many among the neighbors of an
honest client that their wrong shares cannot be corrected. The odds of that are known
(:func:`~fl_privquant.secagg.graph.parameters.decoding_failure`), and graphs of different rounds are
independent.

So the server bets in each round half of its money on the failure of each client, at these odds, and begins
anew with one unit whenever it has less. Against an honest client no bet gains in the mean, so that the money
reaches a limit of L at most once in L rounds, on average (a CUSUM of betting martingales). A client is left
out when the money has reached the number of clients times :data:`MEAN_ROUNDS_TO_FALSE_EXCLUSION`. If an
honest client cannot fail, as in rounds of 13 to 39 clients at fractions of a tenth, one failure is enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

MEAN_ROUNDS_TO_FALSE_EXCLUSION: Final = 1e6
"""Rounds until one honest client is left out, on average, if corrupt clients do all they can to that end."""


class Evidence:
    """What speaks against each client.

    >>> evidence = Evidence()
    >>> evidence.judge({7: 0.03}, clients=range(500))
    set()
    >>> rounds = 1
    >>> while not evidence.judge({7: 0.03}, clients=range(500)):
    ...     rounds += 1
    >>> rounds
    7
    """

    def __init__(self) -> None:
        # Only what is above 1.
        self._money: dict[int, float] = {}

    def judge(self, failed: Mapping[int, float], clients: Collection[int]) -> set[int]:
        """The clients to be left out after a round in which the secrets of some did not open.

        ``failed`` has the odds with which this happens to an honest client, and ``clients`` all clients of
        the round.
        """
        limit = MEAN_ROUNDS_TO_FALSE_EXCLUSION * len(clients)
        for client in self._money.keys() & set(clients) - failed.keys():
            self._money[client] *= 0.5
        for client, odds in failed.items():
            won = 0.5 + 0.5 / odds if odds > 0.0 else math.inf
            self._money[client] = self._money.get(client, 1.0) * won
        self._money = {client: money for client, money in self._money.items() if money > 1.0}
        return {client for client in failed if self._money.get(client, 0.0) >= limit}
