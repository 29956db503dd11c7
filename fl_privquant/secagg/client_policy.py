"""What a client insists on, whatever the server proposes: size, graph, threshold, survivors, signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fl_privquant import _validation
from fl_privquant.cohort import check_fraction, count_clients, min_honest_clients
from fl_privquant.errors import InvalidSpecError, SecureAggregationError, pluralize
from fl_privquant.packing.pack import MAX_WIDTH
from fl_privquant.secagg._wire import ClientMessage
from fl_privquant.secagg.crypto import keys
from fl_privquant.secagg.graph.parameters import (
    MAX_SECURITY_FAILURE,
    MIN_NEIGHBORS,
    GraphParameters,
    security_failure,
)
from fl_privquant.secagg.messages import Confirmation, Invitation
from fl_privquant.secagg.signed.transcript import known_digest
from fl_privquant.secagg.signed.witnesses import WITNESS_FAILURE, quorum_size


@_validation.check_argument_names
@dataclass(frozen=True)
class ClientPolicy:
    """What a client insists on, whatever the server proposes.

    Guarantee: every sum that this client helps to open holds the codes of at least
    :attr:`min_honest` honest clients, if of the clients that the server shows it no more than
    ``corrupt_fraction`` are corrupt (and as far as the threat model of :mod:`fl_privquant.secagg` goes). The
    server chooses whom it shows, so set ``min_clients`` so large that ``corrupt_fraction`` of it covers all
    the clients that you assume to be corrupt.

    Parameters
    ----------
    min_clients
        The fewest clients of a round. The default is for simulations.
    corrupt_fraction
        Fraction of the clients of a round that may work together with the server, rounded up.
    dropout_fraction
        Fraction of the clients of a round that may be lost, rounded up. If more are lost, this client does
        not help to open the sum.
    server_may_lie
        Whether the graph must protect both secrets of a client even if the server tells clients different
        things about who was lost. Clients with ``known_identities`` always demand it. It makes a difference
        from 34 clients on; the server must set it too.
    identity
        The client's own Ed25519 key, with which it signs what it sends.
    known_identities
        Raw Ed25519 public keys of the clients, by id, which must not come from the server. With them the
        client shares masks only with the owners of these keys, and unmasks only if enough of them confirm
        that they were told the same. Without them it trusts the server not to invent clients.
    answered_folder
        Folder in which the client records each stage before it answers, so that no other process, and no
        older copy of its state, answers it again (:mod:`fl_privquant.secagg._answer_log`). None: this process
        remembers what it has answered.
    """

    min_clients: Annotated[int, _validation.integer_between(2, 1 << 32)] = 3
    corrupt_fraction: Annotated[float, check_fraction] = 0.1
    dropout_fraction: Annotated[float, check_fraction] = 0.1
    server_may_lie: bool = False
    identity: Ed25519PrivateKey | None = field(default=None, repr=False)
    known_identities: Mapping[int, keys.Identity] | None = field(default=None, repr=False)
    answered_folder: Path | None = None

    def __post_init__(self) -> None:
        _validation.check_declared(self)

    @property
    def signed(self) -> bool:
        """Whether the client assumes that the server may lie, and relies on signatures of clients."""
        return self.known_identities is not None

    @property
    def min_honest(self) -> int:
        """The fewest honest clients in any sum that this client helps to open.

        >>> ClientPolicy(min_clients=50).min_honest
        40
        """
        return min_honest_clients(self.min_clients, self.corrupt_fraction, self.dropout_fraction)

    def min_survivors(self, num_clients: int) -> int:
        """How many inputs of ``num_clients`` clients must have arrived before anything is opened."""
        return num_clients - count_clients(self.dropout_fraction, num_clients)

    def quorum(self, num_clients: int, num_witnesses: int) -> int:
        """Witnesses that must agree before this client unmasks (:mod:`fl_privquant.secagg.signed.witnesses`).

        >>> ClientPolicy().quorum(100, num_witnesses=31)
        21
        """
        corrupt = count_clients(self.corrupt_fraction, num_clients)
        return quorum_size(num_clients, num_witnesses, corrupt, WITNESS_FAILURE)

    @cached_property
    def known(self) -> bytes:
        """The digest of the list of known clients, by which the server knows what is on it."""
        return known_digest(self.known_identities or {})

    def check_invitation(self, invitation: Invitation) -> None:
        """Refuse a modulus that is too small, a round that is too small, or one without signatures."""
        if not 1 <= invitation.width <= MAX_WIDTH:
            raise SecureAggregationError(f"width: {invitation.width} bits, expected 1 to {MAX_WIDTH}")
        largest = invitation.max_code
        if largest is not None and invitation.num_clients * largest >= 1 << invitation.width:
            raise SecureAggregationError(
                f"the modulus 2^{invitation.width} is too small for the sum of {invitation.num_clients} "
                f"codes up to {largest}"
            )
        self.check_size(invitation.num_clients)
        if self.signed and not invitation.signed:
            raise SecureAggregationError(
                "the round is not signed, but this client has a list of known clients and needs signatures"
            )
        if invitation.signed and self.identity is None:
            raise SecureAggregationError("the round is signed, but this client has no identity key")

    def check_size(self, num_clients: int) -> None:
        """Refuse a round of fewer than ``min_clients``."""
        if num_clients < self.min_clients:
            raise SecureAggregationError(
                f"{pluralize(num_clients, 'client')}, below the {self.min_clients} of this client's "
                f"min_clients"
            )

    def check_graph(self, num_clients: int, num_neighbors: int, threshold: int, spread: bool = False) -> None:
        """Refuse a graph, or a threshold, that is weaker than this client's fractions demand."""
        try:
            graph = GraphParameters(num_clients, num_neighbors, threshold, spread)
        except InvalidSpecError as error:
            raise SecureAggregationError(str(error)) from None
        least = min(num_clients - 1, MIN_NEIGHBORS)
        if num_neighbors < least:
            raise SecureAggregationError(
                f"{num_neighbors} neighbors among {num_clients} clients, expected {least} or more: up to "
                f"{MIN_NEIGHBORS + 1} clients everyone is everyone's neighbor"
            )
        assumed = {"corrupt_fraction": self.corrupt_fraction, "dropout_fraction": self.dropout_fraction}
        odds = security_failure(graph, server_may_lie=self.server_may_lie, signed=self.signed, **assumed)
        if not odds <= MAX_SECURITY_FAILURE:
            raise SecureAggregationError(
                f"threshold {threshold} of {num_neighbors + 1} holders among {num_clients} clients: the odds "
                f"of a failure are up to {odds:.2g}, above {MAX_SECURITY_FAILURE:.2g}, at this client's "
                f"corrupt_fraction ({self.corrupt_fraction}) and "
                f"dropout_fraction ({self.dropout_fraction})"
            )

    def check_survivors(self, num_clients: int, survivors: int) -> None:
        """Refuse to open a sum that has lost more clients than ``dropout_fraction``."""
        least = self.min_survivors(num_clients)
        if survivors < least:
            raise SecureAggregationError(
                f"{survivors} of {num_clients} clients are left, below the {least} that this client's "
                f"dropout_fraction ({self.dropout_fraction}) leaves"
            )

    def check_clients(self, clients: Sequence[int]) -> None:
        """Refuse a round with clients that are not known, where identities are known."""
        known = self.known_identities
        if known is not None and (strangers := [client for client in clients if client not in known]):
            raise SecureAggregationError(f"client {strangers[0]} of the roster has no known identity")

    def identity_of(self, client: int, told: bytes | None) -> bytes:
        """The identity key of a client on the roster: the one that was ``told``, or the only known one."""
        owned = None if self.known_identities is None else keys.public_keys_of(self.known_identities[client])
        if told is None:
            if owned is None or len(owned) != 1:
                raise SecureAggregationError(
                    f"client {client} is on the roster without its identity key, and this client does not "
                    f"know exactly one key of it"
                )
            return owned[0]
        if owned is not None and told not in owned:
            raise SecureAggregationError(
                f"client {client} is on the roster with an identity key that this client's list does not have"
            )
        return told

    def is_signed_by_sender(self, message: ClientMessage, told: bytes) -> bool:
        """Whether the sender signed this message together with ``told``, the digest of the graph.

        Without known identities this cannot be checked, and every message is accepted.
        """
        if self.known_identities is None:
            return True
        identity = self.known_identities.get(message.client_id)
        return identity is not None and keys.verify(identity, message.signature, told, message.body())

    def check_quorum(
        self, num_clients: int, num_witnesses: int, told: bytes, confirmations: Sequence[Confirmation]
    ) -> None:
        """Refuse to unmask before enough of the witnesses have signed that they were told the same."""
        needed = self.quorum(num_clients, num_witnesses)
        if len(confirmations) < needed:
            raise SecureAggregationError(
                f"{len(confirmations)} of {num_witnesses} witnesses confirmed the survivors, below the "
                f"{needed} that this client's corrupt_fraction ({self.corrupt_fraction}) of "
                f"{num_clients} clients demands"
            )
        for confirmation in confirmations[:needed]:
            if not self.is_signed_by_sender(confirmation, told):
                raise SecureAggregationError(
                    f"client {confirmation.client_id} did not sign the list of survivors that this client "
                    f"was shown"
                )
