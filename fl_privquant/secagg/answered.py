"""A record of the stages that clients of this process have answered, so that none is answered twice.

A Flower client's state is stored after its reply was sent, and messages that arrive at once are handed copies
of the same state. Two copies could answer the same stage differently: open the self-mask seed of a neighbour
once and its wrapping seed the other time, or sign two lists of survivors. So the process remembers, for each
client and session, the last round and stage that were answered, and nothing before or at it is answered
again.

The record is kept in the memory of this process, for the :data:`CAPACITY` pairs of session and client that
were used last. It does not cover a client whose messages are handled by several processes at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

CAPACITY: Final = 1 << 16
"""Pairs of a session and a client that are remembered."""


class AnsweredStages:
    """The last round and stage that were answered, for each session and client.

    >>> stages = AnsweredStages()
    >>> stages.claim(b"session", client_id=3, number=1, stage=4)
    True
    >>> stages.claim(b"session", client_id=3, number=1, stage=4)
    False
    >>> stages.claim(b"session", client_id=3, number=2, stage=0)
    True
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._last: OrderedDict[tuple[bytes, int], tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()

    def claim(self, session: bytes, client_id: int, number: int, stage: int) -> bool:
        """Whether this stage is later than all that were claimed before; from now on it is claimed."""
        with self._lock:
            key = (session, client_id)
            if (number, stage) <= self._last.get(key, (-1, -1)):
                return False
            self._last[key] = (number, stage)
            self._last.move_to_end(key)
            while len(self._last) > self._capacity:
                self._last.popitem(last=False)
            return True


answered: Final = AnsweredStages()
"""What was answered in this process."""
