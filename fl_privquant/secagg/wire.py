"""The layout that all messages of a round share: their first bytes, their lists, and a reader that checks.

A message starts with 28 bytes: ``SA``, version, kind, session (16 bytes), round (uint64). All numbers are
little-endian, keys and signatures raw, lists counted by a uint32. Client ids are uint64, and lists of clients
increase strictly, so that no client can stand in one twice and every message has one encoding. Where both
sides know a list of clients, some of them are named by one bit each (:class:`Subset`).
"""

from __future__ import annotations

import operator
import struct
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Final, Self

from fl_privquant.errors import InvalidUpdateError, SecureAggregationError
from fl_privquant.secagg.keys import SIGNATURE_BYTES

SESSION_BYTES: Final = 16
"""Bytes that tell the rounds of one server's start from all others."""

_PREFIX: Final = struct.Struct("<2sBB16sQ")
_MAGIC: Final = b"SA"
_VERSION: Final = 6
_COUNT: Final = struct.Struct("<I")
_ID_BYTES: Final = 8
_MAX_ID: Final = (1 << 64) - 1


@dataclass(frozen=True)
class RoundId:
    """Which round of which run: messages of another one are refused."""

    session: bytes
    number: int

    def __post_init__(self) -> None:
        if len(self.session) != SESSION_BYTES or not 0 <= self.number <= _MAX_ID:
            raise InvalidUpdateError(
                f"round {self.number} of a session of {len(self.session)} bytes: expected 0..2^64 - 1 and "
                f"{SESSION_BYTES} bytes"
            )


@dataclass(frozen=True)
class Subset:
    """Some members of a list that sender and receiver both know: its length, and places in it, increasing.

    >>> Subset.of([30, 10], [10, 20, 30])
    Subset(size=3, places=(0, 2))
    >>> Subset(3, (0, 2)).among([10, 20, 30])
    (10, 30)
    """

    size: int = 0
    places: tuple[int, ...] = ()

    @classmethod
    def of(cls, clients: Collection[int], known: Sequence[int]) -> Self:
        """These clients of a known list."""
        chosen = frozenset(clients)
        return cls(len(known), tuple(at for at, client in enumerate(known) if client in chosen))

    def among(self, known: Sequence[int]) -> tuple[int, ...]:
        """The clients, in the order of the known list."""
        if len(known) != self.size:
            raise SecureAggregationError(
                f"some clients of a list of {self.size}, where this client knows a list of {len(known)}"
            )
        return tuple(known[at] for at in self.places)

    def to_bytes(self) -> bytes:
        """The length and a bit for each member of the list."""
        bits = sum(1 << at for at in self.places)
        return _COUNT.pack(self.size) + bits.to_bytes((self.size + 7) // 8, "little")


class Reader:
    """Takes a message apart from front to back; every byte must be used."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str) -> None:
        self._data = bytes(data)
        self._at = 0
        self._name = name

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        end = self._at + size
        if end > len(self._data):
            raise InvalidUpdateError(f"{self._name}: ends {end - len(self._data)} bytes too early")
        part, self._at = self._data[self._at : end], end
        return part

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """The next numbers, as ``layout`` has them."""
        return layout.unpack(self.take(layout.size))

    def flag(self) -> bool:
        """The next byte, 0 or 1."""
        (value,) = self.take(1)
        if value > 1:
            raise InvalidUpdateError(f"{self._name}: flag {value}, expected 0 or 1")
        return bool(value)

    def ids(self) -> tuple[int, ...]:
        """A counted list of client ids, strictly increasing."""
        (count,) = self.unpack(_COUNT)
        ids = struct.unpack(f"<{count}Q", self.take(count * _ID_BYTES))
        if any(map(operator.ge, ids, ids[1:])):
            raise InvalidUpdateError(f"{self._name}: client ids must increase strictly, none twice")
        return ids

    def subset(self) -> Subset:
        """Some members of a known list."""
        (size,) = self.unpack(_COUNT)
        octets = self.take((size + 7) // 8)
        if int.from_bytes(octets, "little") >> size:
            raise InvalidUpdateError(f"{self._name}: marks more than the {size} members of a list")
        return Subset(size, tuple(at for at in range(size) if octets[at >> 3] >> (at & 7) & 1))

    def blocks(self, size: int) -> tuple[bytes, ...]:
        """A counted list of blocks of ``size`` bytes."""
        (count,) = self.unpack(_COUNT)
        return self.parts(count, size)

    def parts(self, count: int, size: int) -> tuple[bytes, ...]:
        """The next ``count`` blocks of ``size`` bytes."""
        joined = self.take(count * size)
        return tuple([joined[start : start + size] for start in range(0, len(joined), size)])

    def pieces(self, sizes: Sequence[int]) -> list[bytes]:
        """The next blocks, of these sizes."""
        joined = self.take(sum(sizes))
        return [joined[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]

    def signature(self) -> bytes:
        """64 bytes, or none."""
        return self.take(SIGNATURE_BYTES) if self.flag() else b""

    def finish(self) -> None:
        """Nothing may be left."""
        if left := len(self._data) - self._at:
            raise InvalidUpdateError(f"{self._name}: {left} bytes too many")


def pack_ids(ids: Sequence[int]) -> bytes:
    """A counted list of client ids, as :meth:`Reader.ids` reads it."""
    return struct.pack(f"<I{len(ids)}Q", len(ids), *ids)


def pack_blocks(blocks: Sequence[bytes]) -> bytes:
    """A counted list of blocks of one size, as :meth:`Reader.blocks` reads it."""
    return b"".join([_COUNT.pack(len(blocks)), *blocks])


@dataclass(frozen=True)
class Message(ABC):
    """A message from one side of a round to the other."""

    KIND: ClassVar[int]

    round_id: RoundId

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The message as it is sent."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """The message that was sent as these bytes; InvalidUpdateError if they are none of its kind."""

    def prefix(self) -> bytes:
        """The first 28 bytes of every message."""
        return _PREFIX.pack(_MAGIC, _VERSION, self.KIND, self.round_id.session, self.round_id.number)

    @classmethod
    def read(cls, data: bytes | bytearray | memoryview) -> tuple[RoundId, Reader]:
        """The round of a message of this kind, and a reader of what follows."""
        reader = Reader(data, cls.__name__)
        magic, version, kind, session, number = _PREFIX.unpack(reader.take(_PREFIX.size))
        if magic == _MAGIC and version != _VERSION:
            raise InvalidUpdateError(
                f"{cls.__name__}: version {version} of the secure-aggregation protocol, expected {_VERSION}; "
                f"install the same version of fl-privquant on the server and on all clients"
            )
        if (magic, kind) != (_MAGIC, cls.KIND):
            raise InvalidUpdateError(
                f"{cls.__name__}: starts with {magic!r}, kind {kind}; expected {_MAGIC!r}, {cls.KIND}"
            )
        return RoundId(session, number), reader


@dataclass(frozen=True)
class ClientMessage(Message):
    """What a client sends: with its id, and with its signature if clients have identities."""

    client_id: int
    signature: bytes

    def body(self) -> bytes:
        """All but the signature: what is signed."""
        return b"".join([self.prefix(), self.client_id.to_bytes(_ID_BYTES, "little"), *self.content()])

    def to_bytes(self) -> bytes:
        return self.closed(self.body(), self.signature)

    @staticmethod
    def closed(body: bytes, signature: bytes) -> bytes:
        """The message of this body and signature, which is empty in unsigned rounds."""
        return b"".join([body, bytes([bool(signature)]), signature])

    @staticmethod
    def body_of(data: bytes | bytearray | memoryview) -> memoryview:
        """The body within the bytes of a signed message, without a copy."""
        return memoryview(data)[: -1 - SIGNATURE_BYTES]

    @abstractmethod
    def content(self) -> Sequence[bytes]:
        """The content of the message without its sender, in parts."""

    @classmethod
    def read_client(cls, data: bytes | bytearray | memoryview) -> tuple[RoundId, int, Reader]:
        """The round and the sender of a message of this kind, and a reader of what follows."""
        round_id, reader = cls.read(data)
        return round_id, int.from_bytes(reader.take(_ID_BYTES), "little"), reader
