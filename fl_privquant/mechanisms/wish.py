"""What a run should be like: what mechanisms are asked to make candidate designs for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError
from fl_privquant.loss.norms import Norms
from fl_privquant.statement import Unit, View

__all__ = ["MOST_CLIENTS", "Wish"]

MOST_CLIENTS = 10_000_000
"""The most clients that a run is planned for."""

_MOST = {"num_clients": MOST_CLIENTS, "dimension": 1 << 31, "rounds": 10**9, "bits": 16}


@dataclass(frozen=True)
class Wish:
    """What a run should be like.

    Parameters
    ----------
    num_clients
        Clients whose updates are averaged in a round.
    dimension
        Number of coordinates.
    rounds
        Number of rounds that a client takes part in.
    epsilon, delta
        The target.
    unit
        What the target is for: one coordinate and release, one round of a client, or all its rounds.
    in_sum
        Whether the target is for the aggregate view (secure aggregation), or for the local one.
    bits
        2^bits output values, or lattice points where noise is added to them.
    corrupt, dropped
        Clients of each round that collude with the adversary, and that drop out.
    norms
        Norms that updates are clipped to, in units of the coordinate clip.
    parameters
        Further parameters of designs, each a name and its value.
    """

    num_clients: int
    dimension: int
    rounds: int
    epsilon: float
    delta: float = 1e-5
    unit: Unit = Unit.TOTAL
    in_sum: bool = True
    bits: int = 2
    corrupt: int = 0
    dropped: int = 0
    norms: Norms = field(default_factory=Norms)
    parameters: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_clients", "dimension", "rounds", "bits"):
            checks.whole(name, getattr(self, name), 1)
        if not (0.0 < self.epsilon < math.inf and 0.0 <= self.delta < 1.0):
            raise InvalidSpecError(
                f"target: epsilon {self.epsilon}, delta {self.delta}; expected a finite epsilon above 0, and "
                "delta in [0, 1)"
            )
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise InvalidSpecError(f"{name}: {getattr(self, name)} is above {most}, the most planned for")
        if self.num_clients - self.corrupt - self.dropped < 1 or self.corrupt < 0 or self.dropped < 0:
            raise InvalidSpecError(
                f"{self.num_clients} clients less {self.corrupt} corrupt, {self.dropped} dropped leave none"
            )

    @property
    def view(self) -> View:
        """What the adversary sees."""
        return View.aggregate(self.num_clients, self.corrupt, self.dropped) if self.in_sum else View()

    @property
    def survivors(self) -> int:
        """Clients whose updates are averaged."""
        return self.num_clients - self.dropped
