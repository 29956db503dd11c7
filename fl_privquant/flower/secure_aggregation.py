"""The server's strategy of secure aggregation: PrivQuant around secure sums.

Key stages run inside ``configure_train``, which has the grid; the masked input *is* the reply to the
train message; unmasking runs inside ``aggregate_train``. Flower's own loop stays as it is, and the
wrapped strategy gets the mean update of the clients that stayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from logging import ERROR, INFO, WARNING
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from fl_privquant.codec.sum_check import honest_sum_test
from fl_privquant.errors import InvalidSpecError, PrivQuantError, SecureAggregationError
from fl_privquant.flower.protocol import Reply
from fl_privquant.flower.secure_rounds import SecureRounds, with_delivery
from fl_privquant.flower.strategy import PrivQuantStrategy, mean_metrics
from fl_privquant.flower.target import RunTarget
from fl_privquant.privacy.statement import View
from fl_privquant.secagg.keys import Identity
from fl_privquant.secagg.parameters import checked_fraction

__all__ = ["SecureAggregationStrategy"]

# These compare single updates with one another, which is what the server must not see.
_NEED_SINGLE_UPDATES: Final = ("FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan", "QFedAvg")


class SecureAggregationStrategy(Strategy):
    """Wraps a PrivQuantStrategy: the server learns the sum of the clients' codes and nothing else.

    Mechanism ``none`` then sends fixed point, as floats cannot be masked: clipped, and rounded at random to a
    lattice of 20 bits.

    Parameters
    ----------
    strategy
        The PrivQuantStrategy, around any strategy that needs the mean update only. One that compares
        single updates, such as FedMedian or Krum, is refused.
    corrupt_fraction, dropout_fraction, server_may_lie, num_neighbors, threshold, identities
        As in :class:`~fl_privquant.secagg.RoundConfig`: what is assumed of clients, from which the graph
        follows, and where clients sign, their public keys by node id, or the list of known clients
        (:func:`~fl_privquant.secagg.identities.read_known_clients`), by which nodes are asked who they are.
    timeout
        Seconds that a stage of the protocol may take.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> from flwr.serverapp.strategy import FedAvg
    >>> private = PrivQuantStrategy(FedAvg(), mechanism=pq.design("one_bit", epsilon=1.0), clip=0.1)
    >>> strategy = SecureAggregationStrategy(private)
    """

    def __init__(
        self,
        strategy: PrivQuantStrategy,
        *,
        corrupt_fraction: float = 0.1,
        dropout_fraction: float = 0.1,
        server_may_lie: bool | None = None,
        num_neighbors: int | None = None,
        threshold: int | None = None,
        identities: Mapping[int, Identity] | None = None,
        timeout: float = 600.0,
    ) -> None:
        if not isinstance(strategy, PrivQuantStrategy):
            raise InvalidSpecError(
                f"strategy: {type(strategy).__name__}, expected a PrivQuantStrategy: it makes integers"
            )
        for name in _aggregating_classes(strategy.strategy):
            if name in _NEED_SINGLE_UPDATES:
                raise InvalidSpecError(
                    f"strategy: {name} compares single updates, which secure aggregation hides; use one that "
                    f"needs the mean only, such as FedAvg, FedAvgM or FedAdam"
                )
        strategy.only_sums = True
        self.strategy = strategy
        self.corrupt_fraction = checked_fraction("corrupt_fraction", corrupt_fraction)
        self.dropout_fraction = checked_fraction("dropout_fraction", dropout_fraction)
        # Who has clients sign their keys does not trust the server.
        self.server_may_lie = identities is not None if server_may_lie is None else server_may_lie
        self.identities = identities
        self._rounds = SecureRounds(
            timeout,
            corrupt_fraction=self.corrupt_fraction,
            dropout_fraction=self.dropout_fraction,
            server_may_lie=self.server_may_lie,
            num_neighbors=num_neighbors,
            threshold=threshold,
            identities=identities,
        )
        strategy.planned_view = self._planned_view
        self._asked = 0

    @classmethod
    def for_target(
        cls,
        strategy: Strategy,
        target: RunTarget,
        arrays: ArrayRecord,
        *,
        rotation_seed: int = 0,
        max_failed_rounds: int = 0,
        **settings: Any,
    ) -> SecureAggregationStrategy:
        """The strategy, around any that needs the mean only, whose whole run meets a privacy target.

        Mechanism, clips and budget follow from the target and the model's arrays; ``settings`` are those of
        this class that the target does not name.
        """
        return cls(
            PrivQuantStrategy.for_target(
                strategy, target, arrays, rotation_seed=rotation_seed, max_failed_rounds=max_failed_rounds
            ),
            corrupt_fraction=target.corrupt_fraction,
            dropout_fraction=target.dropout_fraction,
            **settings,
        )

    def checkpoint_state(self) -> dict[str, Any]:
        """Nothing: keys are drawn anew for each round, and a session for each start."""
        return {}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""

    def summary(self) -> None:
        """Log the assumptions, and the settings of the wrapped strategy."""
        log(INFO, "\t├──> Secure aggregation: the server sees sums of codes only")
        log(INFO, "\t│\t├── Assumed: %g of clients corrupt", self.corrupt_fraction)
        log(INFO, "\t│\t├── Tolerated: %g of clients lost", self.dropout_fraction)
        signed = (
            "signed by clients" if self.identities is not None else "the server is trusted not to impersonate"
        )
        log(INFO, "\t│\t└── Keys: %s", signed)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy choose clients, and agree with them on masks."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._rounds.abandon()
        self._asked = len(messages)
        if not messages:
            return messages
        try:
            deliveries = self._agree(server_round, [each.metadata.dst_node_id for each in messages], grid)
        except SecureAggregationError as error:
            log(ERROR, "Secure aggregation: round %d, %s", server_round, error)
            self.strategy.ledger.cancel()
            return []
        self.strategy.ledger.summed(self._least_honest(len(messages)))
        return [
            with_delivery(message, deliveries[message.metadata.dst_node_id])
            for message in messages
            if message.metadata.dst_node_id in deliveries
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Open the sum of the inputs that arrived, and let the wrapped strategy aggregate its mean."""
        received = list(replies)
        if not self._rounds.under_way:
            return self.strategy.aggregate_sum(server_round, [], 0)
        replied = {
            message.metadata.src_node_id: reply
            for message in received
            if (reply := self._checked(server_round, message)) is not None
        }
        try:
            result = self._rounds.open(
                {node: reply.payload for node, reply in replied.items()}, self._check_honest
            )
            self.strategy.ledger.summed(len(result.survivors) - self._corrupt(self._asked))
            # The sum is open and counted; one that honest clients cannot have sent is not applied.
            honest_sum_test(self.strategy.codec, len(result.survivors)).check(result.total)
        except SecureAggregationError as error:
            log(ERROR, "Secure aggregation: round %d, %s; nothing was applied", server_round, error)
            return self.strategy.aggregate_sum(server_round, [], 0)
        means = mean_metrics([replied[node].metrics for node in result.survivors])
        return self.strategy.aggregate_sum(server_round, result.total, len(result.survivors), means)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the wrapped strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegate to the wrapped strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _corrupt(self, num_clients: int) -> int:
        # 0.29 * 100 is a little below 29.
        return math.floor(self.corrupt_fraction * num_clients + 1e-9)

    def _planned_view(self, num_clients: int) -> View:
        """What is to be seen of a round: a sum that has lost the clients that may be lost, and no more."""
        lost = math.floor(self.dropout_fraction * num_clients + 1e-9)
        return View(max(num_clients - lost - self._corrupt(num_clients), 1))

    def _least_honest(self, num_clients: int) -> int:
        """Honest clients in any sum that this round can open.

        Below the threshold of shares none is opened; with a budget, nor is one below the plan.
        """
        planned = self._planned_view(num_clients).num_honest or 1
        if self.strategy.budget is not None or not self._rounds.under_way:
            return planned
        return max(self._rounds.threshold - self._corrupt(num_clients), 1)

    def _check_honest(self, survivors: int) -> None:
        if self.strategy.budget is None:
            return
        honest, planned = survivors - self._corrupt(self._asked), self._planned_view(self._asked).num_honest
        if honest < (planned or 1):
            raise SecureAggregationError(
                f"{survivors} clients are left, {honest} of them honest, fewer than the {planned} that the "
                f"budget is planned for; raise dropout_fraction ({self.dropout_fraction})"
            )

    def start(self, *args: Any, **keywords: Any) -> Result:
        """Run the rounds, and say what they have cost."""
        result = super().start(*args, **keywords)
        self.strategy.log_spent()
        return result

    def _agree(self, server_round: int, nodes: list[int], grid: Grid) -> dict[int, bytes]:
        codec = self.strategy.codec
        mechanism = codec.mechanism
        if not mechanism.summable:
            raise InvalidSpecError(
                f"mechanism {mechanism.name!r} gives no integers to be summed, as secure aggregation needs"
            )
        return self._rounds.agree(
            server_round,
            nodes,
            grid,
            dimension=codec.dimension,
            width=mechanism.sum_bits(len(nodes)),
            max_code=mechanism.max_code,
        )

    def _checked(self, server_round: int, message: Message) -> Reply | None:
        try:
            return self.strategy.checked_reply(message)
        except PrivQuantError as error:
            node = message.metadata.src_node_id
            log(WARNING, "Secure aggregation: round %d, node %d: %s", server_round, node, error)
            return None


def _aggregating_classes(strategy: Any) -> Iterable[str]:
    """Names of the classes of all strategies below, with those they derive from."""
    while isinstance(strategy, Strategy):
        yield from (each.__name__ for each in type(strategy).__mro__)
        strategy = getattr(strategy, "strategy", None)
