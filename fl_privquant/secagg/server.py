"""The server's side of one round: it passes messages on, drops bad ones, and ends with a sum or without."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from fl_privquant.codec.pack import MAX_WIDTH, unpack_codes
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError, SecureAggregationError
from fl_privquant.secagg import keys, shamir
from fl_privquant.secagg.graph import ring_graph
from fl_privquant.secagg.masks import apply_masks, lane, low_bits
from fl_privquant.secagg.messages import (
    SESSION_BYTES,
    ClientMessage,
    Invitation,
    KeyAdvertisement,
    MaskedInput,
    Roster,
    RosterEntry,
    RoundId,
    SealedShares,
    ShareDelivery,
    UnmaskReply,
    UnmaskRequest,
)
from fl_privquant.secagg.opening import correctable, open_secret
from fl_privquant.secagg.parameters import GraphParameters, choose_parameters, security_failure

__all__ = ["OpenedSum", "RoundConfig", "ServerRound", "new_session"]

_Bytes = bytes | bytearray | memoryview
_FromClient = TypeVar("_FromClient", KeyAdvertisement, SealedShares, MaskedInput, UnmaskReply)


def new_session() -> bytes:
    """A session id that no other run has."""
    return secrets.token_bytes(SESSION_BYTES)


@dataclass(frozen=True)
class RoundConfig:
    """What a round sums, and against whom it is secured.

    Parameters
    ----------
    session, number
        16 bytes that name the run (:func:`new_session`), and the round in it, increasing.
    dimension
        Codes of a client.
    width
        The sum is taken modulo 2^width, 1 to 32: ``codebook.sum_bits(number of invited clients)``.
    max_code
        Largest code. None: codes are residues modulo 2^width, and so is their sum.
    corrupt_fraction, dropout_fraction, max_security_failure, max_correctness_failure, server_may_lie
        See :func:`~fl_privquant.secagg.parameters.choose_parameters`.
    num_neighbors, threshold
        Given both, they are taken instead of being computed, if they keep ``max_security_failure`` (the
        graph is complete where there are fewer clients than neighbours; then the threshold must still fit).
        An infinite ``max_security_failure`` takes any: for measurements and tests, as nobody is protected.
    identities
        Raw Ed25519 public keys of the clients, by id: every message of a client must be signed.
    """

    session: bytes
    number: int
    dimension: int
    width: int
    max_code: int | None
    corrupt_fraction: float = 0.1
    dropout_fraction: float = 0.1
    max_security_failure: float = 2.0**-40
    max_correctness_failure: float = 2.0**-20
    server_may_lie: bool = False
    num_neighbors: int | None = None
    threshold: int | None = None
    identities: Mapping[int, keys.Identity] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_WIDTH:
            raise InvalidSpecError(f"width: {self.width} bits, expected 1 to {MAX_WIDTH}")
        if self.dimension < 1:
            raise InvalidSpecError(f"dimension: {self.dimension}, expected 1 or more")
        if self.max_code is not None and self.max_code < 1:
            raise InvalidSpecError(f"max_code: {self.max_code}, expected 1 or more, or None for residues")
        if (self.num_neighbors is None) != (self.threshold is None):
            raise InvalidSpecError(
                f"num_neighbors {self.num_neighbors}, threshold {self.threshold}: give both or neither"
            )

    def graph(self, num_clients: int) -> GraphParameters:
        """Neighbours and threshold for this many clients, as given or computed."""
        if self.num_neighbors is not None and self.threshold is not None:
            given = GraphParameters(num_clients, min(self.num_neighbors, num_clients - 1), self.threshold)
            odds = security_failure(
                given,
                corrupt_fraction=self.corrupt_fraction,
                dropout_fraction=self.dropout_fraction,
                server_may_lie=self.server_may_lie,
            )
            if not odds <= self.max_security_failure:
                raise InvalidSpecError(
                    f"num_neighbors {given.num_neighbors}, threshold {given.threshold}: for {num_clients} "
                    f"clients the odds of a failure are up to {odds:.2g}, above max_security_failure "
                    f"({self.max_security_failure:.2g}); leave both out to have them computed"
                )
            return given
        return choose_parameters(
            num_clients,
            corrupt_fraction=self.corrupt_fraction,
            dropout_fraction=self.dropout_fraction,
            max_security_failure=self.max_security_failure,
            max_correctness_failure=self.max_correctness_failure,
            server_may_lie=self.server_may_lie,
        )


@dataclass(frozen=True, eq=False)
class OpenedSum:
    """The sum of the survivors' codes, and who they are."""

    total: NDArray[np.uint32]
    survivors: tuple[int, ...]


class _Stage(IntEnum):
    ADVERTISE = 0
    SHARE = 1
    MASK = 2
    UNMASK = 3
    ENDED = 4


class ServerRound:
    """The server in one round, from an invitation to a :class:`OpenedSum`.

    For each stage, messages are taken as they arrive, from whoever still answers; then the stage is
    closed, and the messages of the next one are returned, by client. ::

        server = ServerRound(config, client_ids)
        server.invitation()                            -> bytes, for all
        server.receive_advertisement(sender, data);    server.rosters()          -> {client: bytes}
        server.receive_shares(sender, data);           server.deliveries()       -> {client: bytes}
        server.receive_masked_input(sender, data);     server.unmask_requests()  -> {client: bytes}
        server.receive_unmask_reply(sender, data);     server.finish()           -> OpenedSum

    ``receive_...`` returns False for a message that is malformed or not the sender's own, with the
    reason in :attr:`rejected`, and for one that is late or sent twice. A sender of which nothing was
    taken counts as lost. ``sender`` is who the transport says it is. Closing a stage raises
    SecureAggregationError when too few are left: nothing was released, and this round is over.
    """

    def __init__(self, config: RoundConfig, client_ids: Iterable[int]) -> None:
        invited = frozenset(client_ids)
        if len(invited) < 2:
            raise InvalidSpecError(
                f"clients: {len(invited)} invited, expected 2 or more; raise the fraction, or the least "
                "number, of clients that the strategy trains"
            )
        if config.max_code is not None and len(invited) * config.max_code >= 1 << config.width:
            raise InvalidSpecError(
                f"width: {config.width} bits are too few for the sum of {len(invited)} codes up to "
                f"{config.max_code}; use codebook.sum_bits({len(invited)})"
            )
        # A graph that cannot be drawn should be known now, not once clients have answered.
        config.graph(len(invited))
        self.rejected: dict[int, str] = {}
        self._config = config
        self._invited = invited
        self._round_id = RoundId(config.session, config.number)
        self._invitation = Invitation(
            self._round_id,
            len(invited),
            config.dimension,
            config.width,
            config.max_code,
            config.identities is not None,
        ).to_bytes()
        self._digest = keys.digest(self._invitation)
        self._stage = _Stage.ADVERTISE
        self._entries: dict[int, RosterEntry] = {}
        self._graph: dict[int, tuple[int, ...]] = {}
        # The point at which each holder of a client's secrets has its share.
        self._points: dict[int, dict[int, int]] = {}
        self._threshold = 0
        # The members share keys and mask with each other; the active ones' inputs are in the total.
        self._shares: dict[int, SealedShares] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._total: NDArray[Any] = np.zeros(config.dimension, dtype=lane(config.width))
        self._active: set[int] = set()
        self._replies: dict[int, UnmaskReply] = {}

    def __repr__(self) -> str:
        return f"ServerRound(round {self._round_id.number}, {self._stage.name}, {len(self._invited)} invited)"

    @property
    def graph_parameters(self) -> GraphParameters:
        """Neighbours and threshold of this round, once the rosters are out."""
        if not self._graph:
            raise SecureAggregationError("the graph is drawn when the rosters are: call rosters() first")
        neighbors = len(next(iter(self._graph.values())))
        return GraphParameters(len(self._graph), neighbors, self._threshold)

    def invitation(self) -> bytes:
        """The message that starts the round, the same for every client."""
        return self._invitation

    def receive_advertisement(self, sender: int, data: _Bytes) -> bool:
        """Take a client's public keys."""

        def take(message: KeyAdvertisement) -> None:
            if not (keys.is_usable(message.mask_key) and keys.is_usable(message.share_key)):
                raise InvalidUpdateError("KeyAdvertisement: a public key is no usable X25519 key")
            self._entries[sender] = RosterEntry(
                sender, message.mask_key, message.share_key, message.signature
            )

        return self._receive(
            _Stage.ADVERTISE, sender, data, KeyAdvertisement, self._entries, self._invited, take
        )

    def rosters(self) -> dict[int, bytes]:
        """Draw the graph among the clients that sent keys, and tell each its neighbours."""
        self._close(_Stage.ADVERTISE)
        self._drop_repeated_keys()
        if len(self._entries) < 2:
            raise self._failure(f"{len(self._entries)} clients sent keys, expected 2 or more")
        try:
            parameters = self._config.graph(len(self._entries))
        except InvalidSpecError as error:
            raise self._failure(
                f"{len(self._entries)} of {len(self._invited)} clients sent keys: {error}"
            ) from error
        order = list(self._entries)
        secrets.SystemRandom().shuffle(order)
        self._graph = ring_graph(order, parameters)
        self._points = {
            client: {holder: i + 1 for i, holder in enumerate(sorted([*neighbors, client]))}
            for client, neighbors in self._graph.items()
        }
        self._threshold = parameters.threshold
        self._stage = _Stage.SHARE
        return {
            client: Roster(
                self._round_id,
                len(order),
                self._threshold,
                tuple(self._entries[holder] for holder in self._points[client]),
            ).to_bytes()
            for client in sorted(self._graph)
        }

    def receive_shares(self, sender: int, data: _Bytes) -> bool:
        """Take a client's sealed shares."""

        def take(message: SealedShares) -> None:
            if len(message.sealed) != len(self._graph[sender]):
                raise InvalidUpdateError(
                    f"SealedShares: {len(message.sealed)} shares for {len(self._graph[sender])} neighbours"
                )
            self._shares[sender] = message

        return self._receive(_Stage.SHARE, sender, data, SealedShares, self._shares, self._graph, take)

    def deliveries(self) -> dict[int, bytes]:
        """Hand on the shares. Clients with too few holders left are dropped: they would refuse."""
        self._close(_Stage.SHARE)
        members = set(self._shares)
        while True:
            short = {
                client for client in members if len(members & {*self._graph[client]}) + 1 < self._threshold
            }
            if not short:
                break
            members -= short
            self.rejected |= dict.fromkeys(short, "too few of its neighbours shared their keys")
        if not members:
            raise self._failure(
                f"{len(self._shares)} of {len(self._entries)} clients shared keys: none has the "
                f"{self._threshold} holders that it needs"
            )
        self._members = {
            client: tuple(peer for peer in self._graph[client] if peer in members)
            for client in sorted(members)
        }
        self._stage = _Stage.MASK
        return {
            client: ShareDelivery(
                self._round_id,
                peers,
                tuple(self._shares[peer].sealed[self._graph[peer].index(client)] for peer in peers),
            ).to_bytes()
            for client, peers in self._members.items()
        }

    def receive_masked_input(self, sender: int, data: _Bytes) -> bool:
        """Add a client's masked codes to the total."""

        def take(message: MaskedInput) -> None:
            codes = unpack_codes(message.payload, self._config.width, self._config.dimension)
            np.add(self._total, codes.astype(self._total.dtype), out=self._total)
            self._active.add(sender)

        return self._receive(_Stage.MASK, sender, data, MaskedInput, self._active, self._members, take)

    def unmask_requests(self) -> dict[int, bytes]:
        """Ask those whose input arrived for the shares that open the masks left in the total."""
        self._close(_Stage.MASK)
        self._need_holders(self._active, "masked inputs arrived")
        self._stage = _Stage.UNMASK
        return {
            client: UnmaskRequest(self._round_id, *self._lists(client)).to_bytes()
            for client in sorted(self._active)
        }

    def receive_unmask_reply(self, sender: int, data: _Bytes) -> bool:
        """Take a client's shares."""

        def take(message: UnmaskReply) -> None:
            active, dead = self._lists(sender)
            if (len(message.seed_shares), len(message.key_shares)) != (len(active), len(dead)):
                raise InvalidUpdateError(
                    f"UnmaskReply: {len(message.seed_shares)} and {len(message.key_shares)} shares, expected "
                    f"{len(active)} and {len(dead)}"
                )
            if not shamir.are_shares(b"".join(message.seed_shares + message.key_shares)):
                raise InvalidUpdateError("UnmaskReply: a share holds a number outside the field")
            self._replies[sender] = message

        return self._receive(_Stage.UNMASK, sender, data, UnmaskReply, self._replies, self._active, take)

    def finish(self) -> OpenedSum:
        """Open the masks that are left, and return the sum of the inputs that arrived."""
        self._close(_Stage.UNMASK)
        self._need_holders(self._replies.keys(), "clients sent shares")
        apply_masks(self._total, self._masks_left())
        low_bits(self._total, self._config.width)
        largest = self._config.max_code
        # Only a client that breaks the protocol, or masks that did not cancel, can lead here.
        if largest is not None and int(self._total.max()) > len(self._active) * largest:
            raise self._failure(
                "the sum exceeds what the clients' codes can add up to: an input was not as agreed"
            )
        total, survivors = self._total.astype(np.uint32), tuple(sorted(self._active))
        self._end()
        return OpenedSum(total, survivors)

    def _masks_left(self) -> Iterator[tuple[bytes, bool]]:
        """The keys of the masks in the total that have no counterpart, with the sign that removes them."""
        for client, shares in self._collected_shares().items():
            public = self._entries[client].mask_key
            if client in self._active:
                seed = self._open(client, shares, self._is_seed)
                yield keys.derive(seed, self._digest, keys.SELF_MASK, public), False
                keys.wipe(seed)
                continue
            peers = [peer for peer in self._members[client] if peer in self._active]
            if peers:
                secret = self._open(client, shares, self._is_mask_secret)
                private = X25519PrivateKey.from_private_bytes(secret)
                keys.wipe(secret)
            for peer in peers:
                peer_key = self._entries[peer].mask_key
                # The peer added its mask if its id is the smaller one: take that back.
                yield keys.agree(private, public, peer_key, self._digest, keys.PAIRWISE_MASK), peer > client

    def _collected_shares(self) -> dict[int, dict[int, bytes]]:
        """For each member the shares of its secret that came, by point."""
        collected: dict[int, dict[int, bytes]] = {client: {} for client in self._members}
        for holder, reply in self._replies.items():
            owners = self._lists(holder)
            for clients, shares in zip(owners, (reply.seed_shares, reply.key_shares), strict=True):
                for client, share in zip(clients, shares, strict=True):
                    collected[client][self._points[client][holder]] = share
        return collected

    def _lists(self, holder: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The active and the dead among those of whom a client holds shares."""
        held = sorted([*self._members[holder], holder])
        return (
            tuple(client for client in held if client in self._active),
            tuple(client for client in held if client not in self._active),
        )

    def _is_seed(self, client: int, secret: bytearray) -> bool:
        public = self._entries[client].mask_key
        found = keys.derive(secret, self._digest, keys.SELF_MASK_COMMITMENT, public)
        return found == self._shares[client].commitment

    def _is_mask_secret(self, client: int, secret: bytearray) -> bool:
        return keys.public_key(secret) == self._entries[client].mask_key

    def _open(
        self, client: int, shares: dict[int, bytes], is_right: Callable[[int, bytearray], bool]
    ) -> bytearray:
        """The secret of a client, from its shares; senders of wrong ones are named in :attr:`rejected`."""
        holders = {point: holder for holder, point in self._points[client].items()}
        suspects = {point for point, holder in holders.items() if holder in self.rejected}
        opened = open_secret(shares, self._threshold, lambda secret: is_right(client, secret), suspects)
        if opened is None:
            raise self._failure(
                f"the shares of client {client} do not open its secret: more than "
                f"{correctable(len(shares), self._threshold)} of {len(shares)} are wrong, at threshold "
                f"{self._threshold}"
            )
        secret, wrong = opened
        for point in wrong:
            # A client may have dealt wrong shares to honest holders: neither of the two is proven guilty.
            self.rejected.setdefault(
                holders[point],
                f"its share of client {client}'s secret was wrong: it or client {client} broke the protocol",
            )
        return secret

    def _need_holders(self, holders: Iterable[int], what: str) -> None:
        """Fail unless each secret that has to be opened has enough of these holders."""
        left = set(holders)
        for client, peers in self._members.items():
            alive = len(left & {*peers, client})
            needed = client in self._active or any(peer in self._active for peer in peers)
            if needed and alive < self._threshold:
                raise self._failure(
                    f"{len(left)} of {len(self._members)} {what}: client {client} has {alive} holders left, "
                    f"below the threshold {self._threshold}"
                )
        if not self._active:
            raise self._failure("no masked input arrived")

    def _receive(
        self,
        stage: _Stage,
        sender: int,
        data: _Bytes,
        kind: type[_FromClient],
        seen: Container[int],
        expected: Container[int],
        take: Callable[[_FromClient], None],
    ) -> bool:
        if self._stage is not stage or sender in seen or sender not in expected:
            return False
        try:
            message = kind.from_bytes(data)
            self._check_sender(sender, message)
            take(message)
        except InvalidUpdateError as error:
            self.rejected[sender] = str(error)
            return False
        return True

    def _check_sender(self, sender: int, message: ClientMessage) -> None:
        name = type(message).__name__
        if message.round_id != self._round_id:
            raise InvalidUpdateError(f"{name}: of another session, or of round {message.round_id.number}")
        if message.client_id != sender:
            raise InvalidUpdateError(f"{name}: of client {message.client_id}, sent by client {sender}")
        identities = self._config.identities
        if identities is not None:
            identity = identities.get(sender)
            if identity is None or not keys.verifies(
                identity, message.signature, self._digest, message.body()
            ):
                raise InvalidUpdateError(f"{name}: not signed by the identity of client {sender}")
        elif message.signature:
            raise InvalidUpdateError(f"{name}: signed, but the round is not")

    def _drop_repeated_keys(self) -> None:
        """Drop all clients that share a public key: their neighbours would refuse the roster."""
        owners: dict[bytes, list[int]] = {}
        for client, entry in self._entries.items():
            for key in (entry.mask_key, entry.share_key):
                owners.setdefault(key, []).append(client)
        for clients in owners.values():
            if len(clients) > 1:
                for client in set(clients) & self._entries.keys():
                    del self._entries[client]
                    self.rejected[client] = "one of its public keys stands twice"

    def _close(self, stage: _Stage) -> None:
        if self._stage is not stage:
            raise SecureAggregationError(
                f"round {self._round_id.number} is at stage {self._stage.name}, not at {stage.name}"
            )

    def _failure(self, reason: str) -> SecureAggregationError:
        """The error to raise, after all that was collected is gone."""
        self._end()
        return SecureAggregationError(f"round {self._round_id.number} ends without a sum: {reason}")

    def _end(self) -> None:
        self._stage = _Stage.ENDED
        self._total.fill(0)
        self._shares.clear()
        self._replies.clear()
