"""A privacy target for a whole run, from which mechanism, clips and budget follow."""

from __future__ import annotations

from dataclasses import dataclass

from fl_privquant.codec.clip import checked_clip
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.optm_aggregate import honest_clients, usual_norm_ratio
from fl_privquant.mechanisms.registry import checked_choice, design
from fl_privquant.privacy.ledger import Budget
from fl_privquant.privacy.statement import PrivacyStatement, Unit, View

__all__ = ["RunTarget"]


@dataclass(frozen=True)
class RunTarget:
    """What a whole run may cost a client, seen through secure aggregation; the rest follows.

    Updates are clipped to an L2 norm and rotated, and encoded by OPTM for the secure sum
    (:mod:`fl_privquant.mechanisms.optm_aggregate`), with the least error that meets the target.

    Parameters
    ----------
    epsilon, delta
        Of a client's total over all rounds, aggregate view.
    rounds
        Rounds that a client takes part in, at most.
    num_clients
        Clients that are asked in a round.
    l2_clip
        Largest L2 norm of an update.
    bits
        Of a coordinate, before it is masked.
    corrupt_fraction, dropout_fraction
        Clients of a round that may collude with the server, and that may be lost.
    shortfall
        What happens to a round that loses more: ``refuse`` opens no sum, the model stays, and no client
        spends more than the target; ``state`` opens it, and statements say what the guarantee now is.

    Examples
    --------
    >>> target = RunTarget(epsilon=8.0, rounds=10, num_clients=100, l2_clip=1.0)
    >>> target.statement.figures, target.statement.view, round(target.clip(dimension=900), 3)
    ('ε = 8, δ = 1e-05', 'aggregate of 80', 0.1)
    """

    epsilon: float
    rounds: int
    num_clients: int
    l2_clip: float
    delta: float = 1e-5
    bits: int = 2
    corrupt_fraction: float = 0.1
    dropout_fraction: float = 0.1
    shortfall: str = "refuse"

    def __post_init__(self) -> None:
        checked_clip("l2_clip", self.l2_clip)
        checked_choice("shortfall", self.shortfall, ("refuse", "state"))
        honest_clients(self.num_clients, self.corrupt_fraction, self.dropout_fraction)

    @property
    def num_honest(self) -> int:
        """Honest clients in a sum, at the least."""
        return honest_clients(self.num_clients, self.corrupt_fraction, self.dropout_fraction)

    @property
    def statement(self) -> PrivacyStatement:
        """The target in words."""
        return PrivacyStatement(
            self.epsilon,
            self.delta,
            Unit.TOTAL,
            str(View(self.num_honest)),
            scope=f"{self.rounds} rounds",
        )

    @property
    def budget(self) -> Budget | None:
        """What stops a run before it exceeds the target; None where it may."""
        return Budget(self.epsilon, self.delta) if self.shortfall == "refuse" else None

    def clip(self, dimension: int) -> float:
        """The coordinate clip: three standard deviations of a rotated update at the L2 clip."""
        return self.l2_clip / usual_norm_ratio(dimension)

    def mechanism(self, dimension: int) -> Mechanism:
        """The mechanism with the least error for updates of that many coordinates."""
        found: Mechanism = design(
            "optm_aggregate",
            bits=self.bits,
            num_clients=self.num_clients,
            dimension=dimension,
            run_epsilon=self.epsilon,
            run_delta=self.delta,
            rounds=self.rounds,
            corrupt_fraction=self.corrupt_fraction,
            dropout_fraction=self.dropout_fraction,
        )
        return found
