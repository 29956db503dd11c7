"""What a run costs its clients: whom a round asks, what is counted before it, and what is stated after it.

**Who is asked.** The wrapped strategy makes a message for each client that it would ask (all of them with
``fraction_train=1.0``). Clients that have taken part as often as they may, by the server's ledger, are left
out, and the sampling draws from the rest. So it works with any strategy, and no client is asked more often
than the sampling promises, whatever the strategy does.

**What is counted.** A release is in the ledger, and within the budget, before the request for it is sent. If
the policy may choose the kind of a release by what earlier ones showed, the budget holds whatever it chooses.
When the replies are opened, the ledger learns how many honest clients were in the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import Message

from fl_privquant import _validation
from fl_privquant.accounting.accountant import Budget, coordinate_statement
from fl_privquant.accounting.aggregation import AggregateResult, Aggregation, PerClient
from fl_privquant.accounting.ledgers.server_ledger import FederationLedger
from fl_privquant.accounting.release import Release
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import MISSING, BudgetExhaustedError, InvalidSpecError, pluralize
from fl_privquant.flower._flower_internals import log, receiver_of
from fl_privquant.flower._messages.protocol import with_counts
from fl_privquant.flower.policies.schedules import as_policy
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.planning.client_sampling import ClientSampling, StrategySampling
from fl_privquant.planning.target import Plan
from fl_privquant.statement import PrivacyStatement, Relation, Unit, View

_DEFAULT_DELTA = 1e-5

EncodingArgument = Plan | Encoding | Callable[[int], Encoding]
"""The forms in which a user can say how updates are encoded."""


def refuse_set_by_plan(given: Mapping[str, Any], remedy: str) -> None:
    """Refuse arguments that the plan decides; None stands for an argument that was left out."""
    for name, value in given.items():
        if value is not None:
            raise InvalidSpecError(name, MISSING, "given, but a plan sets it", remedy)


class RunAccount:
    """The server's ledger, with what a run was asked to keep to: its encoding, aggregation and budget.

    The arguments are those of the strategy. What a plan sets is refused if it is given besides.
    """

    def __init__(
        self,
        encoding: EncodingArgument,
        aggregation: Aggregation | None,
        sampling: ClientSampling | None,
        budget: Budget | None,
        delta: float | None,
        simulated: bool,
    ) -> None:
        self.policy = as_policy(encoding.encoding if isinstance(encoding, Plan) else encoding)
        self.plan = plan = encoding if isinstance(encoding, Plan) else self.policy.plan
        if plan is not None:
            refuse_set_by_plan({"aggregation": aggregation}, "say target.plan(..., aggregation=...)")
            refuse_set_by_plan({"budget": budget, "delta": delta}, "say it in the plan's pq.Target(...)")
            aggregation, budget, delta = plan.aggregation, plan.budget, plan.target.delta
            log(WARNING if plan.learns_nothing else INFO, "PrivQuant: %s", plan.verdict)
        self.aggregation = aggregation or PerClient()
        self.budget = budget
        self.delta = _validation.check_in_interval(
            "delta", _DEFAULT_DELTA if delta is None else delta, "[0, 1)"
        )
        of_clients = budget is not None and budget.unit is Unit.TOTAL
        self.relation = budget.relation if budget and of_clients else Relation.REPLACE_ONE
        participations = None if plan is None else plan.target.participations
        self.sampling = sampling or StrategySampling(participations=participations)
        if self.sampling.seed is not None and not simulated:
            raise InvalidSpecError(
                "sampling",
                MISSING,
                f"whoever knows the seed {self.sampling.seed} knows who is asked",
                "leave it out, or say simulated=True",
            )
        self.sampling.check(self.aggregation, plan)
        self.ledger = FederationLedger()
        # The probability with which a client is in the present round, for whoever sees only the models.
        self._rate: float | None = None

    @property
    def in_sum(self) -> bool:
        """Whether the server saw only sums in the last round."""
        return not self.ledger.last_view.is_local

    def _eligible(self, server_round: int, nodes: Collection[int]) -> list[int]:
        """Those nodes that have not taken part too often or too recently, in order."""
        if not self.sampling.depends_on_history:
            return sorted(nodes)
        may_take_part = self.sampling.is_eligible
        return [n for n in sorted(nodes) if may_take_part(server_round, *self.ledger.participation(n))]

    def draw_next(self, server_round: int, nodes: Sequence[int]) -> list[int]:
        """The clients of a round, drawn while the round before it is under way; empty if too few may be."""
        return self.sampling.draw_clients(server_round, self._eligible(server_round, nodes), len(nodes))

    def draw_clients(
        self, server_round: int, messages: Sequence[Message], drawn_before: Collection[int] = ()
    ) -> list[Message]:
        """The messages to those clients that the round asks; none if they are too few for a round.

        Clients that were ``drawn_before`` (:meth:`draw_next`) are asked, unless too many of them have left.

        Raises BudgetExhaustedError if too few clients have any round left, which ends the run, and
        InvalidSpecError if a client is asked twice: both answers are releases, and a round counts one.
        """
        nodes = [receiver_of(message) for message in messages]
        if len(set(nodes)) < len(nodes):
            twice = next(node for node in nodes if nodes.count(node) > 1)
            raise InvalidSpecError(
                "messages",
                MISSING,
                f"round {server_round} asks node {twice} {nodes.count(twice)} times, but a round "
                "is one release of a client",
                "send the others in a round of their own",
            )
        self.ledger.register_clients(nodes)
        sampling = self.sampling
        # In order, so that a seeded sampling draws the same clients however the strategy lists them.
        eligible = self._eligible(server_round, nodes)
        drawn = set(drawn_before).intersection(eligible)
        if not drawn or len(drawn) < sampling.size(len(nodes)):
            drawn = set(sampling.draw_clients(server_round, eligible, len(nodes)))
        if nodes and not drawn:
            needed = sampling.size(len(nodes))
            left = sum(sampling.has_participations_left(self.ledger.participation(node)[0]) for node in nodes)
            if sampling.depends_on_history and left < needed:
                spent = self.ledger.statement(self.delta, self.in_sum, relation=self.relation)
                bound = pluralize(sampling.participations or 0, "round")
                raise BudgetExhaustedError(
                    f"round {server_round}: {left} of {len(nodes)} clients have taken part in fewer than "
                    f"{bound}, but a round needs {needed}. Spent: {spent}",
                    spent,
                )
            reason = (
                f"it needs {pluralize(needed, 'client')}, and {len(eligible)} of {len(nodes)} may be asked"
            )
            log(WARNING, "PrivQuant: round %d is not run: %s, before the draw", server_round, reason)
        return [message for message in messages if receiver_of(message) in drawn]

    def ask(
        self, server_round: int, release: Release, messages: Sequence[Message], population: int
    ) -> list[Message]:
        """Count a release for the receivers of the messages, which were drawn from a population.

        Each message then says how many releases of this kind were counted for its receiver before. Raises
        BudgetExhaustedError, and counts nothing, if the release would exceed the budget.
        """
        nodes = {receiver_of(message) for message in messages}
        view = self.aggregation.view(len(nodes))
        self._warn_of_few_clients(server_round, len(nodes))
        if self.budget is not None:
            self.ledger.check(server_round, release.with_view(view), nodes, self.budget, self.policy.adaptive)
        counted = with_counts(messages, lambda node: self.ledger.count(node, release))
        self._rate = self.sampling.rate(len(nodes), population, self.aggregation)
        # It is not known yet what the model will show. Until then the most counts that it can: of a secure
        # sum the smallest that may be opened, otherwise every update, with no gain by sampling.
        models = View(view.num_honest, 1.0 if view.is_local else self._rate)
        self.ledger.ask(server_round, release, nodes, None if self._rate is None else models)
        if not view.is_local:
            self.ledger.mark_summed(view.honest_count)
        return counted

    def _warn_of_few_clients(self, server_round: int, num_asked: int) -> None:
        """Warn of a round with fewer clients than the plan counts on: its budget will not last."""
        if self.plan is None:
            return
        planned = self.plan.target.num_clients
        if self.aggregation.view(num_asked).honest_count < self.aggregation.view(planned).honest_count:
            warning = (
                f"round {server_round} asks {pluralize(num_asked, 'client')}, the plan counts on {planned}: "
                f"the noise of fewer clients hides each of them less, so that the round costs more than its "
                f"share of the target; ask more clients, or plan with num_clients={num_asked}"
            )
            log(WARNING, "PrivQuant: %s", warning)

    def record_opened(self, opened: AggregateResult, num_asked: int) -> None:
        """Note what was opened of the last release, for which ``num_asked`` clients were asked.

        A model that is a function of the codes' exact sum shows no more than the sum, whatever the server
        saw. If more clients were lost than the aggregation assumes, who took part counts as known.
        """
        summed = len(opened.nodes)
        honest = summed - self.aggregation.num_corrupt(num_asked)
        if not self.aggregation.view(num_asked).is_local:
            # The honest clients that stayed; they are no fewer than the view counts on.
            self.ledger.mark_summed(honest)
        if self._rate is not None:
            too_many_lost = num_asked - summed > self.aggregation.num_lost(num_asked)
            shown = honest if opened.total is not None and honest > 0 else None
            self.ledger.mark_published(View(shown, 1.0 if too_many_lost else self._rate))

    def statements(self, mechanism: Mechanism, refine: bool) -> list[PrivacyStatement]:
        """What a coordinate of a mechanism costs, and what the last round and all rounds so far have cost.

        Rounds are left out where nothing is certified for them, except beside what a record has spent.
        """
        ledger, delta = self.ledger, self.delta
        coordinate = coordinate_statement(mechanism)
        if not len(ledger):
            return [coordinate]
        views = [False, True] if self.in_sum else [False]
        statements = [ledger.last_statement(delta, in_sum, refine, self.relation) for in_sum in views]
        statements += [ledger.statement(delta, in_sum, refine, self.relation) for in_sum in views]
        if ledger.has_models_view:
            statements.append(ledger.models_statement(delta, refine, self.relation))
        finite = [stated for stated in statements if math.isfinite(stated.epsilon)]
        of_records = self._record_statements(views, refine)
        if of_records and not finite:
            # Who reads that records are protected must read beside it that a whole client is not.
            finite = [ledger.statement(delta, views[-1], refine, self.relation)]
        return [coordinate, *of_records, *finite]

    def statement_beside(self) -> PrivacyStatement | None:
        """What all rounds so far have cost for the relation that is not stated; None if nothing finite."""
        if not len(self.ledger):
            return None
        beside = self.ledger.statement(self.delta, self.in_sum, relation=self.relation.beside)
        return beside if math.isfinite(beside.epsilon) else None

    def _record_statements(self, views: list[bool], refine: bool) -> list[PrivacyStatement]:
        """What the run has cost a record, where its updates are made from single records."""
        last = self.ledger.last_release
        if last is None or last.norms.record is None:
            return []
        asked = [] if self.budget is None or self.budget.unit is not Unit.RECORD else [self.budget.relation]
        relations = dict.fromkeys([*asked, Relation.ADD_REMOVE, Relation.REPLACE_ONE])
        stated = [
            self.ledger.record_statement(self.delta, in_sum, relation, refine)
            for in_sum in views
            for relation in relations
        ]
        return [statement for statement in stated if math.isfinite(statement.epsilon)]

    def spent(self) -> PrivacyStatement:
        """A quick upper bound of what a client has spent, or the budget where that is smaller."""
        limit = self.budget
        if limit is not None and limit.unit is Unit.RECORD:
            return self.ledger.record_statement(self.delta, self.in_sum, limit.relation)
        spent = self.ledger.statement(self.delta, self.in_sum, False, self.relation)
        if limit is None or limit.delta > self.delta or spent.epsilon <= limit.epsilon:
            return spent
        # The quick bound exceeds the budget, but the ledger counted in full before it let the round begin.
        return replace(spent, epsilon=limit.epsilon, delta=limit.delta)

    def make_end_of_noise(self, server_round: int, rounds: int) -> BudgetExhaustedError:
        """The error of a round after the last one that noise is correlated over."""
        spent = self.ledger.statement(self.delta, self.in_sum, relation=self.relation)
        return BudgetExhaustedError(
            f"round {server_round}: noise is correlated over {pluralize(rounds, 'round')}, and what a client "
            f"spends is counted for as many, those included that were asked for again; plan for more. "
            f"Spent: {spent}",
            spent if len(self.ledger) else None,
        )

    def make_client_refusal(self, server_round: int) -> BudgetExhaustedError:
        """The error of a round in which every client says that its own limits are reached.

        In the first round nothing was released, so that the error has no statement of what was spent.
        """
        spent = self.ledger.statement(self.delta, relation=self.relation)
        return BudgetExhaustedError(
            f"round {server_round}: every client refuses, because its own limits (budget or "
            f"max_participations of PrivQuantMod) allow no further release. A client's budget counts in the "
            f"local view, where the run has requested so far: {spent}. "
            f"Leave that budget out, or raise it to what all rounds cost in the local view: a client does "
            f"not know how many others are in a sum, so that secure aggregation does not lower what it "
            f"counts, and a plan's target is no budget for it. PrivQuantMod(**plan.client_limits) allows a "
            f"plan",
            spent if len(self.ledger) > 1 else None,
            remedy="",
        )
