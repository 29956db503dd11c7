"""A privacy target for a whole run, and the plan that meets it.

A user says what a run may cost a client; everything else follows: mechanism, clips, rotation, how many honest
clients are counted, and the budget that the run's ledger holds. What the plan assumes is what the strategy
then does, because both read it from the same object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fl_privquant import checks
from fl_privquant.accounting.accountant import Budget
from fl_privquant.accounting.aggregation import Aggregation, SecureSum
from fl_privquant.accounting.joint import JointSearch
from fl_privquant.accounting.planner import PlannedDesign, plan
from fl_privquant.design.spread import error_of_kept
from fl_privquant.encoding import Encoding, checked_keep, kept_norm, kept_of, norm_share
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.loss.norms import NO_NORMS, Norms
from fl_privquant.mechanisms.registry import checked_delta, checked_epsilon, entry, planned_mechanisms
from fl_privquant.mechanisms.wish import Estimate, Wish
from fl_privquant.statement import PrivacyStatement, Unit

_ROUNDS = checks.whole_in(1, 1 << 20)
# With noise of up to this many times the signal's energy, a round's direction is mostly right.
_LEARNS = 3.0


@dataclass(frozen=True)
class Target:
    """What a client's whole run may cost it; :meth:`plan` says how to stay below.

    Parameters
    ----------
    epsilon, delta
        The (ε, δ) of a client's total over all rounds, in the view of the plan's aggregation.
    rounds
        Rounds of the run.
    num_clients
        Clients that are asked in a round, at least.
    participations
        Rounds that a client takes part in, at most, and is counted for; None for all of them. A strategy
        with the plan never asks a client more often
        (:mod:`fl_privquant.accounting.client_sampling` says who is asked).

    Examples
    --------
    >>> plan = Target(epsilon=8.0, rounds=10, num_clients=100).plan(dimension=900)
    >>> plan.statement.epsilon <= 8.0, plan.statement.view, round(plan.encoding.clip, 3)
    (True, 'aggregate of 80', 0.085)
    """

    epsilon: float
    rounds: Annotated[int, _ROUNDS]
    num_clients: Annotated[int, checks.whole_in(1, 1 << 24)]
    delta: float = 1e-5
    participations: Annotated[int | None, _ROUNDS] = None

    def __post_init__(self) -> None:
        checked_epsilon(self.epsilon)
        checked_delta(self.delta)
        checks.check_declared(self)

    @property
    def counted_rounds(self) -> int:
        """Rounds that a client pays for, at most."""
        return min(self.rounds, self.participations or self.rounds)

    @property
    def rounds_in_words(self) -> str:
        """How many rounds there are, and of how many a client takes part in."""
        counted = self.counted_rounds
        return f"{self.rounds} rounds" if counted == self.rounds else f"{counted} of {self.rounds} rounds"

    @property
    def budget(self) -> Budget:
        """The budget that stops a run before it exceeds the target."""
        return Budget(self.epsilon, self.delta)

    def statement(self, view: str) -> PrivacyStatement:
        """The target as a statement in that view."""
        return PrivacyStatement(self.epsilon, self.delta, Unit.TOTAL, view, scope=self.rounds_in_words)

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
        most_kilobytes: float | None = None,
        aggregation: Aggregation | None = None,
        **parameters: Any,
    ) -> Plan:
        """The encoding with the least error of a mechanism whose whole run meets the target.

        Updates are clipped to an L2 norm and rotated; each coordinate, or a random part of them (``keep``, or
        ``most_error``), which carries nearly as much where noise is large, is then clipped and encoded.
        :meth:`plans` lists the choices.

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
            Instead of ``keep``, for secure sums: as few bytes as keep the squared error of the mean of equal
            updates at the L2 clip within so many central Gaussians'; 1.5 suits the default aggregation. Bits,
            up to ``max_bits``, and coordinates are chosen together (:mod:`fl_privquant.accounting.joint`).
        most_kilobytes
            Instead of ``keep`` and ``most_error``: the least error of which a client sends at most so many
            kilobytes (of 1000 bytes) in a round, without headers and keys.
        aggregation
            What the server sees; by default a secure sum, a tenth of its clients corrupt, another tenth lost.
        parameters
            Further parameters of the mechanism's design.

        Raises
        ------
        InfeasibleDesignError
            No design of that mechanism meets the target or the error; the text says what would.
        """
        planner = self._planner(dimension, l2_clip, mechanism, max_bits, clip, aggregation, parameters)
        _check_at_most_one(keep=keep, most_error=most_error, most_kilobytes=most_kilobytes)
        if most_error is not None:
            return planner.joint().fewest_bytes(checks.positive("most_error", most_error))
        if most_kilobytes is not None:
            return planner.joint().least_error(checks.positive("most_kilobytes", most_kilobytes))
        return planner.planned(max_bits, None if keep is None else checked_keep(keep))

    def plans(
        self,
        dimension: int,
        l2_clip: float = 1.0,
        *,
        mechanism: str | None = None,
        max_bits: int = 2,
        most_error: float | None = None,
        most_kilobytes: float | None = None,
        aggregation: Aggregation | None = None,
        progress: Callable[[str], None] = lambda doing: None,
    ) -> list[Plan]:
        """One plan for each number of bits up to ``max_bits``, the best first; arguments as for :meth:`plan`.

        The best plan has the fewest bytes for an error, or the least error for a size. Give one of
        ``most_error`` and ``most_kilobytes``. ``progress`` is told what is being designed and certified.
        """
        joint = self._planner(dimension, l2_clip, mechanism, max_bits, None, aggregation, {}).joint(progress)
        if most_kilobytes is not None and most_error is None:
            plans = joint.each_for_size(checks.positive("most_kilobytes", most_kilobytes))
            return sorted(plans, key=lambda plan: plan.mean_squared_error)
        if most_error is None or most_kilobytes is not None:
            raise InvalidSpecError("most_error, most_kilobytes: give one of the two")
        plans = joint.each_for_error(checks.positive("most_error", most_error))
        return sorted(plans, key=lambda plan: plan.bytes_per_round)

    def _planner(
        self,
        dimension: int,
        l2_clip: float,
        mechanism: str | None,
        max_bits: int,
        clip: float | None,
        aggregation: Aggregation | None,
        parameters: Mapping[str, Any],
    ) -> _Planner:
        l2_clip = checks.positive("l2_clip", l2_clip)
        clip = None if clip is None else checks.positive("clip", clip)
        aggregation = SecureSum() if aggregation is None else aggregation
        name = mechanism or planned_mechanisms(not aggregation.view(self.num_clients).is_local)[0]
        return _Planner(self, dimension, l2_clip, name, max_bits, clip, aggregation, parameters)


def _check_at_most_one(**given: int | float | None) -> None:
    """Refuse more than one of the arguments that choose how many coordinates are kept."""
    named = [f"{name} {value}" for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidSpecError(f"{' and '.join(named)}: each chooses what is kept; give one of the two")


@dataclass(frozen=True)
class _Planner:
    """Makes the plans of one mechanism; fields are the arguments of :meth:`Target.plan`."""

    target: Target
    dimension: int
    l2_clip: float
    mechanism: str
    max_bits: int
    clip: float | None
    aggregation: Aggregation
    parameters: Mapping[str, Any]

    def joint(self, progress: Callable[[str], None] = lambda doing: None) -> JointSearch:
        """The search for bits and kept coordinates."""
        wish = self._wish(self.max_bits, None)
        if not wish.in_sum:
            raise InvalidSpecError(
                "most_error, most_kilobytes: are about secure sums; give keep, or aggregation=SecureSum()"
            )
        signal = (wish.run_target.separation * wish.survivors) ** 2 / (4.0 * self.dimension)
        return JointSearch(self.dimension, self.max_bits, signal, self.planned, self._estimated, progress)

    def planned(self, max_bits: int, keep: int | float | None) -> Plan:
        """The certified plan with at most so many bits and with so many kept coordinates."""
        wish = self._wish(max_bits, keep)
        best = self._best(wish)
        chosen = self.clip or kept_norm(self.l2_clip, keep, self.dimension) / (best.norm_ratio or 1.0)
        encoding = Encoding(best.mechanism, chosen, self.l2_clip, rotate=True, keep=keep)
        return Plan.of(self.target, encoding, self.aggregation, self.dimension, best)

    def _estimated(self, max_bits: int, kept: int) -> Estimate | None:
        # Estimates assume the mechanism's own clip, not one that is given.
        if self.clip is not None or self.parameters:
            return None
        estimate: Estimate | None = entry(self.mechanism).spec.estimate(self._wish(max_bits, kept))
        return estimate

    def _wish(self, max_bits: int, keep: int | float | None) -> Wish:
        """The wish that is handed to the mechanism, which chooses its own clip if none is given."""
        target, aggregation = self.target, self.aggregation
        bound = kept_norm(self.l2_clip, keep, self.dimension)
        return Wish(
            num_clients=target.num_clients,
            dimension=kept_of(keep, self.dimension),
            rounds=target.counted_rounds,
            epsilon=target.epsilon,
            delta=target.delta,
            in_sum=not aggregation.view(target.num_clients).is_local,
            bits=max_bits,
            corrupt=aggregation.corrupt(target.num_clients),
            dropped=aggregation.lost(target.num_clients),
            norms=NO_NORMS if self.clip is None else Norms(l2=bound / self.clip),
            own_clips=self.clip is None,
            exact_sums=aggregation.sums_exactly,
            parameters=tuple(sorted(self.parameters.items())),
        )

    def _best(self, wish: Wish) -> PlannedDesign:
        """The design with the least error; an error that says what would help where there is none."""
        planned = plan(wish, [self.mechanism])
        if not planned.designs:
            target = self.target
            asked = target.statement(str(self.aggregation.view(target.num_clients)))
            raise InfeasibleDesignError(
                f"{self.mechanism}: no design meets {asked.brief} in {target.rounds_in_words}: "
                f"{planned.missing.get(self.mechanism, planned.advice)}"
            )
        return planned.designs[0]


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
        The error of one coordinate of the mean update, where all clients have the same update at the norm
        bound. It contains the noise, the distortion by clipping the rotated coordinates, which are nearly
        normal (:mod:`fl_privquant.design.spread`), and what is lost with coordinates that are not kept.
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
        """The plan for a design of the kept coordinates."""
        kept = encoding.kept(dimension)
        own = design.mean_squared_error * encoding.clip**2
        central = None if design.ratio_to_central is None else own / design.ratio_to_central
        error = own
        if kept < dimension and encoding.l2_clip is not None:
            variance, share = encoding.l2_clip**2 / dimension, norm_share(kept)
            spread = encoding.clip / (share * math.sqrt(variance))
            error = variance * error_of_kept(own / variance, spread, kept, dimension, share)
            # The error of a central Gaussian for the whole norm, per coordinate of the mean update.
            central = None if central is None else central * dimension / (kept * share**2)
        made = (design.statement, error, design.bytes_per_round, central)
        return cls(target, encoding, aggregation, dimension, *made)

    @property
    def ratio_to_central(self) -> float | None:
        """The error over that of a central Gaussian; None in the local view."""
        return None if self.central_error is None else self.mean_squared_error / self.central_error

    @property
    def noise_to_signal(self) -> float:
        """Squared error of the mean update, over the squared norm of an update at the L2 clip."""
        return self.mean_squared_error * self.dimension / (self.encoding.l2_clip or 1.0) ** 2

    @property
    def outlook(self) -> str:
        """What the noise means for training, in a few words."""
        if self.noise_to_signal <= _LEARNS:
            return "learns"
        needs_rounds = self.noise_to_signal <= _LEARNS * self.target.rounds
        return "needs averaging over rounds" if needs_rounds else "will not learn"

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
        """The target as the budget of the run's ledger."""
        return self.target.budget

    def __str__(self) -> str:
        """The plan in words: what is encoded how, what it costs, what it sends.

        >>> print(Target(epsilon=8.0, rounds=10, num_clients=100).plan(dimension=900))  # doctest: +ELLIPSIS
        Target: ε = 8, δ = 1e-05 (client total, aggregate view of 80), 10 rounds of 100 clients.
        Encode with optm_aggregate after clipping to L2 norm 1, rotating, and clipping coordinates to 0.0855.
        A client spends ε = 8, δ = 1e-05 (client total, aggregate view of 80), if every round loses ...
        It sends ... bytes per round; the mean update's coordinates have a standard error of 0.0...
        The noise in the mean update has ... times the energy of an update at the L2 clip: ...
        """
        target, encoding = self.target, self.encoding
        return "\n".join(
            [
                f"Target: {target.statement(self.statement.view).brief}, {target.rounds_in_words} of "
                f"{target.num_clients} clients.",
                f"Encode with {encoding.mechanism.name} after clipping to L2 norm {encoding.l2_clip:g}, "
                f"rotating, {self._kept_words}and clipping coordinates to {encoding.clip:.3g}.",
                f"A client spends {self.statement.brief}, if every round loses the clients that it may lose.",
                f"It sends {self.bytes_per_round} bytes per round; the mean update's coordinates have a "
                f"standard error of {math.sqrt(self.mean_squared_error):.3g}.",
                self.verdict,
            ]
        )

    @property
    def _kept_words(self) -> str:
        kept = self.encoding.kept(self.dimension)
        return "" if kept == self.dimension else f"keeping {kept} of {self.dimension} coordinates, "
