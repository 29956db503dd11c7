"""An exponential average of the models of all rounds, which has less noise than the last model.

With noise in each update the models of a run scatter around their mean. The average is a function of models
that were released anyway, so that it costs no privacy. Training goes on from the last model, not from the
average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fl_privquant import _validation
from fl_privquant.flower._messages.arrays import read_arrays
from fl_privquant.flower.server.strategy_wrapper import Aggregate, StrategyWrapper

AVERAGE_PREFIX = "average-"
"""What the names of metrics of the averaged model begin with."""

_EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@_validation.check_argument_names
class ModelAverageStrategy(StrategyWrapper):
    """Wraps any strategy, and keeps an exponential average of the models that it returns.

    Parameters
    ----------
    strategy
        The wrapped strategy, such as a ``PrivQuantStrategy``.
    decay
        The weight of the average so far; the newest model has ``1 - decay``. The average of the first rounds
        is scaled up, so that the initial model has no weight.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> strategy = ModelAverageStrategy(FedAvg(), decay=0.9)
    >>> strategy.average is None  # before the first round
    True
    """

    def __init__(self, strategy: Strategy, decay: float = 0.9) -> None:
        super().__init__(strategy)
        self.decay = _validation.check_in_interval("decay", decay, "[0, 1)")
        self._sums: dict[str, Any] = {}
        self._weight = 0.0

    @property
    def average(self) -> ArrayRecord | None:
        """The average of the models so far, in their types; None before the first round."""
        if not self._sums:
            return None
        return ArrayRecord(
            {
                name: Array(np.asarray(total / self._weight).astype(dtype))
                for name, (total, dtype) in self._sums.items()
            }
        )

    def evaluate_both(self, evaluate_fn: _EvaluateFn) -> _EvaluateFn:
        """An ``evaluate_fn`` for ``start`` that evaluates the model and, as ``average-...``, the average."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics, average = evaluate_fn(server_round, arrays), self.average
            if metrics is None or average is None:
                return metrics
            averaged = evaluate_fn(server_round, average) or MetricRecord()
            return MetricRecord(
                {**metrics, **{f"{AVERAGE_PREFIX}{name}": value for name, value in averaged.items()}}
            )

        return evaluate

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Delegate, and add the new model to the average."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            self._weight = self.decay * self._weight + 1.0 - self.decay
            for name, value in read_arrays(arrays).items():
                kept = self._sums.get(name, (0.0, value.dtype))[0]
                # Counters and the like are not averaged: the newest counts.
                total = self.decay * kept + (1.0 - self.decay) * value
                total = total if value.dtype.kind == "f" else self._weight * value
                self._sums[name] = (np.asarray(total, dtype=np.float64), value.dtype)
        return arrays, metrics

    def checkpoint_state(self) -> dict[str, Any]:
        """The sum of the models so far, and its weight."""
        return {
            "weight": self._weight,
            "sums": {name: total for name, (total, _) in self._sums.items()},
            "types": {name: np.dtype(dtype).str for name, (_, dtype) in self._sums.items()},
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`checkpoint_state` gave."""
        self._weight = float(state["weight"])
        self._sums = {
            name: (np.asarray(total), np.dtype(state["types"][name])) for name, total in state["sums"].items()
        }
