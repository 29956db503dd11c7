"""How messages become bytes: each field of a dataclass names its format, and a reader checks what it takes.

A field is annotated with its :class:`Format`, as in ``threshold: Annotated[int, UINT32]``. The fields are
written one after the other (:func:`pack_fields`) and read in the same order (:func:`read_fields`);
whatever does not fit raises InvalidUpdateError.

A message starts with 28 bytes: ``SA``, version, kind, session (16 bytes), round (uint64). All numbers are
little-endian, keys and signatures raw, lists counted by a uint32. Client ids are uint64, and lists of clients
increase strictly, so that no client can stand in one twice and every message has one encoding. Where both
sides know a list of clients, some of them are named by one bit each (:class:`Subset`).
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, get_type_hints

from fl_privquant.errors import InvalidUpdateError, SecureAggregationError
from fl_privquant.secagg.crypto.keys import SIGNATURE_BYTES

SESSION_BYTES: Final = 16
"""Bytes of the id that tells the rounds of one start of a server from those of all others."""

_PREFIX: Final = struct.Struct("<2sBB16sQ")
_MAGIC: Final = b"SA"
_VERSION: Final = 6
_COUNT: Final = struct.Struct("<I")
_ID_BYTES: Final = 8
_MAX_ID: Final = (1 << 64) - 1

Octets = bytes | bytearray | memoryview
"""Bytes that somebody sent or stored."""


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
    >>> Subset(3, (0, 2)).select_from([10, 20, 30])
    (10, 30)
    """

    size: int = 0
    places: tuple[int, ...] = ()

    @classmethod
    def of(cls, clients: Collection[int], known: Sequence[int]) -> Self:
        """These clients of a known list."""
        chosen = frozenset(clients)
        return cls(len(known), tuple(at for at, client in enumerate(known) if client in chosen))

    def select_from(self, known: Sequence[int]) -> tuple[int, ...]:
        """The clients, in the order of the known list."""
        if len(known) != self.size:
            raise SecureAggregationError(
                f"a subset of a list of {self.size} clients, but this client knows a list of {len(known)}"
            )
        return tuple(known[at] for at in self.places)

    def to_bytes(self) -> bytes:
        """The length and a bit for each member of the list."""
        bits = sum(1 << at for at in self.places)
        return _COUNT.pack(self.size) + bits.to_bytes((self.size + 7) // 8, "little")

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """The members that :meth:`to_bytes` wrote."""
        size = reader.count()
        octets = reader.take((size + 7) // 8)
        if int.from_bytes(octets, "little") >> size:
            raise InvalidUpdateError(f"{reader.name}: marks more than the {size} members of a list")
        return cls(size, tuple(at for at in range(size) if octets[at >> 3] >> (at & 7) & 1))


class Reader:
    """Reads bytes from front to back; every byte must be used. Errors begin with ``name``."""

    def __init__(self, data: Octets, name: str) -> None:
        self.name = name
        self._data = bytes(data)
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if size > self.left:
            raise InvalidUpdateError(f"{self.name}: ends {size - self.left} bytes too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        """The next number, of ``size`` bytes."""
        return int.from_bytes(self.take(size), "little")

    def count(self) -> int:
        """The length of a list."""
        return self.number(_COUNT.size)

    def flag(self) -> bool:
        """The next byte, 0 or 1."""
        value = self.number(1)
        if value > 1:
            raise InvalidUpdateError(f"{self.name}: flag {value}, expected 0 or 1")
        return bool(value)

    def ids(self) -> tuple[int, ...]:
        """A counted list of client ids, strictly increasing."""
        count = self.count()
        ids = struct.unpack(f"<{count}Q", self.take(count * _ID_BYTES))
        if any(map(operator.ge, ids, ids[1:])):
            raise InvalidUpdateError(f"{self.name}: client ids must increase strictly, none twice")
        return ids

    def parts(self, count: int, size: int) -> tuple[bytes, ...]:
        """The next ``count`` blocks of ``size`` bytes."""
        joined = self.take(count * size)
        return tuple([joined[start : start + size] for start in range(0, len(joined), size)])

    def finish(self) -> None:
        """Raise InvalidUpdateError if bytes are left."""
        if self.left:
            raise InvalidUpdateError(f"{self.name}: {self.left} bytes too many")


def pack_ids(ids: Sequence[int]) -> bytes:
    """A counted list of client ids, as :meth:`Reader.ids` reads it."""
    return struct.pack(f"<I{len(ids)}Q", len(ids), *ids)


def pack_blocks(blocks: Sequence[bytes]) -> bytes:
    """A counted list of blocks of one size."""
    return b"".join([_COUNT.pack(len(blocks)), *blocks])


class Format(NamedTuple):
    """How a field is written, as parts of bytes that follow one another, and how it is read."""

    pack: Callable[[Any], Iterable[bytes | bytearray]]
    read: Callable[[Reader], Any]


def uint(size: int) -> Format:
    """A number from 0 on, of ``size`` bytes."""
    return Format(lambda value: [int(value).to_bytes(size, "little")], lambda reader: reader.number(size))


def fixed_size(size: int) -> Format:
    """Bytes of one size."""
    return Format(lambda value: [value], lambda reader: reader.take(size))


def optional(size: int) -> Format:
    """Bytes of one size, or none: after a flag that says which."""
    return Format(
        lambda value: [bytes([bool(value)]), value],
        lambda reader: reader.take(size) if reader.flag() else b"",
    )


def blocks(size: int, count_bytes: int = _COUNT.size) -> Format:
    """A counted list of blocks of one size."""
    return Format(
        lambda value: [len(value).to_bytes(count_bytes, "little"), *value],
        lambda reader: reader.parts(reader.number(count_bytes), size),
    )


def last_blocks(size: int) -> Format:
    """Blocks of one size that end the message: the fields before say how many they are."""

    def read(reader: Reader) -> tuple[bytes, ...]:
        return reader.parts(reader.left // size, size)

    return Format(lambda value: value, read)


UINT32: Final = uint(4)
UINT64: Final = uint(8)
FLAG: Final = Format(lambda value: [bytes([value])], Reader.flag)
IDS: Final = Format(lambda value: [pack_ids(value)], Reader.ids)
SUBSET: Final = Format(lambda value: [value.to_bytes()], Subset.read)
PAYLOAD: Final = Format(
    lambda value: [len(value).to_bytes(8, "little"), value], lambda reader: reader.take(reader.number(8))
)


@cache
def _formats(kind: type) -> dict[str, Format]:
    """The formats of the fields of a dataclass that have one, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: mark[0] for name, mark in marks.items() if mark and isinstance(mark[0], Format)}


def pack_fields(instance: Any) -> list[bytes | bytearray]:
    """The fields of a dataclass that have a format, in parts of bytes."""
    kind: type = type(instance)
    parts: list[bytes | bytearray] = []
    for name, form in _formats(kind).items():
        parts.extend(form.pack(getattr(instance, name)))
    return parts


def read_fields(kind: type, reader: Reader) -> dict[str, Any]:
    """The values of the fields of a dataclass that have a format, by their names."""
    return {name: form.read(reader) for name, form in _formats(kind).items()}


@dataclass(frozen=True)
class Message:
    """A message from one side of a round to the other."""

    KIND: ClassVar[int]

    round_id: RoundId

    def to_bytes(self) -> bytes:
        """The message as it is sent."""
        return self.body()

    def body(self) -> bytes:
        """The first 28 bytes, which every message has, and the fields."""
        prefix = _PREFIX.pack(_MAGIC, _VERSION, self.KIND, self.round_id.session, self.round_id.number)
        return b"".join([prefix, *pack_fields(self)])

    @classmethod
    def from_bytes(cls, data: Octets) -> Self:
        """The message that was sent as these bytes; InvalidUpdateError if they are none of its kind."""
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
        message = cls(RoundId(session, number), **cls._read(reader))
        reader.finish()
        return message

    @classmethod
    def _read(cls, reader: Reader) -> dict[str, Any]:
        """All fields but the round."""
        return read_fields(cls, reader)


@dataclass(frozen=True)
class ClientMessage(Message):
    """What a client sends: with its id, and at the end its signature if clients have identities."""

    client_id: Annotated[int, UINT64]
    signature: bytes

    def to_bytes(self) -> bytes:
        return self.close(self.body(), self.signature)

    @staticmethod
    def close(body: bytes, signature: bytes) -> bytes:
        """The message of this body and signature, which is empty in unsigned rounds."""
        return b"".join([body, *_SIGNATURE.pack(signature)])

    @staticmethod
    def body_of(data: Octets) -> memoryview:
        """The body within the bytes of a signed message, without a copy: what is signed."""
        return memoryview(data)[: -1 - SIGNATURE_BYTES]

    @classmethod
    def _read(cls, reader: Reader) -> dict[str, Any]:
        return super()._read(reader) | {"signature": _SIGNATURE.read(reader)}


_SIGNATURE: Final = optional(SIGNATURE_BYTES)
