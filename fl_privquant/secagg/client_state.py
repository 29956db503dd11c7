"""What a client remembers of a round between two messages, and how it is kept as bytes and erased."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from fl_privquant.errors import InvalidUpdateError, SecureAggregationError, other_version
from fl_privquant.secagg import keys, shamir
from fl_privquant.secagg.messages import Invitation, RoundId
from fl_privquant.secagg.pair_keys import PairKeys
from fl_privquant.secagg.policy import ClientPolicy
from fl_privquant.secagg.sharing import sealed_for
from fl_privquant.secagg.wire import Reader, pack_ids

_Bytes = bytes | bytearray | memoryview

_STATE_MAGIC: Final = b"SC\x05"
# Stage, client, and the sizes of the parts that follow.
_HEAD: Final = struct.Struct("<3sBQ18I")
_TERMS: Final = struct.Struct("<III")
_SHARE: Final = shamir.SHARE_BYTES


class Stage(IntEnum):
    """The stage that a client has reached in its round."""

    JOINED = 0
    ADVERTISED = 1
    SHARED = 2
    ACCEPTED = 3
    SETTLED = 4
    MASKED = 5
    CONFIRMED = 6
    ENDED = 7


@dataclass(frozen=True)
class RosterTerms:
    """What a client keeps of the roster that it checked, for the rest of the round."""

    num_clients: int
    threshold: int
    num_witnesses: int


class ClientState:
    """The state of one client in one round; :class:`~fl_privquant.secagg.client.ClientRound` acts on it."""

    def __init__(self, invitation: Invitation, client_id: int, policy: ClientPolicy) -> None:
        self._invitation = invitation
        self._digest = keys.digest(invitation.to_bytes())
        self._client_id = client_id
        self._policy = policy
        self._stage = Stage.JOINED
        # The public key that was sent; then, of the roster, its terms and the keys of all holders, by
        # increasing ids, until they were used.
        self._advertised = b""
        self._terms: RosterTerms | None = None
        self._round_keys: dict[int, bytes] = {}
        # All clients of the round, where this client was told; and what it was told, as digests.
        self._everyone: tuple[int, ...] = ()
        self._graph_digest = self._masks_digest = self._agreement = b""
        # The clients that take part; later those whose shares this client holds and whose inputs arrived.
        self._members: tuple[int, ...] = ()
        self._active: tuple[int, ...] = ()
        # The private half of the public key, and the seed of the self mask.
        self._private = bytearray()
        self._seed = bytearray()
        # Secrets in common with each neighbour, of which shares come; then the shares; and roots of masks.
        self._pairs: dict[int, bytearray] = {}
        self._held: dict[int, bytearray] = {}
        self._roots: dict[int, bytearray] = {}
        # Digests of what this client sealed, in the order of the holders, and of what does not open.
        self._sealed = b""
        self._disputed: dict[int, bytearray] = {}
        # Keys shared with other identities: kept from round to round.
        self._pair_keys = PairKeys()

    @property
    def round_id(self) -> RoundId:
        """Which round of which session."""
        return self._invitation.round_id

    @property
    def invitation(self) -> Invitation:
        """The sum that the client was invited to."""
        return self._invitation

    @property
    def stage(self) -> Stage:
        """The last stage that was completed."""
        return self._stage

    def __repr__(self) -> str:
        # Never a secret.
        return f"ClientRound(client {self._client_id}, round {self.round_id.number}, {self._stage.name})"

    def __reduce__(self) -> str:
        raise TypeError("a ClientRound is not pickled: it holds secrets; use to_bytes on the client itself")

    def abandon(self) -> None:
        """End the round here and erase its secrets; keys shared with other identities stay."""
        self._stage = Stage.ENDED
        keys.wipe(self._private, self._seed)
        for table in self._tables():
            keys.wipe(*table.values())
            table.clear()
        self._advertised, self._terms = b"", None
        self._round_keys.clear()
        self._everyone = self._members = self._active = ()
        self._graph_digest = self._masks_digest = self._agreement = self._sealed = b""

    def to_bytes(self) -> bytes:
        """The state, *with its secrets*: those of the round until it has ended."""
        terms = self._terms
        parts: list[bytes | bytearray] = [
            self._invitation.to_bytes(),
            self._advertised,
            b"" if terms is None else _TERMS.pack(terms.num_clients, terms.threshold, terms.num_witnesses),
            self._graph_digest,
            self._masks_digest,
            self._agreement,
            self._private,
            self._seed,
            *(pack_ids(clients) if clients else b"" for clients in self._lists()),
            *(_packed_table(table) for table in self._tables()),
            _packed_table(self._round_keys),
            self._sealed,
            self._pair_keys.to_bytes(),
        ]
        return b"".join([_HEAD.pack(_STATE_MAGIC, self._stage, self._client_id, *map(len, parts)), *parts])

    @classmethod
    def from_bytes(cls, data: _Bytes, policy: ClientPolicy | None = None) -> Self:
        """The state that :meth:`to_bytes` wrote, under the client's policy (which is not in it)."""
        reader = Reader(data, "ClientRound")
        magic, stage, client_id, *sizes = _HEAD.unpack(reader.take(_HEAD.size))
        if magic != _STATE_MAGIC:
            if magic[:2] == _STATE_MAGIC[:2]:
                raise InvalidUpdateError(
                    other_version(
                        "state of a client", magic[2], _STATE_MAGIC[2], "begin the run anew on this client"
                    )
                )
            raise InvalidUpdateError("ClientRound: these bytes are no state of a client")
        if stage > Stage.ENDED:
            raise InvalidUpdateError(f"ClientRound: stage {stage}, expected 0 to {Stage.ENDED.value}")
        invitation, advertised, terms, *parts = reader.pieces(sizes)
        reader.finish()
        state = cls(
            Invitation.from_bytes(invitation), client_id, ClientPolicy() if policy is None else policy
        )
        state._stage, state._advertised = Stage(stage), advertised
        if terms:
            head = Reader(terms, "ClientRound")
            state._terms = RosterTerms(*head.unpack(_TERMS))
            head.finish()
        state._graph_digest, state._masks_digest, state._agreement = parts[:3]
        state._private, state._seed = map(bytearray, parts[3:5])
        state._everyone, state._members, state._active = map(_read_ids, parts[5:8])
        state._pairs, state._held, state._roots, state._disputed = (
            {client: bytearray(value) for client, value in _read_table(part).items()} for part in parts[8:12]
        )
        state._round_keys, state._sealed, pairs = _read_table(parts[12]), *parts[13:]
        state._pair_keys = PairKeys(pairs)
        state._check_state()
        return state

    def _lists(self) -> tuple[tuple[int, ...], ...]:
        return self._everyone, self._members, self._active

    def _tables(self) -> tuple[dict[int, bytearray], ...]:
        return self._pairs, self._held, self._roots, self._disputed

    def _sealed_for(self, neighbour: int) -> bytes:
        """The digest of what this client sealed for a neighbour; empty for one that derives its share."""
        receivers = sealed_for(self._client_id, sorted(self._round_keys), self._known_terms().threshold)
        if neighbour not in receivers:
            return b""
        at = receivers.index(neighbour) * keys.DIGEST_BYTES
        return self._sealed[at : at + keys.DIGEST_BYTES]

    def _check_state(self) -> None:
        """Refuse what :meth:`to_bytes` cannot have written. A digest has as many bytes as a key."""
        digests = (self._graph_digest, self._masks_digest, self._agreement)
        # Keys of masks that were added are gone: then the holders are those whose shares are held.
        holders = self._round_keys.keys() or self._held.keys()
        tables = (self._pairs, self._disputed, self._round_keys)
        whole = {len(value) for table in tables for value in table.values()}
        if (
            not {len(part) for part in (self._private, self._advertised, *digests)} <= {0, keys.KEY_BYTES}
            or len(self._seed) not in (0, keys.SEED_BYTES)
            or not whole <= {keys.KEY_BYTES}
            or not {len(root) for root in self._roots.values()} <= {keys.SEED_BYTES}
            or not {len(shares) for shares in self._held.values()} <= {_SHARE, 2 * _SHARE}
            or len(self._sealed) % keys.DIGEST_BYTES
            or (self._terms is not None and self._client_id not in holders)
            or any(not table.keys() <= holders for table in self._tables())
        ):
            raise InvalidUpdateError("ClientRound: the state is damaged")

    def _known_terms(self) -> RosterTerms:
        if self._terms is None:
            raise SecureAggregationError(f"client {self._client_id} has no roster: its state is damaged")
        return self._terms


def _packed_table(table: Mapping[int, bytes | bytearray]) -> bytes:
    """Ids, sizes and values, as :func:`_read_table` reads them."""
    if not table:
        return b""
    ids = sorted(table)
    values = [table[client] for client in ids]
    return b"".join([pack_ids(ids), struct.pack(f"<{len(ids)}I", *map(len, values)), *values])


def _read_table(data: bytes) -> dict[int, bytes]:
    if not data:
        return {}
    reader = Reader(data, "ClientRound")
    ids = reader.ids()
    sizes = struct.unpack(f"<{len(ids)}I", reader.take(4 * len(ids)))
    values = reader.pieces(sizes)
    reader.finish()
    return dict(zip(ids, values, strict=True))


def _read_ids(data: bytes) -> tuple[int, ...]:
    if not data:
        return ()
    reader = Reader(data, "ClientRound")
    ids = reader.ids()
    reader.finish()
    return ids
