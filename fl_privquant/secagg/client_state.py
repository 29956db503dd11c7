"""What a client remembers of a round between two messages, and how it is kept as bytes and erased."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, Self

from fl_privquant.errors import InvalidUpdateError, SecureAggregationError
from fl_privquant.secagg import keys, shamir
from fl_privquant.secagg.messages import Invitation, Roster, RosterEntry, RoundId
from fl_privquant.secagg.pair_keys import PairKeys
from fl_privquant.secagg.policy import ClientPolicy
from fl_privquant.secagg.wire import Reader, pack_ids

__all__ = ["ClientState", "Stage"]

_Bytes = bytes | bytearray | memoryview

_STATE_MAGIC: Final = b"SC\x03"
_SHARE: Final = shamir.SHARE_BYTES


class Stage(IntEnum):
    """What a client has done in its round."""

    JOINED = 0
    ADVERTISED = 1
    SHARED = 2
    ACCEPTED = 3
    SETTLED = 4
    MASKED = 5
    CONFIRMED = 6
    ENDED = 7


class ClientState:
    """The state of one client in one round; :class:`~fl_privquant.secagg.client.ClientRound` acts on it."""

    def __init__(self, invitation: Invitation, client_id: int, policy: ClientPolicy) -> None:
        self._invitation = invitation
        self._digest = keys.digest(invitation.to_bytes())
        self._client_id = client_id
        self._policy = policy
        self._stage = Stage.JOINED
        self._roster: Roster | None = None
        self._entries: dict[int, RosterEntry] = {}
        # All clients of the round, where this client was told; and what it was told, as digests.
        self._everyone: tuple[int, ...] = ()
        self._graph_digest = self._masks_digest = self._agreement = b""
        # Who takes part; then those of whom this client holds shares and whose inputs arrived.
        self._members: tuple[int, ...] = ()
        self._active: tuple[int, ...] = ()
        # Private halves of the two public keys, and the seed of the self mask.
        self._mask_secret = bytearray()
        self._share_secret = bytearray()
        self._seed = bytearray()
        # Keys to seal for, and to unseal from, each neighbour; then what they sealed for this client.
        self._channels: dict[int, bytearray] = {}
        self._held: dict[int, bytearray] = {}
        # Digests of what this client sealed for each neighbour, and of what it could not open.
        self._sealed: dict[int, bytearray] = {}
        self._disputed: dict[int, bytearray] = {}
        # Keys shared with other identities: kept from round to round.
        self._pair_keys = PairKeys()

    @property
    def round_id(self) -> RoundId:
        """Which round of which session."""
        return self._invitation.round_id

    @property
    def invitation(self) -> Invitation:
        """What the client was invited to sum."""
        return self._invitation

    @property
    def stage(self) -> Stage:
        """What was done last."""
        return self._stage

    def __repr__(self) -> str:
        # Never a secret.
        return f"ClientRound(client {self._client_id}, round {self.round_id.number}, {self._stage.name})"

    def __reduce__(self) -> str:
        raise TypeError("a ClientRound is not pickled: it holds secrets; use to_bytes on the client itself")

    def abandon(self) -> None:
        """End the round here and erase its secrets; keys shared with other identities stay."""
        self._stage = Stage.ENDED
        keys.wipe(self._mask_secret, self._share_secret, self._seed)
        for table in (self._channels, self._held, self._sealed, self._disputed):
            keys.wipe(*table.values())
            table.clear()
        self._roster = None
        self._entries.clear()
        self._everyone = self._members = self._active = ()
        self._graph_digest = self._masks_digest = self._agreement = b""

    def to_bytes(self) -> bytes:
        """The state, *with its secrets*: those of the round until it has ended."""
        parts = [
            self._invitation.to_bytes(),
            b"" if self._roster is None else self._roster.to_bytes(),
            *(pack_ids(clients) for clients in (self._everyone, self._members, self._active)),
            self._graph_digest,
            self._masks_digest,
            self._agreement,
            bytes(self._mask_secret),
            bytes(self._share_secret),
            bytes(self._seed),
        ]
        for table in (self._channels, self._held, self._sealed, self._disputed):
            ids = sorted(table)
            sizes = struct.pack(f"<{len(ids)}I", *[len(table[client]) for client in ids])
            parts += [pack_ids(ids), sizes + b"".join([table[client] for client in ids])]
        parts.append(self._pair_keys.to_bytes())
        head = _STATE_MAGIC + bytes([self._stage]) + self._client_id.to_bytes(8, "little")
        return head + b"".join(len(part).to_bytes(4, "little") + part for part in parts)

    @classmethod
    def from_bytes(cls, data: _Bytes, policy: ClientPolicy | None = None) -> Self:
        """The state that :meth:`to_bytes` wrote, under the client's policy (which is not in it)."""
        reader = Reader(data, "ClientRound")

        def part() -> bytes:
            return reader.take(int.from_bytes(reader.take(4), "little"))

        def ids() -> tuple[int, ...]:
            head = Reader(part(), "ClientRound")
            clients = head.ids()
            head.finish()
            return clients

        def table() -> dict[int, bytearray]:
            clients, values = ids(), Reader(part(), "ClientRound")
            sizes = struct.unpack(f"<{len(clients)}I", values.take(4 * len(clients)))
            entries = {
                client: bytearray(values.take(size)) for client, size in zip(clients, sizes, strict=True)
            }
            values.finish()
            return entries

        if reader.take(len(_STATE_MAGIC)) != _STATE_MAGIC:
            raise InvalidUpdateError("ClientRound: these bytes are no state of a client")
        (stage,) = reader.take(1)
        if stage > Stage.ENDED:
            raise InvalidUpdateError(f"ClientRound: stage {stage}, expected 0 to {Stage.ENDED.value}")
        client_id = int.from_bytes(reader.take(8), "little")
        invitation = Invitation.from_bytes(part())
        state = cls(invitation, client_id, ClientPolicy() if policy is None else policy)
        roster = part()
        state._stage = Stage(stage)
        if roster:
            state._roster = Roster.from_bytes(roster)
            state._entries = {entry.client_id: entry for entry in state._roster.entries}
        state._everyone, state._members, state._active = ids(), ids(), ids()
        state._graph_digest, state._masks_digest, state._agreement = part(), part(), part()
        state._mask_secret, state._share_secret, state._seed = (bytearray(part()) for _ in range(3))
        state._channels, state._held, state._sealed, state._disputed = (table() for _ in range(4))
        state._pair_keys = PairKeys(part())
        reader.finish()
        state._check_state()
        return state

    def _check_state(self) -> None:
        secrets = (self._mask_secret, self._share_secret, self._seed, *self._channels.values())
        digests = (self._graph_digest, self._masks_digest, self._agreement)
        tables = (self._sealed, self._disputed)
        known = {client for table in (*tables, self._channels, self._held) for client in table}
        if (
            any(len(secret) not in (0, keys.KEY_BYTES) for secret in (*secrets, *digests))
            or any(len(each) != keys.DIGEST_BYTES for table in tables for each in table.values())
            or any(len(shares) not in (_SHARE, 2 * _SHARE) for shares in self._held.values())
            or not known <= self._entries.keys()
            or (self._roster is not None and self._client_id not in self._entries)
        ):
            raise InvalidUpdateError("ClientRound: the state is damaged")

    def _known_roster(self) -> Roster:
        if self._roster is None:
            raise SecureAggregationError(f"client {self._client_id} has no roster: its state is damaged")
        return self._roster
