"""A grid for server apps that have no strategy, or one that must not be wrapped.

A server app talks to its clients through a grid. A :class:`PrivateGrid` in its place adds the request to
train messages, and decodes the replies of clients to ordinary arrays. The app's own code does not change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.flower._messages.arrays import read_arrays, records_of
from fl_privquant.flower._messages.clear_replies import HOW_TO_EVALUATE, is_training
from fl_privquant.flower._messages.grids import GridWrapper
from fl_privquant.flower.server.run_account import EncodingArgument
from fl_privquant.flower.server.strategy import PrivQuantStrategy
from fl_privquant.flower.server.strategy_wrapper import Aggregate

RECORD_REQUEST: Final = "privquant-request"
"""The record of a train message that holds the request."""

# The largest relative error of an average of equal numbers.
_ROUNDING: Final = 1e-5


class PrivateGrid(GridWrapper):
    """Sends an app's messages through another grid, and makes each round of training private.

    Each ``send_and_receive`` of train messages is one round: all of them carry the same model, the reply of
    each client is decoded on its own, and under secure aggregation there is one reply, the mean. Replies to
    other messages would arrive in clear, so that these are refused, unless ``metrics`` names what
    clients may send in clear; statements then name what arrives. Clients need
    :class:`~fl_privquant.flower.PrivQuantMod` as with a strategy.

    Guarantee: that of :class:`~fl_privquant.flower.PrivQuantStrategy`, which is :attr:`private` and keeps
    the ledger. A round beyond the budget raises :class:`~fl_privquant.errors.BudgetExhaustedError` before
    anything is sent.

    Parameters
    ----------
    grid
        The grid that Flower gave to the server app.
    encoding, settings
        As for :class:`~fl_privquant.flower.PrivQuantStrategy`.
    weighted_by
        The metric that the app weighs replies by. It is 1 in each reply, as weights would change the
        sensitivity and reveal numbers of examples.
    wrap
        Puts another strategy around the one that hands replies to the app, such as one that adds noise.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> from flwr.serverapp import ServerApp
    >>> app = ServerApp()
    >>> @app.main()
    ... def main(grid, context):
    ...     grid = PrivateGrid(grid, pq.Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1))
    ...     ...  # the app's own loop
    """

    def __init__(
        self,
        grid: Grid,
        encoding: EncodingArgument,
        *,
        weighted_by: str = "num-examples",
        wrap: Callable[[Strategy], Strategy] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(grid)
        self._passing = _PassThroughStrategy(weighted_by)
        self._first: dict[str, NDArray[Any]] = {}
        self._round = 0
        inner = self._passing if wrap is None else wrap(self._passing)
        self.private = PrivQuantStrategy(inner, encoding, **settings)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and wait for their replies: train messages as a round, others as they are."""
        messages = list(messages)
        # Copies: the app may send its own messages again, and the request is no part of them.
        training = [copy.copy(message) for message in messages if is_training(message)]
        if not training:
            self._check_allowed(messages)
            return self.private.note_replies(self._grid.send_and_receive(messages, timeout=timeout))
        if len(training) < len(messages):
            raise InvalidSpecError(
                "messages",
                MISSING,
                f"{len(training)} of {len(messages)} messages are for training",
                "send these by themselves",
            )
        self._round += 1
        self._passing.arrayrecord_key, app_model = _find_common_model(training)
        arrays = self._restore_first_types(app_model)
        for message in training:
            message.content = RecordDict({**message.content, self._passing.arrayrecord_key: arrays})
        self._passing.messages = training
        requests = list(self.private.configure_train(self._round, arrays, ConfigRecord(), self._grid))
        replies = list(self._grid.send_and_receive(requests, timeout=timeout)) if requests else []
        self.private.aggregate_train(self._round, replies)
        return self._passing.replies

    def _restore_first_types(self, app_model: ArrayRecord) -> ArrayRecord:
        """The model in the types that it had in the first round.

        The app's averages turn counters into fractions and float32 into float64. An average of equal numbers
        may also differ from them in the last bit, so arrays that clients do not send are put back.
        """
        model = read_arrays(app_model)
        first = self._first
        sent = self.private.arrays.layout(first or model).names
        if not first:
            # Of what is sent, only types and shapes are needed.
            self._first = {
                name: np.broadcast_to(array.dtype.type(0), array.shape) if name in sent else np.array(array)
                for name, array in model.items()
            }
            return app_model
        shapes, expected = ({name: a.shape for name, a in arrays.items()} for arrays in (model, first))
        if shapes != expected:
            changed = min(name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name))
            raise InvalidSpecError(
                "messages",
                MISSING,
                f"the model's arrays have changed since the first round: {changed!r} has shape "
                f"{shapes.get(changed, 'none')}, expected {expected.get(changed, 'none')}",
            )
        record = ArrayRecord()
        for name, array in app_model.items():
            before, now = first[name], model[name]
            if name not in sent and _almost_equal(now, before):
                record[name] = Array(before)
            elif now.dtype != before.dtype:
                record[name] = Array(np.asarray(now.astype(before.dtype)))
            else:
                record[name] = array
            if name not in sent:
                first[name] = record[name].numpy()
        return record

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages that are not for training; those that are cannot be pushed one by one."""
        messages = list(messages)
        refuse_pushed_training(messages)
        self._check_allowed(messages)
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there; statements name what they hold in clear."""
        return self.private.note_replies(self._grid.pull_messages(message_ids))

    def _check_allowed(self, messages: Iterable[Message]) -> None:
        """Refuse messages whose replies would arrive in clear, unless the app has named what may."""
        kinds = sorted({message.metadata.message_type for message in messages})
        if kinds and not self.private.clear_metrics:
            raise InvalidSpecError(
                "messages",
                MISSING,
                f"send clients no {' and '.join(map(repr, kinds))} messages (fraction_evaluate=0.0 of "
                f"Flower's strategies), {HOW_TO_EVALUATE}",
            )


class _PassThroughStrategy(Strategy):
    """Sends what it was told to send, and keeps what came back: the app's own code aggregates."""

    def __init__(self, weighted_by: str) -> None:
        self.weighted_by_key = weighted_by
        self.arrayrecord_key = "arrays"
        self.messages: list[Message] = []
        self.replies: list[Message] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.replies = []
        for message in self.messages:
            message.content = RecordDict({**message.content, RECORD_REQUEST: config})
        return self.messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        self.replies = list(replies)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Nothing to say: the app's own code aggregates."""


def _almost_equal(now: NDArray[Any], before: NDArray[Any]) -> bool:
    """Whether two arrays are equal up to the rounding of an average."""
    return now.dtype.kind in "biuf" and np.allclose(now, before, rtol=_ROUNDING, atol=0.0, equal_nan=True)


def refuse_pushed_training(messages: Iterable[Message]) -> None:
    """Refuse train messages that are pushed, and not sent and received as one round."""
    if any(is_training(message) for message in messages):
        raise InvalidSpecError(
            "messages",
            MISSING,
            "train messages were pushed, but a private round is sent and received as a whole",
            "use grid.send_and_receive(messages)",
        )


def _find_common_model(messages: list[Message]) -> tuple[str, ArrayRecord]:
    """The model that all messages carry, and the name of its record."""
    models = [list(records_of(message.content, ArrayRecord)) for message in messages]
    if any(len(records) != 1 for records in models):
        raise InvalidSpecError(
            "messages", MISSING, "each train message must carry the model as its only ArrayRecord"
        )
    name, first = models[0][0]
    for other_name, other in (records[0] for records in models[1:]):
        if other_name != name or (other is not first and other != first):
            raise InvalidSpecError(
                "messages",
                MISSING,
                "clients are sent different models, but all updates of a round must start from one",
            )
    return name, first
