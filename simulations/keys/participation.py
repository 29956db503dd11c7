"""The keys of ``conf/sampling``: which clients are asked in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fl_privquant import checks
from fl_privquant.accounting import (
    ClientSampling,
    CohortSampling,
    FixedSampling,
    PoissonSampling,
    StrategySampling,
)
from fl_privquant.errors import InvalidSpecError
from simulations.keys.config_checks import Keys, at_least


@dataclass(frozen=True)
class SamplingConfig(Keys):
    """How the clients of a round are drawn.

    Parameters
    ----------
    name
        ``flower`` (the strategy draws ``federation.fraction`` of the clients), ``fixed`` (as many, drawn anew
        and in secret), ``poisson`` (each with that probability) or ``cohorts`` (each at most once in
        ``rounds_apart`` rounds).
    rounds_apart
        A client takes part in at most one of this many consecutive rounds, for ``cohorts``.
    min_clients
        Rounds with fewer clients are not run, for ``poisson``.
    participations
        Largest number of rounds that a client takes part in; its cost is counted for this number. null for no
        bound.
    """

    path: ClassVar[str] = "sampling"

    name: Annotated[str, checks.one_of("flower", "fixed", "poisson", "cohorts")] = "flower"
    rounds_apart: Annotated[int | None, at_least(1)] = None
    min_clients: Annotated[int | None, at_least(1)] = None
    participations: Annotated[int | None, at_least(1)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, name in (("rounds_apart", "cohorts"), ("min_clients", "poisson")):
            value = getattr(self, key)
            if value is not None and self.name != name:
                raise InvalidSpecError(
                    f"sampling.{key}: {value}, but sampling is {self.name}; use sampling={name}, or leave it "
                    "out"
                )
        if self.name == "cohorts" and self.rounds_apart is None:
            raise InvalidSpecError("sampling.rounds_apart: missing; cohorts need it, such as 5")

    def built(self, fraction: float, seed: int | None) -> ClientSampling:
        """The sampling, of a share of the clients; reproducible with a seed."""
        if self.name == "fixed":
            return FixedSampling(float(fraction), participations=self.participations, seed=seed)
        if self.name == "poisson":
            return PoissonSampling(fraction, self.min_clients, participations=self.participations, seed=seed)
        if self.name == "cohorts":
            if fraction != 1.0:
                raise InvalidSpecError(
                    f"federation.fraction: {fraction}, but cohorts are as large as they can be; leave it at "
                    "1, and raise sampling.rounds_apart for smaller ones"
                )
            return CohortSampling(self.rounds_apart or 1, participations=self.participations, seed=seed)
        return StrategySampling(participations=self.participations)
