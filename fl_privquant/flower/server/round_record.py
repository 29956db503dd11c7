"""What a round did, as the server knows it: a frozen record that PrivQuantStrategy hands to its listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.statement import PrivacyStatement, View


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """What a round asked of its clients, what it resulted in, and what clients have spent since the start.

    The error of the mean is not in it: only a simulation knows the true updates.
    """

    round: int
    """The number of the round."""
    codec: UpdateCodec
    """What encoded the round's updates, with their layout and the round's rotation."""
    asked: int
    """Clients that were asked."""
    survivors: int
    """Clients whose updates are in the aggregate; 0 if the round failed."""
    bytes_up: int
    """Bytes of the updates in the aggregate; with secure aggregation each code is as wide as their sum."""
    bytes_down: int
    """Bytes of models and requests that were sent."""
    bytes_handshake: int
    """Additional bytes of secure aggregation, in both directions and for all clients: keys, shares, lists
    and the headers of masked updates. For a simulated sum it is what a secure sum would take if no client
    were lost; without a secure sum it is 0."""
    view: View
    """What the server could see of the round's updates."""
    statements: tuple[PrivacyStatement, ...]
    """The run's statements after the round, by quick upper bounds: see
    :meth:`~fl_privquant.flower.PrivQuantStrategy.statements`."""
    spent: PrivacyStatement
    """What the client that was asked most has spent so far in that view: a quick upper bound, or the budget,
    which the ledger has counted in full, where that is smaller."""
    share_clipped: float | None
    """The mean share of clipped coordinates that clients report; None if they were not asked, or decline."""
    norm_to_clip: float | None
    """The median L2 norm of the updates over the L2 clip that clients report; None as for the share."""
    overflowed_sums: int | None
    """Coordinates whose sum was opened wrongly because it left the window in which it is looked for
    (:mod:`fl_privquant.mechanisms.modular_sum`); None where only the residue of the sum is known, or sums are
    exact."""
    seconds_clients: float
    """Time from the request until the replies were there, and opened if they are a secure sum."""
    seconds_aggregate: float
    """Time that decoding and the wrapped strategy took."""

    @property
    def encoding(self) -> Encoding:
        """How the round's updates became integers."""
        return self.codec.encoding

    @property
    def wall_seconds(self) -> float:
        """Time that the whole round took."""
        return self.seconds_clients + self.seconds_aggregate


OnRound = Callable[[RoundRecord], None]
"""Listens to the rounds of a strategy."""
