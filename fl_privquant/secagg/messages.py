"""The messages of a round, as bytes with one layout each (:mod:`fl_privquant.secagg.wire`).

========================  ===========  ================================================================
message                   from, to     says
========================  ===========  ================================================================
:class:`Invitation`       S to all     what is summed; the same bytes for every client
:class:`KeyAdvertisement` C to S       the client's public key of the round
:class:`Roster`           S to C       the client's neighbours with their keys, the threshold
:class:`SealedShares`     C to S       shares for neighbours that cannot derive theirs; wrapped roots
:class:`ShareDelivery`    S to C       whose shares this client holds, and those sealed for it
:class:`ShareReceipt`     C to S       which of these shares do not open
:class:`MaskRequest`      S to C       who takes part, and which pairs do not mask with each other
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
    SEAL_BYTES,
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
    pack_texts,
)

__all__ = [
    "SEALED_BYTES",
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
    "SealedShares",
    "ShareDelivery",
    "ShareReceipt",
    "Subset",
    "SurvivorList",
    "UnmaskReply",
    "UnmaskRequest",
    "pack_ids",
]

SEALED_BYTES: Final = 2 * SHARE_BYTES + SEAL_BYTES
"""A share of the self-mask seed and one of the wrapping seed, sealed for a neighbour."""

_INVITATION: Final = struct.Struct("<IQBQB")
_ROSTER: Final = struct.Struct("<IIIB")


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

    ``identity`` is the Ed25519 public key that the client goes by in this round, empty in unsigned rounds.
    """

    KIND = 2

    public_key: bytes
    identity: bytes = b""

    def content(self) -> Sequence[bytes]:
        return self.public_key, bytes([bool(self.identity)]), self.identity

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        public_key = reader.take(KEY_BYTES)
        identity = reader.take(KEY_BYTES) if reader.flag() else b""
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, public_key, identity)


@dataclass(frozen=True)
class RosterEntry:
    """A client with its public key of the round, and in signed rounds with the identity it goes by."""

    client_id: int
    public_key: bytes
    identity: bytes = b""

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint of the keys in the list of all clients."""
        return digest(b"keys", self.public_key + self.identity)


@dataclass(frozen=True)
class Roster(Message):
    """The holders of the client's secrets, itself among them, increasing, and the threshold.

    In signed rounds ``num_witnesses`` clients, the first on the ring, are those whose confirmations count
    (:meth:`~fl_privquant.secagg.policy.ClientPolicy.quorum`).
    ``listing`` is the digest of the ids and key fingerprints of all clients
    (:func:`~fl_privquant.secagg.transcript.listing_digest`), from which the graph follows. Where the client
    is to check that, in signed rounds whose graph is not complete, ``everyone`` and ``fingerprints`` are the
    list itself.
    """

    KIND = 3

    num_clients: int
    threshold: int
    num_witnesses: int
    entries: tuple[RosterEntry, ...]
    listing: bytes
    everyone: tuple[int, ...] = ()
    fingerprints: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        signed = any(entry.identity for entry in self.entries)
        keys = [entry.public_key + entry.identity for entry in self.entries]
        return b"".join(
            [
                self.prefix(),
                _ROSTER.pack(self.num_clients, self.threshold, self.num_witnesses, signed),
                pack_ids([entry.client_id for entry in self.entries]),
                *keys,
                self.listing,
                pack_ids(self.everyone),
                *self.fingerprints,
            ]
        )

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        num_clients, threshold, num_witnesses, signed = reader.unpack(_ROSTER)
        if signed > 1:
            raise InvalidUpdateError(f"Roster: flag {signed}, expected 0 or 1")
        holders = reader.ids()
        blocks = reader.parts(len(holders), (1 + signed) * KEY_BYTES)
        entries = tuple(
            RosterEntry(holder, block[:KEY_BYTES], block[KEY_BYTES:])
            for holder, block in zip(holders, blocks, strict=True)
        )
        listing = reader.take(DIGEST_BYTES)
        everyone = reader.ids()
        fingerprints = reader.parts(len(everyone), DIGEST_BYTES)
        reader.finish()
        return cls(round_id, num_clients, threshold, num_witnesses, entries, listing, everyone, fingerprints)


@dataclass(frozen=True)
class SealedShares(ClientMessage):
    """Sealed pairs of shares, and the roots of the client's masks, wrapped.

    Of the holders on the roster, the first ``threshold - 1`` derive their shares themselves; ``sealed`` are
    for the others but the client itself, in the roster's order. ``wrapped`` holds the root of the mask with
    each neighbour, in the roster's order, and opens with the wrapping seed
    (:func:`~fl_privquant.secagg.keys.wrap`). The commitments to the two seeds, the self mask's first, let the
    server recognise the right ones later.
    """

    KIND = 4

    commitments: tuple[bytes, bytes]
    wrapped: bytes
    sealed: tuple[bytes, ...]

    def content(self) -> Sequence[bytes]:
        roots = [self.wrapped[at : at + SEED_BYTES] for at in range(0, len(self.wrapped), SEED_BYTES)]
        return *self.commitments, pack_blocks(roots), pack_blocks(self.sealed)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        commitments = reader.take(SEED_BYTES), reader.take(SEED_BYTES)
        wrapped = b"".join(reader.blocks(SEED_BYTES))
        sealed = reader.blocks(SEALED_BYTES)
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, commitments, wrapped, sealed)


@dataclass(frozen=True)
class ShareDelivery(Message):
    """The clients whose shares the receiver holds, and the shares that were sealed for it.

    ``senders`` are the holders on its roster that shared their seeds, without itself; ``sealing`` those of
    them whose share is in ``sealed``, in this order. The shares of the others it derives.
    """

    KIND = 5

    senders: Subset
    sealing: Subset
    sealed: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        return b"".join(
            [self.prefix(), self.senders.to_bytes(), self.sealing.to_bytes(), pack_blocks(self.sealed)]
        )

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        senders, sealing = reader.subset(), reader.subset()
        sealed = reader.blocks(SEALED_BYTES)
        reader.finish()
        if len(sealing.places) != len(sealed) or not {*sealing.places} <= {*senders.places}:
            raise InvalidUpdateError(
                f"ShareDelivery: {len(sealed)} shares from {len(sealing.places)} of {len(senders.places)} "
                f"senders"
            )
        return cls(round_id, senders, sealing, sealed)


@dataclass(frozen=True)
class ShareReceipt(ClientMessage):
    """Which senders' shares do not open, each with the digest of the sealed share that was delivered."""

    KIND = 9

    disputed: tuple[int, ...]
    digests: tuple[bytes, ...]

    def content(self) -> Sequence[bytes]:
        return pack_ids(self.disputed), *self.digests

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        disputed = reader.ids()
        digests = reader.parts(len(disputed), DIGEST_BYTES)
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, disputed, digests)


@dataclass(frozen=True)
class MaskRequest(Message):
    """The clients that take part, and the disputes about shares that do not open.

    ``members`` are those that take part of all clients, or of the receiver's roster where it was not given a
    list of all. ``accusations`` are the receipts of neighbours that could not open the receiver's share,
    ``evidence`` the sealed shares of those that the receiver accuses: pairs that do not mask with each other.
    """

    KIND = 10

    members: Subset
    accusations: tuple[bytes, ...] = ()
    evidence: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        return (
            self.prefix() + self.members.to_bytes() + pack_texts(self.accusations) + pack_texts(self.evidence)
        )

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        members, accusations, evidence = reader.subset(), reader.texts(), reader.texts()
        reader.finish()
        return cls(round_id, members, accusations, evidence)


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

    In signed rounds ``signers``, who are witnesses, named among all clients, and their ``signatures`` prove
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
