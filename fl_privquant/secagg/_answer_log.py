"""A record of the stages that a client has answered, so that none is answered twice.

A Flower client's state is stored after its reply was sent, or is not stored at all: a SuperNode handles each
message in a process of its own, which is killed if it takes long to store its state. Messages that arrive at
once are handed copies of the same state. Two copies could answer the same stage differently: open the
self-mask seed of a neighbor once and its wrapping seed the other time, or sign two lists of survivors. So
the last round and stage that were answered are recorded for each client and session *before* the answer is
computed, and nothing before or at it is answered again.

:class:`AnsweredStages` keeps the record in the memory of this process, for the :data:`CAPACITY` pairs of
session and client that were used last. That is enough where one process answers for a client.
:class:`AnsweredFolder` keeps it in a folder, for all processes and after restarts. SuperNodes always do so
(:class:`~fl_privquant.flower.PrivQuantMod`).
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from fl_privquant._files import sync_names
from fl_privquant.errors import SecureAggregationError

CAPACITY: Final = 1 << 16
"""Pairs of a session and a client that a process remembers."""


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

    def __init__(self) -> None:
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
            while len(self._last) > CAPACITY:
                self._last.popitem(last=False)
            return True


class AnsweredFolder:
    """The same record in a folder, with a small file for each session and client, which are never forgotten.

    A claim is on the disk when :meth:`claim` returns, and only one process makes it. A line that a crash has
    cut short belongs to a stage that was not answered. The owner of the client may delete the files of runs
    that have ended.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def claim(self, session: bytes, client_id: int, number: int, stage: int) -> bool:
        """Whether this stage is later than all that were claimed before; from now on it is claimed.

        Raises SecureAggregationError if the record cannot be read or written; nothing may be answered then.
        """
        path = self.folder / f"{session.hex()}-{client_id}"
        try:
            if not self.folder.exists():
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_names(self.folder.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                content = file.read()
                complete = content[: content.rfind(b"\n") + 1]
                claims = [tuple(map(int, line.split())) for line in complete.splitlines()]
                if any(len(claim) != 2 for claim in claims):
                    raise ValueError("a line does not have two numbers")
                if (number, stage) <= max(claims, default=(-1, -1)):
                    return False
                file.seek(len(complete))
                file.truncate()
                file.write(b"%d %d\n" % (number, stage))
                file.flush()
                os.fsync(file.fileno())
                if not claims:
                    sync_names(self.folder)
                return True
        except (OSError, ValueError) as error:
            raise SecureAggregationError(
                f"the record of answered stages {path} cannot be read or written ({error}), so nothing may "
                f"be answered; check the disk's space and the folder's permissions"
            ) from error


answered_stages: Final = AnsweredStages()
"""What was answered in this process."""
