"""The messages of a round, as bytes with one layout each (:mod:`fl_privquant.secagg.wire`).

========================  ===========  ================================================================
message                   from, to     says
========================  ===========  ================================================================
:class:`Invitation`       S to all     what is summed; the same bytes for every client
:class:`KeyAdvertisement` C to S       the client's public key of the round
:class:`Roster`           S to C       who takes part, the keys of the neighbours, the threshold
:class:`SharedSeeds`      C to S       what the client's seeds and the roots of its masks open from
:class:`MaskRequest`      S to C       who shared its seeds, and is masked with
:class:`MaskedInput`      C to S       the masked codes, packed
:class:`SurvivorList`     S to C       whose inputs arrived, of all clients (signed rounds only)
:class:`Confirmation`     C to S       a signature on that list (signed rounds only)
:class:`UnmaskRequest`    S to C       which neighbours' inputs arrived; signatures of witnesses
:class:`UnmaskReply`      C to S       one share for each of the neighbours
========================  ===========  ================================================================

What clients send may end with their Ed25519 signature over all that stands before it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.secagg.keys import (
    DIGEST_BYTES,
    KEY_BYTES,
    SEED_BYTES,
    SIGNATURE_BYTES,
    digest,
)
from fl_privquant.secagg.shamir import SHARE_BYTES
from fl_privquant.secagg.wire import (
    SESSION_BYTES,
    ClientMessage,
    Message,
    Reader,
    RoundId,
    Subset,
    pack_blocks,
    pack_ids,
)

__all__ = [
    "CORRECTION_BYTES",
    "SESSION_BYTES",
    "ClientMessage",
    "Confirmation",
    "Invitation",
    "KeyAdvertisement",
    "MaskRequest",
    "MaskedInput",
    "Message",
    "Reader",
    "Roster",
    "RosterEntry",
    "RoundId",
    "SharedSeeds",
    "Subset",
    "SurvivorList",
    "UnmaskReply",
    "UnmaskRequest",
    "pack_ids",
]

CORRECTION_BYTES: Final = 2 * SHARE_BYTES
"""What a holder's derived shares of the two seeds are off by (:mod:`fl_privquant.secagg.sharing`)."""

_INVITATION: Final = struct.Struct("<IQBQB")
_ROSTER: Final = struct.Struct("<IIIIBB")


@dataclass(frozen=True)
class Invitation(Message):
    """The sum: vectors of ``dimension`` codes up to ``max_code``, modulo 2^width.

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
        return self.prefix() + _INVITATION.pack(
            self.num_clients, self.dimension, self.width, largest, self.signed
        )

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        num_clients, dimension, width, max_code, signed = reader.unpack(_INVITATION)
        reader.finish()
        if signed > 1:
            raise InvalidUpdateError(f"Invitation: flag {signed}, expected 0 or 1")
        return cls(round_id, num_clients, dimension, width, max_code or None, bool(signed))


@dataclass(frozen=True)
class KeyAdvertisement(ClientMessage):
    """The client's X25519 public key of the round.

    In signed rounds ``known`` is the digest of the list by which the client knows others
    (:func:`~fl_privquant.secagg.transcript.known_digest`): to clients with the server's own list the roster
    need not repeat what is on it.
    """

    KIND = 2

    public_key: bytes
    known: bytes = b""

    def content(self) -> Sequence[bytes]:
        return self.public_key, bytes([bool(self.known)]), self.known

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        public_key = reader.take(KEY_BYTES)
        known = reader.take(DIGEST_BYTES) if reader.flag() else b""
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, public_key, known)


@dataclass(frozen=True)
class RosterEntry:
    """A client with its public key of the round, and in signed rounds with the identity it goes by."""

    client_id: int
    public_key: bytes
    identity: bytes = b""

    @property
    def leaf(self) -> bytes:
        """The client's leaf in the tree of all clients (:mod:`fl_privquant.secagg.roster_tree`)."""
        return digest(b"leaf", self.client_id.to_bytes(8, "little"), self.public_key, self.identity)


@dataclass(frozen=True)
class Roster(Message):
    """Who takes part, the keys of the client's neighbours, the threshold, and what the graph follows from.

    In signed rounds the client is told all ``num_clients`` clients: those ``present`` of the increasing ids
    on its own list of known clients, or their ``ids``, where its list is not the server's or these are
    shorter. It draws the graph itself, and ``public_keys`` are those of its neighbours, by increasing ids.
    ``identities`` are the identity keys of the neighbours in ``identified``: of those that have several,
    or of all where the client's list is not the server's. ``path`` leads from the client's own leaf to the
    root of the tree of all keys (:mod:`fl_privquant.secagg.roster_tree`); on a complete graph the client
    knows all leaves, and the path is empty. The first ``num_witnesses`` clients of the graph's first order
    are those whose confirmations count.

    In rounds that are not signed ``ids`` are the holders of the client's secrets, itself among them, and
    ``path`` is the digest of the list of all clients, unless the graph is complete.
    """

    KIND = 3

    num_clients: int
    num_neighbors: int
    threshold: int
    num_witnesses: int
    spread: bool
    public_keys: tuple[bytes, ...]
    ids: tuple[int, ...] = ()
    present: Subset = field(default_factory=Subset)
    identified: Subset = field(default_factory=Subset)
    identities: tuple[bytes, ...] = ()
    path: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        numbers = (self.num_clients, self.num_neighbors, self.threshold, self.num_witnesses)
        return b"".join(
            [
                self.prefix(),
                _ROSTER.pack(*numbers, self.spread, len(self.path)),
                *self.path,
                pack_blocks(self.public_keys),
                pack_ids(self.ids),
                self.present.to_bytes(),
                self.identified.to_bytes(),
                *self.identities,
            ]
        )

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        n, k, threshold, num_witnesses, spread, path_length = reader.unpack(_ROSTER)
        if spread > 1:
            raise InvalidUpdateError(f"Roster: flag {spread}, expected 0 or 1")
        path = reader.parts(path_length, DIGEST_BYTES)
        public_keys, ids, present = reader.blocks(KEY_BYTES), reader.ids(), reader.subset()
        identified = reader.subset()
        identities = reader.parts(len(identified.places), KEY_BYTES)
        reader.finish()
        lists = (public_keys, ids, present, identified, identities, path)
        return cls(round_id, n, k, threshold, num_witnesses, bool(spread), *lists)


@dataclass(frozen=True)
class SharedSeeds(ClientMessage):
    """What the server needs to open the client's two seeds from shares, and the roots of its masks from one.

    Of the holders, the first ``threshold - 1`` derive their shares; ``corrections`` are what the shares that
    the others derive are off by, without the client itself, by increasing ids. ``wrapped`` holds the root
    of the mask with each neighbour, by increasing ids, and opens with the wrapping seed
    (:func:`~fl_privquant.secagg.keys.wrap`). The commitments to the two seeds, the self mask's first, let the
    server recognise the right ones later.
    """

    KIND = 4

    commitments: tuple[bytes, bytes]
    wrapped: bytes
    corrections: tuple[bytes, ...]

    def content(self) -> Sequence[bytes]:
        roots = [self.wrapped[at : at + SEED_BYTES] for at in range(0, len(self.wrapped), SEED_BYTES)]
        return *self.commitments, pack_blocks(roots), pack_blocks(self.corrections)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        commitments = reader.take(SEED_BYTES), reader.take(SEED_BYTES)
        wrapped = b"".join(reader.blocks(SEED_BYTES))
        corrections = reader.blocks(CORRECTION_BYTES)
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, commitments, wrapped, corrections)


@dataclass(frozen=True)
class MaskRequest(Message):
    """The clients that take part: of all clients, or of the receiver's roster where it was not told all."""

    KIND = 10

    members: Subset

    def to_bytes(self) -> bytes:
        return self.prefix() + self.members.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        members = reader.subset()
        reader.finish()
        return cls(round_id, members)


@dataclass(frozen=True)
class MaskedInput(ClientMessage):
    """The client's codes with all its masks added, packed (:func:`fl_privquant.packing.pack.pack_codes`)."""

    KIND = 6

    payload: bytes

    def content(self) -> Sequence[bytes]:
        return len(self.payload).to_bytes(8, "little"), self.payload

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        payload = reader.take(int.from_bytes(reader.take(8), "little"))
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, payload)


@dataclass(frozen=True)
class SurvivorList(Message):
    """The clients whose masked inputs arrived."""

    KIND = 11

    survivors: Subset

    def to_bytes(self) -> bytes:
        return self.prefix() + self.survivors.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        survivors = reader.subset()
        reader.finish()
        return cls(round_id, survivors)


@dataclass(frozen=True)
class Confirmation(ClientMessage):
    """What a client was told: the digest of graph, members, request and survivors, to be signed."""

    KIND = 12

    agreement: bytes

    def content(self) -> Sequence[bytes]:
        return (self.agreement,)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        agreement = reader.take(DIGEST_BYTES)
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, agreement)


@dataclass(frozen=True)
class UnmaskRequest(Message):
    """The clients whose input arrived, among those whose shares the receiver holds (itself included).

    In signed rounds ``signers``, named among the witnesses by increasing ids, and their ``signatures`` prove
    that all clients that unmask were told the same.
    """

    KIND = 7

    active: Subset
    signers: Subset = field(default_factory=Subset)
    signatures: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        subsets = self.active.to_bytes() + self.signers.to_bytes()
        return self.prefix() + subsets + b"".join(self.signatures)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        active, signers = reader.subset(), reader.subset()
        signatures = reader.parts(len(signers.places), SIGNATURE_BYTES)
        reader.finish()
        return cls(round_id, active, signers, signatures)


@dataclass(frozen=True)
class UnmaskReply(ClientMessage):
    """Shares of the self-mask seeds of the active and of the wrapping seeds of the lost, by id."""

    KIND = 8

    seed_shares: tuple[bytes, ...]
    wrapping_shares: tuple[bytes, ...]

    def __repr__(self) -> str:
        # The shares are for the server alone.
        return f"UnmaskReply(client_id={self.client_id})"

    def content(self) -> Sequence[bytes]:
        return pack_blocks(self.seed_shares), pack_blocks(self.wrapping_shares)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        seed_shares, wrapping_shares = reader.blocks(SHARE_BYTES), reader.blocks(SHARE_BYTES)
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, seed_shares, wrapping_shares)
