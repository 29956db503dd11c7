"""The messages of a round, as bytes with one layout each (:mod:`fl_privquant.secagg.wire`).

========================  ===========  ==========================================================
message                   from, to     says
========================  ===========  ==========================================================
:class:`Invitation`       S to all     what is summed; the same bytes for every client
:class:`KeyAdvertisement` C to S       the client's two public keys
:class:`Roster`           S to C       the client's neighbours with their keys, the threshold
:class:`SealedShares`     C to S       a sealed share for each neighbour
:class:`ShareDelivery`    S to C       the shares that were sealed for this client
:class:`ShareReceipt`     C to S       which of these shares do not open
:class:`MaskRequest`      S to C       who takes part, and which pairs do not mask with each other
:class:`MaskedInput`      C to S       the masked codes, packed
:class:`SurvivorList`     S to C       whose inputs arrived, of all clients (signed rounds only)
:class:`Confirmation`     C to S       a signature on that list (signed rounds only)
:class:`UnmaskRequest`    S to C       which neighbours' inputs arrived; signatures of witnesses
:class:`UnmaskReply`      C to S       one share for each of the neighbours
========================  ===========  ==========================================================

What clients send may end with their Ed25519 signature over all that stands before it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.secagg.keys import DIGEST_BYTES, KEY_BYTES, SEAL_BYTES, SIGNATURE_BYTES, digest
from fl_privquant.secagg.shamir import SHARE_BYTES
from fl_privquant.secagg.wire import (
    SESSION_BYTES,
    ClientMessage,
    Message,
    Reader,
    RoundId,
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
    "SurvivorList",
    "UnmaskReply",
    "UnmaskRequest",
    "pack_ids",
]

SEALED_BYTES: Final = 2 * SHARE_BYTES + SEAL_BYTES
"""A share of the self-mask seed and one of the mask key, sealed for a neighbour."""

_INVITATION: Final = struct.Struct("<IQBQB")
_ROSTER: Final = struct.Struct("<IIIB")


@dataclass(frozen=True)
class Invitation(Message):
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
    """The client's public keys: for masks (its private key may be opened later) and for shares.

    ``identity`` is the Ed25519 public key that the client goes by in this round, empty in unsigned rounds.
    """

    KIND = 2

    mask_key: bytes
    share_key: bytes
    identity: bytes = b""

    def content(self) -> Sequence[bytes]:
        return self.mask_key, self.share_key, bytes([bool(self.identity)]), self.identity

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        mask_key, share_key = reader.take(KEY_BYTES), reader.take(KEY_BYTES)
        identity = reader.take(KEY_BYTES) if reader.flag() else b""
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, mask_key, share_key, identity)


@dataclass(frozen=True)
class RosterEntry:
    """A client with its public keys for the round, and in signed rounds with the identity it goes by."""

    client_id: int
    mask_key: bytes
    share_key: bytes
    identity: bytes = b""

    @property
    def fingerprint(self) -> bytes:
        """What stands for the public keys in the list of all clients."""
        return digest(b"keys", self.mask_key + self.share_key + self.identity)


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
        keys = [entry.mask_key + entry.share_key + entry.identity for entry in self.entries]
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
        size = (2 + signed) * KEY_BYTES
        blocks = reader.parts(len(holders), size)
        entries = tuple(
            RosterEntry(holder, block[:KEY_BYTES], block[KEY_BYTES : 2 * KEY_BYTES], block[2 * KEY_BYTES :])
            for holder, block in zip(holders, blocks, strict=True)
        )
        listing = reader.take(DIGEST_BYTES)
        everyone = reader.ids()
        fingerprints = reader.parts(len(everyone), DIGEST_BYTES)
        reader.finish()
        return cls(round_id, num_clients, threshold, num_witnesses, entries, listing, everyone, fingerprints)


@dataclass(frozen=True)
class SealedShares(ClientMessage):
    """A sealed pair of shares for each neighbour, in the roster's order.

    The commitment to the self-mask seed lets the server recognise the right one later.
    """

    KIND = 4

    commitment: bytes
    sealed: tuple[bytes, ...]

    def content(self) -> Sequence[bytes]:
        return self.commitment, pack_blocks(self.sealed)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        commitment = reader.take(KEY_BYTES)
        sealed = reader.blocks(SEALED_BYTES)
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, commitment, sealed)


@dataclass(frozen=True)
class ShareDelivery(Message):
    """The sealed shares from the neighbours that take part, one each."""

    KIND = 5

    senders: tuple[int, ...]
    sealed: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        return self.prefix() + pack_ids(self.senders) + pack_blocks(self.sealed)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        senders = reader.ids()
        sealed = reader.blocks(SEALED_BYTES)
        reader.finish()
        if len(senders) != len(sealed):
            raise InvalidUpdateError(f"ShareDelivery: {len(sealed)} shares from {len(senders)} senders")
        return cls(round_id, senders, sealed)


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
    """Who takes part, and what was said about shares that do not open.

    ``members`` are all clients that take part, or the receiver and its neighbours where it was not given a
    list of all. ``accusations`` are the receipts of neighbours that could not open the receiver's share,
    ``evidence`` the sealed shares of those that the receiver accuses: pairs that do not mask with each other.
    """

    KIND = 10

    members: tuple[int, ...]
    accusations: tuple[bytes, ...] = ()
    evidence: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        return (
            self.prefix() + pack_ids(self.members) + pack_texts(self.accusations) + pack_texts(self.evidence)
        )

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        members, accusations, evidence = reader.ids(), reader.texts(), reader.texts()
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
    """All clients whose masked inputs arrived."""

    KIND = 11

    survivors: tuple[int, ...]

    def to_bytes(self) -> bytes:
        return self.prefix() + pack_ids(self.survivors)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        survivors = reader.ids()
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
    """Of the client and the neighbours it has shares of: whose input arrived, and whose did not.

    In signed rounds ``signers``, who are witnesses, and their ``signatures`` prove that all clients that
    unmask were told the same.
    """

    KIND = 7

    active: tuple[int, ...]
    dead: tuple[int, ...]
    signers: tuple[int, ...] = ()
    signatures: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        lists = pack_ids(self.active) + pack_ids(self.dead) + pack_ids(self.signers)
        return self.prefix() + lists + b"".join(self.signatures)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, reader = cls.read(data)
        active, dead, signers = reader.ids(), reader.ids(), reader.ids()
        signatures = reader.parts(len(signers), SIGNATURE_BYTES)
        reader.finish()
        return cls(round_id, active, dead, signers, signatures)


@dataclass(frozen=True)
class UnmaskReply(ClientMessage):
    """Shares of the seeds of the active and of the mask keys of the dead, in the request's order."""

    KIND = 8

    seed_shares: tuple[bytes, ...]
    key_shares: tuple[bytes, ...]

    def __repr__(self) -> str:
        # The shares are for the server alone.
        return f"UnmaskReply(client_id={self.client_id})"

    def content(self) -> Sequence[bytes]:
        return pack_blocks(self.seed_shares), pack_blocks(self.key_shares)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        round_id, client_id, reader = cls.read_client(data)
        seed_shares, key_shares = reader.blocks(SHARE_BYTES), reader.blocks(SHARE_BYTES)
        signature = reader.signature()
        reader.finish()
        return cls(round_id, client_id, signature, seed_shares, key_shares)
