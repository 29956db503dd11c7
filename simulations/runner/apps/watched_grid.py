"""The grid that an app's server talks to: it makes training rounds private, and records a row for each.

What the app evaluates is read from its messages: replies to evaluate messages after a round are about the
model of that round. What the server app computes by itself is not recorded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid

from fl_privquant.accounting import LOCAL, PrivacyStatement
from fl_privquant.accounting.accountant import coordinate_statement
from fl_privquant.errors import MISSING, BudgetExhaustedError, InvalidSpecError, PrivQuantError
from fl_privquant.flower import PrivateGrid, RoundRecord
from fl_privquant.flower._flower_internals import log
from fl_privquant.flower._messages.arrays import read_arrays, records_of
from fl_privquant.flower._messages.clear_replies import is_training, list_clear_names
from fl_privquant.flower._messages.grids import GridWrapper
from fl_privquant.flower._messages.protocol import is_request
from fl_privquant.flower.server.grid import refuse_pushed_training
from simulations.runner.config import AppMetricsConfig
from simulations.runner.probe import Probe
from simulations.runner.recording import (
    OnRow,
    Row,
    first_columns,
    measure_round,
    round_columns,
    spent_columns,
)
from simulations.runner.run_setup import PrivateSetup

Begin = Callable[[ArrayRecord], tuple[PrivateSetup, OnRow]]

# An app that asks more often than this in a row which nodes are connected, each time after a pause of at
# least so many seconds, is waiting for more clients. Flower's strategies ask once a second.
MAX_ASKED = 10
PAUSE = 0.5


class WatchedGrid(GridWrapper):
    """Sends an app's messages, private ones through a :class:`~fl_privquant.flower.PrivateGrid`.

    Parameters
    ----------
    grid
        The engine's grid.
    metrics
        Which of the app's metrics stand for accuracy, loss and weight.
    begin
        Called with the model of the first round; returns how the run is private, and a listener to new rows.
    probe
        Where clients leave what they trained, and why they failed.
    plain
        Whether messages pass as they are: nothing is encoded, and the app does what it does in plain Flower.
    seed
        Seed of the trusted server's noise, in the central baseline.
    """

    def __init__(
        self,
        grid: Grid,
        metrics: AppMetricsConfig,
        begin: Begin,
        probe: Probe,
        plain: bool,
        seed: int | None,
    ) -> None:
        super().__init__(grid)
        self._metrics, self._begin, self._probe = metrics, begin, probe
        self._plain, self._seed = plain, seed
        self.rows: list[Row] = []
        self.model = ArrayRecord()
        self.private: PrivateGrid | None = None
        self.setup: PrivateSetup | None = None
        # What clients answer in clear, outside of the privacy accounting.
        self.uncounted: set[str] = set()
        self._evaluations: list[Message] = []
        self._records: list[RoundRecord] = []
        self._on_row: OnRow | None = None
        self._has_trained = False
        self._spent: PrivacyStatement | None = None
        self._times_asked = 0
        self._last_asked = -math.inf

    @property
    def num_rounds(self) -> int:
        """Rounds that are done."""
        return max(0, len(self.rows) - 1)

    def get_node_ids(self) -> Iterable[int]:
        """The simulated clients. All are there from the beginning: an app that waits for more is refused."""
        nodes = list(super().get_node_ids())
        now = time.monotonic()
        self._times_asked = self._times_asked + 1 if now - self._last_asked >= PAUSE else 1
        self._last_asked = now
        if self._times_asked > MAX_ASKED:
            raise InvalidSpecError(
                "app",
                MISSING,
                f"its server waits for more clients than the {len(nodes)} that are simulated",
                "raise federation.num_clients, or lower what the app asks for (min_available_nodes of "
                "its strategy)",
            )
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages that are not for training."""
        self._times_asked = 0
        pushed = list(messages)
        refuse_pushed_training(pushed)
        return super().push_messages(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there; what is evaluated in them is kept."""
        replies = self._note_replies(super().pull_messages(message_ids))
        self._evaluations += _evaluations(replies)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and wait for their replies: train messages as a round."""
        self._times_asked = 0
        sent = list(messages)
        for message in sent:
            for _, arrays in records_of(message.content, ArrayRecord):
                self.model = arrays
        if any(is_training(message) for message in sent):
            return self._round(sent, timeout)
        replies = self._note_replies(super().send_and_receive(sent, timeout=timeout))
        self._evaluations = _evaluations(replies) or self._evaluations
        return replies

    def _note_replies(self, replies: Iterable[Message]) -> list[Message]:
        """The replies to messages that are not for training; what they hold is noted as not counted."""
        received = list(replies)
        self.uncounted.update(*map(list_clear_names, received))
        return received

    def close_round(self) -> None:
        """Complete the last row by what was evaluated since, and hand it on."""
        if not self.rows:
            return
        values = average_metrics(self._evaluations, self._metrics.weight)
        self._evaluations = []
        chosen = {
            "accuracy": _choose_metric(values, self._metrics.accuracy, "acc", "app_metrics.accuracy"),
            "loss": _choose_metric(values, self._metrics.loss, "loss", "app_metrics.loss"),
        }
        others = {f"evaluate_{name}": value for name, value in values.items()}
        self.rows[-1] |= {**chosen, **others}
        if self._on_row is not None:
            self._on_row(self.rows, self._spent)

    def finish(self, statements: Iterable[PrivacyStatement]) -> None:
        """Replace the last row's quick bounds by figures that were counted in full."""
        if self.private is not None and self.setup is not None and len(self.private.private.ledger):
            view, secure = self.private.private.ledger.last_view, self.setup.config.secagg.enabled
            self.rows[-1] |= spent_columns(statements, view, secure)

    def _round(self, messages: list[Message], timeout: float | None) -> list[Message]:
        if not self._plain and any(
            is_request(config) for sent in messages for _, config in records_of(sent.content, ConfigRecord)
        ):
            raise InvalidSpecError(
                "app",
                MISSING,
                "it is private already: its server app has a PrivQuantStrategy or a PrivateGrid",
                "leave that and the client's PrivQuantMod out, or run it with mechanism=none",
            )
        if self.setup is None:
            self._set_up()
        # The row before is complete now: what the app evaluates from here on is about the next model.
        self.close_round()
        number, start = self.num_rounds + 1, time.perf_counter()
        self._records = []
        # A run that was killed in this round may have left updates.
        self._probe.clear(number)
        try:
            grid = self._grid if self.private is None else self.private
            replies = list(grid.send_and_receive(messages, timeout=timeout))
        except BudgetExhaustedError:
            raise
        except PrivQuantError:
            # The error of an app says more than that no reply was usable.
            self._check_failures(number, len(messages), {})
            raise
        errors = {
            reply.metadata.src_node_id: reply.error.reason or "" for reply in replies if reply.has_error()
        }
        self._check_failures(number, len(messages), errors)
        if self.private is None:
            row = self._plain_row(messages, replies, time.perf_counter() - start)
        else:
            row = self._private_row(replies, number)
        trained = average_metrics(replies, self._metrics.weight)
        row |= {f"train_{name}": value for name, value in trained.items()}
        self._add(number, row)
        return replies

    def _set_up(self) -> None:
        """Begin with the first round, when the model is known."""
        self.setup, self._on_row = self._begin(self.model)
        if not self._plain:
            self.private = PrivateGrid(
                self._grid,
                weighted_by=self._metrics.weight,
                wrap=lambda inner: self.setup.add_server_noise(inner, self._seed) if self.setup else inner,
                on_round=lambda record: self._records.append(record),
                **self.setup.settings(),
            )
        self._add(0, first_columns(self.setup.config.secagg.enabled))

    def _check_failures(self, number: int, asked: int, errors: Mapping[int, str]) -> None:
        """Refuse an app of which no client has ever trained: then the app is at fault, not single clients."""
        failures = {**errors, **self._probe.pop_failures()}
        self._has_trained = self._has_trained or len(failures) < asked
        if not failures:
            return
        client, reason = next(iter(failures.items()))
        if not self._has_trained:
            raise InvalidSpecError("app", MISSING, f"every client failed in round {number}: {reason}")
        log(WARNING, "app: round %d, %d clients failed, first %d: %s", number, len(failures), client, reason)

    def _private_row(self, replies: list[Message], number: int) -> Row:
        assert self.setup is not None
        (record,) = self._records
        self._spent = record.spent
        updates = [arrays for reply in replies for arrays in _models(reply)]
        before = read_arrays(self.model)
        return {
            **measure_round(record, updates, self._probe, before),
            **round_columns(record, self.rows[-1], self.setup.config.secagg.enabled),
        }

    def _plain_row(self, messages: list[Message], replies: list[Message], seconds: float) -> Row:
        assert self.setup is not None
        last, mechanism = self.rows[-1], self.setup.mechanism
        statement = coordinate_statement(mechanism)
        self._spent = statement
        return {
            **first_columns(secure=False),
            **spent_columns([statement], LOCAL, secure=False),
            "mean_squared_error": 0.0,
            "share_clipped": 0.0,
            "bits_per_coordinate": float(mechanism.bits_per_coordinate),
            "bytes_up": last["bytes_up"] + _bytes(replies),
            "bytes_down": last["bytes_down"] + _bytes(messages),
            "num_replies": sum(reply.has_content() for reply in replies),
            "seconds_clients": seconds,
        }

    def _add(self, number: int, row: Row) -> None:
        assert self.setup is not None
        nothing = {"accuracy": math.nan, "loss": math.nan, "seconds_evaluate": 0.0}
        self.rows.append({**self.setup.constants(), "round": number, **nothing, **row})


def average_metrics(replies: Iterable[Message], weight: str) -> dict[str, float]:
    """The means of the numbers that all replies report, weighted by the metric ``weight`` if all have it."""
    reported: list[dict[str, Any]] = [
        {
            name: value
            for _, record in records_of(reply.content, MetricRecord)
            for name, value in record.items()
        }
        for reply in replies
        if reply.has_content()
    ]
    names: set[str] = set.intersection(*(set(metrics) for metrics in reported)) if reported else set()
    weights = [float(metrics[weight]) if weight in names else 1.0 for metrics in reported]
    if not sum(weights) > 0.0:
        return {}
    return {
        name: float(np.average([metrics[name] for metrics in reported], weights=weights))
        for name in reported[0]
        if name in names
        and name != weight
        and all(isinstance(metrics[name], int | float) for metrics in reported)
    }


def _choose_metric(values: Mapping[str, float], name: str | None, part: str, key: str) -> float:
    """The value of that name or, without a name, the first whose name contains ``part``; NaN if none does."""
    if name is None:
        name = next((other for other in values if part in other.lower()), None)
    elif values and name not in values:
        raise InvalidSpecError(key, name, f"is not among what the app evaluates: {', '.join(values)}")
    return math.nan if name is None else values.get(name, math.nan)


def _evaluations(replies: Iterable[Message]) -> list[Message]:
    kinds = [(reply, reply.metadata.message_type.split(".")[0]) for reply in replies]
    return [reply for reply, kind in kinds if kind == MessageType.EVALUATE and reply.has_content()]


def _models(message: Message) -> list[ArrayRecord]:
    return [arrays for _, arrays in records_of(message.content, ArrayRecord)] if message.has_content() else []


def _bytes(messages: Iterable[Message]) -> int:
    """Bytes of the arrays in messages."""
    return sum(
        math.prod(array.shape) * np.dtype(array.dtype).itemsize
        for message in messages
        for record in _models(message)
        for array in record.values()
    )
