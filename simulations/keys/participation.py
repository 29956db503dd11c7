"""The keys of ``conf/sampling``: which clients are asked in a round."""

from __future__ import annotations

from dataclasses import dataclass

from fl_privquant import checks
from fl_privquant.accounting import (
    ClientSampling,
    CohortSampling,
    FixedSampling,
    PoissonSampling,
    StrategySampling,
)
from fl_privquant.errors import InvalidSpecError
from simulations.keys.config_checks import at_least

__all__ = ["SamplingConfig"]


@dataclass(frozen=True)
class SamplingConfig:
    """How the clients of a round are drawn.

    Parameters
    ----------
    name
        ``flower`` (the strategy draws ``federation.fraction`` of the clients), ``fixed`` (as many, drawn anew
        and in secret), ``poisson`` (each with that probability) or ``cohorts`` (each at most once in
        ``rounds_apart`` rounds).
    rounds_apart
        Of how many rounds in a row a client takes part in one at most, for ``cohorts``.
    min_clients
        Clients of the smallest round that is run, for ``poisson``.
    participations
        Rounds of the run that a client takes part in, at most, and is counted for; null for no bound.
    """

    name: str = "flower"
    rounds_apart: int | None = None
    min_clients: int | None = None
    participations: int | None = None

    def __post_init__(self) -> None:
        checks.choice("sampling.name", self.name, ("flower", "fixed", "poisson", "cohorts"))
        for key, name in (("rounds_apart", "cohorts"), ("min_clients", "poisson")):
            value = getattr(self, key)
            if value is None:
                continue
            at_least(f"sampling.{key}", value, 1)
            if self.name != name:
                raise InvalidSpecError(
                    f"sampling.{key}: {value}, but sampling is {self.name}; use sampling={name}, or leave it "
                    "out"
                )
        if self.participations is not None:
            at_least("sampling.participations", self.participations, 1)
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
