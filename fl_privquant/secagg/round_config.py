"""What a round sums, and against whom it is secured: what the server sets and clients check."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fl_privquant import _validation
from fl_privquant.cohort import count_clients, count_corrupt_and_dropped
from fl_privquant.packing.pack import MAX_WIDTH
from fl_privquant.secagg._wire import SESSION_BYTES
from fl_privquant.secagg.crypto.keys import Identity
from fl_privquant.secagg.graph.parameters import (
    MAX_CORRECTNESS_FAILURE,
    GraphParameters,
    choose_parameters,
)
from fl_privquant.secagg.signed.witnesses import WITNESS_FAILURE, min_witnesses, quorum_size


def draw_session() -> bytes:
    """A session id that no other run has.

    Returns
    -------
    bytes
        16 random bytes.
    """
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
    corrupt_fraction, dropout_fraction, server_may_lie
        See :func:`~fl_privquant.secagg.graph.parameters.choose_parameters`.
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
    server_may_lie: bool = False
    identities: Mapping[int, Identity] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _validation.check_declared(self)

    @property
    def signed(self) -> bool:
        """Whether clients sign, and so do not trust the server."""
        return self.identities is not None

    def min_survivors(self, num_clients: int) -> int:
        """The fewest inputs that must have arrived for clients to help to open the sum."""
        return num_clients - count_clients(self.dropout_fraction, num_clients)

    def num_witnesses(self, num_clients: int) -> int:
        """Clients whose confirmations count in signed rounds; see :mod:`fl_privquant.secagg.signed`."""
        if not self.signed:
            return 0
        odds = WITNESS_FAILURE, MAX_CORRECTNESS_FAILURE / 2
        return min_witnesses(num_clients, *self._count_corrupt_and_lost(num_clients), *odds)

    def quorum(self, num_clients: int) -> int:
        """Witnesses whose confirmations are needed before clients unmask, in signed rounds."""
        corrupt, _ = self._count_corrupt_and_lost(num_clients)
        return quorum_size(num_clients, self.num_witnesses(num_clients), corrupt, WITNESS_FAILURE)

    def _count_corrupt_and_lost(self, num_clients: int) -> tuple[int, int]:
        return count_corrupt_and_dropped(num_clients, self.corrupt_fraction, self.dropout_fraction)

    def graph(self, num_clients: int) -> GraphParameters:
        """Neighbors and threshold for this many clients."""
        return choose_parameters(
            num_clients,
            corrupt_fraction=self.corrupt_fraction,
            dropout_fraction=self.dropout_fraction,
            server_may_lie=self.server_may_lie,
            signed=self.signed,
        )
