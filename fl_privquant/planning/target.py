"""A privacy target for a whole run, and the plan that meets it.

A :class:`Target` says how much privacy a run may cost each client. Everything else follows from it: the
mechanism, the clips, the rotation, how many honest clients are counted on, and the budget that the run's
ledger enforces. A strategy does what the plan assumes, because it reads its settings from the plan.
"""

from __future__ import annotations

import decimal
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, NotRequired, TypedDict

from fl_privquant import _validation
from fl_privquant.accounting.accountant import Budget
from fl_privquant.accounting.aggregation import Aggregation, SecureSum
from fl_privquant.codec.encoding import (
    Encoding,
    check_keep,
    count_kept,
    kept_norm,
    metric_repeats,
    norm_clip_factor,
)
from fl_privquant.errors import MISSING, InfeasibleDesignError, InvalidSpecError, pluralize
from fl_privquant.mechanisms.additive.correlated_gaussian import correlation_in_steps
from fl_privquant.mechanisms.additive.rounded_gaussian import ROUNDED_GAUSSIAN
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import default_mechanisms, get_entry
from fl_privquant.mechanisms.spec import check_delta, check_epsilon
from fl_privquant.mechanisms.sum_limits import FALSE_ALARM_ODDS
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.optimize.sums.coordinate_clip import error_of_kept
from fl_privquant.planning import _plan_text
from fl_privquant.planning._search import JointSearch
from fl_privquant.planning.planner import PlannedDesign, plan
from fl_privquant.planning.run_limits import check_participations, check_run_delta, check_target_relation
from fl_privquant.privacy_loss.correlated_noise import PREFIX_SUMS, RoundSchedule, Workload
from fl_privquant.privacy_loss.update_bounds import NO_NORMS, UpdateNorms
from fl_privquant.statement import PrivacyStatement, Relation, StatedView, Unit

_ROUNDS = _validation.integer_between(1, 1 << 20)
# Metrics and votes may be at the clip, which is up to five standard deviations of a coordinate of the update:
# each takes the room of 25 coordinates, and the update needs some too.
_KEPT_PER_EXTRA = 30
# L2 clip over coordinate clip at most: no model has that many coordinates.
_MAX_RATIO = 1e12


@_validation.check_argument_names
@dataclass(frozen=True)
class Target:
    """The privacy loss that a client's whole run may have at most; :meth:`plan` finds an encoding for it.

    Parameters
    ----------
    epsilon, delta
        The (ε, δ) of all rounds of a client together, against an adversary with the view of the plan's
        aggregation.
    rounds
        Number of rounds of the run.
    num_clients
        The smallest number of clients that a round asks.
    participations
        The largest number of rounds that one client takes part in, and pays for; None for all rounds. A
        strategy that runs the plan never asks a client more often
        (:mod:`fl_privquant.planning.client_sampling` describes how clients are chosen).
    unit
        What is protected: a ``"client"`` with all that it has, or a ``"record"`` of a client, such as a
        patient of a hospital, where clients are too few to hide one another.
    records, sampling_rate
        For records: how many all clients have together, about (a public number that gradients are divided
        by), and the probability with which each is drawn in a round.
    rounds_apart
        A client takes part in at most one of this many rounds in a row, as with ``CohortSampling``. Noise can
        then be correlated over rounds.
    relation
        The neighboring relation of ε. By default it is "replace-one" for clients. For the same ε that
        protects more than "zero-out", in which most of the field states its own: an ε of 4 is about 1.8 by
        zero-out. For records it is "add-remove" by default, and may be any of the three; for clients that one
        is refused, as the server knows which of them take part. Plans and reports show a second one beside
        it.

    Examples
    --------
    >>> plan = Target(epsilon=8.0, rounds=10, num_clients=100).plan(dimension=900)
    >>> plan.statement.epsilon <= 8.0, str(plan.statement.view), round(plan.encoding.clip, 3)
    (True, 'aggregate of 80', 0.167)
    """

    epsilon: float
    rounds: Annotated[int, _ROUNDS]
    num_clients: Annotated[int, _validation.integer_between(1, 1 << 24)]
    delta: float = 1e-5
    participations: Annotated[int | None, _ROUNDS] = None
    unit: str = "client"
    records: Annotated[int, _validation.integer_between(0, 1 << 40)] = 0
    sampling_rate: Annotated[float, _validation.number_between("[0, 1]")] = 0.0
    rounds_apart: Annotated[int, _ROUNDS] = 1
    relation: Relation | str = ""

    def __post_init__(self) -> None:
        relation = check_target_relation(self.relation, self.protects_records)
        object.__setattr__(self, "relation", relation)
        check_epsilon(self.epsilon, covers="whole run")
        _validation.check_declared(self)
        _validation.check_choice("unit", self.unit, ("client", "record"))
        of_records = {"records": self.records, "sampling_rate": self.sampling_rate}
        for name, number in of_records.items():
            if self.protects_records != (number > 0):
                problem = (
                    "must be above 0 with unit='record'"
                    if self.protects_records
                    else "is given, but the unit is a client, for which it means nothing"
                )
                remedy = "give it" if self.protects_records else "give unit='record', or leave it out"
                raise InvalidSpecError(name, number, problem, remedy)
        check_run_delta(check_delta(self.delta), max(self.num_clients, self.records))
        check_participations(self.participations, self.rounds)

    @property
    def protects_records(self) -> bool:
        """Whether the target is for a record, and not for a whole client."""
        return self.unit == "record"

    @property
    def counted_rounds(self) -> int:
        """The largest number of rounds that one client takes part in, and pays for."""
        counted = check_participations(self.participations, self.rounds)
        return min(counted, math.ceil(self.rounds / self.rounds_apart))

    @property
    def rounds_in_words(self) -> str:
        """The number of rounds and, if it is smaller, how many of them a client takes part in."""
        rounds = pluralize(self.rounds, "round")
        return rounds if self.counted_rounds == self.rounds else f"{self.counted_rounds} of {rounds}"

    @property
    def budget(self) -> Budget:
        """The budget that stops a run before it exceeds the target."""
        unit = Unit.RECORD if self.protects_records else Unit.TOTAL
        return Budget(self.epsilon, self.delta, unit, Relation(self.relation))

    def statement(self, view: StatedView) -> PrivacyStatement:
        """The target as a statement in that view."""
        budget = self.budget
        return PrivacyStatement(
            self.epsilon, self.delta, budget.unit, view, budget.relation, scope=self.rounds_in_words
        )

    @_validation.check_argument_types
    def plan(
        self,
        dimension: int,
        l2_clip: float = 1.0,
        *,
        mechanism: str | None = None,
        max_bits: int = 2,
        clip: float | None = None,
        keep: int | float | None = None,
        max_error: float | None = None,
        max_kilobytes: float | None = None,
        aggregation: Aggregation | None = None,
        private_metrics: Mapping[str, tuple[float, float]] | None = None,
        correlation: float | str | None = None,
        workload: Workload | None = None,
        force: bool = False,
        **parameters: Any,
    ) -> Plan:
        """The encoding of a mechanism that has the least error among those that meet the target.

        Updates are clipped to an L2 norm and rotated. Then every coordinate is clipped and encoded, or only a
        random part of them, which carries nearly as much where there is much noise.

        Parameters
        ----------
        dimension
            Number of coordinates of the model.
        l2_clip
            Largest L2 norm of an update; near their usual norm (``fl-privquant clip``).
        mechanism
            Its name; by default the first one that plans consider for this kind of view.
        max_bits
            Largest number of bits of a code before it is masked; integer noise may need more.
        clip
            Bound of each rotated coordinate; by default that of the least error or, in the local view, three
            standard deviations of a coordinate of an update at the L2 clip.
        keep
            How many of the rotated coordinates are sent (:class:`~fl_privquant.codec.encoding.Encoding`).
        max_error
            In place of ``keep``, for secure sums: the largest squared error of the mean of equal updates at
            the L2 clip, over that of a central Gaussian (a trusted server that adds noise). The plan has the
            fewest bytes within that error (:mod:`fl_privquant.planning._search`); try 1.5.
        max_kilobytes
            In place of both: the most kilobytes (of 1000 bytes, without headers and keys) that a client sends
            in a round. The plan has the least error within that size.
        aggregation
            What the server sees; by default a secure sum with a tenth of clients corrupt, and a tenth lost
            (none lost, for a target of a record).
        private_metrics
            Ranges, by name, of metrics that clients release with each update, as further coordinates.
        correlation
            The share of a round's noise that the next round takes off, a multiple of 1/64 between 0 and 1, or
            "auto" for the one with the least error of the model
            (:mod:`fl_privquant.privacy_loss.correlated_noise`), which is 0 where none gains, as with
            ``rounds_apart`` of 1. None is for noise that is fresh in each round.
        workload
            The server's momentum and learning rates, for whose models "auto" finds the correlation; None for
            models that are sums of mean updates.
        force
            Whether to plan a run even if nothing will be learned from it (:attr:`Plan.learns_nothing`).
        parameters
            Further parameters of the mechanism's design.

        Raises
        ------
        InfeasibleDesignError, InvalidSpecError
            No design meets the target or the error, or nothing will be learned; the message says what helps.
        """
        if self.protects_records:
            given_besides: dict[str, object] = {
                "mechanism": mechanism,
                "clip": clip,
                "keep": keep,
                "max_error": max_error,
            }
            given_besides |= {"max_kilobytes": max_kilobytes, "private_metrics": private_metrics}
            given_besides |= {"correlation": correlation, **parameters}
            return self._plan_records(dimension, l2_clip, aggregation, given_besides)
        given = (dimension, l2_clip, mechanism, max_bits, clip, aggregation, parameters)
        planner = self._planner(*given, private_metrics)
        if (schedule := self._schedule(correlation, planner, keep, max_error, max_kilobytes)) is not None:
            chosen = {} if correlation == "auto" else {"correlation": float(correlation or 0.0)}
            schedule = replace(schedule, workload=workload or schedule.workload)
            planner = replace(planner, schedule=schedule, parameters={**parameters, **chosen})
        elif workload is not None and correlation is None:
            raise InvalidSpecError(
                "workload", MISSING, "matters to correlated noise alone", 'give correlation="auto"'
            )
        planner = replace(planner, correlation=correlation)
        _check_at_max_one(keep=keep, max_error=max_error, max_kilobytes=max_kilobytes)
        if max_error is not None or max_kilobytes is not None:
            return _require_learning(planner.plan_jointly(max_error, max_kilobytes), force)
        plan = planner.make_plan(max_bits, None if keep is None else check_keep(keep))
        if correlation == "auto" and not parameters:
            plan = plan.or_fresh
        return _require_learning(plan, force)

    def _plan_records(
        self,
        dimension: int,
        l2_clip: float,
        aggregation: Aggregation | None,
        given_besides: Mapping[str, object],
    ) -> Plan:
        from fl_privquant.planning.record_plan import plan_records

        for name, value in given_besides.items():
            if value:
                raise InvalidSpecError(
                    name,
                    MISSING,
                    problem="given for a record, whose plan has one form",
                    remedy="leave it out",
                )
        return plan_records(self, dimension, l2_clip, aggregation)

    def _schedule(
        self, correlation: float | str | None, planner: _Planner, *kept: int | float | None
    ) -> RoundSchedule | None:
        """The rounds of a run with correlated noise; None where noise is independent, or gains nothing."""
        if isinstance(correlation, str):
            _validation.check_choice("correlation", correlation, ("auto",))
        if correlation is None or correlation == 0.0:
            return None
        if not isinstance(correlation, str):
            correlation_in_steps(correlation)
        if isinstance(correlation, str) and self.rounds_apart == 1:
            # A client that takes part in every round gains nothing; the plan says so.
            return None
        if planner.mechanism != ROUNDED_GAUSSIAN or planner.aggregation.view(self.num_clients).is_local:
            raise InvalidSpecError(
                "correlation",
                correlation,
                f"is for {ROUNDED_GAUSSIAN} in secure sums",
                "leave mechanism out, and use aggregation=SecureSum() with enough clients",
            )
        if any(value is not None for value in kept):
            raise InvalidSpecError(
                "correlation",
                correlation,
                ", but noise is taken off coordinate by coordinate, and a part of the coordinates is "
                "another one in each round",
                "leave keep, max_error and max_kilobytes out",
            )
        if planner.aggregation.server_lies:
            raise InvalidSpecError(
                "correlation",
                correlation,
                "is not for a server that may lie, which could have noise taken off twice or never",
                "leave it out, or plan without server_may_lie",
            )
        return RoundSchedule(self.rounds, self.rounds_apart)

    def _planner(
        self,
        dimension: int,
        l2_clip: float,
        mechanism: str | None,
        max_bits: int,
        clip: float | None,
        aggregation: Aggregation | None,
        parameters: Mapping[str, Any],
        metrics: Mapping[str, tuple[float, float]] | None = None,
    ) -> _Planner:
        dimension = _validation.check_integer("dimension", dimension, 1)
        l2_clip = _validation.check_positive("l2_clip", l2_clip)
        if clip is not None and l2_clip / _validation.check_positive("clip", clip) > _MAX_RATIO:
            raise InvalidSpecError(
                "clip",
                clip,
                f"is so far below the L2 clip of {l2_clip:g} that nothing of an update is left",
                "leave it out, and the plan chooses it",
            )
        aggregation = SecureSum() if aggregation is None else aggregation
        name = mechanism or default_mechanisms(not aggregation.view(self.num_clients).is_local)[0]
        accepted = get_entry(name).spec.parameter_names()
        for key in parameters:
            if key not in accepted:
                raise InvalidSpecError(
                    key,
                    MISSING,
                    f"neither an argument of plan, which takes {', '.join(_PLAN_ARGUMENTS)}, nor a "
                    f"parameter of {name!r}{_validation.suggest_nearest(key, (*_PLAN_ARGUMENTS, *accepted))}",
                )
        given = (dimension, l2_clip, name, max_bits, clip, aggregation, parameters)
        return _Planner(self, *given, metrics or {})


_PLAN_ARGUMENTS = tuple(inspect.signature(Target.plan).parameters)[1:-1]


def _require_learning(plan: Plan, force: bool) -> Plan:
    """The plan; refused if nothing will be learned from its run, unless that is forced."""
    if plan.learns_nothing and not force:
        raise InvalidSpecError(
            "epsilon",
            plan.target.epsilon,
            f"for {plan.target.rounds_in_words} of {pluralize(plan.target.num_clients, 'client')}: "
            f"{plan.verdict.rstrip('.')}",
            "if clients are institutions, such as hospitals, protect their records, with unit='record' (in "
            "Python); to plan it nevertheless, set force=True (--force in the shell)",
        )
    return plan


def _round_up(value: float) -> float:
    """The value rounded up to four digits; a program that reads these digits has at least the value."""
    nearest = float(f"{value:.4g}")
    digits = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)
    # A float such as 0.1 is a little above the digits that it is read from, and needs no others.
    return nearest if nearest >= value else float(digits.create_decimal(value))


def _check_at_max_one(**given: int | float | None) -> None:
    """Refuse more than one of the arguments that decide how many coordinates are kept."""
    named = [f"{name} {value}" for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidSpecError(
            ", ".join(named), MISSING, "each decides what is kept", "give only one of them"
        )


@dataclass(frozen=True)
class _Planner:
    """Makes plans with one mechanism; the fields are the arguments of :meth:`Target.plan`."""

    target: Target
    dimension: int
    l2_clip: float
    mechanism: str
    max_bits: int
    clip: float | None
    aggregation: Aggregation
    parameters: Mapping[str, Any]
    private_metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    num_votes: int = 0
    schedule: RoundSchedule | None = None
    correlation: float | str | None = None

    def plan_jointly(self, max_error: float | None, max_kilobytes: float | None) -> Plan:
        """The plan whose bits and kept coordinates are chosen for an error or for a size."""
        requirements = self._make_requirements(self.max_bits, None)
        if not requirements.in_sum:
            raise InvalidSpecError(
                "max_error, max_kilobytes",
                MISSING,
                "they are for secure sums of two honest clients or more",
                "give keep, or aggregation=SecureSum() and enough clients",
            )
        signal = (requirements.separation * requirements.survivors) ** 2 / (4.0 * self.dimension)
        bits = range(1, self.max_bits + 1)
        if get_entry(self.mechanism).spec.chooses_width:
            bits = bits[-1:]
        min_kept = max(_KEPT_PER_EXTRA * self.num_extra(1), 1)
        search = JointSearch(self.dimension, bits, signal, self.make_plan, min_kept)
        if max_error is not None:
            return search.within_error(_validation.check_positive("max_error", max_error))
        return search.within_size(_validation.check_positive("max_kilobytes", max_kilobytes))

    def make_plan(self, max_bits: int, keep: int | float | None) -> Plan:
        """The certified plan with at most ``max_bits`` bits that keeps ``keep`` coordinates."""
        best = self._find_best_design(self._make_requirements(max_bits, keep))
        chosen = self.clip or kept_norm(self.l2_clip, keep, self.dimension) / self._update_ratio(best, keep)
        rotate = (
            keep is not None
            or self.schedule is not None
            or get_entry(self.mechanism).spec.needs_rotation(best.norm_ratio)
        )
        encoding = Encoding(best.mechanism, chosen, self.l2_clip, rotate=rotate, keep=keep)
        return Plan.of(self, encoding, best, max_bits)

    def num_extra(self, keep: int | float | None) -> int:
        """Number of coordinates beside those of the update: of metrics, and the vote on the clip."""
        return len(self.private_metrics) * metric_repeats(count_kept(keep, self.dimension)) + self.num_votes

    def _update_ratio(self, best: PlannedDesign, keep: int | float | None) -> float:
        """L2 clip over coordinate clip of the update alone; the design's is for all that is sent."""
        ratio, extra = best.norm_ratio or 1.0, self.num_extra(keep)
        if ratio**2 <= extra:
            raise InfeasibleDesignError(
                f"private_metrics: metrics and vote take {pluralize(extra, 'coordinate')}, and the norm that "
                f"a client may send leaves no room for them beside an update of "
                f"{pluralize(self.dimension, 'coordinate')}; leave some metrics out"
            )
        return math.sqrt(ratio**2 - extra) if extra else ratio

    def _make_requirements(self, max_bits: int, keep: int | float | None) -> RunRequirements:
        """The description of run and target from which a mechanism designs itself.

        The mechanism also chooses its coordinate clip, unless one is given.
        """
        target, aggregation = self.target, self.aggregation
        extra = self.num_extra(keep)
        bound = kept_norm(self.l2_clip, keep, self.dimension)
        return RunRequirements(
            num_clients=target.num_clients,
            dimension=count_kept(keep, self.dimension) + extra,
            rounds=target.counted_rounds,
            epsilon=target.epsilon,
            delta=target.delta,
            relation=Relation(target.relation),
            in_sum=not aggregation.view(target.num_clients).is_local,
            bits=max_bits,
            corrupt=aggregation.num_corrupt(target.num_clients),
            dropped=aggregation.num_lost(target.num_clients),
            norms=NO_NORMS
            if self.clip is None
            else UpdateNorms(l2=math.hypot(bound / self.clip, math.sqrt(extra))),
            own_clips=self.clip is None,
            exact_sums=aggregation.has_exact_sums,
            parameters=tuple(sorted(self.parameters.items())),
            schedule=self.schedule,
        )

    def _find_best_design(self, requirements: RunRequirements) -> PlannedDesign:
        """The design with the least error; if there is none, the error says what would help."""
        planned = plan(requirements, [self.mechanism])
        if not planned.designs:
            target = self.target
            statement = target.statement(self.aggregation.view(target.num_clients).stated)
            raise InfeasibleDesignError(
                f"{self.mechanism}: no design meets {statement.brief} in {target.rounds_in_words}: "
                f"{planned.missing.get(self.mechanism, planned.advice)}"
            )
        return planned.designs[0]


class ClientLimits(TypedDict):
    """The arguments of ``PrivQuantMod`` with which a client allows a plan."""

    max_epsilon: float
    max_delta: NotRequired[float]


@dataclass(frozen=True, eq=False)
class Plan:
    """An encoding that meets a target under an aggregation, with its privacy loss, error and size.

    ``PrivQuantStrategy(FedAvg(), plan)`` runs it, and cannot spend more than the target.
    """

    target: Target
    """The target that the plan meets."""
    encoding: Encoding
    """How updates are encoded."""
    aggregation: Aggregation
    """What the server sees of the encoded updates."""
    dimension: int
    """Number of coordinates of the model; a strategy with this plan refuses models of another size."""
    statement: PrivacyStatement
    """The privacy loss of a client's whole run if every round loses as many clients as it may lose."""
    mean_squared_error: float
    """The expected squared error of one coordinate of the mean update, if all clients have the same update
    and it is at the L2 clip. It is made up of the noise, the distortion by clipping rotated coordinates
    (which are nearly normal, :mod:`fl_privquant.optimize.sums.coordinate_clip`), and the loss of coordinates
    that are not kept. If only some twenty are kept, it is up to 3 % too large
    (:func:`~fl_privquant.optimize.sums.coordinate_clip.error_of_kept`)."""
    bytes_per_round: int
    """Bytes that one client sends in a round, without headers and keys."""
    central_error: float | None
    """The same error of a central Gaussian, that is of a trusted server that adds the noise; None in the
    local view."""
    max_bits: int
    """The ``max_bits`` for which :meth:`Target.plan` makes it; codes with integer noise may be wider."""
    planner: _Planner = field(repr=False)
    """What made the plan, and can make it again with a change."""
    design: PlannedDesign | None = field(default=None, repr=False)
    """The design of the mechanism, and the run that it was made for; None in plans for records."""

    @classmethod
    def of(cls, planner: _Planner, encoding: Encoding, design: PlannedDesign, max_bits: int) -> Plan:
        """The plan whose kept coordinates are encoded by a design for ``max_bits``."""
        dimension = planner.dimension
        kept = encoding.count_kept(dimension)
        own = design.mean_squared_error * encoding.clip**2
        central = None if design.ratio_to_central is None else own / design.ratio_to_central
        error = own
        if kept < dimension and encoding.l2_clip is not None:
            variance, share = encoding.l2_clip**2 / dimension, norm_clip_factor(kept)
            spread = encoding.clip / (share * math.sqrt(variance))
            error = variance * error_of_kept(own / variance, spread, kept, dimension, share)
            # The design's central Gaussian is for the kept coordinates; this one is for all of them.
            central = None if central is None else central * dimension / (kept * share**2)
        figures = (design.statement, error, design.bytes_per_round, central)
        of_target = (planner.target, encoding, planner.aggregation, dimension)
        return cls(*of_target, *figures, max_bits, planner, design)

    @cached_property
    def other_statement(self) -> PrivacyStatement:
        """The same loss for the other neighboring relation: zero-out, if the target is for replace-one."""
        if self.design is None:
            raise InvalidSpecError("plan", MISSING, "does not know what it costs for another relation")
        return self.design.statement_for(self.statement.relation.beside)

    @property
    def private_metrics(self) -> Mapping[str, tuple[float, float]]:
        """Metrics that clients release with each update: the range of each by name."""
        return self.planner.private_metrics

    def with_vote(self) -> Plan:
        """The same plan, with room for one more coordinate: each client's vote on the clip.

        The target holds for update, metrics and vote together, so that updates get a little more noise.
        """
        return self._replan(num_votes=1)

    @cached_property
    def if_all_honest(self) -> Plan:
        """The plan for the same target if no client were corrupt or lost; it may be the plan itself."""
        everybody = self.aggregation.if_all_honest
        return self if everybody == self.aggregation else self._replan(aggregation=everybody)

    def _replan(self, **changes: Any) -> Plan:
        return replace(self.planner, **changes).make_plan(self.max_bits, self.encoding.keep)

    @property
    def correlation(self) -> float:
        """The share of a round's noise that the next round takes off; 0 if noise is fresh in each round."""
        handed = self.encoding.mechanism.handed
        return 0.0 if handed is None else handed.correlation

    @property
    def sensitivity(self) -> float:
        """How far one participation moves what all rounds tell, in units of the update's norm.

        It is 1 with noise that is fresh in each round. Otherwise later rounds tell of an update, too.
        """
        return self.encoding.mechanism.participation_norm

    @property
    def wanted_correlation(self) -> float | str | None:
        """The ``correlation`` that the plan was asked for."""
        return self.planner.correlation

    @property
    def prefix_error(self) -> float | None:
        """The mean squared error of models over that of a trusted server with fresh noise in each round.

        A model is the sum of all mean updates up to its round. With independent noise this is
        :attr:`ratio_to_central`. None in the local view.
        """
        return None if self.central_error is None else self._error_per_round / self.central_error

    @property
    def _error_per_round(self) -> float:
        """The error of a coordinate of the mean update with independent noise, as large in models as ours."""
        return self._error_in_models(PREFIX_SUMS)

    def _error_in_models(self, workload: Workload) -> float:
        mechanism, asked = self.encoding.mechanism, self.target.num_clients
        if mechanism.handed is None:
            return self.mean_squared_error
        lost = self.aggregation.num_lost(asked)
        more = mechanism.round_equivalent_mse(lost / asked, workload) - mechanism.mse()
        return self.mean_squared_error + self.encoding.clip**2 * more / (asked - lost)

    @property
    def or_fresh(self) -> Plan:
        """The plan itself, or that with noise which is fresh in each round, if that has no more error."""
        schedule, central = self.planner.schedule, self.central_error
        # Fresh noise never has less error than a trusted server.
        if schedule is None or central is None or self._error_in_models(schedule.workload) < central:
            return self
        fresh = self._replan(schedule=None)
        return fresh if fresh.mean_squared_error <= self._error_in_models(schedule.workload) else self

    @property
    def ratio_to_central(self) -> float | None:
        """The error divided by that of a central Gaussian; None in the local view."""
        return None if self.central_error is None else self.mean_squared_error / self.central_error

    @property
    def noise_to_signal(self) -> float:
        """The squared error of the mean update divided by the squared norm of an update at the L2 clip."""
        return self._error_per_round * self.dimension / (self.encoding.l2_clip or 1.0) ** 2

    @property
    def signal_to_noise(self) -> float:
        """How far the run moves a model, in standard deviations of the noise in that direction.

        It is for updates at the L2 clip that point the same way in all rounds. They add up to ``rounds``
        times the clip, and their noise to sqrt(``rounds``) times the standard error of a coordinate. For a
        given target it hardly depends on the number of coordinates or on that of rounds.
        """
        return (self.encoding.l2_clip or 1.0) * math.sqrt(self.target.rounds / self._error_per_round)

    @property
    def learns_nothing(self) -> bool:
        """Whether even updates that all point the same way would be lost in the noise of the whole run."""
        return self.signal_to_noise < _plan_text.MIN_SIGNAL

    @property
    def verdict(self) -> str:
        """What the noise means for training, in sentences."""
        return _plan_text.describe_verdict(self)

    @property
    def largest_shift(self) -> float | None:
        """The L2 norm by which one hostile client can move the mean update of a round without being noticed.

        The server's test of opened sums refuses a larger shift, except with odds of at most
        :data:`~fl_privquant.mechanisms.sum_limits.MISSED_ODDS`. None if the server sees each client's codes.
        """
        if self.aggregation.view(self.target.num_clients).is_local:
            return None
        encoding, kept = self.encoding, self.encoding.count_kept(self.dimension)
        extra = self.planner.num_extra(encoding.keep)
        bound = math.hypot((encoding.l2_bound(self.dimension) or 0.0) / encoding.clip, math.sqrt(extra))
        limits = self.sent_mechanism.sum_limits(
            self.target.num_clients, kept + extra, bound, FALSE_ALARM_ODDS
        )
        return limits.largest_shift * encoding.clip * self.dimension / kept

    @property
    def client_limits(self) -> ClientLimits:
        """The least limits with which a client's ``PrivQuantMod`` allows the plan, rounded up to four digits.

        They are ``max_epsilon`` and, where the mechanism has a δ, ``max_delta``: for one coordinate and
        release, local view, or for a round if the mechanism encodes whole updates.
        """
        mechanism = self.sent_mechanism
        limits = ClientLimits(max_epsilon=_round_up(mechanism.epsilon))
        if mechanism.delta > 0.0:
            limits["max_delta"] = _round_up(mechanism.delta)
        return limits

    @property
    def client_limits_as_code(self) -> str:
        """The least limits as arguments of ``PrivQuantMod`` in Python."""
        limits = self.client_limits.items()
        return ", ".join(f"{name}={limit:g}".replace("=inf", '=float("inf")') for name, limit in limits)

    @property
    def client_limits_in_words(self) -> str:
        """What a client must allow, with its unit and view."""
        return self.sent_mechanism.statement.brief

    @property
    def sent_mechanism(self) -> Mechanism:
        """The mechanism as clients use it under the aggregation."""
        return self.aggregation.adapt_mechanism(self.encoding.mechanism)

    @property
    def budget(self) -> Budget:
        """The target as the budget of the run's ledger."""
        return self.target.budget

    def __str__(self) -> str:
        """The plan in words: the encoding, its privacy loss, its size and its error.

        >>> print(Target(epsilon=8.0, rounds=10, num_clients=100).plan(dimension=900))  # doctest: +ELLIPSIS
        Target: ε = 8, δ = 1e-05 (client total, aggregate view of 80, replace-one), 10 rounds of 100 clients.
        Encode with rounded_gaussian after clipping to L2 norm 1, rotating, and clipping coordinates to 0.167.
        A client spends ε = 8, δ = 1e-05 (client total, aggregate view of 80, replace-one), if every ...
        That is ε = 3.5..., δ = 1e-05 (client total, aggregate view of 80, zero-out), as most libraries ...
        Each client must allow ε = ..., δ = 1e-06 (coordinate release, local view, replace-one), ...: ...
        It sends ... bytes per round. Each coordinate of the mean update has a standard error of 0.0...
        One hostile client can move the mean update of a round by up to ... times the L2 clip before ...
        The plan's squared error is 1.1... times that of a trusted server that adds Gaussian noise, if 10 ...
        In each round, the squared norm of the noise in the mean update is ... times that of an update ...
        All this is for updates whose norm is at the L2 clip of 1; 'fl-privquant clip APP' measures ...
        """
        return _plan_text.describe_plan(self)
