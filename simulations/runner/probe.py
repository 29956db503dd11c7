"""The true updates of a simulation's clients, kept until the error of their mean is measured.

Only a simulation can know them. Clients leave them here, never in a message: in the memory of the
process if there is room, otherwise in files, one for each client and round.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fl_privquant._files import replace_file

Arrays = dict[str, NDArray[Any]]

# Bytes that the updates of a round may take in memory; the others are written to files.
_MAX_BYTES_IN_MEMORY = 1 << 25
# Before the names of arrays: numpy has parameters of its own, such as "file".
_PREFIX = "array "


class Probe:
    """The true updates of one run's clients: in the server's memory where there is room, else in files.

    Parameters
    ----------
    directory
        The directory of the files, which also identifies the run.
    same_process
        Whether clients run in the process of the server.
    """

    _in_memory: ClassVar[dict[Path, dict[tuple[int, int], Arrays]]] = {}

    def __init__(self, directory: Path, same_process: bool = False) -> None:
        self.directory = directory
        self._same_process = same_process
        self._kept = self._in_memory.setdefault(directory, {})

    def store_failure(self, client: int, reason: str) -> None:
        """Keep why a client's app made no update: PrivQuantMod hides that from the server."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / f"{client}.failure").write_text(reason)

    def pop_failures(self) -> dict[int, str]:
        """Why apps of clients failed, by client; the reasons are then deleted."""
        files = list(self.directory.glob("*.failure"))
        reasons = {int(path.stem): path.read_text() for path in files}
        for path in files:
            path.unlink()
        return reasons

    def store(self, server_round: int, client: int, trained: Arrays) -> None:
        """Keep what a client trained, until it is taken."""
        size = sum(array.nbytes for array in trained.values())
        if self._same_process and (len(self._kept) + 1) * size <= _MAX_BYTES_IN_MEMORY:
            self._kept[server_round, client] = trained
            return
        named: dict[str, Any] = {f"{_PREFIX}{name}": array for name, array in trained.items()}
        # A process that is killed leaves no part of an update.
        path = self.directory / f"{server_round}-{client}.npz"
        replace_file(path, lambda temporary: np.savez(temporary, **named), durable=False)

    def clients(self, server_round: int) -> list[int]:
        """The clients that trained in a round, in order."""
        kept = {client for number, client in self._kept if number == server_round}
        return sorted({*kept, *self._written(server_round)})

    def read(self, server_round: int) -> Iterator[Arrays]:
        """What clients trained in a round, one by one in the order of clients."""
        files = self._written(server_round)
        for client in self.clients(server_round):
            if (server_round, client) in self._kept:
                yield self._kept[server_round, client]
                continue
            with np.load(files[client]) as named:
                update = {name.removeprefix(_PREFIX): named[name] for name in named.files}
            yield update

    def clear(self, server_round: int) -> None:
        """Delete what clients trained in a round."""
        for place in [place for place in self._kept if place[0] == server_round]:
            self._kept.pop(place)
        for path in self._files(server_round):
            path.unlink()

    def _written(self, server_round: int) -> dict[int, Path]:
        """The files of a round, by client."""
        return {int(path.stem.partition("-")[2]): path for path in self._files(server_round)}

    def _files(self, server_round: int) -> list[Path]:
        return list(self.directory.glob(f"{server_round}-*.npz"))
