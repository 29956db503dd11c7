"""What a run costs its clients: whom a round asks, what is counted before it, and what is stated after it.

**Who is asked.** The wrapped strategy makes a message for each client that it would ask (all of them with
``fraction_train=1.0``). Clients that have had their share of rounds, by the server's ledger, are left out,
and the sampling draws from the rest. So it works with any strategy, and no client is asked more often than
the sampling promises, whatever the strategy does.

**What is counted.** A release is in the ledger, and within the budget, before the request for it is sent. If
the policy may choose the kind of a release by what earlier ones showed, the budget holds whatever it chooses.
When the replies are opened, the ledger learns how many honest clients were in the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from logging import INFO, WARNING

from flwr.app import Message
from flwr.supercore import log

from fl_privquant.accounting.accountant import coordinate_statement
from fl_privquant.accounting.client_sampling import ClientSampling
from fl_privquant.accounting.federation import FederationLedger
from fl_privquant.accounting.release import Release
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError, counted
from fl_privquant.flower.arguments import Arguments
from fl_privquant.flower.exchange import Opened
from fl_privquant.flower.policies import as_policy
from fl_privquant.flower.protocol import with_counts
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import PrivacyStatement, View


class RunAccount:
    """The server's ledger, with the sampling that draws the clients of a round, and the run's budget."""

    def __init__(self, arguments: Arguments, sampling: ClientSampling) -> None:
        self.aggregation = arguments.aggregation
        self.budget = arguments.budget
        self.delta = arguments.delta
        self.sampling = sampling
        self._adaptive = as_policy(arguments.encoding).adaptive
        self._planned = None if arguments.plan is None else arguments.plan.target.num_clients
        if arguments.plan is not None:
            log(WARNING if arguments.plan.learns_nothing else INFO, "PrivQuant: %s", arguments.plan.verdict)
        self.ledger = FederationLedger()
        # The probability with which a client is in the present round, for whoever sees only the models.
        self._rate: float | None = None

    def drawn(self, server_round: int, messages: Sequence[Message]) -> list[Message]:
        """The messages to those clients that the round asks; none if they are too few for a round.

        Raises BudgetExhaustedError if too few clients have any share of rounds left, which ends the run, and
        InvalidSpecError if a client is asked twice: both answers are releases, and a round counts one.
        """
        nodes = [message.metadata.dst_node_id for message in messages]
        if len(set(nodes)) < len(nodes):
            twice = next(node for node in nodes if nodes.count(node) > 1)
            raise InvalidSpecError(
                f"messages: round {server_round} asks node {twice} {nodes.count(twice)} times, but a round "
                f"is one release of a client; send the others in a round of their own"
            )
        self.ledger.meet(nodes)
        sampling = self.sampling
        past = {node: self.ledger.participation(node) for node in nodes} if sampling.remembers else {}
        eligible = [node for node in nodes if node not in past or sampling.may_ask(server_round, *past[node])]
        drawn = set(sampling.drawn(server_round, eligible, len(nodes)))
        if nodes and not drawn:
            needed = sampling.size(len(nodes))
            left = sum(sampling.has_share_left(count) for count, _ in past.values())
            if past and left < needed:
                spent = self.ledger.statement(self.delta, in_sum=not self.ledger.last_view.is_local)
                bound = counted(sampling.participations or 0, "round")
                raise BudgetExhaustedError(
                    f"round {server_round}: {left} of {len(nodes)} clients have taken part in fewer than "
                    f"{bound}, but a round needs {needed}. Spent: {spent}",
                    spent,
                )
            reason = f"it needs {counted(needed, 'client')}, and {len(eligible)} of {len(nodes)} may be asked"
            log(WARNING, "PrivQuant: round %d is not run: %s, before the draw", server_round, reason)
        return [message for message in messages if message.metadata.dst_node_id in drawn]

    def ask(
        self, server_round: int, release: Release, messages: Sequence[Message], population: int
    ) -> list[Message]:
        """Count a release for the receivers of the messages, which were drawn from a population.

        Each message then says how many releases of this kind were counted for its receiver before. Raises
        BudgetExhaustedError, and counts nothing, if the release would exceed the budget.
        """
        nodes = {message.metadata.dst_node_id for message in messages}
        view = self.aggregation.view(len(nodes))
        self._warn_of_few(server_round, len(nodes))
        if self.budget is not None:
            self.ledger.check(server_round, release.seen(view), nodes, self.budget, self._adaptive)
        counted = with_counts(messages, lambda node: self.ledger.count(node, release))
        self._rate = self.sampling.rate(len(nodes), population, self.aggregation)
        # It is not known yet what the model will show. Until then the most counts that it can: of a secure
        # sum the smallest that may be opened, otherwise every update, with no gain by sampling.
        models = View(view.num_honest, 1.0 if view.is_local else self._rate)
        self.ledger.ask(server_round, release, nodes, None if self._rate is None else models)
        if not view.is_local:
            self.ledger.summed(view.honest_count)
        return counted

    def _warn_of_few(self, server_round: int, num_asked: int) -> None:
        """Warn of a round with fewer clients than the plan counts on: its budget will not last."""
        if self._planned is None:
            return
        view, planned = (self.aggregation.view(number) for number in (num_asked, self._planned))
        if view.honest_count < planned.honest_count:
            warning = (
                f"round {server_round} asks {counted(num_asked, 'client')}, the plan counts on "
                f"{self._planned}: the noise of fewer clients hides each of them less, so that the round "
                f"costs more than its share of the target; ask more clients, or plan with "
                f"num_clients={num_asked}"
            )
            log(WARNING, "PrivQuant: %s", warning)

    def opened(self, opened: Opened, num_asked: int) -> None:
        """Note what was opened of the last release, for which ``num_asked`` clients were asked.

        A model that is a function of the codes' exact sum shows no more than the sum, whatever the server
        saw. If more clients were lost than the aggregation assumes, who took part counts as known.
        """
        summed = len(opened.nodes)
        honest = summed - self.aggregation.corrupt(num_asked)
        if not self.aggregation.view(num_asked).is_local:
            # The honest clients that stayed; they are no fewer than the view counts on.
            self.ledger.summed(honest)
        if self._rate is not None:
            too_many_lost = num_asked - summed > self.aggregation.lost(num_asked)
            shown = honest if opened.total is not None and honest > 0 else None
            self.ledger.published(View(shown, 1.0 if too_many_lost else self._rate))

    def statements(self, mechanism: Mechanism, refine: bool) -> list[PrivacyStatement]:
        """What a coordinate of a mechanism costs, and what the last round and all rounds so far have cost.

        Rounds are left out where nothing is certified for them.
        """
        ledger, delta = self.ledger, self.delta
        coordinate = coordinate_statement(mechanism)
        if not len(ledger):
            return [coordinate]
        views = [False] if ledger.last_view.is_local else [False, True]
        statements = [ledger.last_statement(delta, in_sum, refine) for in_sum in views]
        statements += [ledger.statement(delta, in_sum, refine) for in_sum in views]
        if ledger.counts_models:
            statements.append(ledger.models_statement(delta, refine))
        return [coordinate, *(stated for stated in statements if math.isfinite(stated.epsilon))]

    def spent(self) -> PrivacyStatement:
        """A quick upper bound of what a client has spent, or the budget where that is smaller."""
        spent = self.ledger.statement(self.delta, not self.ledger.last_view.is_local, refine=False)
        limit = self.budget
        if limit is None or limit.delta > self.delta or spent.epsilon <= limit.epsilon:
            return spent
        # The quick bound exceeds the budget, but the ledger counted in full before it let the round begin.
        return replace(spent, epsilon=limit.epsilon, delta=limit.delta)

    def client_refusal(self, server_round: int) -> BudgetExhaustedError:
        """The error of a round in which every client says that its own limits are reached.

        In the first round nothing was released, so that the error has no statement of what was spent.
        """
        spent = self.ledger.statement(self.delta)
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
