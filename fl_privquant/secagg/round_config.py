"""What a round sums, and against whom it is secured: what the server sets and clients check."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fl_privquant import checks
from fl_privquant.cohort import corrupt_and_lost, count_of
from fl_privquant.errors import InvalidSpecError
from fl_privquant.packing.pack import MAX_WIDTH
from fl_privquant.secagg.keys import Identity
from fl_privquant.secagg.parameters import GraphParameters, choose_parameters, needs_cycles, security_failure
from fl_privquant.secagg.wire import SESSION_BYTES
from fl_privquant.secagg.witnesses import quorum_of, witness_failure, witnesses_needed


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
        Number of codes that a client sends.
    width
        The sum is taken modulo 2^width, 1 to 32: ``codebook.sum_bits(number of invited clients)``.
    max_code
        Largest code. None: codes are residues modulo 2^width, and so is their sum.
    corrupt_fraction, dropout_fraction, max_security_failure, max_correctness_failure, server_may_lie
        See :func:`~fl_privquant.secagg.parameters.choose_parameters`.
    num_neighbors, threshold
        If both are given, they are used instead of being computed, provided that they keep
        ``max_security_failure`` (with fewer clients than neighbours the graph is complete, and the threshold
        must still fit). An infinite ``max_security_failure`` allows any values and protects nobody: it is for
        measurements and tests.
    identities
        Raw Ed25519 public keys of the clients, by id: every message of a client must be signed, clients
        confirm the survivors to one another, and the graph withstands a server that lies.
    """

    session: bytes
    number: int
    dimension: Annotated[int, checks.whole_in(1, 1 << 48)]
    width: Annotated[int, checks.whole_in(1, MAX_WIDTH)]
    max_code: Annotated[int | None, checks.whole_in(1, 1 << MAX_WIDTH)]
    corrupt_fraction: float = 0.1
    dropout_fraction: float = 0.1
    max_security_failure: float = 2.0**-40
    max_correctness_failure: float = 2.0**-20
    server_may_lie: bool = False
    num_neighbors: int | None = None
    threshold: int | None = None
    identities: Mapping[int, Identity] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        checks.check_declared(self)
        if (self.num_neighbors is None) != (self.threshold is None):
            raise InvalidSpecError(
                f"num_neighbors {self.num_neighbors}, threshold {self.threshold}: give both or neither"
            )

    @property
    def signed(self) -> bool:
        """Whether clients sign, and so do not trust the server."""
        return self.identities is not None

    def least_survivors(self, num_clients: int) -> int:
        """The fewest inputs that must have arrived for clients to help to open the sum."""
        if math.isinf(self.max_security_failure):
            return 0
        return num_clients - count_of(self.dropout_fraction, num_clients)

    def num_witnesses(self, num_clients: int) -> int:
        """Clients whose confirmations count, in signed rounds (:mod:`fl_privquant.secagg.witnesses`)."""
        if not self.signed:
            return 0
        odds = witness_failure(self.max_security_failure), self.max_correctness_failure / 2
        return witnesses_needed(num_clients, *self._corrupt_and_lost(num_clients), *odds)

    def quorum(self, num_clients: int) -> int:
        """Witnesses whose confirmations are needed before clients unmask, in signed rounds."""
        corrupt, _ = self._corrupt_and_lost(num_clients)
        odds = witness_failure(self.max_security_failure)
        return quorum_of(num_clients, self.num_witnesses(num_clients), corrupt, odds)

    def _corrupt_and_lost(self, num_clients: int) -> tuple[int, int]:
        return corrupt_and_lost(num_clients, self.corrupt_fraction, self.dropout_fraction)

    def graph(self, num_clients: int) -> GraphParameters:
        """Neighbours and threshold for this many clients, as given or computed."""
        assumed: dict[str, Any] = {
            "corrupt_fraction": self.corrupt_fraction,
            "dropout_fraction": self.dropout_fraction,
            "server_may_lie": self.server_may_lie,
            "signed": self.signed,
        }
        if self.num_neighbors is None or self.threshold is None:
            return choose_parameters(
                num_clients,
                max_security_failure=self.max_security_failure,
                max_correctness_failure=self.max_correctness_failure,
                **assumed,
            )
        k = min(self.num_neighbors, num_clients - 1)
        spread = self.signed and needs_cycles(num_clients, k, sum(self._corrupt_and_lost(num_clients)))
        graph = GraphParameters(num_clients, k, self.threshold, spread)
        failure = security_failure(graph, **assumed)
        if not failure <= self.max_security_failure:
            raise InvalidSpecError(
                f"num_neighbors {k}, threshold {self.threshold}: for {num_clients} clients the odds of a "
                f"failure are up to {failure:.2g}, above max_security_failure "
                f"({self.max_security_failure:.2g}); leave both out to have them computed"
            )
        return graph
