"""Common code of strategies that wrap another one: delegation, the stack, and how a run ends.

:class:`StrategyWrapper` delegates everything to the strategy that it wraps; a wrapper overrides only what it
changes. :func:`strategy_stack` walks from the outermost wrapper to the strategy that aggregates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from logging import WARNING
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    QFedAvg,
    Result,
    Strategy,
)

from fl_privquant.accounting.aggregation import Aggregation
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError, pluralize
from fl_privquant.flower._flower_internals import log

# These strategies compare the updates of single clients, which a sum does not show.
_NEED_SINGLE_UPDATES = (Bulyan, FedMedian, FedTrimmedAvg, Krum, MultiKrum, QFedAvg)
# No node of Flower has this id.
_NO_NODE: Final = 0

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Evaluates the model after a round, at the server."""

Aggregate = tuple[ArrayRecord | None, MetricRecord | None]
"""The model and the metrics that a round of training results in."""


class StrategyWrapper(Strategy):
    """Delegates everything to the strategy that it wraps.

    Parameters
    ----------
    strategy
        The wrapped strategy.
    """

    def __init__(self, strategy: Strategy) -> None:
        if not isinstance(strategy, Strategy):
            raise InvalidSpecError("strategy", strategy, ", expected a flwr.serverapp Strategy")
        for wrapped in strategy_stack(strategy):
            if isinstance(wrapped, ResumableRun):
                raise InvalidSpecError(
                    "strategy",
                    wrapped,
                    "must be the outermost one, as it saves and restores what it wraps",
                    f"put {type(self).__name__} inside it",
                )
        self.strategy = strategy

    @property
    def weighted_by_key(self) -> str:
        """The metric that the wrapped strategy weighs clients by."""
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))

    @property
    def arrayrecord_key(self) -> str:
        """The name under which the wrapped strategy looks for a reply's arrays."""
        return str(getattr(self.strategy, "arrayrecord_key", "arrays"))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **keywords: Any) -> Result:
        """Run the rounds, and log what they have cost; arguments are those of Flower's ``Strategy.start``.

        If the budget runs out, the result is a :class:`StoppedResult` with the model so far and the reason.
        """
        return ResumableRun(self).start(grid, initial_arrays, *args, **keywords)


def strategy_stack(strategy: Any) -> Iterator[Strategy]:
    """The strategy and those that it wraps, from the outside in; one that wraps itself comes once."""
    seen: list[Strategy] = []
    while isinstance(strategy, Strategy) and strategy not in seen:
        seen.append(strategy)
        yield strategy
        strategy = getattr(strategy, "strategy", None)


def check_strategy(strategy: Strategy, aggregation: Aggregation, simulated: bool) -> None:
    """Refuse a strategy that compares single updates if the server sees only sums.

    A simulated aggregation is refused too, unless privacy is said to be ``simulated``.
    """
    if aggregation.simulated and not simulated:
        raise InvalidSpecError(
            "aggregation",
            aggregation,
            f"protects nobody, as {aggregation.simulated}",
            "use SecureSum(), or say simulated=True",
        )
    if aggregation.shows_single_updates:
        return
    for wrapped in strategy_stack(strategy):
        if needs_single_updates(type(wrapped)):
            raise InvalidSpecError(
                "strategy",
                wrapped,
                "compares single updates, which a sum does not show",
                "use one that needs only the mean, such as FedAvg, FedAvgM or FedAdam, or "
                "aggregation=PerClient()",
            )


def needs_single_updates(kind: type) -> bool:
    """Whether strategies of a class compare single updates."""
    return issubclass(kind, _NEED_SINGLE_UPDATES)


def make_mean_reply(server_round: int, content: RecordDict | None = None) -> Message:
    """A reply that holds the mean of a round's clients, for strategies that aggregate messages.

    No client has sent it, so it names node 0 as its sender, which is the id of no client.
    """
    request = Message(RecordDict(), _NO_NODE, MessageType.TRAIN, group_id=str(server_round))
    return Message(content or RecordDict(), reply_to=request)


@dataclass
class StoppedResult(Result):
    """The result of a run whose budget did not last until the last round."""

    stopped: BudgetExhaustedError | None = None
    """Which round was not begun, and what was spent (``stopped.statement``)."""
    rounds: int = 0
    """Number of the last round that was finished."""
    planned_rounds: int = 0
    """Number of rounds that ``start`` was asked to run."""

    @property
    def reason(self) -> str:
        """Why the run ended, and what would help, in one line."""
        remedy = "" if self.stopped is None else self.stopped.remedy
        rounds = f"{self.rounds} of {pluralize(self.planned_rounds, 'round')}"
        return ". ".join(filter(None, [f"budget exhausted after {rounds}: {self.stopped}", remedy]))


class ResumableRun(StrategyWrapper):
    """Runs Flower's loop over the rounds of a strategy, and keeps its results from round to round.

    Flower counts rounds from 1 in each loop. Here they go on from those that were finished before, whose
    number is :attr:`rounds_before`, and :attr:`result` holds the model and the metrics of all of them.

    A budget that runs out ends the loop with a :class:`StoppedResult`. But a budget that does not allow even
    the first release is a mistake in the settings, and its error is raised. A run that was killed several
    times may have spent its budget before any round was finished. That is a result, with the initial model,
    because releases were made and must be stated.
    """

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        self.result = Result()
        self.rounds_before = 0

    def resume(self, initial_arrays: ArrayRecord) -> None:
        """Set what the loop begins with: the initial model, and no round done."""
        self.result, self.rounds_before = Result(arrays=initial_arrays), 0

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the rounds up to number ``num_rounds`` that are not done yet."""
        self.resume(initial_arrays)
        evaluate = None if evaluate_fn is None else self._wrap_evaluate(evaluate_fn)
        left = max(num_rounds - self.rounds_before, 0)
        self._rounds = self.rounds_before
        result = self.result
        try:
            Strategy.start(self, grid, result.arrays, left, timeout, train_config, evaluate_config, evaluate)
        except BudgetExhaustedError as error:
            spent_before = error.statement is not None and error.statement.epsilon > 0.0
            if self._rounds == 0 and not spent_before:
                raise
            result = StoppedResult(
                **vars(result), stopped=error, rounds=self._rounds, planned_rounds=num_rounds
            )
            log(WARNING, "PrivQuant: the run ends here as a result: %s", result.reason)
        for wrapped in strategy_stack(self.strategy):
            log_spent = getattr(wrapped, "log_spent", None)
            if log_spent is not None:
                log_spent()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return super().configure_train(self.rounds_before + server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        number = self.rounds_before + server_round
        arrays, metrics = super().aggregate_train(number, replies)
        self._rounds = number
        if arrays is not None:
            self.result.arrays = arrays
        if metrics is not None:
            self.result.train_metrics_clientapp[number] = metrics
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return super().configure_evaluate(self.rounds_before + server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        number = self.rounds_before + server_round
        metrics = super().aggregate_evaluate(number, replies)
        if metrics is not None:
            self.result.evaluate_metrics_clientapp[number] = metrics
        return metrics

    def _wrap_evaluate(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """The program's evaluation, with the round numbers of this loop, and its metrics kept."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            number = self.rounds_before + server_round
            metrics_by_round = self.result.evaluate_metrics_serverapp
            # A run may have been killed between a round and its evaluation, which is made up for here.
            if number not in metrics_by_round:
                metrics = evaluate_fn(number, arrays)
                if metrics is not None:
                    metrics_by_round[number] = metrics
            return metrics_by_round.get(number)

        return evaluate
