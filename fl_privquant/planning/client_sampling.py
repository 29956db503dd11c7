"""Client sampling: who is asked in a round, how often a client may take part, and what privacy gains by it.

A sampling is a frozen description that strategies, plans and simulations share. It draws from the clients
that a round could ask, without those that have taken part as often as they may. It matters to privacy in two
ways:

* **Against the server**, which knows whom it asked, a client pays for the rounds that it takes part in. A
  sampling says how many these are at most (:meth:`ClientSampling.max_rounds`), and a target counts on it.
  Without such a bound a client is counted for all rounds, because random draws may pick it every time.
* **Against those who see only the models**, a round whose clients are drawn anew and in secret is amplified
  (:mod:`fl_privquant.privacy_loss.amplification`), at the rate that :meth:`ClientSampling.rate` states.

With secure sums the noise of a round's clients hides each of them, so that a round must not be too small.
:meth:`ClientSampling.num_planned_clients` is the number of clients of the worst round that is ever run.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from fl_privquant import _validation
from fl_privquant.accounting.aggregation import Aggregation
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.planning.target import Plan

__all__ = ["ClientSampling", "CohortSampling", "FixedSampling", "PoissonSampling", "StrategySampling"]

_MAX_CLIENTS = 1 << 24
_CLIENTS = _validation.integer_between(1, _MAX_CLIENTS)
_ROUNDS = _validation.integer_between(1, 1 << 20)
# The number of clients with the fewest honest ones is among this many successive numbers, even if only a
# hundredth of the clients are honest.
_ROUNDING_CLIENTS = 200
# For rates, numbers of clients are rounded up to multiples of this share of the expected number.
_RATE_STEP = 0.02


@dataclass(frozen=True)
class ClientSampling(ABC):
    """How the clients of a round are drawn.

    Parameters
    ----------
    participations
        Rounds of a run that a client takes part in, at most; None for no bound.
    seed
        Makes draws reproducible, for simulations: whoever knows the seed knows who took part. None stands for
        the operating system's secure randomness.
    """

    _: KW_ONLY
    participations: Annotated[int | None, _ROUNDS] = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _validation.check_declared(self)

    @property
    def min_rounds_apart(self) -> int:
        """The number of successive rounds in which a client takes part at most once."""
        return 1

    @property
    def draws_independently(self) -> bool:
        """Whether each round's draw is uniform, and independent of all others: only then is it amplified."""
        return self.participations is None

    @property
    def depends_on_history(self) -> bool:
        """Whether who may be asked depends on who was asked before."""
        return self.participations is not None or self.min_rounds_apart > 1

    def max_rounds(self, rounds: int) -> int:
        """The most rounds that a client takes part in, in a run of ``rounds`` rounds."""
        return min(rounds, self.participations or rounds)

    def has_participations_left(self, taken: int) -> bool:
        """Whether a client that took part in ``taken`` rounds may take part in another one."""
        return self.participations is None or taken < self.participations

    def is_eligible(self, server_round: int, taken: int, last: int | None) -> bool:
        """Whether to ask a client that took part in ``taken`` rounds, the last of them ``last``."""
        rested = self.min_rounds_apart == 1 or last is None or server_round - last >= self.min_rounds_apart
        return rested and self.has_participations_left(taken)

    @abstractmethod
    def size(self, population: int) -> int:
        """The fewest clients with which a round of a federation of that size is run."""

    def draw_clients(self, server_round: int, clients: Sequence[int], population: int) -> list[int]:
        """The clients that are asked, drawn from ``clients``; none if these are too few for a round."""
        size = self.size(population)
        return self._random(server_round).sample(clients, size) if size <= len(clients) else []

    def num_planned_clients(self, population: int, aggregation: Aggregation) -> int:
        """The number of clients of the worst round that is run, on which a target is based."""
        return self.size(population)

    def rate(self, asked: int, population: int, aggregation: Aggregation) -> float | None:
        """The largest probability that a client was among those asked, for those who see only the models.

        It is 1 where nothing is amplified, and None where no statement is made for those observers. Only
        clients of the federation that are honest and would have answered are counted.
        """
        if not self.draws_independently or aggregation.reveals_participants:
            return 1.0
        view = aggregation.view(population)
        return min(1.0, asked / (population if view.num_honest is None else view.num_honest))

    def check(self, aggregation: Aggregation, plan: Plan | None) -> None:
        """Raise InvalidSpecError if the sampling breaks an assumption of the plan."""
        if plan is None:
            return
        rounds, counted = plan.target.rounds, plan.target.counted_rounds
        if plan.correlation and self.min_rounds_apart < plan.target.rounds_apart:
            raise InvalidSpecError(
                "sampling",
                MISSING,
                f"a client may take part in rounds {self.min_rounds_apart} apart, but noise is "
                f"correlated for rounds {plan.target.rounds_apart} apart",
                f"use CohortSampling({plan.target.rounds_apart}), or plan for fewer rounds_apart",
            )
        if self.max_rounds(rounds) > counted:
            raise InvalidSpecError(
                "sampling",
                MISSING,
                f"a client may take part in {self.max_rounds(rounds)} of {rounds} rounds, but the "
                f"plan assumes {counted} at most",
                f"set participations={counted}, or plan for more",
            )

    def _random(self, server_round: int) -> random.Random:
        if self.seed is None:
            return random.SystemRandom()
        return random.Random(f"client sampling {self.seed}:{server_round}")


@dataclass(frozen=True)
class StrategySampling(ClientSampling):
    """The wrapped strategy draws, as Flower's do: ``fraction_train`` of the clients, by Python's ``random``.

    Nothing is known about these draws, so no statement is made for those who see only the models. Clients
    that have taken part as often as they may are not offered to the strategy.
    """

    @property
    def draws_independently(self) -> bool:
        return False

    def size(self, population: int) -> int:
        return 1

    def rate(self, asked: int, population: int, aggregation: Aggregation) -> float | None:
        return None

    def draw_clients(self, server_round: int, clients: Sequence[int], population: int) -> list[int]:
        return list(clients)


@_validation.check_argument_names
@dataclass(frozen=True)
class FixedSampling(ClientSampling):
    """Each round draws a fixed number of clients, every choice of them with the same probability.

    Parameters
    ----------
    clients
        How many (a whole number), or which share of the federation (a float; rounded down, at least one).

    >>> FixedSampling(0.1, seed=1).draw_clients(1, range(30), population=30)
    [13, 16, 23]
    """

    clients: int | float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check = _validation.number_between("(0, 1]") if isinstance(self.clients, float) else _CLIENTS
        check("clients", self.clients)

    def size(self, population: int) -> int:
        if isinstance(self.clients, float):
            return max(1, int(population * self.clients + 1e-9))
        return self.clients


@_validation.check_argument_names
@dataclass(frozen=True)
class PoissonSampling(ClientSampling):
    """Each client is drawn independently of all others, with the same probability.

    How many are drawn is random. In a secure sum the noise of too few clients would not hide each of them, so
    a round with fewer than ``min_clients`` is not run, and secure sums need this parameter. Plans rely on it
    (:meth:`num_planned_clients`).

    Parameters
    ----------
    probability
        Probability with which a client is drawn.
    min_clients
        Number of clients of the smallest round that is run.
    """

    probability: Annotated[float, _validation.number_between("(0, 1]")] = 1.0
    min_clients: Annotated[int | None, _CLIENTS] = None

    def size(self, population: int) -> int:
        return self.min_clients or 1

    def draw_clients(self, server_round: int, clients: Sequence[int], population: int) -> list[int]:
        draw = self._random(server_round)
        drawn = [client for client in clients if draw.random() < self.probability]
        return drawn if len(drawn) >= self.size(population) else []

    def rate(self, asked: int, population: int, aggregation: Aggregation) -> float | None:
        # Rounded, so that there are few different rates: each is counted by itself.
        step = max(1, round(_RATE_STEP * self.probability * population))
        return super().rate(math.ceil(asked / step) * step, population, aggregation)

    def num_planned_clients(self, population: int, aggregation: Aggregation) -> int:
        """The number of clients, from ``min_clients`` on, with the fewest honest clients.

        Fractions of corrupt and lost clients are rounded up, so that 61 clients may have fewer honest ones
        than 60 clients.

        >>> from fl_privquant.accounting import SecureSum
        >>> PoissonSampling(0.5, min_clients=60).num_planned_clients(200, SecureSum())
        61
        """
        self._check_sums(aggregation)
        size = self.size(population)
        if size > self.probability * population:
            raise InvalidSpecError(
                "min_clients",
                size,
                f"are above the {self.probability * population:g} that are drawn on average of "
                f"{population}, so that most rounds would not be run",
                "lower it, or raise the probability",
            )
        return _find_worst_size(size, aggregation)

    def check(self, aggregation: Aggregation, plan: Plan | None) -> None:
        super().check(aggregation, plan)
        self._check_sums(aggregation)
        if plan is not None and self.min_clients is not None:
            planned = aggregation.view(plan.target.num_clients).honest_count
            worst = _find_worst_size(self.min_clients, aggregation)
            honest = aggregation.view(worst).honest_count
            if honest < planned:
                raise InvalidSpecError(
                    "min_clients",
                    MISSING,
                    f"a round of {worst} clients has {honest} honest ones, fewer than the {planned} "
                    "that the plan assumes",
                    f"raise min_clients ({self.min_clients}), or plan with num_clients={worst}",
                )

    def _check_sums(self, aggregation: Aggregation) -> None:
        if self.min_clients is None and not aggregation.view(_MAX_CLIENTS).is_local:
            raise InvalidSpecError(
                "min_clients",
                MISSING,
                "missing",
                "Poisson sampling draws a random number of clients, and a secure sum of too few hides "
                "nobody; give the least number of clients of a round",
            )


@_validation.check_argument_names
@dataclass(frozen=True)
class CohortSampling(ClientSampling):
    """Each client takes part in at most one of any ``rounds_apart`` rounds in a row.

    Each round draws its cohort from the clients that have rested long enough. Cohorts are so small that there
    are always enough such clients, as long as clients keep their names. If too few have rested, a round is
    not run.

    Parameters
    ----------
    rounds_apart
        Number of successive rounds in which a client takes part at most once.
    clients
        Number of clients of a cohort; None for the most that are always possible.

    >>> CohortSampling(10).max_rounds(1000), CohortSampling(10).size(205)
    (100, 20)
    """

    rounds_apart: Annotated[int, _ROUNDS] = 1
    clients: Annotated[int | None, _CLIENTS] = None

    @property
    def min_rounds_apart(self) -> int:
        return self.rounds_apart

    @property
    def draws_independently(self) -> bool:
        return False

    def max_rounds(self, rounds: int) -> int:
        return super().max_rounds(math.ceil(rounds / self.rounds_apart))

    def size(self, population: int) -> int:
        most = population // self.rounds_apart
        size = most if self.clients is None else self.clients
        if not 1 <= size <= most:
            raise InvalidSpecError(
                "sampling",
                population,
                f"clients are too few for {self.rounds_apart} cohorts of {max(size, 1)}",
                "lower rounds_apart or clients, or let more clients join",
            )
        return size


def _find_worst_size(size: int, aggregation: Aggregation) -> int:
    """The number of clients, from ``size`` on, with the fewest honest clients."""
    return min(
        range(size, size + _ROUNDING_CLIENTS), key=lambda number: aggregation.view(number).honest_count
    )
