"""What a client remembers of a round between two messages, and how it is kept as bytes and erased."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Final, Self

from fl_privquant.errors import InvalidUpdateError, SecureAggregationError, describe_other_version
from fl_privquant.secagg import _wire
from fl_privquant.secagg._wire import Format, Octets, Reader, RoundId
from fl_privquant.secagg.client_policy import ClientPolicy
from fl_privquant.secagg.crypto import keys, shamir
from fl_privquant.secagg.graph.parameters import GraphParameters
from fl_privquant.secagg.messages import Invitation

_STATE_MAGIC: Final = b"SC"
_STATE_VERSION: Final = 8


class Stage(IntEnum):
    """The stage that a client has reached in its round."""

    JOINED = 0
    ADVERTISED = 1
    SHARED = 2
    SETTLED = 3
    MASKED = 4
    CONFIRMED = 5
    ENDED = 6


def _table(kind: type[bytes] | type[bytearray], *sizes: int) -> Format:
    """Values by client id, each of one of these sizes: the ids, the size of each value, and the values."""

    def pack(table: dict[int, bytes | bytearray]) -> list[bytes | bytearray]:
        ids = sorted(table)
        values = [table[client] for client in ids]
        return [_wire.pack_ids(ids), struct.pack(f"<{len(ids)}I", *map(len, values)), *values]

    def read(reader: Reader) -> dict[int, bytes | bytearray]:
        ids = reader.ids()
        lengths = [reader.number(4) for _ in ids]
        if not set(lengths) <= set(sizes):
            raise InvalidUpdateError(f"{reader.name}: the state is damaged")
        return {client: kind(reader.take(length)) for client, length in zip(ids, lengths, strict=True)}

    return Format(pack, read)


def _secret(size: int) -> Format:
    """A secret, which can be overwritten, or nothing."""
    written = _wire.optional(size)
    return Format(written.pack, lambda reader: bytearray(written.read(reader)))


_STAGE: Final = Format(_wire.uint(1).pack, lambda reader: Stage(reader.number(1)))
_INVITATION: Final = Format(
    lambda invitation: _wire.PAYLOAD.pack(invitation.to_bytes()),
    lambda reader: Invitation.from_bytes(_wire.PAYLOAD.read(reader)),
)
_GRAPH: Final = Format(
    lambda graph: [bytes([graph is not None]), *(_wire.pack_fields(graph) if graph else ())],
    lambda reader: GraphParameters(**_wire.read_fields(GraphParameters, reader)) if reader.flag() else None,
)
_SHARES: Final = _table(bytearray, shamir.SHARE_BYTES, 2 * shamir.SHARE_BYTES)
_DIGEST: Final = _wire.optional(keys.DIGEST_BYTES)


@dataclass(repr=False, eq=False)
class ClientState:
    """The state of one client in one round; :class:`~fl_privquant.secagg.client.ClientRound` acts on it.

    What is kept between two messages is annotated with its format (:mod:`fl_privquant.secagg._wire`).
    """

    _invitation: Annotated[Invitation, _INVITATION]
    _client_id: Annotated[int, _wire.UINT64]
    _policy: ClientPolicy
    _stage: Annotated[Stage, _STAGE] = Stage.JOINED
    # The public key that was sent; then, from the roster, the graph's parameters and, until they are used,
    # the keys of all holders by increasing ids.
    _advertised: Annotated[bytes, _wire.optional(keys.KEY_BYTES)] = b""
    _parameters: Annotated[GraphParameters | None, _GRAPH] = None
    _num_witnesses: Annotated[int, _wire.UINT32] = 0
    _round_keys: Annotated[dict[int, bytes], _table(bytes, keys.KEY_BYTES)] = field(default_factory=dict)
    # All clients of the round, if this client was told them; and digests of all that it was told.
    _all_clients: Annotated[tuple[int, ...], _wire.IDS] = ()
    _graph_digest: Annotated[bytes, _DIGEST] = b""
    _masks_digest: Annotated[bytes, _DIGEST] = b""
    _agreement: Annotated[bytes, _DIGEST] = b""
    # The clients that take part; later those whose shares this client holds and whose inputs arrived.
    _members: Annotated[tuple[int, ...], _wire.IDS] = ()
    _active: Annotated[tuple[int, ...], _wire.IDS] = ()
    # The private half of the public key, and the seed of the self mask.
    _private: Annotated[bytearray, _secret(keys.KEY_BYTES)] = field(default_factory=bytearray)
    _seed: Annotated[bytearray, _secret(keys.SEED_BYTES)] = field(default_factory=bytearray)
    # Shares of each neighbor's seeds, and of this client's own seed; and the roots of masks.
    _held_shares: Annotated[dict[int, bytearray], _SHARES] = field(default_factory=dict)
    _roots: Annotated[dict[int, bytearray], _table(bytearray, keys.SEED_BYTES)] = field(default_factory=dict)

    @cached_property
    def _digest(self) -> bytes:
        return keys.digest(self._invitation.to_bytes())

    @property
    def round_id(self) -> RoundId:
        """The round and its session."""
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
        # Secrets are never shown.
        return f"ClientRound(client {self._client_id}, round {self.round_id.number}, {self._stage.name})"

    def __reduce__(self) -> str:
        raise TypeError("a ClientRound is not pickled: it holds secrets; use to_bytes on the client itself")

    def abandon(self) -> None:
        """End the round here and erase its secrets."""
        keys.wipe(self._private, self._seed, *self._held_shares.values(), *self._roots.values())
        vars(self).update(vars(type(self)(self._invitation, self._client_id, self._policy, Stage.ENDED)))

    def to_bytes(self) -> bytes:
        """The state, *with its secrets*; those of the round are in it until the round has ended."""
        return b"".join([_STATE_MAGIC, bytes([_STATE_VERSION]), *_wire.pack_fields(self)])

    @classmethod
    def from_bytes(cls, data: Octets, policy: ClientPolicy | None = None) -> Self:
        """The state that :meth:`to_bytes` wrote, under the client's policy (which is not in it)."""
        reader = Reader(data, "ClientRound")
        if reader.take(len(_STATE_MAGIC)) != _STATE_MAGIC:
            raise InvalidUpdateError("ClientRound: these bytes are no state of a client")
        version = reader.number(1)
        if version != _STATE_VERSION:
            advice = "begin the run anew on this client"
            raise InvalidUpdateError(
                describe_other_version("state of a client", version, _STATE_VERSION, advice)
            )
        try:
            state = cls(_policy=policy or ClientPolicy(), **_wire.read_fields(cls, reader))
        except InvalidUpdateError:
            raise
        except ValueError as error:
            raise InvalidUpdateError(f"ClientRound: the state is damaged ({error})") from error
        reader.finish()
        state._check_state()
        return state

    def _check_state(self) -> None:
        """Refuse what :meth:`to_bytes` cannot have written."""
        # Once masks were added their keys are gone: then the holders are those whose shares are held.
        holders = self._round_keys.keys() or self._held_shares.keys()
        if (
            (self._parameters is not None and self._client_id not in holders)
            or (self._parameters and len(self._all_clients) not in (0, self._parameters.num_clients))
            or not self._held_shares.keys() | self._roots.keys() <= holders
        ):
            raise InvalidUpdateError("ClientRound: the state is damaged")

    def _graph_parameters(self) -> GraphParameters:
        if self._parameters is None:
            raise SecureAggregationError(f"client {self._client_id} has no roster: its state is damaged")
        return self._parameters
