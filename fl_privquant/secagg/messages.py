"""The eight messages of a round, as bytes with one layout each.

A message starts with 28 bytes: ``SA``, version, kind, session (16 bytes), round (uint64). All numbers
are little-endian, keys and signatures raw, lists counted by a uint32. Client ids are uint64, and lists
of clients increase strictly, so no client can stand in one twice and every message has one encoding.

========================  ===========  ======================================================
message                   from, to     says
========================  ===========  ======================================================
:class:`Invitation`       S to all     what is summed; the same bytes for every client
:class:`KeyAdvertisement` C to S       the client's two public keys
:class:`Roster`           S to C       the client's neighbours with their keys, the threshold
:class:`SealedShares`     C to S       a sealed share for each neighbour
:class:`ShareDelivery`    S to C       the shares that were sealed for this client
:class:`MaskedInput`      C to S       the masked codes, packed
:class:`UnmaskRequest`    S to C       which neighbours' inputs arrived, and which did not
:class:`UnmaskReply`      C to S       one share for each of them
========================  ===========  ======================================================

What clients send may end with their Ed25519 signature over all that stands before it.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.secagg.keys import KEY_BYTES, SEAL_BYTES, SIGNATURE_BYTES
from fl_privquant.secagg.shamir import SHARE_BYTES

__all__ = [
    "SEALED_BYTES",
    "SESSION_BYTES",
    "ClientMessage",
    "Invitation",
    "KeyAdvertisement",
    "MaskedInput",
    "Reader",
    "Roster",
    "RosterEntry",
    "RoundId",
    "SealedShares",
    "ShareDelivery",
    "UnmaskReply",
    "UnmaskRequest",
    "pack_ids",
]

SESSION_BYTES: Final = 16
"""Bytes that tell the rounds of one server's start from all others."""

SEALED_BYTES: Final = 2 * SHARE_BYTES + SEAL_BYTES
"""A share of the self-mask seed and one of the mask key, sealed for a neighbour."""

_PREFIX: Final = struct.Struct("<2sBB16sQ")
_MAGIC: Final = b"SA"
_VERSION: Final = 1
_COUNT: Final = struct.Struct("<I")
_ID: Final = np.dtype("<u8")
_INVITATION: Final = struct.Struct("<IQBQB")
_ROSTER: Final = struct.Struct("<IIB")
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


class Reader:
    """Takes a message apart from front to back; every byte must be used."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str) -> None:
        self._rest = memoryview(data).cast("B")
        self._name = name

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if len(self._rest) < size:
            raise InvalidUpdateError(f"{self._name}: ends {size - len(self._rest)} bytes too early")
        part, self._rest = self._rest[:size], self._rest[size:]
        return part.tobytes()

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
        ids = np.frombuffer(self.take(count * _ID.itemsize), dtype=_ID)
        if (ids[1:] <= ids[:-1]).any():
            raise InvalidUpdateError(f"{self._name}: client ids must increase strictly, none twice")
        return tuple(ids.tolist())

    def blocks(self, size: int) -> tuple[bytes, ...]:
        """A counted list of blocks of ``size`` bytes."""
        (count,) = self.unpack(_COUNT)
        joined = self.take(count * size)
        return tuple(joined[start : start + size] for start in range(0, len(joined), size))

    def signature(self) -> bytes:
        """64 bytes, or none."""
        return self.take(SIGNATURE_BYTES) if self.flag() else b""

    def finish(self) -> None:
        """Nothing may be left."""
        if self._rest:
            raise InvalidUpdateError(f"{self._name}: {len(self._rest)} bytes too many")


def pack_ids(ids: Sequence[int]) -> bytes:
    """A counted list of client ids, as :meth:`Reader.ids` reads it."""
    return _COUNT.pack(len(ids)) + np.array(ids, dtype=_ID).tobytes()


def _pack_blocks(blocks: Sequence[bytes]) -> bytes:
    return _COUNT.pack(len(blocks)) + b"".join(blocks)


@dataclass(frozen=True)
class _Message(ABC):
    KIND: ClassVar[int]

    round_id: RoundId

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The message as it is sent."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """The message that was sent as these bytes; InvalidUpdateError if they are none of its kind."""

    def _prefix(self) -> bytes:
        return _PREFIX.pack(_MAGIC, _VERSION, self.KIND, self.round_id.session, self.round_id.number)

    @classmethod
    def _read(cls, data: bytes | bytearray | memoryview) -> tuple[RoundId, Reader]:
        reader = Reader(data, cls.__name__)
        magic, version, kind, session, number = _PREFIX.unpack(reader.take(_PREFIX.size))
        if (magic, version, kind) != (_MAGIC, _VERSION, cls.KIND):
            raise InvalidUpdateError(
                f"{cls.__name__}: starts with {magic!r}, version {version}, kind {kind}; expected "
                f"{_MAGIC!r}, {_VERSION}, {cls.KIND}"
            )
        return RoundId(session, number), reader


@dataclass(frozen=True)
class Invitation(_Message):
    """What is summed: vectors of ``dimension`` codes up to ``max_code``, modulo 2^width.

    ``num_clients`` is how many are invited, so a bound on how many are summed. Without a
    ``max_code`` the codes are residues, and their sum is exact modulo 2^width only.
    """

    KIND = 1

    num_clients: int
    dimension: int
    width: int
    max_code: int | None
    signed: bool

    def to_bytes(self) -> bytes:
        largest = 0 if self.max_code is None else self.max_code
        return self._prefix() + _INVITATION.pack(
            self.num_clients, self.dimension, self.width, largest, self.signed
        )

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls._read(data)
        num_clients, dimension, width, max_code, signed = reader.unpack(_INVITATION)
        reader.finish()
        if signed > 1:
            raise InvalidUpdateError(f"Invitation: flag {signed}, expected 0 or 1")
        return cls(round_id, num_clients, dimension, width, max_code or None, bool(signed))


@dataclass(frozen=True)
class ClientMessage(_Message):
    """What a client sends: with its id, and with its signature if clients have identities."""

    client_id: int
    signature: bytes

    def body(self) -> bytes:
        """All but the signature: what is signed."""
        return self._prefix() + self.client_id.to_bytes(_ID.itemsize, "little") + self._content()

    def to_bytes(self) -> bytes:
        return self.body() + bytes([bool(self.signature)]) + self.signature

    def with_signature(self, signature: bytes) -> Self:
        """The same message, signed."""
        return replace(self, signature=signature)

    @abstractmethod
    def _content(self) -> bytes:
        """What the message says besides who sends it."""

    @classmethod
    def _read_client(cls, data: bytes | bytearray | memoryview) -> tuple[RoundId, int, Reader]:
        round_id, reader = cls._read(data)
        return round_id, int.from_bytes(reader.take(_ID.itemsize), "little"), reader


@dataclass(frozen=True)
class KeyAdvertisement(ClientMessage):
    """The client's public keys: for masks (its private key may be opened later) and for shares."""

    KIND = 2

    mask_key: bytes
    share_key: bytes

    def _content(self) -> bytes:
        return self.mask_key + self.share_key

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls._read_client(data)
        mask_key, share_key = reader.take(KEY_BYTES), reader.take(KEY_BYTES)
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, mask_key, share_key)


@dataclass(frozen=True)
class RosterEntry:
    """A client with its public keys, and with the signature under which it advertised them."""

    client_id: int
    mask_key: bytes
    share_key: bytes
    signature: bytes

    def advertisement(self, round_id: RoundId) -> KeyAdvertisement:
        """The message that this entry was made of."""
        return KeyAdvertisement(round_id, self.client_id, self.signature, self.mask_key, self.share_key)


@dataclass(frozen=True)
class Roster(_Message):
    """The holders of the client's secrets, itself among them, increasing, and the threshold."""

    KIND = 3

    num_clients: int
    threshold: int
    entries: tuple[RosterEntry, ...]

    def to_bytes(self) -> bytes:
        signed = any(entry.signature for entry in self.entries)
        ids = pack_ids([entry.client_id for entry in self.entries])
        keys = [entry.mask_key + entry.share_key + entry.signature for entry in self.entries]
        return self._prefix() + _ROSTER.pack(self.num_clients, self.threshold, signed) + ids + b"".join(keys)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls._read(data)
        num_clients, threshold, signed = reader.unpack(_ROSTER)
        if signed > 1:
            raise InvalidUpdateError(f"Roster: flag {signed}, expected 0 or 1")
        entries = tuple(
            RosterEntry(
                client_id,
                reader.take(KEY_BYTES),
                reader.take(KEY_BYTES),
                reader.take(SIGNATURE_BYTES) if signed else b"",
            )
            for client_id in reader.ids()
        )
        reader.finish()
        return cls(round_id, num_clients, threshold, entries)


@dataclass(frozen=True)
class SealedShares(ClientMessage):
    """A sealed pair of shares for each neighbour, in the roster's order.

    The commitment to the self-mask seed lets the server recognise the right one later.
    """

    KIND = 4

    commitment: bytes
    sealed: tuple[bytes, ...]

    def _content(self) -> bytes:
        return self.commitment + _pack_blocks(self.sealed)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls._read_client(data)
        commitment = reader.take(KEY_BYTES)
        sealed = reader.blocks(SEALED_BYTES)
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, commitment, sealed)


@dataclass(frozen=True)
class ShareDelivery(_Message):
    """The sealed shares from the neighbours that take part, one each."""

    KIND = 5

    senders: tuple[int, ...]
    sealed: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        return self._prefix() + pack_ids(self.senders) + _pack_blocks(self.sealed)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls._read(data)
        senders = reader.ids()
        sealed = reader.blocks(SEALED_BYTES)
        reader.finish()
        if len(senders) != len(sealed):
            raise InvalidUpdateError(f"ShareDelivery: {len(sealed)} shares from {len(senders)} senders")
        return cls(round_id, senders, sealed)


@dataclass(frozen=True)
class MaskedInput(ClientMessage):
    """The client's codes with all its masks added, packed (:func:`fl_privquant.codec.pack.pack_codes`)."""

    KIND = 6

    payload: bytes

    def _content(self) -> bytes:
        return len(self.payload).to_bytes(8, "little") + self.payload

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls._read_client(data)
        payload = reader.take(int.from_bytes(reader.take(8), "little"))
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, payload)


@dataclass(frozen=True)
class UnmaskRequest(_Message):
    """Of the client and the neighbours it has shares of: whose input arrived, and whose did not."""

    KIND = 7

    active: tuple[int, ...]
    dead: tuple[int, ...]

    def to_bytes(self) -> bytes:
        return self._prefix() + pack_ids(self.active) + pack_ids(self.dead)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls._read(data)
        active, dead = reader.ids(), reader.ids()
        reader.finish()
        return cls(round_id, active, dead)


@dataclass(frozen=True)
class UnmaskReply(ClientMessage):
    """Shares of the seeds of the active and of the mask keys of the dead, in the request's order."""

    KIND = 8

    seed_shares: tuple[bytes, ...]
    key_shares: tuple[bytes, ...]

    def __repr__(self) -> str:
        # The shares are for the server alone.
        return f"UnmaskReply(client_id={self.client_id})"

    def _content(self) -> bytes:
        return _pack_blocks(self.seed_shares) + _pack_blocks(self.key_shares)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls._read_client(data)
        seed_shares, key_shares = reader.blocks(SHARE_BYTES), reader.blocks(SHARE_BYTES)
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, seed_shares, key_shares)
