"""Many clients of a simulation answered at once: trained as one tensor, and encoded by one call.

What each client decides, counts and sends is what :class:`~fl_privquant.flower.PrivQuantMod` makes of its
message alone: its own limits, its own ledger, its own random stream. Only the training and the encoding are
done for all together. A client whose update cannot be encoded together with others is encoded by itself.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fl_privquant.flower._flower_internals import log, make_delivered_copy, make_reply, unchecked_record
from fl_privquant.flower._messages.arrays import DecodedArray
from fl_privquant.flower.client.mod import AcceptedTask, PrivQuantMod
from fl_privquant.flower.client.request import ClientRequest

Stacked = Mapping[str, NDArray[Any]]
"""The arrays of several clients, by name, each with one more axis: that of the clients."""

TrainOne = Callable[[Message, Context], Message]
TrainCohort = Callable[[Message, Sequence[Context]], Stacked | None]
"""Trains the clients with these contexts, who were all sent the content of a message; None if it cannot."""


class CohortMod(PrivQuantMod):
    """A PrivQuantMod that can also answer many clients at once. It lets no metrics pass."""

    def answer_cohort(
        self,
        messages: Sequence[Message],
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
        begun = [
            self._begin(message, context, lambda _: read(None))
            for message, context in zip(messages, contexts, strict=True)
        ]
        places = [place for place, task in enumerate(begun) if isinstance(task, AcceptedTask)]
        tasks = [task for task in begun if isinstance(task, AcceptedTask)]
        trained = None
        # Where single records are protected, an update is made of them, which only the app itself can do.
        if tasks and tasks[0].codec.encoding.records is None:
            trained = _train(train_cohort, messages[0], [contexts[place] for place in places])
        updates = self._encode_together(tasks, trained)
        replies = {place: task for place, task in enumerate(begun) if isinstance(task, Message)}
        for number, (place, task) in enumerate(zip(places, tasks, strict=True)):
            message = messages[place]
            if updates is not None:
                replies[place] = self._reply(message, task, updates[number], {})
                continue
            if trained is not None:
                own = {name: array[number] for name, array in trained.items()}
                call = functools.partial(_as_reply, message, own)
            else:
                call = functools.partial(_train_alone, train, message, contexts[place])
            replies[place] = self._release(message, task, call)
        return [replies[place] for place in range(len(begun))]

    def _encode_together(self, tasks: Sequence[AcceptedTask], trained: Stacked | None) -> list[bytes] | None:
        """The payload of each client; None if they have to be encoded one by one."""
        if trained is None or not tasks:
            return None
        for task in tasks:
            task.ledger.keep()
        codec, old = tasks[0].codec, tasks[0].client_request.arrays
        if any(task.codec is not codec for task in tasks):
            return None
        try:
            updates = codec.encode_cohort(trained, old, [task.rng for task in tasks], self.threads)
        except Exception:
            # Such as arrays of another shape, for which each client releases zeros.
            log(WARNING, "PrivQuantMod: clients could not encode together: %s", traceback.format_exc())
            return None
        if updates is None:
            return None
        return [task.seal(update) for task, update in zip(tasks, updates, strict=True)]


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

    def answer_cohort(self, messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        """The replies of clients that were all sent the same content, which stays as it is."""
        return self._mod.answer_cohort(messages, contexts, self._train_one, self._train_cohort)


def _train(train_cohort: TrainCohort, message: Message, contexts: Sequence[Context]) -> Stacked | None:
    try:
        return train_cohort(message, contexts)
    except Exception:
        # They train one by one, so that those that fail cost the others nothing.
        log(WARNING, "PrivQuantMod: clients could not train together: %s", traceback.format_exc())
        return None


def _train_alone(train: TrainOne, message: Message, context: Context) -> Message:
    return train(make_delivered_copy(message, message.metadata.message_id), context)


def _as_reply(message: Message, arrays: Mapping[str, NDArray[Any]]) -> Message:
    record = unchecked_record(ArrayRecord, {name: DecodedArray.of(array) for name, array in arrays.items()})
    return make_reply(message, unchecked_record(RecordDict, {"arrays": record}))
