"""Many clients of a simulation answered at once, trained as one tensor.

What each client decides, counts and sends is what :class:`~fl_privquant.flower.PrivQuantMod` makes of its
message alone: its own limits, its own ledger, its own random stream. Only the training is done for all
together, and what alike clients decide and count. If clients cannot be trained or encoded together, each is
served by itself.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fl_privquant.codec.update import EncodedUpdate
from fl_privquant.errors import PrivQuantError
from fl_privquant.flower._flower_internals import (
    copy_records,
    copy_state,
    log,
    make_delivered_copy,
    make_reply,
    unchecked_record,
    values_of,
)
from fl_privquant.flower._messages.arrays import DecodedArray
from fl_privquant.flower._messages.cohort_replies import CohortReply, Sent, address
from fl_privquant.flower._messages.protocol import METRIC_FAILED
from fl_privquant.flower.client.ledger import RECORD_LEDGER, ClientLedger
from fl_privquant.flower.client.mod import AcceptedTask, PrivQuantMod
from fl_privquant.flower.client.refusals import make_refusal
from fl_privquant.flower.client.request import ClientRequest

Stacked = Mapping[str, NDArray[Any]]
"""The arrays of several clients, by name, each with one more axis: that of the clients."""

TrainOne = Callable[[Message, Context], Message]
TrainCohort = Callable[[Message, Sequence[Context]], Stacked | None]
"""Trains the clients with these contexts, who were all sent the content of a message; None if it cannot."""


class CohortMod(PrivQuantMod):
    """A PrivQuantMod that can also answer many clients at once, where they reply with arrays alone."""

    def answer_cohort(
        self, sent: Sequence[Sent], contexts: Sequence[Context], train: TrainOne, train_cohort: TrainCohort
    ) -> list[Message]:
        """The replies to train messages whose contents differ in the keys of masks and in seeds at most.

        The contents are not changed.

        Parameters
        ----------
        sent, contexts
            The message to each client with its id, and the client's context.
        train
            Trains one client.
        train_cohort
            Trains all clients that accept the request.

        Returns
        -------
        list of Message
            The reply of each client.
        """
        shared = functools.cache(lambda: ClientRequest.read(sent[0][0]))
        contents = {id(message.content) for message, _ in sent}

        def read(message: Message) -> ClientRequest:
            return shared() if len(contents) == 1 else shared().with_seed_of(message)

        accepted: dict[Hashable, tuple[AcceptedTask, RecordDict]] = {}
        begun = [
            self._begin_as_others(message, context, read, accepted)
            for message, context in zip(sent, contexts, strict=True)
        ]
        replies = {place: task for place, task in enumerate(begun) if isinstance(task, Message)}
        tasks = {place: task for place, task in enumerate(begun) if isinstance(task, AcceptedTask)}
        if not tasks:
            return list(replies.values())
        first = next(iter(tasks.values()))
        states = {place: contexts[place].state for place in tasks}
        ledgers = {place: values_of(state)[RECORD_LEDGER] for place, state in states.items()}
        kept = {place: copy_records(state) for place, state in states.items() if len(values_of(state)) > 1}
        trained = None
        if not self._needs_app(first):
            trained = _train(train_cohort, sent[0][0], [contexts[place] for place in tasks])
        for place, ledger in ledgers.items():
            if trained is None:
                # The client will train by itself, and begins with the state that it had.
                contexts[place].state = kept.get(place, RecordDict())
            _restore_ledger(contexts[place], ledger)
        encoded = None if trained is None else self._encode_together([*tasks.values()], trained)
        reply = self._make_reply(first, b"", {})
        for row, (place, task) in enumerate(tasks.items()):
            if encoded is not None and task.is_plain:
                replies[place] = CohortReply(sent[place], reply, encoded[row])
                continue
            message = address(*sent[place])
            if encoded is not None:
                replies[place] = self._reply(message, task, task.seal(encoded[row]), {})
            else:
                own = None if trained is None else {name: array[row] for name, array in trained.items()}
                # The ledger of another client may have stood for this one's.
                own_task = replace(task, ledger=ClientLedger(contexts[place], task.ledger.spending))
                call = functools.partial(_update_alone, train, message, contexts[place], own)
                replies[place] = self._release(message, own_task, call)
        return [replies[place] for place in range(len(begun))]

    def _begin_as_others(
        self,
        sent: Sent,
        context: Context,
        read: Callable[[Message], ClientRequest],
        accepted: dict[Hashable, tuple[AcceptedTask, RecordDict]],
    ) -> AcceptedTask | Message:
        """Accept a request or refuse it.

        Clients with the same ledger and limits decide and count the same, which is done once for all. Only
        requests that were accepted are shared, for codes that are not masked, and only if ledgers are in the
        clients' states alone, which have nothing else.
        """
        records = values_of(context.state)
        ledger = records.get(RECORD_LEDGER)
        key: Hashable = None
        if len(records) == (ledger is not None):
            limits = {key: value for key, value in context.node_config.items() if key != "partition-id"}
            key = (tuple(values_of(ledger).items()) if ledger else (), tuple(limits.items()))
        if key in accepted:
            task, state = accepted[key]
            try:
                stream = self._stream(context, task.client_request.request.round)
            except PrivQuantError as error:
                return make_refusal(address(*sent), error, self)
            context.state = copy_state(state)
            return AcceptedTask(task.client_request, stream, task.ledger, task.seal, task.codec)
        context.state = copy_state(context.state)
        begun = self._begin(address(*sent), context, read)
        alike = isinstance(begun, AcceptedTask) and begun.is_plain and begun.ledger.spending is None
        if isinstance(begun, AcceptedTask) and alike and key is not None:
            accepted[key] = begun, copy_state(context.state)
        return begun

    def _needs_app(self, task: AcceptedTask) -> bool:
        """Whether a reply has more than arrays, which only the app makes that trains a single client.

        That is metrics, in clear or private, or an update that is made of single records.
        """
        told = self.metrics or (self.report_clipping and task.client_request.request.report_clipping)
        private = {metric.name for metric in task.codec.private_metrics} - {METRIC_FAILED}
        return bool(told or private) or task.codec.encoding.records is not None

    def _encode_together(self, tasks: Sequence[AcceptedTask], trained: Stacked) -> list[EncodedUpdate] | None:
        """The encoded updates of all clients; None if each has to be encoded by itself."""
        first = tasks[0]
        if any(task.codec is not first.codec for task in tasks):
            return None
        try:
            streams = [task.rng for task in tasks]
            return first.codec.encode_differences(trained, first.client_request.arrays, streams)
        except Exception:
            # Such as arrays of another shape, for which each client releases zeros.
            log(WARNING, "PrivQuantMod: clients could not encode together: %s", traceback.format_exc())
            return None


class CohortApp(ClientApp):
    """A client app that can answer many clients at once; as an ordinary app it answers one at a time.

    Parameters
    ----------
    mod
        The mod around both functions.
    train
        Trains one client, as in an ordinary app.
    train_cohort
        Trains many clients.
    """

    def __init__(self, mod: CohortMod, train: TrainOne, train_cohort: TrainCohort) -> None:
        super().__init__()
        self._mod, self._train_one, self._train_cohort = mod, train, train_cohort
        self.train(mods=[mod])(train)

    def answer_cohort(self, sent: Sequence[Sent], contexts: Sequence[Context]) -> list[Message]:
        """The replies of clients that were all sent the same content, which stays as it is."""
        return self._mod.answer_cohort(sent, contexts, self._train_one, self._train_cohort)


def _restore_ledger(context: Context, ledger: Any) -> None:
    """Put a client's ledger back into its state, which an app may have replaced while it trained."""
    if not isinstance(context.state, RecordDict):
        context.state = RecordDict()
    values_of(context.state)[RECORD_LEDGER] = ledger


def _train(train_cohort: TrainCohort, message: Message, contexts: Sequence[Context]) -> Stacked | None:
    try:
        return train_cohort(message, contexts)
    except Exception:
        # They train one by one, so that those that fail cost the others nothing.
        log(WARNING, "PrivQuantMod: clients could not train together: %s", traceback.format_exc())
        return None


def _update_alone(
    train: TrainOne, message: Message, context: Context, trained: Mapping[str, NDArray[Any]] | None
) -> Message:
    """The reply of the app to a message, if it was not trained with others."""
    if trained is None:
        return train(make_delivered_copy(message, message.metadata.message_id), context)
    record = unchecked_record(ArrayRecord, {name: DecodedArray.of(array) for name, array in trained.items()})
    return make_reply(message, unchecked_record(RecordDict, {"arrays": record}))
