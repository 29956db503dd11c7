"""The round that is under way at the server: what was asked, and whose replies count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import BudgetExhaustedError, InvalidUpdateError, one_line
from fl_privquant.flower.arrays import DecodedArray
from fl_privquant.flower.exchange import Decoded
from fl_privquant.flower.protocol import RECORD_METRICS, Reply, Request

__all__ = ["RoundState", "mean_metrics", "shared_metrics"]


@dataclass
class RoundState:
    """What is known of a round.

    Parameters
    ----------
    request
        What clients were asked.
    arrays, model
        The model that they were sent, as Flower's arrays and as numpy's.
    codec
        Of their updates.
    asked
        The nodes that were asked.
    heard
        The nodes that have replied.
    exhausted
        How many of these refuse because of their own budget.
    """

    request: Request
    arrays: ArrayRecord
    model: dict[str, NDArray[Any]]
    codec: UpdateCodec
    asked: set[int]
    heard: set[int] = field(default_factory=set)
    exhausted: int = 0

    @property
    def num_silent(self) -> int:
        """Nodes that did not reply."""
        return len(self.asked) - len(self.heard)

    def checked(self, message: Message) -> Reply:
        """The reply of a node that was asked, once, in this round; its payload is not looked into."""
        node = message.metadata.src_node_id
        if node not in self.asked:
            raise InvalidUpdateError("dropped: this node was not asked")
        if node in self.heard:
            raise InvalidUpdateError("dropped: this node has already replied")
        self.heard.add(node)
        if message.has_error():
            self.exhausted += BudgetExhaustedError.__name__ in (message.error.reason or "")
            reason = one_line(message.error.reason)
            raise InvalidUpdateError(f"replied with error {message.error.code}: {reason}")
        reply = Reply.from_content(message.content)
        if reply.round != self.request.round:
            # The reply to this round may still follow.
            self.heard.discard(node)
            raise InvalidUpdateError(f"dropped: reply to round {reply.round}, not {self.request.round}")
        if reply.mechanism != self.request.fingerprint:
            raise InvalidUpdateError(
                f"dropped: encoded by mechanism {reply.mechanism[:64]!r}, another than was asked"
            )
        return reply

    def as_plain_reply(
        self, message: Message, decoded: Decoded, metrics: Mapping[str, Any], arrays_key: str
    ) -> Message:
        """The message that the wrapped strategy would have received without PrivQuant."""
        record = ArrayRecord()
        for name, each in self.arrays.items():
            # Buffers that are no floats are not sent: they keep the server's value.
            decode = decoded.get(name)
            before = self.model[name]
            record[name] = each if decode is None else DecodedArray(decode, before.dtype, before.shape)
        message.content = RecordDict({arrays_key: record, RECORD_METRICS: MetricRecord(dict(metrics))})
        return message

    def with_own_types(self, arrays: ArrayRecord) -> ArrayRecord:
        """The aggregate in the model's own types.

        Strategies average counters to fractions, and some turn float32 to float64.
        """
        kept = ArrayRecord()
        for name, each in arrays.items():
            before = self.arrays.get(name)
            if before is None or before.dtype == each.dtype:
                kept[name] = each
            elif name in self.codec.layout.names:
                kept[name] = Array(np.asarray(each.numpy().astype(self.model[name].dtype)))
            else:
                kept[name] = before
        return kept


def mean_metrics(metrics: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of the metrics that all clients report."""
    return {name: _mean([each[name] for each in metrics]) for name in shared_metrics(metrics)}


def shared_metrics(metrics: list[Mapping[str, Any]]) -> list[str]:
    """Names of the metrics that every client reports in the same form; strategies average no others."""
    first = metrics[0]
    return [
        name
        for name in first
        if all(name in each and _form(each[name]) == _form(first[name]) for each in metrics)
    ]


def _mean(values: list[Any]) -> float | list[float]:
    """The mean of metrics that clients report: of numbers, or of lists of them."""
    with np.errstate(over="ignore"):
        mean: NDArray[np.float64] = np.asarray(np.mean(values, axis=0, dtype=np.float64))
    return [float(each) for each in mean] if isinstance(values[0], list) else float(mean)


def _form(value: Any) -> int:
    return len(value) if isinstance(value, list) else -1
