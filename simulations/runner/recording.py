"""Recording of each round: its figures and the model that it made.

``RecordingStrategy`` sits between PrivQuantStrategy and the strategy that aggregates, where updates
are ordinary arrays again, and listens to the records of rounds that PrivQuantStrategy hands out. Only a
simulation can know the true updates: clients leave them in a ``Probe``, never in a message. Rows are part
of the checkpoint, so that each round of an interrupted run is recorded exactly once.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_privquant.accounting import LOCAL, PrivacyStatement, Unit, View, ViewKind
from fl_privquant.flower import ModelAverageStrategy, RoundRecord, StrategyWrapper
from fl_privquant.flower._messages.arrays import read_arrays
from simulations.runner.canary_audit import CanaryScores
from simulations.runner.probe import Arrays, Probe
from simulations.tasks.task import Task

Row = dict[str, Any]
_Update = Mapping[str, Array]

OnRow = Callable[[list[Row], PrivacyStatement | None], None]


class RecordingStrategy(StrategyWrapper):
    """Keeps what the aggregating strategy sees of a round, and makes a row of it with the round's record.

    Its :meth:`on_round` is the listener of the PrivQuantStrategy around it.

    Parameters
    ----------
    strategy
        The strategy that aggregates.
    task
        The task that evaluates models.
    probe
        The place where clients leave their true updates.
    constants
        Columns that are the same in every row; ``seed`` also addresses the sampling of clients.
    on_row
        Called with all rows so far after each round, and with what a client has spent by then; None before
        the first round.
    secure
        Whether the server sees sums only.
    scores
        The scores of canaries, where some clients are.
    """

    def __init__(
        self,
        strategy: Strategy,
        task: Task,
        probe: Probe,
        constants: Mapping[str, Any],
        on_row: OnRow,
        secure: bool = False,
        scores: CanaryScores | None = None,
    ) -> None:
        super().__init__(strategy)
        self._scores = scores
        self.rows: list[Row] = []
        self._task = task
        self._probe = probe
        self._constants = constants
        self._on_row = on_row
        self._secure = secure
        self._seed = int(constants["seed"])
        self._before: Arrays = {}
        self._updates: list[_Update] = []
        self._after: ArrayRecord | None = None

    def begin(self, arrays: Arrays) -> None:
        """Record the model before the first round, unless the run goes on from a checkpoint."""
        if not self.rows:
            self._add(0, arrays, first_columns(self._secure), None)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate, and remember the model that was sent."""
        self._before = read_arrays(arrays)
        # A run that was killed in this round may have left updates.
        self._probe.clear(server_round)
        # Flower's strategies sample clients with Python's generator, which other threads may use too.
        random.seed(f"{self._seed}:{server_round}")
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate, and keep the decoded updates and the new model until the round's record is there."""
        received = list(replies)
        # Updates are not decoded yet, so that only one at a time is in memory. The records are copied,
        # because FedMedian empties them.
        records = (cast(ArrayRecord, message.content[self.arrayrecord_key]) for message in received)
        self._updates = [dict(record.items()) for record in records]
        arrays, metrics = super().aggregate_train(server_round, received)
        self._after = arrays
        return arrays, metrics

    def on_round(self, record: RoundRecord) -> None:
        """Add the row of a round, unless no model came of it."""
        updates, self._updates = self._updates, []
        after, self._after = self._after, None
        if after is None:
            return
        if self._scores is not None:
            decoded = None if record.view.is_local else read_arrays(updates[0])
            self._scores.add(record, decoded, self._before, self._probe.clients(record.round))
        row = {
            **measure_round(record, updates, self._probe, self._before),
            **round_columns(record, self.rows[-1], self._secure),
        }
        self._add(record.round, {name: array.numpy() for name, array in after.items()}, row, record.spent)

    def finish(self, statements: Iterable[PrivacyStatement], view: View) -> None:
        """When the run is over, replace the last row's quick bounds by figures that were counted in full."""
        self.rows[-1] |= spent_columns(statements, view, self._secure)

    def checkpoint_state(self) -> dict[str, Any]:
        """The rows so far."""
        scores = None if self._scores is None else self._scores.checkpoint_state()
        return {"rows": [dict(row) for row in self.rows], "canaries": scores}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`checkpoint_state` gave."""
        self.rows = [dict(row) for row in state["rows"]]
        if self._scores is not None:
            self._scores.restore_state(state["canaries"])

    def _add(self, server_round: int, arrays: Arrays, row: Row, spent: PrivacyStatement | None) -> None:
        start = time.perf_counter()
        accuracy, loss = self._task.evaluate(arrays)
        evaluated = {"round": server_round, "accuracy": accuracy, "loss": loss}
        if isinstance(self.strategy, ModelAverageStrategy):
            average = self.strategy.average
            averaged = arrays if average is None else {key: array.numpy() for key, array in average.items()}
            evaluated["average_accuracy"], _ = self._task.evaluate(averaged)
        seconds = {"seconds_evaluate": time.perf_counter() - start}
        self.rows.append({**self._constants, **evaluated, **row, **seconds})
        self._on_row(self.rows, spent)


def make_ending(last: Row, stopped: str) -> ConfigRecord:
    """What a run's server leaves in its state: the last row as JSON, and why a budget ended the run early."""
    numbers = {key: value.item() if hasattr(value, "item") else value for key, value in last.items()}
    # JSON has no NaN.
    row = {key: None if value != value else value for key, value in numbers.items()}
    return ConfigRecord({"row": json.dumps(row), "stopped": stopped})


def first_columns(secure: bool) -> Row:
    """The columns of the row before the first round, when nothing was sent."""
    nothing = math.nan
    return {
        "mean_squared_error": nothing,
        "share_clipped": nothing,
        "norm_to_clip": nothing,
        "clip": nothing,
        "bits_per_coordinate": nothing,
        **spent_columns((), LOCAL, secure),
        "bytes_up": 0,
        "bytes_down": 0,
        "bytes_handshake": 0,
        "num_replies": 0,
        "overflowed_sums": nothing,
        "seconds_clients": 0.0,
        "seconds_aggregate": 0.0,
    }


def round_columns(record: RoundRecord, last: Row, secure: bool) -> Row:
    """The columns that the record of a round gives; bytes are added to those of ``last``, the row before."""
    return {
        "clip": record.encoding.clip,
        "bits_per_coordinate": float(record.encoding.mechanism.bits_per_coordinate),
        **spent_columns(record.statements, record.view, secure),
        "bytes_up": last["bytes_up"] + record.bytes_up,
        "bytes_down": last["bytes_down"] + record.bytes_down,
        "bytes_handshake": last.get("bytes_handshake", 0) + record.bytes_handshake,
        "num_replies": record.survivors,
        "overflowed_sums": math.nan if record.overflowed_sums is None else record.overflowed_sums,
        "seconds_clients": record.seconds_clients,
        "seconds_aggregate": record.seconds_aggregate,
    }


def measure_round(
    record: RoundRecord, updates: Sequence[Mapping[str, Array]], probe: Probe, before: Arrays
) -> Row:
    """The squared error of the decoded mean, for each coordinate, and how much was clipped.

    What clients trained in the round is read from the probe, and then deleted there.
    """
    codec, names = record.codec, record.codec.layout.names
    shares = [] if codec.carries_difference else [0.0]
    ratios: list[float] = []

    def trained() -> Iterator[Arrays]:
        """What clients trained, one by one; the shares that were clipped are noted on the way."""
        for update in probe.read(record.round):
            if codec.carries_difference:
                shares.append(codec.clipped_fraction(update, before))
                if (ratio := codec.norm_to_clip(update, before)) is not None:
                    ratios.append(ratio)
            yield update
            # Freed before the next update is read.
            del update

    errors = _mean_arrays(names, trained())
    probe.clear(record.round)
    if not errors or not updates:
        return {"mean_squared_error": math.nan, "share_clipped": math.nan, "norm_to_clip": math.nan}
    # A sum of codes is decoded to one update, the mean.
    decoded = read_arrays(updates[0]) if len(updates) == 1 else _mean_arrays(names, map(read_arrays, updates))
    squares = 0.0
    for name, error in errors.items():
        np.subtract(decoded[name], error, out=error)
        squares += float(np.sum(np.square(error, out=error)))
    return {
        "mean_squared_error": squares / codec.layout.dimension,
        "share_clipped": float(np.mean(shares)),
        "norm_to_clip": float(np.median(ratios)) if ratios else math.nan,
    }


def spent_columns(statements: Iterable[PrivacyStatement], view: View, secure: bool) -> Row:
    """What the client that was asked most often has spent so far and in the last round, in all views.

    Parameters
    ----------
    statements
        The statements of PrivQuantStrategy; none before the first round.
    view
        The view of the last round.
    secure
        Whether the server sees sums only.
    """
    statements = list(statements)
    nothing = PrivacyStatement(0.0, 0.0, Unit.TOTAL, method="exact")
    if any(statement.unit != Unit.COORDINATE for statement in statements):
        # Rounds were run, and views in which nothing is certified are not among their statements.
        nothing = replace(nothing, epsilon=math.inf, method="not certified")
    cells: dict[str, PrivacyStatement | None] = dict.fromkeys(("client_round", "client_total"), nothing)
    cells |= dict.fromkeys(("client_round_sum", "client_total_sum"), nothing if secure else None)
    cells["client_total_models"] = None
    for statement in statements:
        if statement.unit != Unit.COORDINATE:
            names = {Unit.ROUND: "client_round", Unit.RECORD: "record_total"}
            name = names.get(statement.unit, "client_total")
            seen_by = {ViewKind.LOCAL: "", ViewKind.MODELS: "_models"}.get(statement.view.kind, "_sum")
            # Of a record there are several, of which the first has the relation of the target.
            if statement.unit is not Unit.RECORD or f"{name}{seen_by}" not in cells:
                cells[f"{name}{seen_by}"] = statement
        elif math.isinf(statement.epsilon):
            # Only samplings state the models view; the central baseline has a statement of its own.
            bare = replace(statement, delta=0.0, method="not private")
            cells = {name: None if name.endswith("_models") else bare for name in cells}
    epsilons = {f"epsilon_{name}": cell.epsilon if cell else math.nan for name, cell in cells.items()}
    local, in_sum = cells["client_total"] or nothing, cells["client_total_sum"]
    return {
        **epsilons,
        # The largest delta of all totals: a statement with a smaller delta holds for it too.
        "delta_client_total": max(cell.delta for name, cell in cells.items() if "total" in name and cell),
        "composition_method": local.method,
        "composition_method_sum": in_sum.method if in_sum else "no sums",
        "num_honest": view.num_honest or math.nan,
    }


def _mean_arrays(names: Iterable[str], updates: Iterable[Arrays]) -> dict[str, NDArray[np.float64]]:
    """The mean of each array over updates, of which one is held at a time; nothing, if there is none."""
    total: dict[str, NDArray[np.float64]] = {}
    count = 0
    for update in updates:
        count += 1
        for name in names:
            if name in total:
                total[name] += update[name]
            else:
                total[name] = np.array(update[name], np.float64)
        # Freed before the next update is read.
        del update
    for array in total.values():
        array /= count
    return total
