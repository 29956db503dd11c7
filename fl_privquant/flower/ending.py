"""A budget that runs out ends a run as a result: the model so far, what it cost, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from fl_privquant.errors import BudgetExhaustedError

__all__ = ["EvaluateFn", "StoppedResult", "start_within_budget"]

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class StoppedResult(Result):
    """The result of a run that its budget ended before the last round.

    Parameters
    ----------
    stopped
        Which round was not begun, and what was spent (``stopped.statement``).
    rounds
        Rounds that are done, those before a checkpoint included.
    planned_rounds
        Rounds that were asked for.
    """

    stopped: BudgetExhaustedError | None = None
    rounds: int = 0
    planned_rounds: int = 0

    @property
    def reason(self) -> str:
        """Why the run ended, and what would help, in one line."""
        return (
            f"budget exhausted after {self.rounds} of {self.planned_rounds} rounds: {self.stopped}. "
            f"For more rounds raise the budget, or spend less in each: a smaller epsilon, a smaller model, "
            f"or more clients in a secure sum"
        )


def start_within_budget(
    strategy: Strategy,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int = 3,
    timeout: float = 3600,
    train_config: ConfigRecord | None = None,
    evaluate_config: ConfigRecord | None = None,
    evaluate_fn: EvaluateFn | None = None,
    *,
    rounds_before: int = 0,
) -> Result:
    """Flower's loop over the rounds of a strategy; its result so far if a budget ends it.

    A budget that does not allow even the first release is a mistake in the settings, not a result: its
    :class:`~fl_privquant.errors.BudgetExhaustedError` is raised as it is. A run that was killed again and
    again may have spent its budget before any round was finished: that is a result, with the initial model,
    because the releases were made and must be stated.

    Parameters
    ----------
    strategy, grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        As in Flower's ``Strategy.start``.
    rounds_before
        Rounds that a checkpoint holds; ``num_rounds`` follow them.
    """
    # Named like the strategy, as Flower's log begins with the name of the class.
    watched = type(type(strategy).__name__, (_Watched,), {})(strategy, initial_arrays)
    evaluate = None if evaluate_fn is None else watched.evaluating(evaluate_fn)
    try:
        return Strategy.start(
            watched, grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate
        )
    except BudgetExhaustedError as error:
        done = rounds_before + watched.rounds
        spent_before = error.statement is not None and error.statement.epsilon > 0.0
        if done == 0 and not spent_before:
            raise
        result: StoppedResult = watched.result
        result.stopped, result.rounds, result.planned_rounds = error, done, rounds_before + num_rounds
        log(WARNING, "PrivQuant: the run ends here as a result: %s", result.reason)
        return result


class _Watched(Strategy):
    """Delegates everything, and keeps what Flower's loop would only hand out at its end."""

    def __init__(self, strategy: Strategy, initial_arrays: ArrayRecord) -> None:
        self.strategy = strategy
        self.rounds = 0
        self.result = StoppedResult(arrays=initial_arrays)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        self.rounds = server_round
        if arrays is not None:
            self.result.arrays = arrays
        if metrics is not None:
            self.result.train_metrics_clientapp[server_round] = metrics
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        metrics = self.strategy.aggregate_evaluate(server_round, replies)
        if metrics is not None:
            self.result.evaluate_metrics_clientapp[server_round] = metrics
        return metrics

    def summary(self) -> None:
        self.strategy.summary()

    def evaluating(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """The program's own evaluation, with its metrics kept."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate_fn(server_round, arrays)
            if metrics is not None:
                self.result.evaluate_metrics_serverapp[server_round] = metrics
            return metrics

        return evaluate
