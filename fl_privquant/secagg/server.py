"""The server's side of one round: it passes messages on, drops bad ones, and ends with a sum or without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant.errors import InvalidSpecError, InvalidUpdateError, SecureAggregationError
from fl_privquant.packing.pack import packed_size, unpack_codes
from fl_privquant.secagg import keys, shamir
from fl_privquant.secagg.dealt import DealtShares, Seed, members_left
from fl_privquant.secagg.graph import graph_of
from fl_privquant.secagg.masks import apply_masks, lane, low_bits, pair_mask
from fl_privquant.secagg.messages import (
    Confirmation,
    Invitation,
    KeyAdvertisement,
    MaskedInput,
    MaskRequest,
    Roster,
    RosterEntry,
    SharedSeeds,
    Subset,
    SurvivorList,
    UnmaskReply,
    UnmaskRequest,
    pack_ids,
)
from fl_privquant.secagg.opening import correctable, open_secret
from fl_privquant.secagg.parameters import GraphParameters
from fl_privquant.secagg.roster_tree import levels_of, path_of
from fl_privquant.secagg.round_config import RoundConfig
from fl_privquant.secagg.stages import ServerStage, StagedRound
from fl_privquant.secagg.transcript import (
    agreement_digest,
    graph_digest,
    known_digest,
    listing_digest,
    masks_digest,
)
from fl_privquant.secagg.wire import Octets


@dataclass(frozen=True, eq=False)
class OpenedSum:
    """The sum of the survivors' codes, and who they are."""

    total: NDArray[np.uint32]
    survivors: tuple[int, ...]


class ServerRound(StagedRound):
    """The server in one round, from an invitation to a :class:`OpenedSum`.

    For each stage, messages are taken as they arrive, from whoever still answers; then the stage is
    closed, and the messages of the next one are returned, by client. ::

        server = ServerRound(config, client_ids)
        server.invitation()                            -> bytes, for all
        server.receive_advertisement(sender, data);    server.rosters()          -> {client: bytes}
        server.receive_shares(sender, data);           server.mask_requests()    -> {client: bytes}
        server.receive_masked_input(sender, data);     server.survivor_lists()   -> {client: bytes}
        server.receive_confirmation(sender, data);     server.unmask_requests()  -> {client: bytes}
        server.receive_unmask_reply(sender, data);     server.finish()           -> OpenedSum

    Lists of survivors and confirmations are for signed rounds only.

    ``receive_...`` returns False for a message that is malformed or not the sender's own, with the
    reason in :attr:`rejected`, and for one that is late or sent twice. A sender of which nothing was
    taken counts as lost. ``sender`` is who the transport says it is. Closing a stage raises
    SecureAggregationError when too few are left: nothing was released, and this round is over.
    :attr:`culprits` are clients that broke the protocol, whatever others say: leave them out of later rounds.
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
        super().__init__(config)
        self.culprits: set[int] = set()
        self._invited = invited
        self._invitation = Invitation(
            self._round_id,
            len(invited),
            config.dimension,
            config.width,
            config.max_code,
            config.identities is not None,
        ).to_bytes()
        self._digest = keys.digest(self._invitation)
        self._entries: dict[int, RosterEntry] = {}
        # In signed rounds, the digest of the list by which each client knows others.
        self._known: dict[int, bytes] = {}
        self._graph: dict[int, tuple[int, ...]] = {}
        self._parameters: GraphParameters | None = None
        self._threshold = 0
        # Those whose confirmations count, in signed rounds, by increasing ids.
        self._witnesses: list[int] = []
        self._masks_digest = self._agreement = b""
        # The members share keys and mask with each other; the active ones' inputs are in the total.
        self._dealt = DealtShares({}, 0)
        self._members: dict[int, tuple[int, ...]] = {}
        self._confirmations: dict[int, Confirmation] = {}
        self._total: NDArray[Any] = np.zeros(config.dimension, dtype=lane(config.width))
        self._active: set[int] = set()
        self._replies: dict[int, UnmaskReply] = {}

    def __repr__(self) -> str:
        return f"ServerRound(round {self._round_id.number}, {self._stage.name}, {len(self._invited)} invited)"

    @property
    def graph_parameters(self) -> GraphParameters:
        """Neighbours and threshold of this round, once the rosters are out."""
        if self._parameters is None:
            raise SecureAggregationError("the graph is drawn when the rosters are: call rosters() first")
        return self._parameters

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

    def receive_advertisement(self, sender: int, data: Octets) -> bool:
        """Take a client's public key."""

        def take(message: KeyAdvertisement) -> None:
            if not keys.is_usable(message.public_key):
                raise InvalidUpdateError("KeyAdvertisement: the public key is no usable X25519 key")
            identity = b""
            if self._config.signed:
                identity = self._signer(message, data) or b""
                if not keys.is_usable_identity(identity):
                    raise InvalidUpdateError(
                        "KeyAdvertisement: signed by a key that is no usable Ed25519 key"
                    )
            self._known[sender] = message.known
            self._entries[sender] = RosterEntry(sender, message.public_key, identity)

        return self._receive(
            ServerStage.ADVERTISE, sender, data, KeyAdvertisement, self._entries, self._invited, take
        )

    def rosters(self) -> dict[int, bytes]:
        """Draw the graph among the clients that sent keys, and tell each its neighbours."""
        self._close(ServerStage.ADVERTISE)
        self._drop_repeated_keys()
        if len(self._entries) < 2:
            raise self._failure(f"{len(self._entries)} clients sent keys, expected 2 or more")
        try:
            parameters = self._config.graph(len(self._entries))
        except InvalidSpecError as error:
            raise self._failure(
                f"{len(self._entries)} of {len(self._invited)} clients sent keys: {error}"
            ) from error
        everyone = sorted(self._entries)
        num_witnesses = self._config.num_witnesses(len(everyone))
        levels = levels_of([self._entries[client].leaf for client in everyone])
        listing = listing_digest(everyone, levels[-1][0])
        self._graph_digest = graph_digest(self._digest, parameters, num_witnesses, listing)
        self._parameters, self._threshold = parameters, parameters.threshold
        graph = graph_of(self._graph_digest, parameters)
        self._witnesses = [everyone[place] for place in sorted(graph.witnesses(num_witnesses))]
        self._graph = {
            client: tuple(everyone[peer] for peer in graph.neighbors(place))
            for place, client in enumerate(everyone)
        }
        self._dealt = DealtShares(self._graph, self._threshold)
        self._stage = ServerStage.SHARE
        rosters = {}
        for place, (client, neighbours) in enumerate(self._graph.items()):
            path: tuple[bytes, ...] = ()
            if not self._complete:
                path = path_of(levels, place) if self._config.signed else (listing,)
            roster = Roster(
                self._round_id,
                parameters.num_clients,
                parameters.num_neighbors,
                parameters.threshold,
                num_witnesses,
                parameters.spread,
                path,
                tuple(self._entries[peer].public_key for peer in neighbours),
            )
            rosters[client] = self._with_names(roster, client, neighbours).to_bytes()
        return rosters

    def _with_names(self, roster: Roster, client: int, neighbours: tuple[int, ...]) -> Roster:
        """The roster with the ids and identities that its receiver cannot know by itself."""
        identities = self._config.identities
        if identities is None:
            return replace(roster, ids=tuple(self._dealt.points[client]))
        ids, present, named = tuple(self._graph), Subset(), neighbours
        if self._known[client] == self._known_here:
            several = (peer for peer in neighbours if isinstance(identities[peer], tuple))
            named = tuple(peer for peer in several if len(identities[peer]) > 1)
            if len(self._present.to_bytes()) < len(pack_ids(ids)):
                ids, present = (), self._present
        keys_of_named = tuple(self._entries[peer].identity for peer in named)
        identified = Subset.of(named, neighbours)
        return replace(roster, ids=ids, present=present, identified=identified, identities=keys_of_named)

    @cached_property
    def _known_here(self) -> bytes:
        return known_digest(self._config.identities or {})

    @cached_property
    def _present(self) -> Subset:
        return Subset.of(self._graph, sorted(self._config.identities or {}))

    def receive_shares(self, sender: int, data: Octets) -> bool:
        """Take a client's corrections of shares, commitments and wrapped roots."""
        dealt = self._dealt
        return self._receive(
            ServerStage.SHARE, sender, data, SharedSeeds, dealt.messages, self._graph, dealt.take
        )

    def mask_requests(self, context: bytes = b"") -> dict[int, bytes]:
        """Tell each client with whom to mask; ``context`` is what they are asked for, which masks hang on.

        Clients with too few holders left are dropped: they would refuse.
        """
        self._close(ServerStage.SHARE)
        shared = set(self._dealt.messages)
        self._members = members_left(self._graph, shared, self._threshold)
        dropped = shared - self._members.keys()
        self.rejected |= dict.fromkeys(dropped, "too few of its neighbours shared their keys")
        if not self._members:
            raise self._failure(
                f"{len(shared)} of {len(self._entries)} clients shared keys: none has the {self._threshold} "
                f"holders that it needs"
            )
        self._stage = ServerStage.MASK
        told_all = self._complete or self._config.signed
        members = tuple(self._members) if told_all else ()
        self._masks_digest = masks_digest(self._graph_digest, members, context)
        if told_all:
            request = MaskRequest(self._round_id, Subset.of(members, list(self._graph)))
            return dict.fromkeys(members, request.to_bytes())
        return {
            client: MaskRequest(
                self._round_id, Subset.of([*peers, client], list(self._dealt.points[client]))
            ).to_bytes()
            for client, peers in self._members.items()
        }

    def receive_masked_input(self, sender: int, data: Octets) -> bool:
        """Add a client's masked codes to the total."""

        def take(message: MaskedInput) -> None:
            codes = unpack_codes(message.payload, self._config.width, self._config.dimension)
            np.add(self._total, codes.astype(self._total.dtype), out=self._total)
            self._active.add(sender)

        return self._receive(ServerStage.MASK, sender, data, MaskedInput, self._active, self._members, take)

    def survivor_lists(self) -> dict[int, bytes]:
        """Tell the clients whose input arrived the list of them, in signed rounds; else nothing is sent."""
        self._close(ServerStage.MASK)
        self._need_holders(self._active, "masked inputs arrived")
        least = self._config.least_survivors(len(self._graph))
        if len(self._active) < least:
            raise self._failure(
                f"{len(self._active)} masked inputs arrived of {len(self._graph)} clients that sent keys, "
                f"below the {least} without which clients do not unmask; raise dropout_fraction "
                f"({self._config.dropout_fraction}) on both sides"
            )
        self._stage = ServerStage.CONFIRM
        if self._config.identities is None:
            return {}
        survivors = tuple(sorted(self._active))
        self._agreement = agreement_digest(self._masks_digest, survivors)
        named = Subset.of(survivors, list(self._graph))
        return dict.fromkeys(survivors, SurvivorList(self._round_id, named).to_bytes())

    def receive_confirmation(self, sender: int, data: Octets) -> bool:
        """Take a client's signature on the survivors."""

        def take(message: Confirmation) -> None:
            if message.agreement != self._agreement:
                raise InvalidUpdateError("Confirmation: of something else than this client was shown")
            self._confirmations[sender] = message

        return self._receive(
            ServerStage.CONFIRM, sender, data, Confirmation, self._confirmations, self._active, take
        )

    def unmask_requests(self) -> dict[int, bytes]:
        """Ask those whose input arrived for the shares that open the masks left in the total."""
        self._close(ServerStage.CONFIRM)
        signers: tuple[int, ...] = ()
        asked: Iterable[int] = self._active
        if self._config.signed:
            quorum = self._config.quorum(len(self._graph))
            heard = [witness for witness in self._witnesses if witness in self._confirmations]
            if len(heard) < quorum:
                raise self._failure(
                    f"{len(heard)} of {len(self._witnesses)} witnesses confirmed the survivors, below the "
                    f"{quorum} without which clients do not unmask"
                )
            asked, signers = self._confirmations, tuple(heard[:quorum])
            self._need_holders(asked, "clients confirmed the survivors")
        signatures = tuple(self._confirmations[client].signature for client in signers)
        self._stage = ServerStage.UNMASK
        named = Subset.of(signers, self._witnesses)
        return {
            client: UnmaskRequest(
                self._round_id, Subset.of(self._active, self._held_by(client)), named, signatures
            ).to_bytes()
            for client in sorted(asked)
        }

    def receive_unmask_reply(self, sender: int, data: Octets) -> bool:
        """Take a client's shares."""

        def take(message: UnmaskReply) -> None:
            active, dead = self._lists(sender)
            if (len(message.seed_shares), len(message.wrapping_shares)) != (len(active), len(dead)):
                raise InvalidUpdateError(
                    f"UnmaskReply: {len(message.seed_shares)} and {len(message.wrapping_shares)} shares, "
                    f"expected {len(active)} and {len(dead)}"
                )
            if not shamir.are_shares(b"".join(message.seed_shares + message.wrapping_shares)):
                raise InvalidUpdateError("UnmaskReply: a share holds a number outside the field")
            self._replies[sender] = message

        return self._receive(ServerStage.UNMASK, sender, data, UnmaskReply, self._replies, self._active, take)

    def finish(self) -> OpenedSum:
        """Open the masks that are left, and return the sum of the inputs that arrived."""
        self._close(ServerStage.UNMASK)
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
        for client, revealed in self._revealed_shares().items():
            entry = self._entries[client]
            if client in self._active:
                seed = self._secret(client, revealed, Seed.SELF_MASK)
                yield keys.derive(seed, self._masks_digest, keys.SELF_MASK, entry.public_key), False
                keys.wipe(seed)
                continue
            peers = [peer for peer in self._members[client] if peer in self._active]
            if peers:
                seed = self._secret(client, revealed, Seed.WRAPPING)
                roots = self._dealt.roots(entry, self._graph_digest, seed)
                keys.wipe(seed)
                for peer in peers:
                    ends = entry.public_key, self._entries[peer].public_key
                    # The peer added its mask if its id is the smaller one: take that back.
                    yield pair_mask(roots[peer], self._masks_digest, *ends), peer > client

    def _secret(self, client: int, revealed: dict[int, bytes], which: Seed) -> bytearray:
        """One of the seeds of a client; whoever revealed wrong shares is named."""
        entry, dealt = self._entries[client], self._dealt
        shares = dealt.shares(client, revealed, which)
        holders = {point: holder for holder, point in dealt.points[client].items()}
        suspects = {point for point, holder in holders.items() if holder in self.rejected}
        opened = open_secret(
            shares,
            self._threshold,
            lambda secret: dealt.is_committed(entry, self._digest, secret, which),
            suspects,
        )
        if opened is None:
            # Too many wrong shares to be the holders': whoever dealt them is to blame.
            self.culprits.add(client)
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

    def _revealed_shares(self) -> dict[int, dict[int, bytes]]:
        """The shares that holders revealed of each member's secret, as they derived them."""
        revealed: dict[int, dict[int, bytes]] = {client: {} for client in self._members}
        for holder, reply in self._replies.items():
            owners = self._lists(holder)
            for clients, shares in zip(owners, (reply.seed_shares, reply.wrapping_shares), strict=True):
                for client, share in zip(clients, shares, strict=True):
                    revealed[client][holder] = share
        return revealed

    def _lists(self, holder: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The active and the lost clients among those whose shares a client holds."""
        held = self._held_by(holder)
        return (
            tuple(client for client in held if client in self._active),
            tuple(client for client in held if client not in self._active),
        )

    def _held_by(self, holder: int) -> list[int]:
        """The clients of whose seeds a client holds shares, itself included."""
        return sorted([*self._members[holder], holder])

    @property
    def _complete(self) -> bool:
        """Whether everyone is everyone's neighbour: then clients know all clients without being told."""
        return self.graph_parameters.num_neighbors == len(self._graph) - 1

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

    def _drop_repeated_keys(self) -> None:
        """Drop all clients that share a public key: their neighbours would refuse the roster."""
        owners: dict[bytes, list[int]] = {}
        for client, entry in self._entries.items():
            owners.setdefault(entry.public_key, []).append(client)
        for clients in owners.values():
            if len(clients) > 1:
                for client in set(clients) & self._entries.keys():
                    del self._entries[client]
                    self.rejected[client] = "its public key stands twice"

    def _failure(self, reason: str) -> SecureAggregationError:
        """The error to raise, after all that was collected is gone."""
        self._end()
        return SecureAggregationError(f"round {self._round_id.number} ends without a sum: {reason}")

    def _end(self) -> None:
        self._stage = ServerStage.ENDED
        self._total.fill(0)
        self._dealt.messages.clear()
        self._confirmations.clear()
        self._replies.clear()
