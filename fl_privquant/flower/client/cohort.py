"""Many clients of a simulation answered at once: trained as one tensor, and encoded by one call.

What each client decides, counts and sends is what :class:`~fl_privquant.flower.PrivQuantMod` makes of its
message alone: its own limits, its own ledger, its own random stream. Only the training and the encoding are
done for all together. A client whose update cannot be encoded together with others is encoded by itself.
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

from fl_privquant.codec.update import EncodedCohort
from fl_privquant.errors import PrivQuantError
from fl_privquant.flower._flower_internals import (
    copy_state,
    log,
    make_delivered_copy,
    make_reply,
    unchecked_record,
    values_of,
)
from fl_privquant.flower._messages.arrays import DecodedArray
from fl_privquant.flower._messages.cohort_replies import AddressedMessages, CohortReplies, CohortReply
from fl_privquant.flower.client.ledger import RECORD_LEDGER, ClientLedger
from fl_privquant.flower.client.mod import AcceptedTask, PrivQuantMod
from fl_privquant.flower.client.refusals import make_refusal
from fl_privquant.flower.client.request import ClientRequest
from fl_privquant.sampling.stream import RandomStream

Stacked = Mapping[str, NDArray[Any]]
"""The arrays of several clients, by name, each with one more axis: that of the clients."""

TrainOne = Callable[[Message, Context], Message]
TrainCohort = Callable[[Message, Sequence[Context]], Stacked | None]
"""Trains the clients with these contexts, who were all sent the content of a message; None if it cannot."""


class CohortMod(PrivQuantMod):
    """A PrivQuantMod that can also answer many clients at once. It lets no metrics pass."""

    def answer_cohort(
        self,
        messages: AddressedMessages,
        contexts: Sequence[Context],
        train: TrainOne,
        train_cohort: TrainCohort,
    ) -> list[Message]:
        """The replies to train messages whose contents differ in the keys of masks at most.

        The contents are not changed.

        Parameters
        ----------
        messages, contexts
            The message to each client, and the client's context.
        train
            Trains one client.
        train_cohort
            Trains all clients that accept the request.

        Returns
        -------
        list of Message
            The reply of each client.
        """
        read = functools.cache(lambda _: ClientRequest.read(messages[0]))
        accepted: dict[Hashable, tuple[AcceptedTask, RecordDict]] = {}
        begun: list[AcceptedTask | Message] = []
        streams: list[RandomStream | None] = []
        for place, context in enumerate(contexts):
            task, stream = self._begin_as_others(messages, place, context, lambda _: read(None), accepted)
            begun.append(task)
            streams.append(stream)
        replies = {place: task for place, task in enumerate(begun) if isinstance(task, Message)}
        tasks = {place: task for place, task in enumerate(begun) if isinstance(task, AcceptedTask)}
        if not tasks:
            return list(replies.values())
        first = next(iter(tasks.values()))
        ledgers = [values_of(contexts[place].state)[RECORD_LEDGER] for place in tasks]
        trained = None
        # Where single records are protected, an update is made of them, which only the app itself can do.
        if first.codec.encoding.records is None:
            trained = _train(train_cohort, messages[0], [contexts[place] for place in tasks])
        for place, ledger in zip(tasks, ledgers, strict=True):
            _restore_ledger(contexts[place], ledger)
        encoded = self._encode_together(tasks, [streams[place] for place in tasks], trained)
        if encoded is not None and all(task.is_plain for task in set(tasks.values())):
            shared = CohortReplies(messages, self._make_reply(first, b"", {}), encoded)
            replies |= {place: CohortReply(shared, place, row) for row, place in enumerate(tasks)}
            return [replies[place] for place in range(len(begun))]
        for row, (place, task) in enumerate(tasks.items()):
            if encoded is not None:
                replies[place] = self._reply(messages[place], task, task.seal(encoded[row]), {})
                continue
            own = None if trained is None else {name: array[row] for name, array in trained.items()}
            # The task and the ledger of another client may have stood for this one's.
            own_ledger = ClientLedger(contexts[place], task.ledger.spending)
            own_task = replace(task, rng=streams[place], ledger=own_ledger)
            call = functools.partial(_update_alone, train, messages[place], contexts[place], own)
            replies[place] = self._release(messages[place], own_task, call)
        return [replies[place] for place in range(len(begun))]

    def _begin_as_others(
        self,
        messages: AddressedMessages,
        place: int,
        context: Context,
        read: Callable[[Message], ClientRequest],
        accepted: dict[Hashable, tuple[AcceptedTask, RecordDict]],
    ) -> tuple[AcceptedTask | Message, RandomStream | None]:
        """Accept a request or refuse it, with the client's random stream.

        Clients with the same ledger and limits decide and count the same, which is done once for all. Only
        requests that were accepted are shared, for codes that are not masked, and only if ledgers are in the
        clients' states alone, which have nothing else.
        """
        ledger = values_of(context.state).get(RECORD_LEDGER)
        key: Hashable = None
        if len(context.state) == (ledger is not None):
            limits = {key: value for key, value in context.node_config.items() if key != "partition-id"}
            key = (tuple(values_of(ledger).items()) if ledger else (), tuple(limits.items()))
        if key in accepted:
            task, state = accepted[key]
            try:
                stream = self._stream(context, task.client_request.request.round)
            except PrivQuantError as error:
                return make_refusal(messages[place], error, self), None
            context.state = copy_state(state)
            return task, stream
        context.state = copy_state(context.state)
        begun = self._begin(messages[place], context, read)
        if not isinstance(begun, AcceptedTask):
            return begun, None
        if key is not None and begun.is_plain and begun.ledger.spending is None:
            accepted[key] = begun, copy_state(context.state)
        return begun, begun.rng

    def _encode_together(
        self,
        tasks: Mapping[int, AcceptedTask],
        streams: Sequence[RandomStream | None],
        trained: Stacked | None,
    ) -> EncodedCohort | None:
        """The codes of all clients; None if they have to be encoded one by one."""
        first = next(iter(tasks.values()))
        if trained is None or any(task.codec is not first.codec for task in tasks.values()):
            return None
        try:
            return first.codec.encode_cohort(trained, first.client_request.arrays, streams, self.threads)
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

    def answer_cohort(self, messages: AddressedMessages, contexts: Sequence[Context]) -> list[Message]:
        """The replies of clients that were all sent the same content, which stays as it is."""
        return self._mod.answer_cohort(messages, contexts, self._train_one, self._train_cohort)


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
