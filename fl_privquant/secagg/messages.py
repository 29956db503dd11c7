"""The messages of a round, as bytes with one layout each (:mod:`fl_privquant.secagg._wire`).

========================  ===========  ================================================================
message                   from, to     says
========================  ===========  ================================================================
:class:`Invitation`       S to all     what is summed; the same bytes for every client
:class:`KeyAdvertisement` C to S       the client's public key of the round
:class:`Roster`           S to C       who takes part, the keys of the neighbors, the threshold
:class:`SharedSeeds`      C to S       what opens the client's seeds and the roots of its masks later
:class:`MaskRequest`      S to C       which clients shared seeds, so that masks are added with them
:class:`MaskedInput`      C to S       the masked codes, packed
:class:`SurvivorList`     S to C       whose inputs arrived, of all clients (signed rounds only)
:class:`Confirmation`     C to S       a signature on that list (signed rounds only)
:class:`UnmaskRequest`    S to C       which neighbors' inputs arrived; signatures of witnesses
:class:`UnmaskReply`      C to S       one share for each of the neighbors
========================  ===========  ================================================================

S is the server and C a client. A message is a dataclass whose fields say how they are written; what clients
send may end with their Ed25519 signature over all that stands before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.secagg import _wire
from fl_privquant.secagg._wire import ClientMessage, Format, Message, Subset
from fl_privquant.secagg.crypto.keys import DIGEST_BYTES, KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES, digest
from fl_privquant.secagg.crypto.shamir import SHARE_BYTES

CORRECTION_BYTES: Final = 2 * SHARE_BYTES
"""Bytes that correct a holder's derived shares of both seeds (:mod:`fl_privquant.secagg.crypto.sharing`)."""

# The largest code, which is 1 or more; it is written as 0 if codes are residues.
_MAX_CODE: Final = Format(
    lambda value: _wire.UINT64.pack(value or 0), lambda reader: _wire.UINT64.read(reader) or None
)


@dataclass(frozen=True)
class Invitation(Message):
    """The sum: vectors of ``dimension`` codes up to ``max_code``, modulo 2^width.

    ``num_clients`` is how many clients are invited, and so bounds how many are summed. Without a
    ``max_code`` the codes are residues, and their sum is only exact modulo 2^width.
    """

    KIND = 1

    num_clients: Annotated[int, _wire.UINT32]
    dimension: Annotated[int, _wire.UINT64]
    width: Annotated[int, _wire.uint(1)]
    max_code: Annotated[int | None, _MAX_CODE]
    signed: Annotated[bool, _wire.FLAG]


@dataclass(frozen=True)
class KeyAdvertisement(ClientMessage):
    """The client's X25519 public key of the round.

    In signed rounds ``known`` is the digest of the list by which the client knows others
    (:func:`~fl_privquant.secagg.signed.transcript.known_digest`). If this is the server's own list, the
    roster need not repeat what is on it.
    """

    KIND = 2

    public_key: Annotated[bytes, _wire.fixed_size(KEY_BYTES)]
    known: Annotated[bytes, _wire.optional(DIGEST_BYTES)] = b""


@dataclass(frozen=True)
class RosterEntry:
    """A client with its public key of the round, and in signed rounds with the identity it goes by."""

    client_id: int
    public_key: bytes
    identity: bytes = b""

    @property
    def leaf(self) -> bytes:
        """The client's leaf in the tree of all clients (:mod:`fl_privquant.secagg.graph.roster_tree`)."""
        return digest(b"leaf", self.client_id.to_bytes(8, "little"), self.public_key, self.identity)


@dataclass(frozen=True)
class Roster(Message):
    """Who takes part, the keys of the client's neighbors, the threshold, and what the graph follows from.

    In signed rounds the client is told all ``num_clients`` clients: as those ``present`` among the
    increasing ids on its own list of known clients, or by their ``ids``, if its list is not the server's or
    these are shorter. It draws the graph itself, and ``public_keys`` are those of its neighbors, by
    increasing ids. ``identities`` are the identity keys of the neighbors in ``identified``: of those that
    have several keys, or of all if the client's list is not the server's. ``path`` leads from the client's
    own leaf to the root of the tree of all keys (:mod:`fl_privquant.secagg.graph.roster_tree`); on a
    complete graph the client knows all leaves, and the path is empty. The first ``num_witnesses`` clients of
    the graph's first order are those whose confirmations count.

    In rounds that are not signed ``ids`` are the holders of the client's secrets, itself among them, and
    ``path`` is the digest of the list of all clients, unless the graph is complete.
    """

    KIND = 3

    num_clients: Annotated[int, _wire.UINT32]
    num_neighbors: Annotated[int, _wire.UINT32]
    threshold: Annotated[int, _wire.UINT32]
    num_witnesses: Annotated[int, _wire.UINT32]
    spread: Annotated[bool, _wire.FLAG]
    path: Annotated[tuple[bytes, ...], _wire.blocks(DIGEST_BYTES, count_bytes=1)]
    public_keys: Annotated[tuple[bytes, ...], _wire.blocks(KEY_BYTES)]
    ids: Annotated[tuple[int, ...], _wire.IDS] = ()
    present: Annotated[Subset, _wire.SUBSET] = field(default_factory=Subset)
    identified: Annotated[Subset, _wire.SUBSET] = field(default_factory=Subset)
    identities: Annotated[tuple[bytes, ...], _wire.last_blocks(KEY_BYTES)] = ()

    def __post_init__(self) -> None:
        _check_one_each("Roster", "identity keys", self.identities, self.identified)


@dataclass(frozen=True)
class SharedSeeds(ClientMessage):
    """What the server needs to open the client's two seeds from shares, and its masks' roots from one seed.

    All holders derive their shares. Those of the first ``threshold - 1`` holders are right as they are;
    ``corrections`` are what the derived shares of the others are off by, without the client itself, by
    increasing ids. ``sealed_roots`` are the roots of the masks with the neighbors, by increasing ids, which
    open with the wrapping seed (:func:`~fl_privquant.secagg.crypto.keys.wrap`). By the commitments to the two
    seeds the server recognizes the right seeds later.
    """

    KIND = 4

    seed_commitment: Annotated[bytes, _wire.fixed_size(SEED_BYTES)]
    wrapping_commitment: Annotated[bytes, _wire.fixed_size(SEED_BYTES)]
    sealed_roots: Annotated[tuple[bytes, ...], _wire.blocks(SEED_BYTES)]
    corrections: Annotated[tuple[bytes, ...], _wire.blocks(CORRECTION_BYTES)]


@dataclass(frozen=True)
class MaskRequest(Message):
    """The clients that take part: of all clients, or of the receiver's roster if it was not told all."""

    KIND = 10

    members: Annotated[Subset, _wire.SUBSET]


@dataclass(frozen=True)
class MaskedInput(ClientMessage):
    """The client's codes with all its masks added, packed (:func:`fl_privquant.packing.pack.pack_codes`)."""

    KIND = 6

    payload: Annotated[bytes, _wire.PAYLOAD]


@dataclass(frozen=True)
class SurvivorList(Message):
    """The clients whose masked inputs arrived."""

    KIND = 11

    survivors: Annotated[Subset, _wire.SUBSET]


@dataclass(frozen=True)
class Confirmation(ClientMessage):
    """What a client was told: the digest of graph, members, request and survivors, to be signed."""

    KIND = 12

    agreement: Annotated[bytes, _wire.fixed_size(DIGEST_BYTES)]


@dataclass(frozen=True)
class UnmaskRequest(Message):
    """The clients whose input arrived, among those whose shares the receiver holds (itself included).

    In signed rounds ``signers``, named among the witnesses by increasing ids, and their ``signatures`` prove
    that all clients that unmask were told the same.
    """

    KIND = 7

    active: Annotated[Subset, _wire.SUBSET]
    signers: Annotated[Subset, _wire.SUBSET] = field(default_factory=Subset)
    signatures: Annotated[tuple[bytes, ...], _wire.last_blocks(SIGNATURE_BYTES)] = ()

    def __post_init__(self) -> None:
        _check_one_each("UnmaskRequest", "signatures", self.signatures, self.signers)


@dataclass(frozen=True)
class UnmaskReply(ClientMessage):
    """Shares of the self-mask seeds of the active and of the wrapping seeds of the lost, by id."""

    KIND = 8

    seed_shares: Annotated[tuple[bytes, ...], _wire.blocks(SHARE_BYTES)]
    wrapping_shares: Annotated[tuple[bytes, ...], _wire.blocks(SHARE_BYTES)]

    def __repr__(self) -> str:
        # The shares are for the server alone.
        return f"UnmaskReply(client_id={self.client_id})"


def _check_one_each(name: str, what: str, given: tuple[bytes, ...], clients: Subset) -> None:
    if len(given) != len(clients.places):
        raise InvalidUpdateError(f"{name}: {len(given)} {what} for {len(clients.places)} clients")
