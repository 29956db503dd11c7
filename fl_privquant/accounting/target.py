"""A privacy target for a whole run, and the plan that meets it.

A :class:`Target` says how much privacy a run may cost each client. Everything else follows from it: the
mechanism, the clips, the rotation, how many honest clients are counted on, and the budget that the run's
ledger enforces. A strategy does what the plan assumes, because it reads its settings from the plan.
"""

from __future__ import annotations

import decimal
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, NotRequired, TypedDict

from fl_privquant import checks
from fl_privquant.accounting import plan_words
from fl_privquant.accounting.accountant import Budget
from fl_privquant.accounting.aggregation import Aggregation, SecureSum
from fl_privquant.accounting.joint import JointSearch
from fl_privquant.accounting.planner import PlannedDesign, plan
from fl_privquant.accounting.run_limits import checked_participations, checked_run_delta
from fl_privquant.design.spread import error_of_kept
from fl_privquant.encoding import Encoding, checked_keep, kept_norm, kept_of, metric_repeats, norm_share
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError, counted
from fl_privquant.loss.norms import NO_NORMS, Norms
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import checked_delta, checked_epsilon, entry, planned_mechanisms
from fl_privquant.mechanisms.sum_limits import FALSE_ALARM_ODDS
from fl_privquant.mechanisms.wish import Estimate, Wish
from fl_privquant.statement import PrivacyStatement, StatedView, Unit

_ROUNDS = checks.whole_in(1, 1 << 20)
# Metrics and votes may be at the clip, which is up to five standard deviations of a coordinate of the update:
# each takes the room of 25 coordinates, and the update needs some too.
_PER_EXTRA = 30
# L2 clip over coordinate clip at most: no model has that many coordinates.
_LARGEST_RATIO = 1e12


@checks.naming_arguments
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
        (:mod:`fl_privquant.accounting.client_sampling` describes how clients are chosen).

    Examples
    --------
    >>> plan = Target(epsilon=8.0, rounds=10, num_clients=100).plan(dimension=900)
    >>> plan.statement.epsilon <= 8.0, str(plan.statement.view), round(plan.encoding.clip, 3)
    (True, 'aggregate of 80', 0.167)
    """

    epsilon: float
    rounds: Annotated[int, _ROUNDS]
    num_clients: Annotated[int, checks.whole_in(1, 1 << 24)]
    delta: float = 1e-5
    participations: Annotated[int | None, _ROUNDS] = None

    def __post_init__(self) -> None:
        checked_epsilon(self.epsilon, covers="whole run")
        checks.check_declared(self)
        checked_run_delta(checked_delta(self.delta), self.num_clients)
        checked_participations(self.participations, self.rounds)

    @property
    def counted_rounds(self) -> int:
        """The largest number of rounds that one client takes part in, and pays for."""
        return checked_participations(self.participations, self.rounds)

    @property
    def rounds_in_words(self) -> str:
        """The number of rounds and, if it is smaller, how many of them a client takes part in."""
        rounds = counted(self.rounds, "round")
        return rounds if self.counted_rounds == self.rounds else f"{self.counted_rounds} of {rounds}"

    @property
    def budget(self) -> Budget:
        """The budget that stops a run before it exceeds the target."""
        return Budget(self.epsilon, self.delta)

    def statement(self, view: StatedView) -> PrivacyStatement:
        """The target as a statement in that view."""
        return PrivacyStatement(self.epsilon, self.delta, Unit.TOTAL, view, scope=self.rounds_in_words)

    @checks.typed_arguments
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
        private_metrics: Mapping[str, tuple[float, float]] | None = None,
        force: bool = False,
        **parameters: Any,
    ) -> Plan:
        """The encoding of a mechanism that has the least error among those that meet the target.

        Updates are clipped to an L2 norm and rotated. Then every coordinate is clipped and encoded, or only a
        random part of them, which carries nearly as much where there is much noise. :meth:`plans` lists more.

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
            How many of the rotated coordinates are sent (:class:`~fl_privquant.encoding.Encoding`).
        most_error
            In place of ``keep``, for secure sums: the largest squared error of the mean of equal updates at
            the L2 clip, over that of a central Gaussian (a trusted server that adds noise). The plan has the
            fewest bytes within that error (:mod:`fl_privquant.accounting.joint`); try 1.5.
        most_kilobytes
            In place of both: the most kilobytes (of 1000 bytes, without headers and keys) that a client sends
            in a round. The plan has the least error within that size.
        aggregation
            What the server sees; by default a secure sum with a tenth of clients corrupt, and a tenth lost.
        private_metrics
            Ranges, by name, of metrics that clients release with each update, as further coordinates.
        force
            Whether to plan a run even if nothing will be learned from it (:attr:`Plan.learns_nothing`).
        parameters
            Further parameters of the mechanism's design.

        Raises
        ------
        InfeasibleDesignError, InvalidSpecError
            No design meets the target or the error, or nothing will be learned; the message says what helps.
        """
        given = (dimension, l2_clip, mechanism, max_bits, clip, aggregation, parameters)
        planner = self._planner(*given, private_metrics)
        _check_at_most_one(keep=keep, most_error=most_error, most_kilobytes=most_kilobytes)
        if most_error is not None or most_kilobytes is not None:
            return _that_learns(next(planner.joint(most_error, most_kilobytes)), force)
        return _that_learns(planner.planned(max_bits, None if keep is None else checked_keep(keep)), force)

    @checks.typed_arguments
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
        force: bool = False,
        progress: Callable[[str], None] = lambda doing: None,
    ) -> list[Plan]:
        """One plan for each number of bits up to ``max_bits``, the best first; arguments as for :meth:`plan`.

        Give one of ``most_error``, for which the best plan sends the fewest bytes, and ``most_kilobytes``,
        for which it has the least error. ``progress`` is called with what is being designed and certified.
        """
        if (most_error is None) == (most_kilobytes is None):
            raise InvalidSpecError("most_error, most_kilobytes: give one of the two")
        planner = self._planner(dimension, l2_clip, mechanism, max_bits, None, aggregation, {})
        plans = [_that_learns(made, force) for made in planner.joint(most_error, most_kilobytes, progress)]
        by_bytes = most_error is not None
        return sorted(plans, key=lambda plan: plan.bytes_per_round if by_bytes else plan.mean_squared_error)

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
        dimension = checks.whole("dimension", dimension, 1)
        l2_clip = checks.positive("l2_clip", l2_clip)
        if clip is not None and l2_clip / checks.positive("clip", clip) > _LARGEST_RATIO:
            raise InvalidSpecError(
                f"clip: {clip:g} is so far below the L2 clip of {l2_clip:g} that nothing of an update is left"
                f"; leave it out, and the plan chooses it"
            )
        aggregation = SecureSum() if aggregation is None else aggregation
        name = mechanism or planned_mechanisms(not aggregation.view(self.num_clients).is_local)[0]
        taken = entry(name).spec.parameter_names()
        for key in parameters:
            if key not in taken:
                raise InvalidSpecError(
                    f"{key}: neither an argument of plan, which takes {', '.join(_PLAN_ARGUMENTS)}, nor a "
                    f"parameter of {name!r}{checks.nearest(key, (*_PLAN_ARGUMENTS, *taken))}"
                )
        given = (dimension, l2_clip, name, max_bits, clip, aggregation, parameters)
        return _Planner(self, *given, metrics or {})


_PLAN_ARGUMENTS = tuple(inspect.signature(Target.plan).parameters)[1:-1]


def _that_learns(plan: Plan, force: bool) -> Plan:
    """The plan; refused if nothing will be learned from its run, unless that is forced."""
    if plan.learns_nothing and not force:
        raise InvalidSpecError(
            f"epsilon: {plan.target.epsilon:g} for {plan.target.rounds_in_words} of "
            f"{counted(plan.target.num_clients, 'client')}: {plan.verdict} To plan it nevertheless, set "
            "force=True"
        )
    return plan


def _rounded_up(value: float) -> float:
    """The value rounded up to four digits; a program that reads these digits has at least the value."""
    nearest = float(f"{value:.4g}")
    digits = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)
    # A float such as 0.1 is a little above the digits that it is read from, and needs no others.
    return nearest if nearest >= value else float(digits.create_decimal(value))


def _check_at_most_one(**given: int | float | None) -> None:
    """Refuse more than one of the arguments that decide how many coordinates are kept."""
    named = [f"{name} {value}" for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidSpecError(f"{' and '.join(named)}: each decides what is kept; give only one of them")


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

    def joint(
        self,
        most_error: float | None,
        most_kilobytes: float | None,
        progress: Callable[[str], None] = lambda doing: None,
    ) -> Iterator[Plan]:
        """Plans with bits and kept coordinates chosen for an error or for a size, the best first."""
        wish = self._wish(self.max_bits, None)
        if not wish.in_sum:
            raise InvalidSpecError(
                "most_error, most_kilobytes: they are for secure sums of two honest clients or more; give "
                "keep, or aggregation=SecureSum() and enough clients"
            )
        signal = (wish.run_target.separation * wish.survivors) ** 2 / (4.0 * self.dimension)
        bits = range(1, self.max_bits + 1)
        if entry(self.mechanism).spec.chooses_width:
            bits = bits[-1:]
        fewest = max(_PER_EXTRA * self.num_extra(1), 1)
        search = JointSearch(self.dimension, bits, signal, self.planned, self._estimated, progress, fewest)
        if most_error is not None:
            return search.within_error(checks.positive("most_error", most_error))
        return search.within_size(checks.positive("most_kilobytes", most_kilobytes))

    def planned(self, max_bits: int, keep: int | float | None) -> Plan:
        """The certified plan with at most ``max_bits`` bits that keeps ``keep`` coordinates."""
        best = self._best(self._wish(max_bits, keep))
        chosen = self.clip or kept_norm(self.l2_clip, keep, self.dimension) / self._update_ratio(best, keep)
        rotate = keep is not None or entry(self.mechanism).spec.needs_rotation(best.norm_ratio)
        encoding = Encoding(best.mechanism, chosen, self.l2_clip, rotate=rotate, keep=keep)
        return Plan.of(self, encoding, best, max_bits)

    def num_extra(self, keep: int | float | None) -> int:
        """Number of coordinates beside those of the update: of metrics, and the vote on the clip."""
        return len(self.private_metrics) * metric_repeats(kept_of(keep, self.dimension)) + self.num_votes

    def _update_ratio(self, best: PlannedDesign, keep: int | float | None) -> float:
        """L2 clip over coordinate clip of the update alone; the design's is for all that is sent."""
        ratio, extra = best.norm_ratio or 1.0, self.num_extra(keep)
        if ratio**2 <= extra:
            raise InfeasibleDesignError(
                f"private_metrics: metrics and vote take {counted(extra, 'coordinate')}, and the norm that a "
                f"client may send leaves no room for them beside an update of "
                f"{counted(self.dimension, 'coordinate')}; leave some metrics out"
            )
        return math.sqrt(ratio**2 - extra) if extra else ratio

    def _estimated(self, max_bits: int, kept: int) -> Estimate | None:
        # Estimates assume the clip that the mechanism chooses, so they do not apply where a clip is given.
        if self.clip is not None or self.parameters:
            return None
        estimate: Estimate | None = entry(self.mechanism).spec.estimate(self._wish(max_bits, kept))
        return estimate

    def _wish(self, max_bits: int, keep: int | float | None) -> Wish:
        """The description of run and target from which a mechanism designs itself.

        The mechanism also chooses its coordinate clip, unless one is given.
        """
        target, aggregation = self.target, self.aggregation
        extra = self.num_extra(keep)
        bound = kept_norm(self.l2_clip, keep, self.dimension)
        return Wish(
            num_clients=target.num_clients,
            dimension=kept_of(keep, self.dimension) + extra,
            rounds=target.counted_rounds,
            epsilon=target.epsilon,
            delta=target.delta,
            in_sum=not aggregation.view(target.num_clients).is_local,
            bits=max_bits,
            corrupt=aggregation.corrupt(target.num_clients),
            dropped=aggregation.lost(target.num_clients),
            norms=NO_NORMS
            if self.clip is None
            else Norms(l2=math.hypot(bound / self.clip, math.sqrt(extra))),
            own_clips=self.clip is None,
            exact_sums=aggregation.sums_exactly,
            parameters=tuple(sorted(self.parameters.items())),
        )

    def _best(self, wish: Wish) -> PlannedDesign:
        """The design with the least error; if there is none, the error says what would help."""
        planned = plan(wish, [self.mechanism])
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
    (which are nearly normal, :mod:`fl_privquant.design.spread`), and the loss of coordinates that are not
    kept. If only some twenty are kept, it is up to 3 % too large
    (:func:`~fl_privquant.design.spread.error_of_kept`)."""
    bytes_per_round: int
    """Bytes that one client sends in a round, without headers and keys."""
    central_error: float | None
    """The same error of a central Gaussian, that is of a trusted server that adds the noise; None in the
    local view."""
    max_bits: int
    """The ``max_bits`` for which :meth:`Target.plan` makes it; codes with integer noise may be wider."""
    planner: _Planner = field(repr=False)
    """What made the plan, and can make it again with a change."""

    @classmethod
    def of(cls, planner: _Planner, encoding: Encoding, design: PlannedDesign, max_bits: int) -> Plan:
        """The plan whose kept coordinates are encoded by a design for ``max_bits``."""
        dimension = planner.dimension
        kept = encoding.kept(dimension)
        own = design.mean_squared_error * encoding.clip**2
        central = None if design.ratio_to_central is None else own / design.ratio_to_central
        error = own
        if kept < dimension and encoding.l2_clip is not None:
            variance, share = encoding.l2_clip**2 / dimension, norm_share(kept)
            spread = encoding.clip / (share * math.sqrt(variance))
            error = variance * error_of_kept(own / variance, spread, kept, dimension, share)
            # The design's central Gaussian is for the kept coordinates; this one is for all of them.
            central = None if central is None else central * dimension / (kept * share**2)
        made = (design.statement, error, design.bytes_per_round, central)
        return cls(planner.target, encoding, planner.aggregation, dimension, *made, max_bits, planner)

    @property
    def private_metrics(self) -> Mapping[str, tuple[float, float]]:
        """Metrics that clients release with each update: the range of each by name."""
        return self.planner.private_metrics

    def with_vote(self) -> Plan:
        """The same plan, with room for one more coordinate: each client's vote on the clip.

        The target holds for update, metrics and vote together, so that updates get a little more noise.
        """
        return self._made_again(num_votes=1)

    @cached_property
    def if_all_honest(self) -> Plan:
        """The plan for the same target if no client were corrupt or lost; it may be the plan itself."""
        everybody = self.aggregation.if_all_honest
        return self if everybody == self.aggregation else self._made_again(aggregation=everybody)

    def _made_again(self, **changes: Any) -> Plan:
        return replace(self.planner, **changes).planned(self.max_bits, self.encoding.keep)

    @property
    def ratio_to_central(self) -> float | None:
        """The error divided by that of a central Gaussian; None in the local view."""
        return None if self.central_error is None else self.mean_squared_error / self.central_error

    @property
    def noise_to_signal(self) -> float:
        """The squared error of the mean update divided by the squared norm of an update at the L2 clip."""
        return self.mean_squared_error * self.dimension / (self.encoding.l2_clip or 1.0) ** 2

    @property
    def signal_to_noise(self) -> float:
        """How far the run moves a model, in standard deviations of the noise in that direction.

        It is for updates at the L2 clip that point the same way in all rounds. They add up to ``rounds``
        times the clip, and their noise to sqrt(``rounds``) times the standard error of a coordinate. For a
        given target it hardly depends on the number of coordinates or on that of rounds.
        """
        return (self.encoding.l2_clip or 1.0) * math.sqrt(self.target.rounds / self.mean_squared_error)

    @property
    def learns_nothing(self) -> bool:
        """Whether even updates that all point the same way would be lost in the noise of the whole run."""
        return self.signal_to_noise < plan_words.LEAST_SIGNAL

    @property
    def verdict(self) -> str:
        """What the noise means for training, in sentences."""
        return plan_words.verdict(self)

    @property
    def error_in_words(self) -> str:
        """The error over that of a trusted server, with what it assumes; empty in the local view."""
        return plan_words.error(self)

    @property
    def largest_shift(self) -> float | None:
        """The L2 norm by which one hostile client can move the mean update of a round without being noticed.

        The server's test of opened sums refuses a larger shift, except with odds of at most
        :data:`~fl_privquant.mechanisms.sum_limits.MISSED_ODDS`. None if the server sees each client's codes.
        """
        if self.aggregation.view(self.target.num_clients).is_local:
            return None
        encoding, kept = self.encoding, self.encoding.kept(self.dimension)
        extra = self.planner.num_extra(encoding.keep)
        bound = math.hypot((encoding.l2_bound(self.dimension) or 0.0) / encoding.clip, math.sqrt(extra))
        limits = self.sent_mechanism.sum_limits(
            self.target.num_clients, kept + extra, bound, FALSE_ALARM_ODDS
        )
        return limits.largest_shift * encoding.clip * self.dimension / kept

    @property
    def influence_in_words(self) -> str:
        """How far one hostile client can move a round's mean update; empty if the server sees all codes."""
        return plan_words.influence(self)

    @property
    def client_limits(self) -> ClientLimits:
        """The least limits with which a client's ``PrivQuantMod`` allows the plan, rounded up to four digits.

        They are ``max_epsilon`` and, where the mechanism has a δ, ``max_delta``: for one coordinate and
        release, local view, or for a round if the mechanism encodes whole updates.
        """
        mechanism = self.sent_mechanism
        limits = ClientLimits(max_epsilon=_rounded_up(mechanism.epsilon))
        if mechanism.delta > 0.0:
            limits["max_delta"] = _rounded_up(mechanism.delta)
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
        return self.aggregation.adapted(self.encoding.mechanism)

    @property
    def budget(self) -> Budget:
        """The target as the budget of the run's ledger."""
        return self.target.budget

    def __str__(self) -> str:
        """The plan in words: the encoding, its privacy loss, its size and its error.

        >>> print(Target(epsilon=8.0, rounds=10, num_clients=100).plan(dimension=900))  # doctest: +ELLIPSIS
        Target: ε = 8, δ = 1e-05 (client total, aggregate view of 80), 10 rounds of 100 clients.
        Encode with rounded_gaussian after clipping to L2 norm 1, rotating, and clipping coordinates to 0.167.
        A client spends ε = 8, δ = 1e-05 (client total, aggregate view of 80), if every round loses ...
        Each client must allow ε = ..., δ = 1e-06 (coordinate release, local view): PrivQuantMod(max_...
        It sends ... bytes per round; the mean update's coordinates have a standard error of 0.0...
        One hostile client can move the mean update of a round by up to ... times the L2 clip before ...
        The plan's squared error is 1.1... times that of a trusted server that adds Gaussian noise, if 10 ...
        In each round, the noise in the mean update has ... times the energy of an update at the L2 clip. ...
        All this is for updates whose norm is at the L2 clip of 1; 'fl-privquant clip APP' measures ...
        """
        return plan_words.described(self)
