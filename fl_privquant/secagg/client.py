"""A client's side of one round: four answers to the server, and the reasons not to give them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import ArrayLike, NDArray

from fl_privquant.codec.pack import MAX_WIDTH, pack_codes
from fl_privquant.errors import InvalidUpdateError, SecureAggregationError
from fl_privquant.secagg import keys, shamir
from fl_privquant.secagg.masks import apply_masks, lane, low_bits
from fl_privquant.secagg.messages import (
    ClientMessage,
    Invitation,
    KeyAdvertisement,
    MaskedInput,
    Reader,
    Roster,
    RosterEntry,
    RoundId,
    SealedShares,
    ShareDelivery,
    UnmaskReply,
    UnmaskRequest,
    pack_ids,
)

__all__ = ["ClientPolicy", "ClientRound", "Stage", "share_context"]

_Bytes = bytes | bytearray | memoryview
_FromServer = TypeVar("_FromServer", Roster, ShareDelivery, UnmaskRequest)

_STATE_MAGIC: Final = b"SC\x01"
_SHARE: Final = shamir.SHARE_BYTES


class Stage(IntEnum):
    """What a client has done in its round."""

    JOINED = 0
    ADVERTISED = 1
    SHARED = 2
    ACCEPTED = 3
    MASKED = 4
    ENDED = 5


@dataclass(frozen=True)
class ClientPolicy:
    """What a client insists on, whatever the server proposes.

    Parameters
    ----------
    min_neighbors
        Fewest neighbours on the roster.
    identity
        The client's own Ed25519 key: signs what it sends.
    known_identities
        Raw Ed25519 public keys of the clients, by id, obtained other than from the server (such as a
        :class:`~fl_privquant.secagg.identities.KnownClients`, where ids follow from names). With
        them the client masks only towards clients that signed their keys for this round; without,
        it trusts the server not to invent clients.
    """

    min_neighbors: int = 2
    identity: Ed25519PrivateKey | None = field(default=None, repr=False)
    known_identities: Mapping[int, keys.Identity] | None = field(default=None, repr=False)


class ClientRound:
    """One client in one round: a state that goes from stage to stage and ends with nothing secret.

    The methods are called in this order, each once, with what the server sent; each returns the bytes
    to send back. ::

        client = ClientRound.join(invitation, client_id, policy)
        client.advertise_keys()      -> KeyAdvertisement
        client.share_keys(roster)    -> SealedShares
        client.accept_shares(delivery)
        client.mask(codes)           -> MaskedInput
        client.unmask(request)       -> UnmaskReply

    Whatever is wrong raises SecureAggregationError (a refusal) or InvalidUpdateError (malformed) and
    ends the round for this client: its secrets are erased, and every later call is refused.

    Between two calls the state can be kept as bytes (:meth:`to_bytes`), as a Flower client must, which
    remembers nothing by itself. These bytes hold the round's secrets: keep them on the client, store
    what :meth:`to_bytes` gives after every call *and after every error*, and overwrite the former
    ones. Erasing is best effort: Python and the libraries below may have copied a secret.
    """

    def __init__(self, invitation: Invitation, client_id: int, policy: ClientPolicy) -> None:
        self._invitation = invitation
        self._digest = keys.digest(invitation.to_bytes())
        self._client_id = client_id
        self._policy = policy
        self._stage = Stage.JOINED
        self._roster: Roster | None = None
        self._entries: dict[int, RosterEntry] = {}
        # Private halves of the two public keys, and the seed of the self mask.
        self._mask_secret = bytearray()
        self._share_secret = bytearray()
        self._seed = bytearray()
        # Keys to seal for, and to unseal from, each neighbour; then what they sealed for this client.
        self._channels: dict[int, bytearray] = {}
        self._held: dict[int, bytearray] = {}

    @classmethod
    def join(
        cls,
        invitation: _Bytes,
        client_id: int,
        policy: ClientPolicy | None = None,
        previous: ClientRound | None = None,
    ) -> ClientRound:
        """The state of a client that accepts an invitation.

        ``previous`` is the state of the client's last round, ended or not: a round that is not later
        than it in the same session is refused, so that no round is played twice.
        """
        proposal = Invitation.from_bytes(invitation)
        policy = ClientPolicy() if policy is None else policy
        _check_invitation(proposal, policy)
        if previous is not None:
            last = previous.round_id
            if last.session == proposal.round_id.session and proposal.round_id.number <= last.number:
                raise SecureAggregationError(
                    f"invited to round {proposal.round_id.number} after round {last.number}: a client takes "
                    f"part in a round once"
                )
            previous.abandon()
        return cls(proposal, client_id, policy)

    @property
    def round_id(self) -> RoundId:
        """Which round of which session."""
        return self._invitation.round_id

    @property
    def stage(self) -> Stage:
        """What was done last."""
        return self._stage

    def __repr__(self) -> str:
        # Never a secret.
        return f"ClientRound(client {self._client_id}, round {self.round_id.number}, {self._stage.name})"

    def __reduce__(self) -> str:
        raise TypeError("a ClientRound is not pickled: it holds secrets; use to_bytes on the client itself")

    def advertise_keys(self) -> bytes:
        """Draw the round's keys and return the public ones."""
        with self._step(Stage.JOINED, Stage.ADVERTISED):
            mask, share = X25519PrivateKey.generate(), X25519PrivateKey.generate()
            self._mask_secret = bytearray(mask.private_bytes_raw())
            self._share_secret = bytearray(share.private_bytes_raw())
            message = KeyAdvertisement(
                self.round_id,
                self._client_id,
                b"",
                mask.public_key().public_bytes_raw(),
                share.public_key().public_bytes_raw(),
            )
            return self._signed(message)

    def share_keys(self, roster: _Bytes) -> bytes:
        """Check the neighbours and seal for each a share of this client's two secrets."""
        with self._step(Stage.ADVERTISED, Stage.SHARED):
            proposal = self._addressed(Roster.from_bytes(roster))
            self._check_roster(proposal)
            self._adopt(proposal)
            private = X25519PrivateKey.from_private_bytes(self._share_secret)
            own = self._entries[self._client_id]
            self._seed = bytearray(os.urandom(shamir.SECRET_BYTES))
            secrets = self._seed + self._mask_secret
            shares = shamir.split(secrets, proposal.threshold, len(proposal.entries))
            keys.wipe(secrets)
            sealed = []
            for entry, share in zip(proposal.entries, shares, strict=True):
                if entry is own:
                    # Its own key it never gives away: a client that answers is not lost.
                    self._held[own.client_id] = bytearray(share[:_SHARE].tobytes())
                    continue
                channel = keys.agree(private, own.share_key, entry.share_key, self._digest, keys.CHANNEL)
                self._channels[entry.client_id] = bytearray(channel)
                bound_to = share_context(self._digest, proposal, own, entry)
                sealed.append(keys.seal(channel, share.tobytes(), bound_to))
            shares.fill(0)
            keys.wipe(self._share_secret)
            commitment = keys.derive(self._seed, self._digest, keys.SELF_MASK_COMMITMENT, own.mask_key)
            return self._signed(SealedShares(self.round_id, self._client_id, b"", commitment, tuple(sealed)))

    def accept_shares(self, delivery: _Bytes) -> None:
        """Open and keep the neighbours' shares: with these neighbours the client will mask.

        A call of its own, so that a client can refuse before it trains.
        """
        with self._step(Stage.SHARED, Stage.ACCEPTED):
            message = self._addressed(ShareDelivery.from_bytes(delivery))
            roster, own = self._known_roster(), self._entries[self._client_id]
            if len(message.senders) + 1 < roster.threshold:
                raise SecureAggregationError(
                    f"{len(message.senders)} neighbours shared their keys: with this client fewer than the "
                    f"threshold {roster.threshold}"
                )
            for sender, sealed in zip(message.senders, message.sealed, strict=True):
                channel = self._channels.get(sender)
                if channel is None:
                    raise SecureAggregationError(f"a share from client {sender}, which is no neighbour")
                text = keys.unseal(
                    channel, sealed, share_context(self._digest, roster, self._entries[sender], own)
                )
                if text is None or len(text) != 2 * _SHARE or not shamir.are_shares(text):
                    raise SecureAggregationError(
                        f"the share from client {sender} does not open: it was sealed for another client, "
                        f"round or roster, or changed on the way"
                    )
                self._held[sender] = bytearray(text)
            keys.wipe(*self._channels.values())
            self._channels.clear()

    def mask(self, codes: ArrayLike) -> bytes:
        """Add the self mask and the masks agreed with the neighbours, then forget their keys."""
        with self._step(Stage.ACCEPTED, Stage.MASKED):
            invitation, own = self._invitation, self._entries[self._client_id]
            vector = _checked_codes(codes, invitation)
            private = X25519PrivateKey.from_private_bytes(self._mask_secret)

            def mask_keys() -> Iterator[tuple[bytes, bool]]:
                yield keys.derive(self._seed, self._digest, keys.SELF_MASK, own.mask_key), True
                for peer in self._held:
                    if peer != self._client_id:
                        peer_key = self._entries[peer].mask_key
                        key = keys.agree(private, own.mask_key, peer_key, self._digest, keys.PAIRWISE_MASK)
                        # The two of a pair must take opposite signs.
                        yield key, self._client_id < peer

            apply_masks(vector, mask_keys())
            low_bits(vector, invitation.width)
            keys.wipe(self._mask_secret, self._seed)
            payload = pack_codes(vector, invitation.width)
            return self._signed(MaskedInput(self.round_id, self._client_id, b"", payload))

    def unmask(self, request: _Bytes) -> bytes:
        """For each neighbour one share: of its seed if its input arrived, of its mask key if not."""
        with self._step(Stage.MASKED, Stage.ENDED):
            message = self._addressed(UnmaskRequest.from_bytes(request))
            active, dead = set(message.active), set(message.dead)
            if active & dead:
                raise SecureAggregationError(
                    f"clients {sorted(active & dead)} are called active and dead: both of their secrets "
                    f"would open"
                )
            if self._client_id not in active:
                raise SecureAggregationError(
                    f"client {self._client_id} is asked to unmask but not called active"
                )
            if active | dead != self._held.keys():
                raise SecureAggregationError(
                    f"clients {sorted((active | dead) ^ self._held.keys())}: the roster changed since the "
                    f"shares were delivered"
                )
            threshold = self._known_roster().threshold
            if len(active) < threshold:
                raise SecureAggregationError(
                    f"{len(active)} of {len(self._held)} holders are active, below the threshold {threshold}"
                )
            reply = UnmaskReply(
                self.round_id,
                self._client_id,
                b"",
                tuple(bytes(self._held[client][:_SHARE]) for client in message.active),
                tuple(bytes(self._held[client][_SHARE:]) for client in message.dead),
            )
            self.abandon()
            return self._signed(reply)

    def abandon(self) -> None:
        """End the round here and erase its secrets."""
        self._stage = Stage.ENDED
        keys.wipe(self._mask_secret, self._share_secret, self._seed)
        keys.wipe(*self._channels.values(), *self._held.values())
        self._channels.clear()
        self._held.clear()
        self._roster = None
        self._entries.clear()

    def to_bytes(self) -> bytes:
        """The state, *with its secrets* until the round has ended."""
        parts = [
            self._invitation.to_bytes(),
            b"" if self._roster is None else self._roster.to_bytes(),
            bytes(self._mask_secret),
            bytes(self._share_secret),
            bytes(self._seed),
        ]
        for table in (self._channels, self._held):
            ids = sorted(table)
            parts += [pack_ids(ids), *(bytes(table[client]) for client in ids)]
        head = _STATE_MAGIC + bytes([self._stage]) + self._client_id.to_bytes(8, "little")
        return head + b"".join(len(part).to_bytes(4, "little") + part for part in parts)

    @classmethod
    def from_bytes(cls, data: _Bytes, policy: ClientPolicy | None = None) -> ClientRound:
        """The state that :meth:`to_bytes` wrote, under the client's policy (which is not in it)."""
        reader = Reader(data, "ClientRound")

        def part() -> bytes:
            return reader.take(int.from_bytes(reader.take(4), "little"))

        def table() -> dict[int, bytearray]:
            head = Reader(part(), "ClientRound")
            ids = head.ids()
            head.finish()
            return {client: bytearray(part()) for client in ids}

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
            state._adopt(Roster.from_bytes(roster))
        state._mask_secret, state._share_secret, state._seed = (bytearray(part()) for _ in range(3))
        state._channels, state._held = table(), table()
        reader.finish()
        state._check_state()
        return state

    def _check_state(self) -> None:
        secrets = (self._mask_secret, self._share_secret, self._seed, *self._channels.values())
        if (
            any(len(secret) not in (0, keys.KEY_BYTES) for secret in secrets)
            or any(len(shares) not in (_SHARE, 2 * _SHARE) for shares in self._held.values())
            or not (self._channels.keys() | self._held.keys()) <= self._entries.keys()
            or (self._roster is not None and self._client_id not in self._entries)
        ):
            raise InvalidUpdateError("ClientRound: the state is damaged")

    @contextmanager
    def _step(self, before: Stage, after: Stage) -> Iterator[None]:
        """From one stage to the next, or to the end with everything erased."""
        if self._stage is not before:
            stage = self._stage
            self.abandon()
            if stage is Stage.ENDED:
                raise SecureAggregationError(
                    f"client {self._client_id} has ended round {self.round_id.number}: it unmasks once, and "
                    f"nothing is left to answer with"
                )
            raise SecureAggregationError(
                f"client {self._client_id} is at stage {stage.name}, asked for what follows {before.name}"
            )
        try:
            yield
        except BaseException:
            self.abandon()
            raise
        self._stage = after

    def _addressed(self, message: _FromServer) -> _FromServer:
        if message.round_id != self.round_id:
            raise SecureAggregationError(
                f"a message of round {message.round_id.number} or of another session, in round "
                f"{self.round_id.number}"
            )
        return message

    def _signed(self, message: ClientMessage) -> bytes:
        identity = self._policy.identity
        if self._invitation.signed and identity is not None:
            message = message.with_signature(keys.sign(identity, self._digest, message.body()))
        return message.to_bytes()

    def _known_roster(self) -> Roster:
        if self._roster is None:
            raise SecureAggregationError(f"client {self._client_id} has no roster: its state is damaged")
        return self._roster

    def _adopt(self, roster: Roster) -> None:
        self._roster = roster
        self._entries = {entry.client_id: entry for entry in roster.entries}

    def _check_roster(self, roster: Roster) -> None:
        entries = {entry.client_id: entry for entry in roster.entries}
        own = entries.get(self._client_id)
        if own is None:
            raise SecureAggregationError(f"client {self._client_id} is missing from its own roster")
        public = [key for entry in roster.entries for key in (entry.mask_key, entry.share_key)]
        if len(set(public)) != len(public):
            raise SecureAggregationError("a public key stands twice on the roster: keys must be distinct")
        if (own.mask_key, own.share_key) != (
            keys.public_key(self._mask_secret),
            keys.public_key(self._share_secret),
        ):
            raise SecureAggregationError(
                f"the roster has other keys for client {self._client_id} than it sent"
            )
        holders, invited = len(entries), self._invitation.num_clients
        if not holders <= roster.num_clients <= invited:
            raise SecureAggregationError(
                f"roster of {holders} among {roster.num_clients} clients of {invited} invited: a sum of more "
                f"could exceed the modulus"
            )
        if holders - 1 < self._policy.min_neighbors:
            raise SecureAggregationError(
                f"{holders - 1} neighbours, below the {self._policy.min_neighbors} of min_neighbors"
            )
        if not holders < 2 * roster.threshold <= 2 * holders:
            raise SecureAggregationError(
                f"threshold {roster.threshold} of {holders} holders: expected more than half of them, or the "
                f"server could open both secrets of a client"
            )
        self._check_signatures(roster)

    def _check_signatures(self, roster: Roster) -> None:
        known = self._policy.known_identities
        if known is None:
            return
        for entry in roster.entries:
            identity = known.get(entry.client_id)
            if identity is None:
                raise SecureAggregationError(f"client {entry.client_id} of the roster has no known identity")
            body = entry.advertisement(self.round_id).body()
            if not keys.verifies(identity, entry.signature, self._digest, body):
                raise SecureAggregationError(
                    f"the keys of client {entry.client_id} are not signed by its identity for this round"
                )


def share_context(round_digest: bytes, roster: Roster, sender: RosterEntry, receiver: RosterEntry) -> bytes:
    """What a sealed share is bound to: the round, its size and threshold, and who sends it to whom."""
    numbers = (roster.num_clients, roster.threshold, sender.client_id, receiver.client_id)
    return b"".join(
        [
            round_digest,
            *(number.to_bytes(8, "little") for number in numbers),
            sender.mask_key,
            receiver.mask_key,
        ]
    )


def _check_invitation(invitation: Invitation, policy: ClientPolicy) -> None:
    if not 1 <= invitation.width <= MAX_WIDTH:
        raise SecureAggregationError(f"width: {invitation.width} bits, expected 1 to {MAX_WIDTH}")
    largest = invitation.max_code
    if largest is not None and invitation.num_clients * largest >= 1 << invitation.width:
        raise SecureAggregationError(
            f"the modulus 2^{invitation.width} is too small for the sum of {invitation.num_clients} codes up "
            f"to {largest}"
        )
    if policy.known_identities is not None and not invitation.signed:
        raise SecureAggregationError(
            "the round is not signed, but this client knows identities and asks for them"
        )
    if invitation.signed and policy.identity is None:
        raise SecureAggregationError("the round is signed, but this client has no identity key")


def _checked_codes(codes: ArrayLike, invitation: Invitation) -> NDArray[Any]:
    """A copy of the codes in the words of the masks. No message tells a code: it may be private."""
    vector = np.asarray(codes)
    if vector.dtype.kind not in "ui" or vector.shape != (invitation.dimension,):
        raise InvalidUpdateError(
            f"codes: {vector.dtype} of shape {vector.shape}, expected integers of shape "
            f"({invitation.dimension},)"
        )
    largest = (1 << invitation.width) - 1 if invitation.max_code is None else invitation.max_code
    if vector.size and (int(vector.min()) < 0 or int(vector.max()) > largest):
        raise InvalidUpdateError(f"codes: some lie outside 0..{largest}")
    return vector.astype(lane(invitation.width))
