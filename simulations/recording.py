"""What happened in each round, recorded beside the model it made.

``RecordingStrategy`` sits between PrivQuantStrategy and the strategy that aggregates, where updates
are ordinary arrays again. Only a simulation can know the true updates: clients leave them aside
(``Probe``), never in a message. Rows are part of the checkpoint, so that the rounds of
an interrupted run are there once, and only once.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_privquant.accounting import Unit
from fl_privquant.codec.pack import packed_size
from fl_privquant.flower import PrivQuantStrategy
from simulations.tasks import Task

__all__ = ["Probe", "RecordingStrategy"]

Arrays = dict[str, NDArray[Any]]
Row = dict[str, Any]


class Probe:
    """The true updates of one run's clients: in memory if they share the server's process, else in files.

    Parameters
    ----------
    directory
        Names the run, and holds the files.
    same_process
        Whether clients run where the server does.
    """

    _in_memory: ClassVar[dict[Path, dict[tuple[int, int], Arrays]]] = {}

    def __init__(self, directory: Path, same_process: bool = False) -> None:
        self.directory = directory
        self._kept = self._in_memory.setdefault(directory, {}) if same_process else None

    def leave(self, server_round: int, client: int, trained: Arrays) -> None:
        """Keep what a client trained, until it is taken."""
        if self._kept is not None:
            self._kept[server_round, client] = trained
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        np.savez(self.directory / f"{server_round}-{client}.npz", allow_pickle=False, **trained)

    def take(self, server_round: int) -> list[Arrays]:
        """What clients trained in a round, in the order of clients; it is then deleted."""
        if self._kept is not None:
            places = sorted(place for place in self._kept if place[0] == server_round)
            return [self._kept.pop(place) for place in places]
        taken = []
        files = sorted(
            self.directory.glob(f"{server_round}-*.npz"), key=lambda path: int(path.stem.split("-")[1])
        )
        for path in files:
            with np.load(path, allow_pickle=False) as stored:
                taken.append({name: stored[name] for name in stored.files})
            path.unlink()
        return taken


class RecordingStrategy(Strategy):
    """Delegates to a strategy, and records a row for each round.

    Parameters
    ----------
    strategy
        What aggregates.
    task
        What evaluates.
    probe
        Where clients leave the true updates.
    constants
        Columns that are the same in every row; ``seed`` also addresses the sampling of clients.
    on_row
        Called with all rows so far, after each round.
    secure
        Whether updates travel masked, as wide as their sum.
    """

    def __init__(
        self,
        strategy: Strategy,
        task: Task,
        probe: Probe,
        constants: Mapping[str, Any],
        on_row: Callable[[list[Row]], None],
        secure: bool = False,
    ) -> None:
        self.strategy = strategy
        self.rows: list[Row] = []
        self._task = task
        self._probe = probe
        self._constants = constants
        self._on_row = on_row
        self._secure = secure
        self._seed = int(constants["seed"])
        self._outer: PrivQuantStrategy | None = None
        self._before: Arrays = {}
        self._sent_at = 0.0
        self._asked = 0
        self._request_bytes = 0

    def attach(self, outer: PrivQuantStrategy) -> None:
        """Name the strategy around this one: it knows the codec and what was spent."""
        self._outer = outer

    @property
    def weighted_by_key(self) -> str:
        """The aggregating strategy's."""
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))

    @property
    def arrayrecord_key(self) -> str:
        """The aggregating strategy's."""
        return str(getattr(self.strategy, "arrayrecord_key", "arrays"))

    def begin(self, arrays: Arrays) -> None:
        """Record the model before the first round, unless the run goes on from a checkpoint."""
        if not self.rows:
            self._record(0, arrays, {"bytes_up": 0, "bytes_down": 0, "num_replies": 0})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate, and remember what was sent."""
        self._before = {name: each.numpy() for name, each in arrays.items()}
        # Flower's strategies sample clients with Python's generator, which other threads may use too.
        random.seed(f"{self._seed}:{server_round}")
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._asked = len(messages)
        self._request_bytes = sum(len(value) for value in config.values() if isinstance(value, bytes))
        self._sent_at = time.perf_counter()
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate, then measure the error of the mean and evaluate the new model."""
        received = list(replies)
        start = time.perf_counter()
        updates = [
            {name: each.numpy() for name, each in message.content[self.arrayrecord_key].items()}  # type: ignore[union-attr]
            for message in received
        ]
        arrays, metrics = self.strategy.aggregate_train(server_round, received)
        seconds = {"seconds_clients": start - self._sent_at, "seconds_aggregate": time.perf_counter() - start}
        if arrays is None:
            return arrays, metrics
        measured = self._measure(server_round, updates) | self._traffic() | seconds
        self._record(server_round, {name: each.numpy() for name, each in arrays.items()}, measured)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody is asked: the server evaluates."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to aggregate."""
        return None

    def summary(self) -> None:
        """Delegate."""
        self.strategy.summary()

    def checkpoint_state(self) -> dict[str, Any]:
        """The rows so far."""
        return {"rows": [dict(row) for row in self.rows]}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`checkpoint_state` gave."""
        self.rows = [dict(row) for row in state["rows"]]

    def _measure(self, server_round: int, updates: list[Arrays]) -> Row:
        """The squared error of the decoded mean, for each coordinate, and the share that was clipped."""
        true = self._probe.take(server_round)
        if self._outer is None or not true or not updates:
            return {"mean_squared_error": math.nan, "share_clipped": math.nan}
        codec = self._outer.codec
        names = codec.layout.names
        decoded_mean = [np.mean([each[name] for each in updates], axis=0, dtype=np.float64) for name in names]
        true_mean = [np.mean([each[name] for each in true], axis=0, dtype=np.float64) for name in names]
        squares = sum(
            float(np.sum((decoded - exact) ** 2))
            for decoded, exact in zip(decoded_mean, true_mean, strict=True)
        )
        clipped = (
            float(np.mean([codec.clipped_share(each, self._before) for each in true]))
            if codec.carries_difference
            else 0.0
        )
        return {"mean_squared_error": squares / codec.layout.dimension, "share_clipped": clipped}

    def _traffic(self) -> Row:
        """Bytes of updates and models so far; the key exchange of secure aggregation is not counted."""
        last, outer = self.rows[-1], self._outer
        if outer is None:
            return {"bytes_up": 0, "bytes_down": 0, "num_replies": 0}
        size = outer.codec.num_bytes
        if self._secure:
            size = packed_size(outer.codec.dimension, width=outer.codec.mechanism.sum_bits(self._asked))
        down = self._asked * (sum(each.nbytes for each in self._before.values()) + self._request_bytes)
        return {
            "bytes_up": last["bytes_up"] + size * outer.num_updates,
            "bytes_down": last["bytes_down"] + down,
            "num_replies": outer.num_updates,
        }

    def spent(self, refine: bool) -> Row:
        """What a client that was asked most has spent so far, in both views, and in the last round.

        Every round by quick bounds, that cost next to nothing; in full when the run is over.
        """
        outer = self._outer
        nothing = {"epsilon": 0.0, "delta": 0.0, "method": "exact"}
        found = dict.fromkeys(("client_round", "client_total"), nothing)
        found |= dict.fromkeys(("client_round_sum", "client_total_sum"), nothing if self._secure else {})
        for each in outer.statements(refine) if outer is not None and len(outer.ledger) else []:
            name = "client_round" if each.unit == Unit.ROUND else "client_total"
            if each.unit != Unit.COORDINATE:
                found[name if each.view == "local" else f"{name}_sum"] = {
                    "epsilon": each.epsilon,
                    "delta": each.delta,
                    "method": each.method,
                }
            elif math.isinf(each.epsilon):
                endless = {"epsilon": math.inf, "delta": 0.0, "method": "not private"}
                found = dict.fromkeys(found, endless)
        totals = {f"epsilon_{name}": values.get("epsilon", math.nan) for name, values in found.items()}
        return {
            **totals,
            "delta_client_total": found["client_total"]["delta"],
            "composition_method": found["client_total"]["method"],
            "composition_method_sum": found["client_total_sum"].get("method", "no sums"),
            "num_honest": (outer.ledger.last_view.num_honest or math.nan) if outer is not None else math.nan,
        }

    def _record(self, server_round: int, arrays: Arrays, measured: Row) -> None:
        start = time.perf_counter()
        accuracy, loss = self._task.evaluate(arrays)
        codec = None if self._outer is None or server_round == 0 else self._outer.codec
        row = {
            **self._constants,
            "round": server_round,
            "accuracy": accuracy,
            "loss": loss,
            "mean_squared_error": math.nan,
            "share_clipped": math.nan,
            "clip": math.nan if codec is None else codec.clip,
            "bits_per_coordinate": math.nan if codec is None else float(codec.mechanism.bits_per_coordinate),
            **self.spent(refine=False),
            "seconds_clients": 0.0,
            "seconds_aggregate": 0.0,
            **measured,
            "seconds_evaluate": time.perf_counter() - start,
        }
        self.rows.append(row)
        self._on_row(self.rows)
