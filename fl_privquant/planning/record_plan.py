"""Plans that protect records: ten hospitals, and privacy for each patient.

A few clients cannot hide one another, but they can hide their records. Each of them, a *silo*, sends a sum
over randomly drawn records through the secure sum, with its share of the noise
(:class:`~fl_privquant.codec.record_sampling.RecordSampling`). What is opened is the sum of central DP-SGD
with the noise of all honest silos, so that a plan is a noise multiplier, and a lattice for it. Without
secure sums each silo adds all of the noise by itself, as with DP-SGD in each client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fl_privquant import _validation
from fl_privquant.accounting.accountant import Accountant
from fl_privquant.accounting.aggregation import Aggregation, SecureSum
from fl_privquant.accounting.records import record_statement
from fl_privquant.accounting.release import Release
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.record_sampling import RecordSampling
from fl_privquant.errors import MISSING, InfeasibleDesignError, InvalidSpecError, pluralize
from fl_privquant.mechanisms.additive.rounded_gaussian import ROUNDED_GAUSSIAN
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import design
from fl_privquant.planning._plan_text import describe_limits
from fl_privquant.planning.target import ClientLimits, Plan, _Planner, _round_up
from fl_privquant.privacy_loss.additive.sampled_gaussian import sampled_gaussian_losses
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.statement import LOCAL, PrivacyStatement, Relation, View

if TYPE_CHECKING:
    from fl_privquant.planning.target import Target

# A share of the noise, in spacings: from 2 honest silos on, rounding then costs less than 1e-9 in epsilon for
# a million coordinates and a thousand rounds, and a code takes no more bits than it must.
_DEVIATION = 2.0
# Coordinates are bounded so that one silo may have the records of all, and their gradients one direction.
# Once rotated they are nearly normal, and this many standard deviations fit in. It takes no bits: the width
# of the sum goes by the gradients of all records together.
_ROOM = 5.0
# Multipliers between which plans search, and how close to the best one they end.
_MIN_MULTIPLIER, _MAX_MULTIPLIER = 0.05, 1e5
_CLOSE = 1e-5
_MAX_STEPS = 12
# The example of collusion that a plan states.
_COLLUDING = 2
_MIN_HONEST = 2
_IF = {
    Relation.REPLACE_ONE: "if it were replaced by another",
    Relation.ADD_REMOVE: "if it were there or not",
}
_ALONE = (
    "Each silo adds all of the noise by itself, so that no other silo has to be honest; with secure sums "
    "silos share it, and the model is much better."
)
_NO_LIMIT = (
    "The share of the noise of one of so many silos certifies nothing by itself, so that this limit allows "
    "any noise, or none: the server is trusted to ask for the noise of the plan."
)


@dataclass(frozen=True, eq=False)
class RecordPlan(Plan):
    """A plan whose target is for a record: one patient of one of the hospitals.

    ``PrivQuantStrategy(FedAvgM(server_learning_rate=...), plan)`` runs it. Clients make their updates with
    :func:`fl_privquant.torch.record_update` or :func:`fl_privquant.flower.linear_record_update`.

    >>> import fl_privquant as pq
    >>> target = pq.Target(
    ...     epsilon=2.0, rounds=300, num_clients=10, unit="record", records=10_000, sampling_rate=0.05
    ... )
    >>> plan = target.plan(dimension=7850)
    >>> plan.statement.epsilon <= 2.0, plan.sampling.divisor, round(plan.noise_multiplier, 2)
    (True, 50.0, 1.93)
    """

    @property
    def sampling(self) -> RecordSampling:
        """How clients make their updates from records."""
        if self.encoding.records is None:
            raise InvalidSpecError("encoding", MISSING, "is not for updates that are made from records")
        return self.encoding.records

    @property
    def sums_only(self) -> bool:
        """Whether the server sees sums over silos only, which share the noise."""
        return self.aggregation.view(self.target.num_clients) != LOCAL

    @property
    def num_honest(self) -> int:
        """Number of honest silos whose noise is counted; 1 without secure sums."""
        return self.aggregation.view(self.target.num_clients).honest_count

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise of all honest silos together, over the clip of a record."""
        mechanism: Any = self.sent_mechanism
        shares = math.sqrt(self.num_honest) * mechanism.deviation * mechanism.spacing
        return float(shares * self.encoding.clip / self.sampling.norm)

    def release(self, num_honest: int | None = None) -> Release:
        """What a silo releases in a round, as an adversary sees it who knows all but so many silos."""
        honest = self.num_honest if num_honest is None else num_honest
        norms = UpdateNorms(record=self.sampling.norm / self.encoding.clip, record_rate=self.sampling.rate)
        return Release(self.sent_mechanism, self.dimension, View(honest) if honest > 1 else LOCAL, norms)

    def spent(self, relation: Relation, num_honest: int | None = None) -> PrivacyStatement:
        """What the whole run costs a record, for that relation."""
        return record_statement(
            {self.release(num_honest): self.target.counted_rounds}, self.target.delta, relation
        )

    @cached_property
    def other_statement(self) -> PrivacyStatement:
        """What the whole run costs a record that is replaced by another one, or that is there or not."""
        replaces = self.statement.relation is Relation.REPLACE_ONE
        return self.spent(Relation.ADD_REMOVE if replaces else Relation.REPLACE_ONE)

    @cached_property
    def silo_statement(self) -> PrivacyStatement:
        """What the whole run costs a silo as a whole, which the plan does not protect."""
        counts = {self.release(): self.target.counted_rounds}
        return Accountant(counts).statement(self.target.delta)

    @property
    def signal_to_noise(self) -> float:
        """How far records whose gradients all point the same way move a model, in deviations of the noise."""
        return self.sampling.clip * math.sqrt(self.target.rounds / self.mean_squared_error)

    @property
    def noise_to_signal(self) -> float:
        """The squared error of the mean update over the squared clip of a record."""
        return self.mean_squared_error * self.dimension / self.sampling.clip**2

    @property
    def verdict(self) -> str:
        """What the noise means for training, in a sentence."""
        drawn = self.sampling.divisor * self.target.num_clients
        return (
            f"In each round the noise is that of central DP-SGD with noise multiplier "
            f"{self.noise_multiplier:.3g} and a batch of {drawn:g} records."
        )

    @property
    def largest_shift(self) -> float | None:
        """None: a silo sends as much as its records are, so that no shift by a hostile one is refused."""
        return None

    @property
    def if_all_honest(self) -> Plan:
        """The plan for the same target if no silo were corrupt or lost."""
        return plan_records(self.target, self.dimension, self.sampling.clip, self.aggregation.if_all_honest)

    @property
    def client_limits(self) -> ClientLimits:
        """The least limits with which a client's ``PrivQuantMod`` allows the plan, rounded up to four digits.

        They are for one record and one round, with the client's own noise alone.
        """
        epsilon = self._local_round.epsilon
        return ClientLimits(max_epsilon=_round_up(epsilon), max_delta=_round_up(self.target.delta))

    @cached_property
    def _local_round(self) -> PrivacyStatement:
        return record_statement({self.release(1): 1}, self.target.delta)

    @property
    def client_limits_in_words(self) -> str:
        """What a client must allow, with its unit and view."""
        return f"{self._local_round.brief.replace('record total', 'record and round')}"

    @property
    def client_policy_as_code(self) -> str:
        """Arguments of ``PrivQuantMod`` that allow no fewer silos in a sum, and no more rounds, than planned.

        They suppose identity keys of the silos (:mod:`fl_privquant.flower.client.identity`). Empty without
        secure sums.
        """
        sums = self.aggregation
        if not isinstance(sums, SecureSum):
            return ""
        return (
            f"max_participations={self.target.counted_rounds}, secure_aggregation=ClientPolicy("
            f"min_clients={self.target.num_clients}, corrupt_fraction={sums.corrupt_fraction:.15g}, "
            f"dropout_fraction={sums.dropout_fraction:.15g})"
        )

    def with_vote(self) -> Plan:
        """Refused: a silo's vote on the clip would tell of its records outside of what is counted."""
        raise InvalidSpecError(
            "encoding",
            MISSING,
            problem="is a plan for records, whose clip cannot adapt",
            remedy="use the plan itself",
        )

    def __str__(self) -> str:
        """The plan in words, for whoever answers for the records of a silo."""
        return "\n".join(_describe(self))


def _describe(plan: RecordPlan) -> list[str]:
    target, sampling, mechanism = plan.target, plan.sampling, plan.sent_mechanism
    silos, honest, policy = target.num_clients, plan.num_honest, plan.client_policy_as_code
    shares = (
        f"its share of the noise, for {pluralize(honest, 'honest silo')}," if plan.sums_only else "all noise"
    )
    return [
        f"Target: {plan.target.statement(plan.statement.view).brief}, {target.rounds_in_words} of "
        f"{pluralize(silos, 'silo')} with {target.records:,} records together.",
        f"A record spends {plan.statement.brief}; {_IF[plan.other_statement.relation]}, "
        f"{plan.other_statement.brief}.",
        f"A whole silo (a hospital, say) is not protected: {plan.silo_statement.brief}.",
        _describe_collusion(plan) if plan.sums_only else _ALONE,
        "A person with records in several silos is not covered. A silo knows its own records.",
        f"Each silo draws each of its records with probability {sampling.rate:g}, anew in each round and in "
        f"secret, clips the gradient of each to L2 norm {sampling.clip:g}, adds them up, and divides by "
        f"{sampling.divisor:g}, however many it has or drew. It sends in every round, even if it drew none.",
        f"It adds {shares} with {mechanism.name}. {plan.verdict}",
        f"It sends {pluralize(plan.bytes_per_round, 'byte')} per round, for "
        f"{pluralize(plan.dimension, 'coordinate')}.",
        "In the client: from fl_privquant.torch import record_update; update = record_update(message, model, "
        "loss, inputs, targets); reply with update as the ArrayRecord. Other updates are refused.",
        describe_limits(plan),
        *([] if math.isfinite(plan.client_limits["max_epsilon"]) else [_NO_LIMIT]),
        *([f"A server that lies is held to this plan by {policy}."] if policy else []),
    ]


def _describe_collusion(plan: RecordPlan) -> str:
    """What the server learns with the help of further silos, whose noise then hides nothing."""
    left = plan.num_honest - _COLLUDING
    corrupt = plan.aggregation.num_corrupt(plan.target.num_clients)
    counted = f"This counts on {pluralize(plan.num_honest, 'honest silo')} ({corrupt} corrupt)"
    if left < 1:
        return f"{counted}; if {_COLLUDING} more collude with the server, no noise is left, and no privacy."
    stated = plan.spent(plan.statement.relation, left)
    return f"{counted}; against the server and {_COLLUDING} more silos a record spends {stated.brief}."


def plan_records(
    target: Target, dimension: int, l2_clip: float = 1.0, aggregation: Aggregation | None = None
) -> RecordPlan:
    """The plan with the least noise with which a run costs no record more than the target.

    Parameters
    ----------
    target
        A target whose unit is a record.
    dimension
        Number of coordinates of the model.
    l2_clip
        Largest L2 norm of the gradient of a record.
    aggregation
        What the server sees; by default a secure sum with a tenth of silos corrupt, and none lost.
        Without sums (``SumOfCodes``) each silo adds all of the noise.

    Raises
    ------
    InfeasibleDesignError, InvalidSpecError
        There are too few silos, or no noise meets the target.
    """
    dimension = _validation.check_integer("dimension", dimension, 1)
    l2_clip = _validation.check_positive("l2_clip", l2_clip)
    aggregation = SecureSum(dropout_fraction=0.0) if aggregation is None else aggregation
    view = aggregation.view(target.num_clients)
    honest = view.honest_count
    if honest < _MIN_HONEST and view != LOCAL:
        raise InvalidSpecError(
            "num_clients",
            target.num_clients,
            f"silos leave {honest} honest one in a sum (corrupt and lost ones do not count), and no other "
            "whose noise hides its records",
            "take part with more silos, from 3 on; or lower the aggregation's corrupt_fraction or "
            "dropout_fraction",
        )
    divisor = target.sampling_rate * target.records / target.num_clients
    sampling = RecordSampling(l2_clip, target.sampling_rate, divisor)
    usual = l2_clip / math.sqrt(dimension)
    clip = target.num_clients * min(_ROOM * usual, l2_clip)
    multiplier = _find_multiplier(target, aggregation)
    # Rounding errors of all honest silos but one are noise, too.
    noise = math.sqrt(honest * _DEVIATION**2 + (honest - 1) / 12.0)
    for _ in range(_MAX_STEPS):
        mechanism = _make_mechanism(target, multiplier * sampling.norm / clip / noise, usual / clip)
        draft = _make_plan(target, dimension, sampling, clip, mechanism, aggregation)
        if draft.statement.epsilon <= target.epsilon:
            return draft
        # It is infinite where the noise is too little to be certified.
        multiplier *= min(max(draft.statement.epsilon / target.epsilon, 1.0 + _CLOSE), 1.5)
    raise InfeasibleDesignError(
        f"no noise meets {draft.statement.brief} in {target.rounds_in_words}; use fewer rounds or "
        "coordinates, or a larger epsilon or delta"
    )


def _find_multiplier(target: Target, aggregation: Aggregation) -> float:
    """The least noise multiplier of central DP-SGD that meets the target, to five digits."""

    def meets(multiplier: float) -> bool:
        losses = sampled_gaussian_losses(1.0 / multiplier, target.sampling_rate, target.budget.relation)
        costs = (compose_epsilon([Part(loss, target.counted_rounds)], target.delta) for loss in losses)
        return all(cost.epsilon <= target.epsilon for cost in costs)

    low, high = _MIN_MULTIPLIER, _MAX_MULTIPLIER
    if not meets(high):
        stated = target.statement(aggregation.view(target.num_clients).stated)
        raise InfeasibleDesignError(
            f"no noise multiplier up to {high:g} meets {stated.brief} in {target.rounds_in_words}; "
            "use a larger epsilon or delta, or fewer rounds"
        )
    while high > low * (1.0 + _CLOSE):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _make_mechanism(target: Target, spacing: float, coordinate: float) -> Mechanism:
    mechanism: Mechanism = design(
        ROUNDED_GAUSSIAN,
        spacing=spacing,
        deviation=_DEVIATION,
        num_clients=target.num_clients,
        coordinate_deviation=coordinate,
    )
    return mechanism


def _make_plan(
    target: Target,
    dimension: int,
    sampling: RecordSampling,
    clip: float,
    mechanism: Mechanism,
    aggregation: Aggregation,
) -> RecordPlan:
    encoding = Encoding(mechanism, clip, rotate=True, records=sampling)
    honest = aggregation.view(target.num_clients).honest_count
    # Every silo that stays adds its noise; the mean divides by their number.
    stay = target.num_clients - aggregation.num_lost(target.num_clients)
    error = mechanism.mse() * clip**2 / stay
    if aggregation.view(target.num_clients) == LOCAL:
        bits = mechanism.sum_bits(1)
    elif aggregation.has_exact_sums:
        bits = mechanism.sum_bits(target.num_clients)
    else:
        bits = mechanism.sum_ring(target.num_clients, dimension).bits
    planner = _Planner(target, dimension, sampling.clip, mechanism.name, bits, clip, aggregation, {})
    none = PrivacyStatement(0.0, 0.0, unit=target.budget.unit)
    draft = RecordPlan(
        target=target,
        encoding=encoding,
        aggregation=aggregation,
        dimension=dimension,
        statement=none,
        mean_squared_error=error,
        bytes_per_round=math.ceil(bits * dimension / 8),
        central_error=error * honest / stay,
        max_bits=bits,
        planner=planner,
    )
    return replace(draft, statement=draft.spent(target.budget.relation))
