"""The true updates of a simulation's clients, kept until the error of their mean is measured.

Only a simulation can know them. Clients leave them here, never in a message: in the memory of the
process if there is room, otherwise in files. Each process writes one file per round, one record after the
other. A record is a header of two numbers (the client, and how many bytes of names follow), names, types and
shapes of the arrays as JSON, and the arrays; all parts are padded to a multiple of 8 bytes. The record that a
process was writing when it was killed is incomplete, and is ignored.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import threading
import uuid
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

# Bytes that the updates of a round may take in memory; the others are written to files.
_MAX_BYTES_IN_MEMORY = 1 << 25
# Updates of at least this many bytes are dropped from memory after they were read.
_LARGE = 1 << 20
_HEADER = struct.Struct("<qq")
_ALIGNMENT = 8


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
    _failed_in_memory: ClassVar[dict[Path, dict[int, str]]] = {}

    def __init__(self, directory: Path, same_process: bool = False) -> None:
        self.directory = directory
        self._kept = self._in_memory.setdefault(directory, {}) if same_process else None
        self._failed = self._failed_in_memory.setdefault(directory, {}) if same_process else None
        self._lock = threading.Lock()
        # The process and the round that the open file is for: a forked process opens a file of its own.
        self._open: tuple[int, int, BinaryIO] | None = None

    def store_failure(self, client: int, reason: str) -> None:
        """Keep why a client's app made no update: PrivQuantMod hides that from the server."""
        if self._failed is not None:
            self._failed[client] = reason
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / f"{client}.failure").write_text(reason)

    def pop_failures(self) -> dict[int, str]:
        """Why apps of clients failed, by client; the reasons are then deleted."""
        if self._failed is not None:
            reasons = dict(self._failed)
            self._failed.clear()
            return reasons
        files = list(self.directory.glob("*.failure"))
        reasons = {int(path.stem): path.read_text() for path in files}
        for path in files:
            path.unlink()
        return reasons

    def store(self, server_round: int, client: int, trained: Arrays) -> None:
        """Keep what a client trained, until it is taken."""
        size = sum(array.nbytes for array in trained.values())
        if self._kept is not None and (len(self._kept) + 1) * size <= _MAX_BYTES_IN_MEMORY:
            self._kept[server_round, client] = trained
            return
        names = _describe_arrays(tuple((name, array.dtype, array.shape) for name, array in trained.items()))
        parts = [_HEADER.pack(client, len(names)), _pad(names)]
        parts += [_pad(array.tobytes()) for array in trained.values()]
        with self._lock:
            self._open_file(server_round).write(b"".join(parts))

    def clients(self, server_round: int) -> list[int]:
        """The clients that trained in a round, in order."""
        kept = [client for number, client in self._kept or () if number == server_round]
        written = [client for path in self._files(server_round) for client, _ in _read_records(path)]
        return sorted({*kept, *written})

    def read(self, server_round: int) -> Iterator[Arrays]:
        """What clients trained in a round, one by one in the order of clients."""
        kept = self._kept if self._kept is not None else {}
        here = {client: update for (number, client), update in kept.items() if number == server_round}
        written: dict[int, _Place] = {}
        for path in self._files(server_round):
            written.update(_read_records(path))
        for client in sorted({*here, *written}):
            if client in here:
                yield here[client]
                continue
            mapped, begin, names = written[client]
            yield _read_arrays(mapped, begin, names)
            # Pages of a mapped file stay in memory until they are given back. An array that is still in use
            # stays valid: its pages are then read from the file again.
            if _arrays_size(names) >= _LARGE:
                mapped.madvise(mmap.MADV_DONTNEED)

    def clear(self, server_round: int) -> None:
        """Delete what clients trained in a round."""
        for place in [place for place in self._kept or () if place[0] == server_round]:
            self._in_memory[self.directory].pop(place)
        for path in self._files(server_round):
            path.unlink()
        with self._lock:
            self._close()

    def _files(self, server_round: int) -> list[Path]:
        return sorted(self.directory.glob(f"{server_round}-*.updates"))

    def _open_file(self, server_round: int) -> BinaryIO:
        """The file of a round that this process writes to."""
        here = os.getpid(), server_round
        if self._open is None or self._open[:2] != here:
            self._close()
            self.directory.mkdir(parents=True, exist_ok=True)
            path = self.directory / f"{server_round}-{uuid.uuid4().hex}.updates"
            # Without a buffer, so that the server can read the update as soon as it has the client's reply.
            self._open = (*here, path.open("ab", buffering=0))
        return self._open[2]

    def _close(self) -> None:
        if self._open is not None:
            self._open[2].close()
            self._open = None


_Place = tuple[mmap.mmap, int, bytes]


def _read_records(path: Path) -> Iterator[tuple[int, _Place]]:
    """The records of a file: the client, and where its arrays begin and how they are named."""
    # An empty file cannot be mapped.
    if not path.stat().st_size:
        return
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 0
    while start + _HEADER.size <= len(mapped):
        client, length = _HEADER.unpack_from(mapped, start)
        begin = start + _HEADER.size
        names = mapped[begin : begin + length]
        begin += _round_up(length)
        if begin > len(mapped):
            return
        end = begin + _arrays_size(names)
        if end > len(mapped):
            return
        yield client, (mapped, begin, names)
        start = end


def _read_arrays(mapped: mmap.mmap, begin: int, names: bytes) -> Arrays:
    arrays = {}
    for name, dtype, shape, size in _parse_description(names):
        arrays[name] = np.frombuffer(mapped, dtype, math.prod(shape), begin).reshape(shape)
        begin += _round_up(size)
    return arrays


def _arrays_size(names: bytes) -> int:
    """Bytes of all arrays of a record."""
    return sum(_round_up(size) for _, _, _, size in _parse_description(names))


@lru_cache(maxsize=16)
def _describe_arrays(arrays: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> bytes:
    """Names, types and shapes of arrays as JSON."""
    return json.dumps([[name, dtype.str, shape] for name, dtype, shape in arrays]).encode()


@lru_cache(maxsize=16)
def _parse_description(names: bytes) -> list[tuple[str, np.dtype[Any], tuple[int, ...], int]]:
    """Name, type, shape and bytes of each array."""
    described = []
    for name, kind, shape in json.loads(names):
        dtype = np.dtype(kind)
        described.append((name, dtype, tuple(shape), math.prod(shape) * dtype.itemsize))
    return described


def _round_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _pad(part: bytes) -> bytes:
    return part.ljust(_round_up(len(part)), b"\0")
