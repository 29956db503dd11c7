"""The round that is under way at the server: what clients were asked, and which of their replies count."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from logging import INFO, WARNING
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fl_privquant.accounting.aggregation import AggregateResult, DecodeFunctions
from fl_privquant.codec.array_layout import Arrays
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidUpdateError, one_line
from fl_privquant.flower._flower_internals import log, unchecked_record, values_of
from fl_privquant.flower._messages.arrays import DecodedArray
from fl_privquant.flower._messages.cohort_replies import as_cohort_reply, source_of
from fl_privquant.flower._messages.protocol import (
    CODE_BUDGET_EXHAUSTED,
    METRIC_CLIPPED,
    METRIC_FAILED,
    METRIC_NORM,
    RECORD_METRICS,
    Reply,
    Request,
)
from fl_privquant.flower.server.log_lines import failure_lines
from fl_privquant.flower.server.strategy_wrapper import make_mean_reply

# An estimate of so many standard errors above 0 is not chance: odds of one to a thousand.
_SIGNIFICANT_ERRORS: Final = 3.0


@dataclass
class RoundState:
    """The state of a round at the server: what was asked of whom, and who has replied."""

    request: Request
    # The model that clients were sent, as Flower's arrays and as numpy's, and the codec of their updates.
    arrays: ArrayRecord
    model: dict[str, NDArray[Any]]
    codec: UpdateCodec
    # Node ids.
    asked: set[int]
    request_bytes: int
    # The metric that the wrapped strategy weighs clients by, and where it looks for their arrays.
    weight_key: str
    arrays_key: str
    asked_at: float = field(default_factory=time.perf_counter)
    replied_nodes: set[int] = field(default_factory=set)
    # How many nodes refused because of their own budget.
    num_exhausted: int = 0
    # The nodes whose replies cannot be used, by the reason.
    failed: dict[str, list[int]] = field(default_factory=dict)
    # Why no sum was opened, or why it was not applied; empty if that did not happen.
    refused: str = ""
    # Whether a client was named that kept the sum from being opened.
    names_culprit: bool = False

    @property
    def num_silent(self) -> int:
        """Nodes that did not reply."""
        return len(self.asked) - len(self.replied_nodes)

    @property
    def bytes_sent(self) -> int:
        """Bytes of the model and the request, which each node is sent."""
        return self.request_bytes + sum(array.nbytes for array in self.model.values())

    def fail(self, node: int, reason: str) -> None:
        """Note why the reply of a node cannot be used."""
        self.failed.setdefault(reason, []).append(node)

    def refuse(self, reason: str) -> None:
        """Note why the round has no sum, however many replies are valid; the first reason counts."""
        self.refused = self.refused or reason

    @property
    def num_failed(self) -> int:
        """Nodes whose replies cannot be used."""
        return len({node for nodes in self.failed.values() for node in nodes} & self.replied_nodes)

    @property
    def reason(self) -> str:
        """Why the round failed: how most nodes did and, in a sum, why there is none; empty if all are silent.

        A sum also fails if only some nodes do. Their reason is then not the one that ends the round.
        """
        usual = max(self.failed, key=lambda reason: len(self.failed[reason]), default="")
        nodes = self.failed.get(usual, [])
        told = ""
        if 2 * len(nodes) > len(self.asked):
            told = f"most nodes {usual}"
        elif nodes and not self.refused:
            (told,) = failure_lines({usual: nodes})
        return "; ".join(filter(None, [told, self.refused]))

    def check_reply(self, message: Message) -> Reply:
        """The reply in a message, if it is the only one of a node that was asked; its payload is not read."""
        node = source_of(message)
        if node not in self.asked:
            raise InvalidUpdateError("dropped: this node was not asked")
        if node in self.replied_nodes:
            raise InvalidUpdateError("dropped: this node has already replied")
        self.replied_nodes.add(node)
        if message.has_error():
            self.num_exhausted += message.error.code == CODE_BUDGET_EXHAUSTED
            reason = one_line(message.error.reason)
            raise InvalidUpdateError(f"replied with error {message.error.code}: {reason}")
        of_cohort = as_cohort_reply(message)
        reply = Reply.from_content(message.content) if of_cohort is None else of_cohort.reply
        if reply.round != self.request.round:
            # The reply to this round may still follow.
            self.replied_nodes.discard(node)
            raise InvalidUpdateError(f"dropped: reply to round {reply.round}, not {self.request.round}")
        if reply.mechanism != self.request.fingerprint:
            raise InvalidUpdateError(
                f"dropped: encoded by mechanism {reply.mechanism[:64]!r}, not by the one that was requested"
            )
        return reply

    def clip_vote(self, opened: AggregateResult, replies: list[Reply]) -> float:
        """The share of clients that voted for the clip."""
        if opened.total is not None:
            return self.codec.clip_vote_fraction(opened.total, len(replies))
        return float(np.mean([self.codec.clip_vote(reply.payload) for reply in replies]))

    def plain_replies(
        self, opened: AggregateResult, received: Mapping[int, tuple[Message, Reply]]
    ) -> list[Message]:
        """What the wrapped strategy would have received without PrivQuant: all updates, or their mean."""
        replies = [received[node][1] for node in opened.nodes]
        if opened.total is not None:
            return [self._mean_message(opened.total, opened.mean, replies)]
        metrics: list[Mapping[str, Any]] = [
            {**reply.metrics, **self.codec.decode_metrics(reply.payload)} for reply in replies
        ]
        shared = _find_shared_metrics(metrics)
        return [
            self._plain(received[node][0], opened.decoded[node], {name: own[name] for name in shared})
            for node, own in zip(opened.nodes, metrics, strict=True)
        ]

    def _mean_message(self, total: NDArray[Any], mean: Arrays | None, replies: list[Reply]) -> Message:
        """The one reply that the wrapped strategy sees if there is a sum of codes: the mean update."""
        update = self.codec.decode_sum(total, len(replies)) if mean is None else mean
        arrays = self.codec.add_update(update, self.model)
        decoded: DecodeFunctions = {name: partial(np.array, array) for name, array in arrays.items()}
        metrics = average_metrics([reply.metrics for reply in replies])
        private = self.codec.decode_metric_means(total, len(replies))
        return self._plain(make_mean_reply(self.request.round), decoded, {**metrics, **private})

    def _plain(self, message: Message, decoded: DecodeFunctions, metrics: Mapping[str, Any]) -> Message:
        """The reply as the wrapped strategy expects it, with the weight that all clients have."""
        arrays: dict[str, Array] = {}
        for name, array in self.arrays.items():
            # Arrays that clients do not send, such as integer buffers, keep the server's values.
            decode = decoded.get(name)
            before = self.model[name]
            arrays[name] = array if decode is None else DecodedArray(decode, before.dtype, before.shape)
        # Flower checks what clients report.
        weighted = MetricRecord(dict(metrics)) if metrics else unchecked_record(MetricRecord, {})
        values_of(weighted)[self.weight_key] = 1
        record = unchecked_record(ArrayRecord, arrays)
        message.content = RecordDict({self.arrays_key: record, RECORD_METRICS: weighted})
        return message

    def restore_types(self, arrays: ArrayRecord) -> ArrayRecord:
        """The aggregate in the types of the model.

        Averages turn integer counters into fractions, and some strategies turn float32 into float64.
        """
        kept = ArrayRecord()
        for name, array in arrays.items():
            before = self.arrays.get(name)
            if before is not None and name not in self.codec.layout.names:
                # Not sent, so not changed: an average of equal numbers may differ in the last bit.
                kept[name] = before
            elif before is None or before.dtype == array.dtype:
                kept[name] = array
            else:
                kept[name] = Array(np.asarray(array.numpy().astype(self.model[name].dtype)))
        return kept


class FailedTrainingEstimate:
    """Estimates how many clients could not train, in all rounds so far, if they are asked for that metric."""

    def __init__(self) -> None:
        # The share of clients in each round, and its standard error.
        self._rounds: list[tuple[float, float]] = []

    def log(self, current: RoundState, plain: list[Message], num_clients: int) -> None:
        """Log the estimate after a round whose decoded replies, or their mean, are ``plain``."""
        asked = [metric for metric in current.request.private_metrics if metric.name == METRIC_FAILED]
        for metric in asked:
            share = float(np.mean([values_of(reply.content[RECORD_METRICS])[metric.name] for reply in plain]))
            self._rounds.append((share, current.codec.metric_error(metric, num_clients)))
            shares, errors = np.transpose(self._rounds)
            mean, error = float(np.mean(shares)), float(np.linalg.norm(errors)) / len(errors)
            log(
                WARNING if mean > _SIGNIFICANT_ERRORS * error else INFO,
                "PrivQuant: round %d, about %.0f %% of trainings have failed so far, and zeros were sent "
                "instead (standard error %.0f %%)",
                current.request.round,
                100.0 * min(max(mean, 0.0), 1.0),
                100.0 * error,
            )


def count_config_bytes(config: ConfigRecord) -> int:
    """The size of a config, taken as that of its byte strings, such as the mechanism: the rest is small."""
    return sum(len(value) for value in config.values() if isinstance(value, bytes))


def summarize_clipping(metrics: list[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """The mean share of clipped coordinates, and the median norm over the L2 clip, if all report them."""
    share, norm = (_collect_reported(metrics, name) for name in (METRIC_CLIPPED, METRIC_NORM))
    return (float(np.mean(share)) if share else None), (float(np.median(norm)) if norm else None)


def _collect_reported(metrics: list[Mapping[str, Any]], name: str) -> list[float]:
    """What clients report under a name; nothing, unless all of them report a number."""
    numbers = [value for reported in metrics if isinstance(value := reported.get(name), float)]
    return numbers if len(numbers) == len(metrics) else []


def average_metrics(metrics: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of the metrics that all clients report."""
    shared = _find_shared_metrics(metrics)
    with np.errstate(over="ignore"):
        return {
            name: np.mean([own[name] for own in metrics], axis=0, dtype=np.float64).tolist()
            for name in shared
        }


def _find_shared_metrics(metrics: list[Mapping[str, Any]]) -> list[str]:
    """Names of the metrics that all clients report, as numbers or as lists of one length."""
    return [
        name
        for name, value in metrics[0].items()
        if all(name in own and np.shape(own[name]) == np.shape(value) for own in metrics)
    ]
