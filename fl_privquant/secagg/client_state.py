"""What a client remembers of a round between two messages, and how it is kept as bytes and erased."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, Self

from fl_privquant.errors import (
    InvalidSpecError,
    InvalidUpdateError,
    SecureAggregationError,
    other_version,
)
from fl_privquant.secagg import keys, shamir
from fl_privquant.secagg.messages import Invitation, RoundId
from fl_privquant.secagg.pair_keys import PairKeys
from fl_privquant.secagg.parameters import GraphParameters
from fl_privquant.secagg.policy import ClientPolicy
from fl_privquant.secagg.wire import Reader, pack_ids

_Bytes = bytes | bytearray | memoryview

_STATE_MAGIC: Final = b"SC\x06"
# Stage, client, and the sizes of the parts that follow.
_HEAD: Final = struct.Struct("<3sBQ15I")
_TERMS: Final = struct.Struct("<IIIIB")
_SHARE: Final = shamir.SHARE_BYTES


class Stage(IntEnum):
    """The stage that a client has reached in its round."""

    JOINED = 0
    ADVERTISED = 1
    SHARED = 2
    SETTLED = 3
    MASKED = 4
    CONFIRMED = 5
    ENDED = 6


class ClientState:
    """The state of one client in one round; :class:`~fl_privquant.secagg.client.ClientRound` acts on it."""

    def __init__(self, invitation: Invitation, client_id: int, policy: ClientPolicy) -> None:
        self._invitation = invitation
        self._digest = keys.digest(invitation.to_bytes())
        self._client_id = client_id
        self._policy = policy
        self._stage = Stage.JOINED
        # The public key that was sent; then, of the roster, the graph's parameters and the keys of all
        # holders, by increasing ids, until they were used.
        self._advertised = b""
        self._parameters: GraphParameters | None = None
        self._num_witnesses = 0
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
        # Shares of each neighbour's seeds, and of this client's own seed; and the roots of masks.
        self._held: dict[int, bytearray] = {}
        self._roots: dict[int, bytearray] = {}
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
        self._advertised, self._parameters, self._num_witnesses = b"", None, 0
        self._round_keys.clear()
        self._everyone = self._members = self._active = ()
        self._graph_digest = self._masks_digest = self._agreement = b""

    def to_bytes(self) -> bytes:
        """The state, *with its secrets*: those of the round until it has ended."""
        graph = self._parameters
        terms = () if graph is None else (graph.num_clients, graph.num_neighbors, graph.threshold)
        parts: list[bytes | bytearray] = [
            self._invitation.to_bytes(),
            self._advertised,
            b"" if graph is None else _TERMS.pack(*terms, self._num_witnesses, graph.spread),
            self._graph_digest,
            self._masks_digest,
            self._agreement,
            self._private,
            self._seed,
            *(pack_ids(clients) if clients else b"" for clients in self._lists()),
            *(_packed_table(table) for table in self._tables()),
            _packed_table(self._round_keys),
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
            state._read_terms(terms)
        state._graph_digest, state._masks_digest, state._agreement = parts[:3]
        state._private, state._seed = map(bytearray, parts[3:5])
        state._everyone, state._members, state._active = map(_read_ids, parts[5:8])
        state._held, state._roots = (
            {client: bytearray(value) for client, value in _read_table(part).items()} for part in parts[8:10]
        )
        state._round_keys, state._pair_keys = _read_table(parts[10]), PairKeys(parts[11])
        state._check_state()
        return state

    def _lists(self) -> tuple[tuple[int, ...], ...]:
        return self._everyone, self._members, self._active

    def _tables(self) -> tuple[dict[int, bytearray], ...]:
        return self._held, self._roots

    def _read_terms(self, data: bytes) -> None:
        reader = Reader(data, "ClientRound")
        n, k, threshold, self._num_witnesses, spread = reader.unpack(_TERMS)
        reader.finish()
        try:
            self._parameters = GraphParameters(n, k, threshold, bool(spread))
        except InvalidSpecError as error:
            raise InvalidUpdateError(f"ClientRound: the state is damaged ({error})") from error

    def _check_state(self) -> None:
        """Refuse what :meth:`to_bytes` cannot have written. A digest has as many bytes as a key."""
        digests = (self._graph_digest, self._masks_digest, self._agreement)
        # Keys of masks that were added are gone: then the holders are those whose shares are held.
        holders = self._round_keys.keys() or self._held.keys()
        if (
            not {len(part) for part in (self._private, self._advertised, *digests)} <= {0, keys.KEY_BYTES}
            or len(self._seed) not in (0, keys.SEED_BYTES)
            or not {len(key) for key in self._round_keys.values()} <= {keys.KEY_BYTES}
            or not {len(root) for root in self._roots.values()} <= {keys.SEED_BYTES}
            or not {len(shares) for shares in self._held.values()} <= {_SHARE, 2 * _SHARE}
            or (self._parameters is not None and self._client_id not in holders)
            or (self._parameters and len(self._everyone) not in (0, self._parameters.num_clients))
            or any(not table.keys() <= holders for table in self._tables())
        ):
            raise InvalidUpdateError("ClientRound: the state is damaged")

    def _graph_parameters(self) -> GraphParameters:
        if self._parameters is None:
            raise SecureAggregationError(f"client {self._client_id} has no roster: its state is damaged")
        return self._parameters


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
