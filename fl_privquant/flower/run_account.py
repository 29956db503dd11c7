"""What a run costs its clients: whom a round asks, what is counted before it, and what is stated after it.

**Who is asked.** The wrapped strategy makes a message for each client that it would ask (all of them with
``fraction_train=1.0``). Clients that have had their share of rounds, by the server's ledger, are left out,
and the sampling draws from the rest. So it works with any strategy, and no client is asked more often than
the sampling promises, whatever the strategy does.

**What is counted.** A release is in the ledger, and within the budget, before the request for it is sent.
When the replies are opened, the ledger learns how many honest clients were in the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from logging import WARNING

from flwr.app import Message
from flwr.supercore import log

from fl_privquant.accounting.accountant import Budget, coordinate_statement
from fl_privquant.accounting.aggregation import Aggregation
from fl_privquant.accounting.client_sampling import ClientSampling
from fl_privquant.accounting.federation import FederationLedger
from fl_privquant.accounting.release import Release
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.flower.exchange import Opened
from fl_privquant.flower.protocol import with_counts
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import PrivacyStatement, View


class RunAccount:
    """The server's ledger, with the sampling and the budget that it is kept for.

    Parameters
    ----------
    aggregation
        What the server sees of a round.
    sampling
        How the clients of a round are drawn.
    budget
        What any client may be asked to spend over the run, in the view of the aggregation; None: any.
    delta
        The δ of statements.
    """

    def __init__(
        self, aggregation: Aggregation, sampling: ClientSampling, budget: Budget | None, delta: float
    ) -> None:
        self.aggregation = aggregation
        self.sampling = sampling
        self.budget = budget
        self.delta = delta
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
        taken = {node: self.ledger.participation(node) for node in nodes} if sampling.remembers else {}
        able = [node for node in nodes if node not in taken or sampling.may_ask(server_round, *taken[node])]
        drawn = set(sampling.drawn(server_round, able, len(nodes)))
        if nodes and not drawn:
            shares = [sampling.has_share_left(count) for count, _ in taken.values()]
            self._refuse_draw(server_round, shares, len(able), len(nodes))
        return [message for message in messages if message.metadata.dst_node_id in drawn]

    def _refuse_draw(self, server_round: int, shares: Sequence[bool], able: int, population: int) -> None:
        """Log that a round is not run, or end the run if too few clients have a share of rounds left."""
        needed, left = self.sampling.size(population), sum(shares)
        if shares and left < needed:
            spent = self.ledger.statement(self.delta, in_sum=not self.ledger.last_view.is_local)
            raise BudgetExhaustedError(
                f"round {server_round}: {left} of {population} clients have taken part in fewer than "
                f"{self.sampling.participations} rounds, a round needs {needed}. Spent: {spent}",
                spent,
            )
        log(
            WARNING,
            "PrivQuant: round %d is not run: it needs %d clients, and %d of %d could be asked before any "
            "were drawn",
            server_round,
            needed,
            able,
            population,
        )

    def ask(
        self, server_round: int, release: Release, messages: Sequence[Message], population: int
    ) -> list[Message]:
        """Count a release for the receivers of the messages, which were drawn from a population.

        Each message then says how many releases of this kind were counted for its receiver before. Raises
        BudgetExhaustedError, and counts nothing, if the release would exceed the budget.
        """
        asked = {message.metadata.dst_node_id for message in messages}
        view = self.aggregation.view(len(asked))
        if self.budget is not None:
            self.ledger.check(server_round, release.seen(view), asked, self.budget)
        counted = with_counts(messages, lambda node: self.ledger.count(node, release))
        self._rate = self.sampling.rate(len(asked), population, self.aggregation)
        # Until it is known what the model shows: of a secure sum what may be opened, else everything.
        models = View(view.num_honest, 1.0 if view.is_local else self._rate)
        self.ledger.ask(server_round, release, asked, None if self._rate is None else models)
        if not view.is_local:
            self.ledger.summed(view.honest_count)
        return counted

    def opened(self, opened: Opened, num_asked: int) -> None:
        """Note what was opened of the last release, for which ``num_asked`` clients were asked.

        A model that is a function of the codes' exact sum shows no more than the sum, whatever the server
        saw. If more clients were lost than the aggregation assumes, who took part counts as known.
        """
        summed = len(opened.nodes)
        honest = summed - self.aggregation.corrupt(num_asked)
        if not self.aggregation.view(num_asked).is_local:
            # As many honest clients as stayed, which are no fewer than the view counts on.
            self.ledger.summed(honest)
        if self._rate is not None:
            too_many_lost = num_asked - summed > self.aggregation.lost(num_asked)
            shown = honest if opened.total is not None and honest > 0 else None
            self.ledger.published(View(shown, 1.0 if too_many_lost else self._rate))

    def statements(self, mechanism: Mechanism, refine: bool) -> list[PrivacyStatement]:
        """What a coordinate of a mechanism costs, and what the last round and all rounds so far have cost."""
        ledger, delta = self.ledger, self.delta
        statements = [coordinate_statement(mechanism)]
        if not len(ledger) or math.isinf(mechanism.epsilon):
            return statements
        views = [False] if ledger.last_view.is_local else [False, True]
        statements += [ledger.last_statement(delta, in_sum, refine) for in_sum in views]
        statements += [ledger.statement(delta, in_sum, refine) for in_sum in views]
        if ledger.counts_models:
            statements.append(ledger.models_statement(delta, refine))
        return statements

    def spent(self) -> PrivacyStatement:
        """A quick upper bound of what a client has spent, or the budget where that is smaller."""
        spent = self.ledger.statement(self.delta, not self.ledger.last_view.is_local, refine=False)
        limit = self.budget
        if limit is None or limit.delta > self.delta or spent.epsilon <= limit.epsilon:
            return spent
        # The ledger has counted in full where a quick bound exceeds the budget, and let the round begin.
        return replace(spent, epsilon=limit.epsilon, delta=limit.delta)
