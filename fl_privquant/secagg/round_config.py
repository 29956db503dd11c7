"""What a round sums, and against whom it is secured: what the server sets and clients check."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fl_privquant import _validation
from fl_privquant.cohort import count_clients, count_corrupt_and_dropped
from fl_privquant.errors import InvalidSpecError
from fl_privquant.packing.pack import MAX_WIDTH
from fl_privquant.secagg._wire import SESSION_BYTES
from fl_privquant.secagg.crypto.keys import Identity
from fl_privquant.secagg.graph.parameters import (
    GraphParameters,
    choose_parameters,
    needs_cycles,
    security_failure,
)
from fl_privquant.secagg.signed.witnesses import min_witnesses, quorum_size, witness_failure


def draw_session() -> bytes:
    """A session id that no other run has."""
    return secrets.token_bytes(SESSION_BYTES)


@dataclass(frozen=True)
class RoundConfig:
    """What a round sums, and against whom it is secured.

    Parameters
    ----------
    session, number
        16 bytes that name the run (:func:`draw_session`), and the round in it, increasing.
    dimension
        Number of codes that a client sends.
    width
        The sum is taken modulo 2^width, 1 to 32: ``codebook.sum_bits(number of invited clients)``.
    max_code
        Largest code. None: codes are residues modulo 2^width, and so is their sum.
    corrupt_fraction, dropout_fraction, max_security_failure, max_correctness_failure, server_may_lie
        See :func:`~fl_privquant.secagg.graph.parameters.choose_parameters`.
    num_neighbors, threshold
        If both are given, they are used instead of being computed, provided that they keep
        ``max_security_failure`` (with fewer clients than neighbors the graph is complete, and the threshold
        must still fit). An infinite ``max_security_failure`` allows any values and protects nobody: it is for
        measurements and tests.
    identities
        Raw Ed25519 public keys of the clients, by id: every message of a client must be signed, clients
        confirm the survivors to one another, and the graph withstands a server that lies.
    """

    session: bytes
    number: int
    dimension: Annotated[int, _validation.integer_between(1, 1 << 48)]
    width: Annotated[int, _validation.integer_between(1, MAX_WIDTH)]
    max_code: Annotated[int | None, _validation.integer_between(1, 1 << MAX_WIDTH)]
    corrupt_fraction: float = 0.1
    dropout_fraction: float = 0.1
    max_security_failure: float = 2.0**-40
    max_correctness_failure: float = 2.0**-20
    server_may_lie: bool = False
    num_neighbors: int | None = None
    threshold: int | None = None
    identities: Mapping[int, Identity] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _validation.check_declared(self)
        if (self.num_neighbors is None) != (self.threshold is None):
            raise InvalidSpecError(
                "num_neighbors, threshold", (self.num_neighbors, self.threshold), "", "give both or neither"
            )

    @property
    def signed(self) -> bool:
        """Whether clients sign, and so do not trust the server."""
        return self.identities is not None

    def min_survivors(self, num_clients: int) -> int:
        """The fewest inputs that must have arrived for clients to help to open the sum."""
        if math.isinf(self.max_security_failure):
            return 0
        return num_clients - count_clients(self.dropout_fraction, num_clients)

    def num_witnesses(self, num_clients: int) -> int:
        """Clients whose confirmations count in signed rounds; see :mod:`fl_privquant.secagg.signed`."""
        if not self.signed:
            return 0
        odds = witness_failure(self.max_security_failure), self.max_correctness_failure / 2
        return min_witnesses(num_clients, *self._count_corrupt_and_lost(num_clients), *odds)

    def quorum(self, num_clients: int) -> int:
        """Witnesses whose confirmations are needed before clients unmask, in signed rounds."""
        corrupt, _ = self._count_corrupt_and_lost(num_clients)
        odds = witness_failure(self.max_security_failure)
        return quorum_size(num_clients, self.num_witnesses(num_clients), corrupt, odds)

    def _count_corrupt_and_lost(self, num_clients: int) -> tuple[int, int]:
        return count_corrupt_and_dropped(num_clients, self.corrupt_fraction, self.dropout_fraction)

    def graph(self, num_clients: int) -> GraphParameters:
        """Neighbors and threshold for this many clients, as given or computed."""
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
        spread = self.signed and needs_cycles(num_clients, k, sum(self._count_corrupt_and_lost(num_clients)))
        graph = GraphParameters(num_clients, k, self.threshold, spread)
        failure = security_failure(graph, **assumed)
        if not failure <= self.max_security_failure:
            raise InvalidSpecError(
                "num_neighbors, threshold",
                (k, self.threshold),
                f": for {num_clients} clients the odds of a failure are up to {failure:.2g}, above "
                f"max_security_failure ({self.max_security_failure:.2g})",
                "leave both out to have them computed",
            )
        return graph
