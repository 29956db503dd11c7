"""What clients send in clear, outside of all accounting: how it is found in replies, and named in statements.

Only replies to train messages are encoded. Replies to evaluate, query and custom messages are blocked on both
sides unless metrics are allowed by name: a :class:`~fl_privquant.flower.PrivQuantMod` for the whole app
(``ClientApp(mods=[...])``) lets only its ``metrics`` pass, and a server with a
:class:`~fl_privquant.flower.PrivQuantStrategy` or a :class:`~fl_privquant.flower.PrivateGrid` sends no such
message unless its :class:`~fl_privquant.flower.ClientMetrics` name some in clear. Whatever arrives in clear,
also what a wrapped strategy asks for by itself, is named in every statement of the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from flwr.app import ArrayRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid

from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower._flower_internals import ErrorCode
from fl_privquant.flower._messages.arrays import records_of
from fl_privquant.flower._messages.cohort_replies import as_cohort_reply
from fl_privquant.flower._messages.grids import GridWrapper
from fl_privquant.flower._messages.protocol import (
    CODE_BUDGET_EXHAUSTED,
    RECORD_PAYLOAD,
    RECORD_REPLY,
    RECORD_SECAGG,
)

HOW_TO_EVALUATE: Final = (
    "as their replies would arrive in clear; evaluate on the server (strategy.start(..., evaluate_fn=...)), "
    "have clients measure the model when they train and release the result through the mechanism "
    "(metrics=ClientMetrics(private=...)), or name what they may send in clear "
    "(metrics=ClientMetrics(clear=[...]) here, and metrics=[...] of PrivQuantMod)"
)
"""What to do in place of an evaluation by clients in clear."""

FURTHER_METRICS: Final = "further metrics"
"""Stands for all names that are too many to be kept."""

_MAX_NAMES: Final = 100
_MAX_NAME_LENGTH: Final = 64
# Errors of Flower itself, and refusals by mods, whose texts tell nothing. All others are by the app, which
# may quote data, and may choose any code.
_TEXTS_THAT_TELL_NOTHING: Final = frozenset(
    {
        ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.MOD_FAILED_PRECONDITION,
        CODE_BUDGET_EXHAUSTED,
        ErrorCode.INVALID_FAB,
        ErrorCode.CLIENT_APP_CRASHED,
    }
)


def is_training(message: Message) -> bool:
    """Whether a message is for training, or a reply to such a one."""
    return message.metadata.message_type.split(".")[0] == MessageType.TRAIN


def check_names(argument: str, names: Collection[str]) -> tuple[str, ...]:
    """The names of metrics that an argument holds; one name alone is refused, as its letters would count."""
    if isinstance(names, str):
        raise InvalidSpecError(argument, names, f"is one name, expected a collection such as [{names!r}]")
    if not all(isinstance(name, str) for name in names):
        raise InvalidSpecError(argument, names, ", expected names as texts")
    return tuple(names)


def quote_names(names: Iterable[str]) -> set[str]:
    """Names for a statement: a hostile client may send any number of them, of any length."""
    # One more than statements have room for, so that they say that there are more.
    return {repr(name[:_MAX_NAME_LENGTH]) for name in itertools.islice(names, _MAX_NAMES + 1)}


def add_names(known: set[str], names: Iterable[str]) -> None:
    """Add names to those known; of a number that only a hostile client sends, the rest is one entry."""
    new = set(names) - known
    room = max(_MAX_NAMES - len(known), 0)
    known.update(sorted(new)[:room])
    if len(new) > room:
        known.add(FURTHER_METRICS)


def list_clear_names(reply: Message) -> set[str]:
    """What a reply holds in clear, in words: metrics and settings by name, arrays, and texts of errors."""
    if as_cohort_reply(reply) is not None:
        return set()
    if reply.has_error():
        return set() if reply.error.code in _TEXTS_THAT_TELL_NOTHING else {"texts of errors"}
    names: set[str] = set()
    for name, record in itertools.islice(reply.content.items(), _MAX_NAMES + 1):
        if isinstance(record, ArrayRecord):
            # The encoded update is the one array that is not in clear.
            names |= set() if name == RECORD_PAYLOAD else {f"arrays {words}" for words in quote_names([name])}
        elif name not in (RECORD_REPLY, RECORD_SECAGG):
            names |= quote_names(record)
    return names


class RecordingGrid(GridWrapper):
    """Hands all replies of clients to ``note``: where a mod is missing, they may hold anything in clear."""

    def __init__(self, grid: Grid, note: Callable[[Iterable[Message]], list[Message]]) -> None:
        super().__init__(grid)
        self._note = note

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._note(super().send_and_receive(messages, timeout=timeout))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._note(super().pull_messages(message_ids))


def read_metrics(message: Message) -> dict[str, Any]:
    """All metrics in a message, by name."""
    return {
        name: value
        for _, record in records_of(message.content, MetricRecord)
        for name, value in record.items()
    }


def add_weights(replies: Iterable[Message], weight: str) -> list[Message]:
    """The replies, with weight 1 in each if clients did not all send the metric that they are weighed by."""
    received = list(replies)
    records = [
        [record for _, record in records_of(reply.content, MetricRecord)]
        for reply in received
        if reply.has_content()
    ]
    if not all(any(weight in record for record in own) for own in records):
        for own in records:
            for record in own[:1]:
                record[weight] = 1
    return received
