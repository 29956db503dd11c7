"""A privacy target for a whole run, and the plan that meets it.

A user says what a run may cost a client; everything else follows: mechanism, clips, rotation, how many honest
clients are counted, and the budget that the run's ledger holds. What the plan assumes is what the strategy
then does, because both read it from the same object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fl_privquant import checks
from fl_privquant.accounting.accountant import Budget
from fl_privquant.accounting.aggregation import Aggregation, SecureSum
from fl_privquant.accounting.planner import PlannedDesign, plan
from fl_privquant.encoding import Encoding, checked_keep, kept_norm, kept_of
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.loss.norms import NO_NORMS, Norms
from fl_privquant.mechanisms.registry import (
    checked_delta,
    checked_epsilon,
    checked_whole,
    planned_mechanisms,
)
from fl_privquant.mechanisms.wish import Wish
from fl_privquant.statement import PrivacyStatement, Unit

__all__ = ["Plan", "Target"]

_MOST_ROUNDS = 1 << 20
_MOST_CLIENTS = 1 << 24
# Noise of up to this many times the signal's energy leaves a round's direction mostly right.
_LEARNS = 3.0
# Plans that are made to find how few coordinates are enough.
_MOST_STEPS = 6
_AIM, _CLOSE = 0.98, 0.98


@dataclass(frozen=True)
class Target:
    """What a client's whole run may cost it; :meth:`plan` says how to stay below.

    Parameters
    ----------
    epsilon, delta
        Of a client's total over all rounds, in the view of the plan's aggregation.
    rounds
        Rounds that a client takes part in, at most.
    num_clients
        Clients that are asked in a round.

    Examples
    --------
    >>> plan = Target(epsilon=8.0, rounds=10, num_clients=100).plan(dimension=900)
    >>> plan.statement.epsilon <= 8.0, plan.statement.view, round(plan.encoding.clip, 3)
    (True, 'aggregate of 80', 0.067)
    """

    epsilon: float
    rounds: int
    num_clients: int
    delta: float = 1e-5

    def __post_init__(self) -> None:
        checked_epsilon(self.epsilon)
        checked_delta(self.delta)
        checked_whole("rounds", self.rounds, _MOST_ROUNDS)
        checked_whole("num_clients", self.num_clients, _MOST_CLIENTS)

    @property
    def budget(self) -> Budget:
        """What stops a run before it exceeds the target."""
        return Budget(self.epsilon, self.delta)

    def statement(self, view: str) -> PrivacyStatement:
        """The target in words, for whoever has that view."""
        return PrivacyStatement(self.epsilon, self.delta, Unit.TOTAL, view, scope=f"{self.rounds} rounds")

    def plan(
        self,
        dimension: int,
        l2_clip: float = 1.0,
        *,
        mechanism: str | None = None,
        max_bits: int = 2,
        clip: float | None = None,
        keep: int | float | None = None,
        most_error: float | None = None,
        aggregation: Aggregation | None = None,
        **parameters: Any,
    ) -> Plan:
        """The encoding with the least error of a mechanism whose whole run meets the target.

        Updates are clipped to an L2 norm and rotated; each coordinate, or a random part of them (``keep``, or
        ``most_error``), which carries nearly as much where noise is large, is then clipped and encoded.

        Parameters
        ----------
        dimension
            Number of coordinates of the model.
        l2_clip
            Largest L2 norm of an update.
        mechanism
            Name of the mechanism; by default the first of those that plans look at for such a view.
        max_bits
            Bits of a coordinate before it is masked, at most; integer noise takes more where it must.
        clip
            Bound of each rotated coordinate. By default as many of its standard deviations at the L2 clip,
            two or more, as the mechanism errs least with in a sum; three of them in the local view.
        keep
            How many of the rotated coordinates are sent (:class:`~fl_privquant.encoding.Encoding`).
        most_error
            Instead of ``keep``, for secure sums: as few coordinates as keep the squared error of the mean of
            equal updates at the L2 clip within so many central Gaussians'; 1.5 suits the default aggregation.
        aggregation
            What the server sees; by default a secure sum, a tenth of its clients corrupt, another tenth lost.
        parameters
            Further parameters of the mechanism's design.

        Raises
        ------
        InfeasibleDesignError
            No design of that mechanism meets the target or the error; the text says what would.
        """
        aggregation = SecureSum() if aggregation is None else aggregation
        checks.positive("l2_clip", l2_clip)
        clip = None if clip is None else checks.positive("clip", clip)

        def planned(keep: int | float | None) -> Plan:
            bound = kept_norm(l2_clip, keep, dimension)
            norms = NO_NORMS if clip is None else Norms(l2=bound / clip)
            wish = self._wish(kept_of(keep, dimension), max_bits, aggregation, norms, parameters)
            best = self._best(wish, mechanism, aggregation)
            chosen = clip or bound / (best.norm_ratio or 1.0)
            encoding = Encoding(best.mechanism, chosen, l2_clip, rotate=True, keep=keep)
            return Plan.of(self, encoding, aggregation, dimension, best)

        return _kept_plan(planned, dimension, keep, most_error)

    def _wish(
        self,
        dimension: int,
        max_bits: int,
        aggregation: Aggregation,
        norms: Norms,
        parameters: Mapping[str, Any],
    ) -> Wish:
        """What the mechanism is asked for; it chooses its own clip where there are no norms."""
        return Wish(
            num_clients=self.num_clients,
            dimension=dimension,
            rounds=self.rounds,
            epsilon=self.epsilon,
            delta=self.delta,
            in_sum=not aggregation.view(self.num_clients).is_local,
            bits=max_bits,
            corrupt=aggregation.corrupt(self.num_clients),
            dropped=aggregation.lost(self.num_clients),
            norms=norms,
            own_clips=norms == NO_NORMS,
            parameters=tuple(sorted(parameters.items())),
        )

    def _best(self, wish: Wish, mechanism: str | None, aggregation: Aggregation) -> PlannedDesign:
        """The design with the least error; an error that says what would help where there is none."""
        name = planned_mechanisms(wish.in_sum)[0] if mechanism is None else mechanism
        planned = plan(wish, [name])
        if not planned.designs:
            asked = self.statement(str(aggregation.view(self.num_clients)))
            raise InfeasibleDesignError(
                f"{name}: no design meets {asked.brief} in {self.rounds} rounds: "
                f"{planned.missing.get(name, planned.advice)}"
            )
        return planned.designs[0]


def _kept_plan(
    planned: Callable[[int | float | None], Plan],
    dimension: int,
    keep: int | float | None,
    most_error: float | None,
) -> Plan:
    """The plan that keeps so many coordinates, or the fewest with so small an error."""
    if most_error is None:
        return planned(None if keep is None else checked_keep(keep))
    if keep is not None:
        raise InvalidSpecError(f"keep: {keep}, but most_error chooses it; give one of the two")
    return _fewest_kept(planned, dimension, checks.positive("most_error", most_error))


def _fewest_kept(planned: Callable[[int | float | None], Plan], dimension: int, most_error: float) -> Plan:
    """The plan that keeps the fewest coordinates with an error of at most so many central Gaussians'."""
    plan = planned(None)
    if plan.ratio_to_central is None:
        raise InvalidSpecError("most_error: is about secure sums; give keep, or aggregation=SecureSum()")
    if plan.ratio_to_central > most_error:
        raise InfeasibleDesignError(
            f"most_error: {most_error:g}, but with all coordinates the error is {plan.ratio_to_central:.4g} "
            f"times a central Gaussian's; raise it, or max_bits"
        )
    # In d / k the error is nearly a straight line, whose slope is at least what is lost of the signal.
    best, fewest = plan, 1.0
    slope = plan.signal_to_central
    for _ in range(_MOST_STEPS):
        ratio = best.ratio_to_central or most_error
        kept = max(1, math.ceil(dimension / (fewest + _AIM * (most_error - ratio) / slope)))
        if kept >= _CLOSE * best.encoding.kept(dimension):
            break
        plan = planned(kept)
        if plan.ratio_to_central is None:
            break
        slope = max((plan.ratio_to_central - ratio) / (dimension / kept - fewest), plan.signal_to_central)
        if plan.ratio_to_central <= most_error:
            best, fewest = plan, dimension / kept
    return best


@dataclass(frozen=True, eq=False)
class Plan:
    """An encoding that meets a target under an aggregation, and what it will cost.

    ``PrivQuantStrategy(FedAvg(), plan)`` runs it, and cannot spend more than the target.

    Parameters
    ----------
    target
        What was asked for.
    encoding, aggregation
        How updates are encoded, and what the server sees of them.
    dimension
        Number of coordinates of the model; another model is refused.
    statement
        What the whole run costs a client, if every round loses the clients that it may lose.
    mean_squared_error
        Of one coordinate of the mean update, where all clients have the same update at the norm bound: noise
        for the nearly normal coordinates that it has after the rotation, what clipping them distorts and
        takes away (:mod:`fl_privquant.design.spread`), and what is lost with coordinates that are not kept.
    bytes_per_round
        What one client sends in a round, without headers and keys.
    central_error
        The same error of a central Gaussian, whose server is trusted; None in the local view.
    """

    target: Target
    encoding: Encoding
    aggregation: Aggregation
    dimension: int
    statement: PrivacyStatement
    mean_squared_error: float
    bytes_per_round: int
    central_error: float | None = None

    @classmethod
    def of(
        cls,
        target: Target,
        encoding: Encoding,
        aggregation: Aggregation,
        dimension: int,
        design: PlannedDesign,
    ) -> Plan:
        """The plan of a design for what is kept of an update."""
        scale = dimension / encoding.kept(dimension)
        # What is kept is scaled by d / k and is k / d of the coordinates; the others are missing altogether.
        error = scale * design.mean_squared_error * encoding.clip**2
        central = None if design.ratio_to_central is None else error / design.ratio_to_central
        lost = (scale - 1.0) * (encoding.l2_clip or 0.0) ** 2 / dimension
        return cls(
            target=target,
            encoding=encoding,
            aggregation=aggregation,
            dimension=dimension,
            statement=design.statement,
            mean_squared_error=error + lost,
            bytes_per_round=design.bytes_per_round,
            central_error=central,
        )

    @property
    def ratio_to_central(self) -> float | None:
        """The error over that of a central Gaussian; None in the local view."""
        return None if self.central_error is None else self.mean_squared_error / self.central_error

    @property
    def signal_to_central(self) -> float:
        """Squared norm of an update at the L2 clip, over the error of a central Gaussian."""
        if self.central_error is None:
            raise InvalidSpecError("the plan is for the local view, which has no central Gaussian")
        return (self.encoding.l2_clip or 0.0) ** 2 / (self.dimension * self.central_error)

    @property
    def noise_to_signal(self) -> float:
        """Squared error of the mean update, over the squared norm of an update at the L2 clip."""
        return self.mean_squared_error * self.dimension / (self.encoding.l2_clip or 1.0) ** 2

    @property
    def verdict(self) -> str:
        """What the noise means for training, in a sentence."""
        times = self.noise_to_signal
        amount = f"The noise in the mean update has {times:.3g} times the energy of an update at the L2 clip"
        if times <= _LEARNS:
            return f"{amount}: a round moves the model in the right direction."
        if times <= _LEARNS * self.target.rounds:
            return f"{amount}: single rounds are mostly noise, which averages out over many of them."
        return (
            f"{amount}, more than {self.target.rounds} rounds average out: it will hardly learn; take more "
            f"clients, fewer parameters, or a larger epsilon."
        )

    @property
    def budget(self) -> Budget:
        """The target, as what the run's ledger holds."""
        return self.target.budget

    def __str__(self) -> str:
        """The plan in words: what is encoded how, what it costs, what it sends.

        >>> print(Target(epsilon=8.0, rounds=10, num_clients=100).plan(dimension=900))  # doctest: +ELLIPSIS
        Target: ε = 8, δ = 1e-05 (client total, aggregate view of 80), 10 rounds of 100 clients.
        Encode with optm_aggregate after clipping to L2 norm 1, rotating, and clipping coordinates to 0.0668.
        A client spends ε = 7.99..., δ = 1e-05 (client total, aggregate view of 80), if every round loses ...
        It sends ... bytes a round; the mean update's coordinates have a standard error of 0.0...
        The noise in the mean update has ... times the energy of an update at the L2 clip: ...
        """
        target, encoding = self.target, self.encoding
        return "\n".join(
            [
                f"Target: {target.statement(self.statement.view).brief}, {target.rounds} rounds of "
                f"{target.num_clients} clients.",
                f"Encode with {encoding.mechanism.name} after clipping to L2 norm {encoding.l2_clip:g}, "
                f"rotating, {self._kept_words}and clipping coordinates to {encoding.clip:.3g}.",
                f"A client spends {self.statement.brief}, if every round loses the clients that it may lose.",
                f"It sends {self.bytes_per_round} bytes a round; the mean update's coordinates have a "
                f"standard error of {math.sqrt(self.mean_squared_error):.3g}.",
                self.verdict,
            ]
        )

    @property
    def _kept_words(self) -> str:
        kept = self.encoding.kept(self.dimension)
        return "" if kept == self.dimension else f"keeping {kept} of {self.dimension} coordinates, "
