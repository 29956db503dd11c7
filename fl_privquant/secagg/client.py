"""A client's side of one round: its answers to the server, and the reasons not to give them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import ArrayLike, NDArray

from fl_privquant.errors import InvalidUpdateError, SecureAggregationError
from fl_privquant.packing.pack import pack_codes
from fl_privquant.secagg import messages
from fl_privquant.secagg._answer_log import AnsweredFolder, answered_stages
from fl_privquant.secagg._client_state import ClientState, Stage
from fl_privquant.secagg._wire import ClientMessage, Message, Octets, RoundId
from fl_privquant.secagg.client_policy import ClientPolicy
from fl_privquant.secagg.crypto import keys, shamir
from fl_privquant.secagg.crypto.masks import apply_masks, derive_pair_mask_key, mask_dtype, reduce_modulo
from fl_privquant.secagg.crypto.sharing import commit_to_seed, deal, derive_held_shares, draw_dealing
from fl_privquant.secagg.graph.neighbors import cached_graph
from fl_privquant.secagg.graph.roster import check_roster, graph_parameters
from fl_privquant.secagg.signed.transcript import agreement_digest, masks_digest

_FromServer = TypeVar("_FromServer", bound=Message)

_SHARE: Final = shamir.SHARE_BYTES


class ClientRound(ClientState):
    """One client in one round: a state that goes from stage to stage and ends with no secret of the round.

    The methods are called in this order, each once, with what the server sent; most return the bytes
    to send back. ::

        client = ClientRound.join(invitation, client_id, policy)
        client.advertise_keys()            -> KeyAdvertisement
        client.share_keys(roster)          -> SharedSeeds
        client.settle(request, context)       with whom to mask, and what is asked for
        client.mask(codes)                 -> MaskedInput
        client.confirm(survivors)          -> Confirmation, in signed rounds only
        client.unmask(request)             -> UnmaskReply

    Whatever is wrong raises SecureAggregationError (a refusal) or InvalidUpdateError (malformed) and
    ends the round for this client: its secrets are erased, and every later call is refused.

    Between two calls the state can be kept as bytes (:meth:`to_bytes`), as a Flower client must, which
    remembers nothing by itself. These bytes hold the round's secrets. Keep them on the client, store what
    :meth:`to_bytes` gives after every call *and after every error*, and overwrite what was stored before. A
    stage is answered once, from whichever copy of the state: by one process, or by all processes
    where the policy names an ``answered_folder`` (:mod:`fl_privquant.secagg._answer_log`). Erasing is best
    effort: Python and the libraries below may have copied a secret.
    """

    @classmethod
    def join(
        cls,
        invitation: Octets,
        client_id: int,
        policy: ClientPolicy | None = None,
        previous: ClientRound | None = None,
    ) -> ClientRound:
        """The state of a client that accepts an invitation.

        ``previous`` is the state of the client's last round, ended or not. A round of the same session that
        is not later is refused, so that the client takes part in no round twice.
        """
        proposal = messages.Invitation.from_bytes(invitation)
        policy = ClientPolicy() if policy is None else policy
        policy.check_invitation(proposal)
        round_id = proposal.round_id
        if previous is not None:
            last = previous.round_id
            if last.session == round_id.session and round_id.number <= last.number:
                raise SecureAggregationError(
                    f"invited to round {round_id.number} after round {last.number}: a client takes part in a "
                    f"round once"
                )
        if not _claim_stage(policy, round_id, client_id, Stage.JOINED):
            raise SecureAggregationError(
                f"invited to round {round_id.number} again: a client takes part in a round once"
            )
        state = cls(proposal, client_id, policy)
        if previous is not None:
            previous.abandon()
        return state

    def advertise_keys(self) -> bytes:
        """Draw the round's key pair and return the public key."""
        with self._step(Stage.JOINED, Stage.ADVERTISED):
            self._private = keys.draw_secret()
            self._advertised = keys.public_key(self._private)
            list_digest = self._policy.known if self._invitation.signed else b""
            return self._sign_message(messages.KeyAdvertisement, self._advertised, list_digest)

    def share_keys(self, roster: Octets) -> bytes:
        """Check who takes part, agree with each neighbor, and share this client's two seeds."""
        with self._step(Stage.ADVERTISED, Stage.SHARED):
            proposal = self._parse_message(messages.Roster, roster)
            identity = self._identity
            signs_by = b"" if identity is None else identity.public_key().public_bytes_raw()
            own = messages.RosterEntry(self._client_id, self._advertised, signs_by)
            checked = check_roster(proposal, self._invitation, own, self._digest, self._policy)
            self._parameters, self._num_witnesses = graph_parameters(proposal), proposal.num_witnesses
            self._all_clients, self._graph_digest = checked.everyone, checked.graph_digest
            self._round_keys = {entry.client_id: entry.public_key for entry in checked.entries}
            # Seeds are derived, not drawn: a restored state must share the same seeds again, because
            # corrections of two different seeds to one derived share would reveal the seeds' difference.
            drawn = bytearray(draw_dealing(self._private, self._graph_digest))
            pairs = self._agree_with([entry for entry in checked.entries if entry is not own])
            self._seed, wrapping_seed = drawn[: keys.SEED_BYTES], drawn[keys.SEED_BYTES : 2 * keys.SEED_BYTES]
            secrets, holders = drawn[: 2 * keys.SEED_BYTES], list(self._round_keys)
            kept = bytes(drawn[2 * keys.SEED_BYTES :])
            share, corrections = deal(secrets, kept, proposal.threshold, self._client_id, holders, pairs)
            # The client keeps no share of its own wrapping seed: while it can answer, it is not lost.
            self._held_shares[self._client_id] = bytearray(share[:_SHARE])
            self._held_shares |= derive_held_shares(pairs, self._client_id)
            message = self._sign_message(
                messages.SharedSeeds,
                commit_to_seed(self._seed, self._digest, keys.SEED_COMMITMENT, own.public_key),
                commit_to_seed(wrapping_seed, self._digest, keys.WRAPPING_COMMITMENT, own.public_key),
                keys.wrap(wrapping_seed, self._graph_digest, own.public_key, [*self._roots.values()]),
                tuple(corrections),
            )
            keys.wipe(drawn, secrets, wrapping_seed, *pairs.values())
            return message

    def settle(self, request: Octets, context: bytes = b"") -> None:
        """Check with whom to mask, and bind the masks to what is asked for (``context``, of any length).

        This is a call of its own, so that a client can refuse before it trains.
        """
        with self._step(Stage.SHARED, Stage.SETTLED):
            message = self._parse_message(messages.MaskRequest, request)
            listed = message.members.select_from(self._all_clients or list(self._round_keys))
            members, graph = set(listed), self._graph_parameters()
            if self._client_id not in members:
                raise SecureAggregationError(
                    f"client {self._client_id} is asked to mask, but is not on the list of members"
                )
            if self._all_clients:
                self._policy.check_survivors(graph.num_clients, len(members))
            for peer in self._held_shares.keys() - members:
                keys.wipe(self._held_shares.pop(peer))
            if len(self._held_shares) < graph.threshold:
                raise SecureAggregationError(
                    f"{len(self._held_shares) - 1} neighbors are left: with this client fewer than the "
                    f"threshold {graph.threshold}"
                )
            self._members = listed if self._all_clients else ()
            self._masks_digest = masks_digest(self._graph_digest, self._members, context)

    def mask(self, codes: ArrayLike) -> bytes:
        """Add the self mask and the masks agreed with the neighbors, then forget their keys."""
        with self._step(Stage.SETTLED, Stage.MASKED):
            invitation, salt = self._invitation, self._masks_digest
            own_key = self._round_keys[self._client_id]
            vector = _check_codes(codes, invitation)

            def mask_keys() -> Iterator[tuple[bytes, bool]]:
                yield keys.derive(self._seed, salt, keys.SELF_MASK, own_key), True
                for peer in self._held_shares:
                    if peer != self._client_id:
                        key = derive_pair_mask_key(self._roots[peer], salt, own_key, self._round_keys[peer])
                        # Of two neighbors one adds their mask, and the other subtracts it.
                        yield key, self._client_id < peer

            apply_masks(vector, mask_keys())
            reduce_modulo(vector, invitation.width)
            keys.wipe(self._seed, *self._roots.values())
            self._roots.clear()
            self._round_keys.clear()
            return self._sign_message(messages.MaskedInput, pack_codes(vector, invitation.width))

    def confirm(self, survivors: Octets) -> bytes:
        """Sign the list of clients whose inputs arrived, once, with all that this client was told before."""
        with self._step(Stage.MASKED, Stage.CONFIRMED):
            message = self._parse_message(messages.SurvivorList, survivors)
            if not self._invitation.signed:
                raise SecureAggregationError("the round is not signed: there is nothing to confirm")
            listed = message.survivors.select_from(self._all_clients)
            if self._client_id not in listed:
                raise SecureAggregationError(f"client {self._client_id} is missing from the survivors")
            if strangers := set(listed).difference(self._members):
                raise SecureAggregationError(f"clients {sorted(strangers)} are survivors but not members")
            self._check_survivors(message.survivors.places)
            self._active = tuple(sorted(self._held_shares.keys() & set(listed)))
            self._agreement = agreement_digest(self._masks_digest, listed)
            return self._sign_message(messages.Confirmation, self._agreement)

    def unmask(self, request: Octets) -> bytes:
        """One share for each neighbor: of its self-mask seed, or of its wrapping seed if it was lost."""
        with self._step(Stage.CONFIRMED if self._invitation.signed else Stage.MASKED, Stage.ENDED):
            message = self._parse_message(messages.UnmaskRequest, request)
            holders = sorted(self._held_shares)
            active = message.active.select_from(holders)
            self._check_active(active)
            if self._invitation.signed:
                if active != self._active:
                    raise SecureAggregationError(
                        f"clients {sorted({*active} ^ {*self._active})}: the survivors changed since "
                        f"this client confirmed them"
                    )
                self._check_confirmations(message)
            lost = [client for client in holders if client not in active]
            reply = self._sign_message(
                messages.UnmaskReply,
                tuple(bytes(self._held_shares[client][:_SHARE]) for client in active),
                tuple(bytes(self._held_shares[client][_SHARE:]) for client in lost),
            )
            self.abandon()
            return reply

    @contextmanager
    def _step(self, before: Stage, after: Stage) -> Iterator[None]:
        """Go from one stage to the next; an error erases all secrets and ends the round."""
        if self._stage is not before:
            stage = self._stage
            self.abandon()
            if stage is Stage.ENDED:
                raise SecureAggregationError(
                    f"client {self._client_id} has ended round {self.round_id.number}: it unmasks once, and "
                    f"nothing is left to answer with"
                )
            raise SecureAggregationError(
                f"client {self._client_id} is at stage {stage.name}, but is asked for what follows "
                f"{before.name}"
            )
        try:
            if not _claim_stage(self._policy, self.round_id, self._client_id, after):
                raise SecureAggregationError(
                    f"client {self._client_id} has already reached stage {after.name} of round "
                    f"{self.round_id.number}: it answers each stage once, whichever copy of its state is "
                    f"asked"
                )
            yield
        except BaseException:
            self.abandon()
            raise
        self._stage = after

    def _parse_message(self, kind: type[_FromServer], data: Octets) -> _FromServer:
        """The message of that kind in these bytes, if it belongs to this round."""
        message = kind.from_bytes(data)
        if message.round_id != self.round_id:
            raise SecureAggregationError(
                f"a message of round {message.round_id.number} or of another session, in round "
                f"{self.round_id.number}"
            )
        return message

    def _sign_message(self, kind: type[ClientMessage], *fields: Any) -> bytes:
        """The message of this client with these fields, signed in signed rounds."""
        message = kind(self.round_id, self._client_id, b"", *fields)
        body, signature = message.body(), b""
        if (identity := self._identity) is not None:
            signature = keys.sign(identity, self._graph_digest or self._digest, body)
        return message.close(body, signature)

    @property
    def _identity(self) -> Ed25519PrivateKey | None:
        """The identity key by which the client signs; None if the round is not signed."""
        return self._policy.identity if self._invitation.signed else None

    def _agree_with(self, neighbors: Sequence[messages.RosterEntry]) -> dict[int, bytearray]:
        """The pair secret with each neighbor; roots of masks are kept, and the private key is erased."""
        own_key, pairs = self._round_keys[self._client_id], {}
        lasting = self._share_identity_keys(neighbors)
        for entry in neighbors:
            shared = lasting.get(entry.identity, b"")
            pair = keys.agree(self._private, own_key, entry.public_key, self._graph_digest, shared)
            pairs[entry.client_id] = bytearray(pair)
            self._roots[entry.client_id] = bytearray(keys.expand(pair, keys.SEED_BYTES, keys.MASK_ROOT))
        keys.wipe(self._private)
        return pairs

    def _share_identity_keys(self, neighbors: Sequence[messages.RosterEntry]) -> dict[bytes, bytes]:
        """The keys that this client's identity shares with those of its neighbors, in signed rounds."""
        if self._identity is None:
            return {}
        return keys.derive_identity_pair_keys(self._identity, [entry.identity for entry in neighbors])

    def _check_survivors(self, places: Sequence[int]) -> None:
        """Refuse a list of too few survivors, or with one that has too few holders among them.

        A server that lies can choose whom to call lost. If every survivor still has enough holders, the graph
        does not fall apart all the same (:mod:`fl_privquant.secagg.graph.parameters`).
        """
        graph = self._graph_parameters()
        self._policy.check_survivors(graph.num_clients, len(places))
        min_holders = cached_graph(self._graph_digest, graph).min_holders(places)
        if min_holders < graph.threshold:
            raise SecureAggregationError(
                f"one of the survivors has {min_holders} holders among them, below the threshold "
                f"{graph.threshold}"
            )

    def _check_confirmations(self, message: messages.UnmaskRequest) -> None:
        graph = self._graph_parameters()
        places = cached_graph(self._graph_digest, graph).witnesses(self._num_witnesses)
        witnesses = [self._all_clients[place] for place in sorted(places)]
        signed = zip(message.signers.select_from(witnesses), message.signatures, strict=True)
        self._policy.check_quorum(
            graph.num_clients,
            len(witnesses),
            self._graph_digest,
            [messages.Confirmation(self.round_id, client, mark, self._agreement) for client, mark in signed],
        )

    def _check_active(self, active: Sequence[int]) -> None:
        graph = self._graph_parameters()
        if self._client_id not in active:
            raise SecureAggregationError(f"client {self._client_id} is asked to unmask but not called active")
        if len(active) < graph.threshold:
            raise SecureAggregationError(
                f"{len(active)} of {len(self._held_shares)} holders are active, below the threshold "
                f"{graph.threshold}"
            )
        if self._all_clients and not self._invitation.signed:
            # The client is not told about members with which it shares no mask: they count as active.
            unknown = len(self._members) - len(self._held_shares)
            self._policy.check_survivors(graph.num_clients, len(active) + unknown)


def _claim_stage(policy: ClientPolicy, round_id: RoundId, client_id: int, stage: Stage) -> bool:
    """Whether the client may answer this stage, which it has not answered before; it is recorded now."""
    record = answered_stages if policy.answered_folder is None else AnsweredFolder(policy.answered_folder)
    return record.claim(round_id.session, client_id, round_id.number, stage)


def _check_codes(codes: ArrayLike, invitation: messages.Invitation) -> NDArray[Any]:
    """A copy of the codes as words of the masks' size; errors quote no code, which may be private."""
    vector = np.asarray(codes)
    if vector.dtype.kind not in "ui" or vector.shape != (invitation.dimension,):
        raise InvalidUpdateError(
            f"codes: {vector.dtype} of shape {vector.shape}, expected integers of shape "
            f"({invitation.dimension},)"
        )
    largest = (1 << invitation.width) - 1 if invitation.max_code is None else invitation.max_code
    if vector.size and (int(vector.min()) < 0 or int(vector.max()) > largest):
        raise InvalidUpdateError(f"codes: some lie outside 0..{largest}")
    return vector.astype(mask_dtype(invitation.width))
