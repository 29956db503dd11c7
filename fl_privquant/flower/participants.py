"""Whom a round asks: a sampling applied to the messages of the wrapped strategy, by the server's ledger.

The wrapped strategy makes a message for each client that it would ask (all of them with
``fraction_train=1.0``). Those that have had their share of rounds, by the ledger, are left out, and the
sampling draws from the rest. So it works with any strategy, and whatever the strategy does, no client is
asked more often than the sampling promises.
"""

from __future__ import annotations

from logging import WARNING

from flwr.app import Message
from flwr.supercore import log

from fl_privquant.accounting.aggregation import Aggregation
from fl_privquant.accounting.client_sampling import ClientSampling, StrategySampling
from fl_privquant.accounting.federation import FederationLedger
from fl_privquant.accounting.target import Plan
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.statement import View

__all__ = ["drawn_messages", "published_view", "sampling_for"]


def sampling_for(
    given: ClientSampling | None, aggregation: Aggregation, plan: Plan | None, simulated: bool
) -> ClientSampling:
    """The sampling of a strategy: what is given, else the strategy's own within what the plan counts on."""
    if given is None:
        given = StrategySampling(participations=None if plan is None else plan.target.participations)
    if given.seed is not None and not simulated:
        raise InvalidSpecError(
            f"sampling: seed {given.seed} tells whoever knows it who is asked; leave it out, or say "
            "simulated=True"
        )
    given.check(aggregation, plan)
    return given


def drawn_messages(
    sampling: ClientSampling,
    ledger: FederationLedger,
    server_round: int,
    messages: list[Message],
    delta: float,
) -> list[Message]:
    """The messages of a round to those that are asked; none where they are too few for a round.

    Raises BudgetExhaustedError where too few clients have any share of rounds left, which ends the run, and
    InvalidSpecError where a client is asked twice: both answers are releases, and a round counts one.
    """
    nodes = [message.metadata.dst_node_id for message in messages]
    if len(set(nodes)) < len(nodes):
        twice = next(node for node in nodes if nodes.count(node) > 1)
        raise InvalidSpecError(
            f"messages: round {server_round} asks node {twice} {nodes.count(twice)} times, but a round is "
            f"one release of a client; send the others in a round of their own"
        )
    ledger.meet(nodes)
    taken = {node: ledger.participation(node) for node in nodes} if sampling.remembers else {}
    able = [node for node in nodes if node not in taken or sampling.may_ask(server_round, *taken[node])]
    drawn = set(sampling.drawn(server_round, able, len(nodes)))
    if nodes and not drawn:
        needed = sampling.size(len(nodes))
        left = sum(sampling.has_share_left(count) for count, _ in taken.values())
        if taken and left < needed:
            spent = ledger.statement(delta, in_sum=not ledger.last_view.is_local)
            raise BudgetExhaustedError(
                f"round {server_round}: {left} of {len(nodes)} clients have taken part in fewer than "
                f"{sampling.participations} rounds, a round needs {needed}. Spent: {spent}",
                spent,
            )
        log(
            WARNING,
            "PrivQuant: round %d is not run: it needs %d clients, and %d of %d could be asked before any "
            "were drawn",
            server_round,
            needed,
            len(able),
            len(nodes),
        )
    return [message for message in messages if message.metadata.dst_node_id in drawn]


def published_view(
    rate: float, num_asked: int, num_summed: int, is_sum: bool, aggregation: Aggregation
) -> View:
    """What those who see only the models have of a round that ``num_summed`` of ``num_asked`` answered.

    A model that is a function of the codes' exact sum shows no more than the sum, whatever the server saw.
    Where more clients were lost than the aggregation assumes, who took part counts as known.
    """
    if num_asked - num_summed > aggregation.lost(num_asked):
        rate = 1.0
    honest = num_summed - aggregation.corrupt(num_asked)
    return View(honest if is_sum and honest > 0 else None, rate)
