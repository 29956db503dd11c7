"""The server's side of one round: it passes messages on, drops invalid ones, and opens a sum if it can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant.errors import (
    MISSING,
    InvalidSpecError,
    InvalidUpdateError,
    SecureAggregationError,
    pluralize,
)
from fl_privquant.packing.pack import packed_size, unpack_codes
from fl_privquant.secagg import messages
from fl_privquant.secagg._wire import ClientMessage, Octets, RoundId, Subset, pack_ids
from fl_privquant.secagg.crypto import keys, shamir
from fl_privquant.secagg.crypto.masks import apply_masks, derive_pair_mask_key, mask_dtype, reduce_modulo
from fl_privquant.secagg.crypto.sharing import DealtShares, Seed, max_wrong_shares, remaining_members
from fl_privquant.secagg.graph.neighbors import cached_graph
from fl_privquant.secagg.graph.parameters import decoding_failure
from fl_privquant.secagg.graph.roster_tree import merkle_levels, merkle_path
from fl_privquant.secagg.round_config import RoundConfig
from fl_privquant.secagg.signed import transcript


class ServerStage(IntEnum):
    """The messages that the server is waiting for."""

    ADVERTISE = 0
    SHARE = 1
    MASK = 2
    CONFIRM = 3
    UNMASK = 4
    ENDED = 5


@dataclass(frozen=True, eq=False)
class UnmaskedSum:
    """The sum of the survivors' codes, and who they are."""

    total: NDArray[np.uint32]
    survivors: tuple[int, ...]


class ServerRound:
    """The server in one round, from an invitation to a :class:`UnmaskedSum`.

    In each stage, :meth:`receive` takes messages as they arrive, from whoever still answers. A further call
    closes the stage, and returns the messages that begin the next one, by client. ::

        server = ServerRound(config, client_ids)
        server.invitation()        -> bytes, for all; clients send KeyAdvertisements
        server.rosters()           -> {client: bytes}; clients send SharedSeeds
        server.mask_requests()     -> {client: bytes}; clients send MaskedInputs
        server.survivor_lists()    -> {client: bytes}; clients send Confirmations, in signed rounds only
        server.unmask_requests()   -> {client: bytes}; clients send UnmaskReplies
        server.finish()            -> UnmaskedSum

    A client from which no valid message came in a stage counts as lost. Closing a stage raises
    SecureAggregationError when too few clients are left: nothing was released, and this round is over.

    Attributes
    ----------
    rejected
        Why messages were refused, by sender.
    graph_parameters
        Neighbors and threshold: those of the round once rosters are out; before that, those that it has if
        all invited clients take part.
    culprits
        Clients whose secret does not open, each with the odds that this happens to an honest one, if up to
        ``corrupt_fraction`` of the clients reveal wrong shares. With odds of 0 the client itself has dealt
        them. Otherwise it is to be left out only after this has happened in several rounds, whose graphs are
        independent.
    """

    def __init__(self, config: RoundConfig, client_ids: Iterable[int]) -> None:
        invited = frozenset(client_ids)
        if len(invited) < 2:
            raise InvalidSpecError(
                "clients",
                MISSING,
                f"{len(invited)} invited, expected 2 or more",
                "raise the fraction, or the least number, of clients that the strategy trains",
            )
        if config.max_code is not None and len(invited) * config.max_code >= 1 << config.width:
            raise InvalidSpecError(
                "width",
                config.width,
                f"bits are too few for the sum of {len(invited)} codes up to {config.max_code}",
                f"use codebook.sum_bits({len(invited)})",
            )
        # If no graph meets the settings, this fails now, and not after clients have answered.
        self.graph_parameters = config.graph(len(invited))
        self.rejected: dict[int, str] = {}
        self.culprits: dict[int, float] = {}
        self._config = config
        self._round_id = RoundId(config.session, config.number)
        self._stage = ServerStage.ADVERTISE
        self._invited = invited
        self._invitation = messages.Invitation(
            self._round_id,
            len(invited),
            config.dimension,
            config.width,
            config.max_code,
            config.identities is not None,
        ).to_bytes()
        self._digest = keys.digest(self._invitation)
        self._entries: dict[int, messages.RosterEntry] = {}
        # In signed rounds, the digest of the list by which each client knows others.
        self._known: dict[int, bytes] = {}
        self._graph: dict[int, tuple[int, ...]] = {}
        # Those whose confirmations count, in signed rounds, by increasing ids.
        self._witnesses: list[int] = []
        self._graph_digest = self._masks_digest = self._agreement = b""
        # The members share keys and mask with each other; the active ones' inputs are in the total.
        self._dealt = DealtShares({}, {}, 0, b"")
        self._members: dict[int, tuple[int, ...]] = {}
        self._confirmations: dict[int, messages.Confirmation] = {}
        self._total: NDArray[Any] = np.zeros(config.dimension, dtype=mask_dtype(config.width))
        self._active: set[int] = set()
        self._replies: dict[int, messages.UnmaskReply] = {}

    @property
    def num_survivors(self) -> int:
        """Clients whose masked input arrived."""
        return len(self._active)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the packed codes in a masked input; all else that clients exchange is handshake."""
        return packed_size(self._config.dimension, width=self._config.width)

    def invitation(self) -> bytes:
        """The message that starts the round, the same for every client."""
        return self._invitation

    def receive(self, sender: int, data: Octets) -> bool:
        """Take a client's message of the present stage; ``sender`` is the client that the transport names.

        False if the message is not taken: because it was sent before, or by somebody who was not asked; or
        because it is malformed, of another stage or not the sender's own, for which :attr:`rejected` says
        why.
        """
        if self._stage is ServerStage.ENDED:
            return False
        kind, expected, seen, take = self._expected_messages()
        if sender not in expected or sender in seen:
            return False
        try:
            message = kind.from_bytes(data)
            self._check_sender(sender, message, data)
            take(message)
        except InvalidUpdateError as error:
            self.rejected[sender] = str(error)
            return False
        return True

    def _expected_messages(
        self,
    ) -> tuple[type[ClientMessage], Container[int], Container[int], Callable[[Any], None]]:
        """The messages of the present stage: class, who sends one, who has sent one, and what takes them."""
        dealt = self._dealt
        if self._stage is ServerStage.ADVERTISE:
            return messages.KeyAdvertisement, self._invited, self._entries, self._take_key
        if self._stage is ServerStage.SHARE:
            return messages.SharedSeeds, self._graph, dealt.messages, dealt.take
        if self._stage is ServerStage.MASK:
            return messages.MaskedInput, self._members, self._active, self._take_input
        if self._stage is ServerStage.CONFIRM:
            return messages.Confirmation, self._active, self._confirmations, self._take_confirmation
        return messages.UnmaskReply, self._active, self._replies, self._take_shares

    def _check_sender(self, sender: int, message: ClientMessage, data: Octets) -> None:
        name = type(message).__name__
        if message.round_id != self._round_id:
            raise InvalidUpdateError(f"{name}: of another session, or of round {message.round_id.number}")
        if message.client_id != sender:
            raise InvalidUpdateError(f"{name}: of client {message.client_id}, sent by client {sender}")
        if self._config.identities is not None:
            if self._signer(message, message.body_of(data)) is None:
                raise InvalidUpdateError(f"{name}: not signed by the identity of client {sender}")
        elif message.signature:
            raise InvalidUpdateError(f"{name}: signed, but the round is not")

    def _signer(self, message: ClientMessage, body: bytes | memoryview) -> bytes | None:
        """The identity key by which a message is signed, if it is one of its sender's."""
        identity = (self._config.identities or {}).get(message.client_id, ())
        return keys.find_signer(identity, message.signature, self._graph_digest or self._digest, body)

    def _take_key(self, message: messages.KeyAdvertisement) -> None:
        if not keys.is_usable(message.public_key):
            raise InvalidUpdateError("KeyAdvertisement: the public key is no usable X25519 key")
        identity = b""
        if self._config.signed:
            identity = self._signer(message, message.body()) or b""
            if not keys.is_usable_identity(identity):
                raise InvalidUpdateError("KeyAdvertisement: signed by a key that is no usable Ed25519 key")
        self._known[message.client_id] = message.known
        self._entries[message.client_id] = messages.RosterEntry(
            message.client_id, message.public_key, identity
        )

    def rosters(self) -> dict[int, bytes]:
        """Draw the graph among the clients that sent keys, and tell each its neighbors."""
        self._close(ServerStage.ADVERTISE)
        self._drop_repeated_keys()
        if len(self._entries) < 2:
            raise self._end_with_error(
                f"{pluralize(len(self._entries), 'client')} sent keys, expected 2 or more"
            )
        try:
            parameters = self._config.graph(len(self._entries))
        except InvalidSpecError as error:
            raise self._end_with_error(
                f"{len(self._entries)} of {len(self._invited)} clients sent keys: {error}"
            ) from error
        everyone = sorted(self._entries)
        num_witnesses = self._config.num_witnesses(len(everyone))
        levels = merkle_levels([self._entries[client].leaf for client in everyone])
        listing = transcript.listing_digest(everyone, levels[-1][0])
        self._graph_digest = transcript.graph_digest(self._digest, parameters, num_witnesses, listing)
        self.graph_parameters = parameters
        graph = cached_graph(self._graph_digest, parameters)
        self._witnesses = [everyone[place] for place in sorted(graph.witnesses(num_witnesses))]
        self._graph = {
            client: tuple(everyone[peer] for peer in graph.neighbors(place))
            for place, client in enumerate(everyone)
        }
        self._dealt = DealtShares(self._entries, self._graph, self.graph_parameters.threshold, self._digest)
        self._stage = ServerStage.SHARE
        rosters = {}
        for place, (client, neighbors) in enumerate(self._graph.items()):
            path: tuple[bytes, ...] = ()
            if not self._is_complete:
                path = merkle_path(levels, place) if self._config.signed else (listing,)
            roster = messages.Roster(
                self._round_id,
                parameters.num_clients,
                parameters.num_neighbors,
                parameters.threshold,
                num_witnesses,
                parameters.spread,
                path,
                tuple(self._entries[peer].public_key for peer in neighbors),
            )
            rosters[client] = self._add_names(roster, client, neighbors).to_bytes()
        return rosters

    def _add_names(self, roster: messages.Roster, client: int, neighbors: tuple[int, ...]) -> messages.Roster:
        """The roster with the ids and identities that its receiver cannot know by itself."""
        identities = self._config.identities
        if identities is None:
            return replace(roster, ids=tuple(self._dealt.points[client]))
        ids, present, named = tuple(self._graph), Subset(), neighbors
        if self._known[client] == self._known_clients_digest:
            named = tuple(peer for peer in neighbors if len(keys.public_keys_of(identities[peer])) > 1)
            if len(self._present.to_bytes()) < len(pack_ids(ids)):
                ids, present = (), self._present
        keys_of_named = tuple(self._entries[peer].identity for peer in named)
        identified = Subset.of(named, neighbors)
        return replace(roster, ids=ids, present=present, identified=identified, identities=keys_of_named)

    @cached_property
    def _known_clients_digest(self) -> bytes:
        return transcript.known_digest(self._config.identities or {})

    @cached_property
    def _present(self) -> Subset:
        return Subset.of(self._graph, sorted(self._config.identities or {}))

    def mask_requests(self, context: bytes = b"") -> dict[int, bytes]:
        """Tell each client with whom to mask; masks are derived from ``context``, what clients are asked for.

        Clients with too few holders left are dropped: they would refuse.
        """
        self._close(ServerStage.SHARE)
        shared = set(self._dealt.messages)
        threshold = self.graph_parameters.threshold
        self._members = remaining_members(self._graph, shared, threshold)
        dropped = shared - self._members.keys()
        self.rejected |= dict.fromkeys(dropped, "too few of its neighbors shared their keys")
        if not self._members:
            raise self._end_with_error(
                f"{len(shared)} of {len(self._entries)} clients shared keys: none has the {threshold} "
                f"holders that it needs"
            )
        self._stage = ServerStage.MASK
        told_all = self._is_complete or self._config.signed
        members = tuple(self._members) if told_all else ()
        self._masks_digest = transcript.masks_digest(self._graph_digest, members, context)
        if told_all:
            request = messages.MaskRequest(self._round_id, Subset.of(members, list(self._graph)))
            return dict.fromkeys(members, request.to_bytes())
        lists = {
            client: Subset.of([*peers, client], list(self._dealt.points[client]))
            for client, peers in self._members.items()
        }
        return {
            client: messages.MaskRequest(self._round_id, listed).to_bytes()
            for client, listed in lists.items()
        }

    def _take_input(self, message: messages.MaskedInput) -> None:
        codes = unpack_codes(message.payload, self._config.width, self._config.dimension)
        np.add(self._total, codes.astype(self._total.dtype), out=self._total)
        self._active.add(message.client_id)

    def survivor_lists(self) -> dict[int, bytes]:
        """Tell the clients whose input arrived the list of them, in signed rounds; else nothing is sent."""
        self._close(ServerStage.MASK)
        self._require_holders(self._active, "masked inputs arrived")
        least = self._config.min_survivors(len(self._graph))
        if len(self._active) < least:
            raise self._end_with_error(
                f"{pluralize(len(self._active), 'masked input')} arrived of {len(self._graph)} clients that "
                f"sent keys, below the {least} without which clients do not unmask; raise dropout_fraction "
                f"({self._config.dropout_fraction}) on both sides"
            )
        self._stage = ServerStage.CONFIRM
        if self._config.identities is None:
            return {}
        survivors = tuple(sorted(self._active))
        self._agreement = transcript.agreement_digest(self._masks_digest, survivors)
        named = Subset.of(survivors, list(self._graph))
        return dict.fromkeys(survivors, messages.SurvivorList(self._round_id, named).to_bytes())

    def _take_confirmation(self, message: messages.Confirmation) -> None:
        if message.agreement != self._agreement:
            raise InvalidUpdateError("Confirmation: not of what this client was shown")
        self._confirmations[message.client_id] = message

    def unmask_requests(self) -> dict[int, bytes]:
        """Ask those whose input arrived for the shares that open the masks left in the total."""
        self._close(ServerStage.CONFIRM)
        signers: tuple[int, ...] = ()
        unmasking: Iterable[int] = self._active
        if self._config.signed:
            quorum = self._config.quorum(len(self._graph))
            heard = [witness for witness in self._witnesses if witness in self._confirmations]
            if len(heard) < quorum:
                raise self._end_with_error(
                    f"{len(heard)} of {len(self._witnesses)} witnesses confirmed the survivors, below the "
                    f"{quorum} without which clients do not unmask"
                )
            unmasking, signers = self._confirmations, tuple(heard[:quorum])
            self._require_holders(unmasking, "clients confirmed the survivors")
        signatures = tuple(self._confirmations[client].signature for client in signers)
        self._stage = ServerStage.UNMASK
        named, requests = Subset.of(signers, self._witnesses), {}
        for client in sorted(unmasking):
            active = Subset.of(self._active, self._dealers_of(client))
            requests[client] = messages.UnmaskRequest(self._round_id, active, named, signatures).to_bytes()
        return requests

    def _take_shares(self, message: messages.UnmaskReply) -> None:
        sent = len(message.seed_shares), len(message.wrapping_shares)
        active, lost = map(len, self._split_active_and_lost(message.client_id))
        if sent != (active, lost):
            raise InvalidUpdateError(
                f"UnmaskReply: {sent[0]} and {sent[1]} shares, expected {active} and {lost}"
            )
        if not shamir.are_shares(b"".join(message.seed_shares + message.wrapping_shares)):
            raise InvalidUpdateError("UnmaskReply: a share holds a number outside the field")
        self._replies[message.client_id] = message

    def finish(self) -> UnmaskedSum:
        """Open the masks that are left, and return the sum of the inputs that arrived."""
        self._close(ServerStage.UNMASK)
        self._require_holders(self._replies.keys(), "clients sent shares")
        apply_masks(self._total, self._remaining_masks())
        reduce_modulo(self._total, self._config.width)
        largest = self._config.max_code
        # Only a client that breaks the protocol, or masks that did not cancel, can lead here.
        if largest is not None and int(self._total.max()) > len(self._active) * largest:
            raise self._end_with_error(
                "the sum exceeds what the clients' codes can add up to: an input was not as agreed"
            )
        total, survivors = self._total.astype(np.uint32), tuple(sorted(self._active))
        self._end()
        return UnmaskedSum(total, survivors)

    def _remaining_masks(self) -> Iterator[tuple[bytes, bool]]:
        """The keys of the masks in the total that have no counterpart, with the sign that removes them."""
        for client, revealed, which in self._seeds_to_open():
            entry, seed = self._entries[client], self._open_seed(client, revealed, which)
            if which is Seed.SELF_MASK:
                yield keys.derive(seed, self._masks_digest, keys.SELF_MASK, entry.public_key), False
                keys.wipe(seed)
                continue
            roots = self._dealt.roots(client, self._graph_digest, seed)
            keys.wipe(seed)
            for peer in self._members[client]:
                if peer in self._active:
                    ends = entry.public_key, self._entries[peer].public_key
                    # The peer added its mask if its id is the smaller one: take that back.
                    yield derive_pair_mask_key(roots[peer], self._masks_digest, *ends), peer > client

    def _seeds_to_open(self) -> Iterator[tuple[int, dict[int, bytes], Seed]]:
        """The members with a seed that has to be opened, the shares of it that were revealed, and which."""
        for client, revealed in self._revealed_shares().items():
            if client in self._active:
                yield client, revealed, Seed.SELF_MASK
            elif not self._active.isdisjoint(self._members[client]):
                yield client, revealed, Seed.WRAPPING

    def _name_culprits(self) -> None:
        """Name every client whose secret does not open, with the odds that this happens to an honest one."""
        graph, corrupt = self.graph_parameters, self._config.corrupt_fraction
        for client, revealed, which in self._seeds_to_open():
            if self._dealt.open_secret(client, revealed, which, self.rejected) is None:
                max_wrong = max_wrong_shares(len(revealed), graph.threshold)
                self.culprits[client] = decoding_failure(graph, corrupt, max_wrong)

    def _open_seed(self, client: int, revealed: dict[int, bytes], which: Seed) -> bytearray:
        """One of the seeds of a client; whoever revealed wrong shares is named."""
        opened = self._dealt.open_secret(client, revealed, which, self.rejected)
        if opened is None:
            self._name_culprits()
            threshold = self.graph_parameters.threshold
            raise self._end_with_error(
                f"the shares of client {client} do not open its secret: more than "
                f"{max_wrong_shares(len(revealed), threshold)} of {len(revealed)} are wrong, at threshold "
                f"{threshold}"
            )
        secret, wrong = opened
        for holder in wrong:
            # A client may have dealt wrong shares to honest holders: neither of the two is proven guilty.
            self.rejected.setdefault(
                holder,
                f"its share of client {client}'s secret was wrong: it or client {client} broke the protocol",
            )
        return secret

    def _revealed_shares(self) -> dict[int, dict[int, bytes]]:
        """The shares that holders revealed of each member's secret, as they derived them."""
        revealed: dict[int, dict[int, bytes]] = {client: {} for client in self._members}
        for holder, reply in self._replies.items():
            owners = self._split_active_and_lost(holder)
            for clients, shares in zip(owners, (reply.seed_shares, reply.wrapping_shares), strict=True):
                for client, share in zip(clients, shares, strict=True):
                    revealed[client][holder] = share
        return revealed

    def _split_active_and_lost(self, holder: int) -> tuple[list[int], list[int]]:
        """The active and the lost clients among those whose shares a client holds."""
        dealers = self._dealers_of(holder)
        active = [client for client in dealers if client in self._active]
        return active, [client for client in dealers if client not in self._active]

    def _dealers_of(self, holder: int) -> list[int]:
        """The clients of whose seeds a client holds shares, itself included."""
        return sorted([*self._members[holder], holder])

    @property
    def _is_complete(self) -> bool:
        """Whether everyone is everyone's neighbor: then clients know all clients without being told."""
        return self.graph_parameters.num_neighbors == len(self._graph) - 1

    def _require_holders(self, holders: Iterable[int], what: str) -> None:
        """Fail unless each secret that has to be opened has enough of these holders."""
        left = set(holders)
        for client, peers in self._members.items():
            alive = len(left & {*peers, client})
            needed = client in self._active or any(peer in self._active for peer in peers)
            if needed and alive < self.graph_parameters.threshold:
                raise self._end_with_error(
                    f"{len(left)} of {len(self._members)} {what}: client {client} has {alive} holders left, "
                    f"below the threshold {self.graph_parameters.threshold}"
                )
        if not self._active:
            raise self._end_with_error("no masked input arrived")

    def _drop_repeated_keys(self) -> None:
        """Drop all clients that share a public key: their neighbors would refuse the roster."""
        owners = Counter(entry.public_key for entry in self._entries.values())
        repeated = [client for client, entry in self._entries.items() if owners[entry.public_key] > 1]
        for client in repeated:
            del self._entries[client]
            self.rejected[client] = "another client sent the same public key"

    def _close(self, stage: ServerStage) -> None:
        if self._stage is not stage:
            raise SecureAggregationError(
                f"round {self._round_id.number} is at stage {self._stage.name}, not at {stage.name}"
            )

    def _end_with_error(self, reason: str) -> SecureAggregationError:
        """The error to raise, after all that was collected is gone."""
        self._end()
        return SecureAggregationError(f"round {self._round_id.number} ends without a sum: {reason}")

    def _end(self) -> None:
        self._stage = ServerStage.ENDED
        self._total.fill(0)
        self._dealt.messages.clear()
        self._confirmations.clear()
        self._replies.clear()
