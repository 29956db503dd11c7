"""A grid for server apps without a strategy of Flower's, or with one that is not to be touched.

A server app talks to its clients through a grid. Put a :class:`PrivateGrid` in its place, and train messages
carry the request to clients, whose encoded replies come back as ordinary arrays: to the app's own code
nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run

from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower.arguments import GivenEncoding
from fl_privquant.flower.arrays import records_of
from fl_privquant.flower.engines.engine import MessageGrid
from fl_privquant.flower.strategy import PrivQuantStrategy

__all__ = ["PrivateGrid"]

_RECORD_REQUEST: Final = "privquant-request"


class PrivateGrid(MessageGrid):
    """Sends messages of an app through another grid; what clients trained comes back encoded and decoded.

    Each ``send_and_receive`` of train messages is one round: all of them carry the same model, the reply of
    each client is decoded on its own, and under secure aggregation there is one reply, the mean. Other
    messages pass as they are. Clients need :class:`~fl_privquant.flower.PrivQuantMod` (and
    :class:`~fl_privquant.flower.SecureAggregationMod`) as with a strategy.

    Guarantee: that of :class:`~fl_privquant.flower.PrivQuantStrategy`, which is :attr:`private` and keeps
    the ledger. A round beyond the budget raises :class:`~fl_privquant.errors.BudgetExhaustedError` before
    anything is sent.

    Parameters
    ----------
    grid
        The grid that Flower gave to the server app.
    encoding, clip, settings
        As for :class:`~fl_privquant.flower.PrivQuantStrategy`.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> from flwr.serverapp import ServerApp
    >>> app = ServerApp()
    >>> @app.main()
    ... def main(grid, context):
    ...     grid = PrivateGrid(grid, mechanism=pq.design("one_bit", epsilon=1.0), clip=0.1)
    ...     ...  # the app's own loop
    """

    def __init__(
        self,
        grid: Grid,
        encoding: GivenEncoding = None,
        clip: float | Mapping[str, float] | None = None,
        **settings: Any,
    ) -> None:
        self._grid = grid
        self._passing = _Passing()
        self._round = 0
        self.private = PrivQuantStrategy(self._passing, encoding, clip, **settings)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and wait for their replies: train messages as a round, others as they are."""
        messages = list(messages)
        training = [message for message in messages if _trains(message)]
        if not training:
            return self._grid.send_and_receive(messages, timeout=timeout)
        if len(training) < len(messages):
            raise InvalidSpecError(
                f"{len(training)} of {len(messages)} messages are for training; send these by themselves"
            )
        self._round += 1
        self._passing.arrayrecord_key, arrays = _model(training)
        self._passing.messages = training
        asked = list(self.private.configure_train(self._round, arrays, ConfigRecord(), self._grid))
        replies = list(self._grid.send_and_receive(asked, timeout=timeout)) if asked else []
        self.private.aggregate_train(self._round, replies)
        return self._passing.replies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages that are not for training; for these a round must be known as a whole."""
        messages = list(messages)
        if any(_trains(message) for message in messages):
            raise InvalidSpecError(
                "messages: train messages were pushed, but a private round is sent and received as a whole; "
                "use grid.send_and_receive(messages)"
            )
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Delegate."""
        return self._grid.pull_messages(message_ids)

    def set_run(self, run: Run) -> None:
        """Delegate."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """Delegate."""
        return self._grid.run

    def get_node_ids(self) -> Iterable[int]:
        """Delegate."""
        return self._grid.get_node_ids()


class _Passing(Strategy):
    """Sends what it was told to send, and keeps what came back: the app's own code aggregates."""

    weighted_by_key = "num-examples"

    def __init__(self) -> None:
        self.arrayrecord_key = "arrays"
        self.messages: list[Message] = []
        self.replies: list[Message] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.replies = []
        for message in self.messages:
            message.content = RecordDict({**message.content, _RECORD_REQUEST: config})
        return self.messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
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


def _trains(message: Message) -> bool:
    return message.metadata.message_type.split(".")[0] == MessageType.TRAIN


def _model(messages: list[Message]) -> tuple[str, ArrayRecord]:
    """The model that all messages carry, and the name of its record."""
    models = [list(records_of(message.content, ArrayRecord)) for message in messages]
    if any(len(records) != 1 for records in models):
        raise InvalidSpecError("messages: each train message must carry the model as its only ArrayRecord")
    name, first = models[0][0]
    for other_name, other in (records[0] for records in models[1:]):
        if other_name != name or (other is not first and other != first):
            raise InvalidSpecError(
                "messages: clients are sent different models; the updates of a round start from one"
            )
    return name, first
