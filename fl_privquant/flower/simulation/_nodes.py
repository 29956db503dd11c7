"""The simulated nodes of a federation: each answers messages in a context that exists while it is served."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_privquant.flower._flower_internals import (
    ErrorCode,
    copy_records,
    copy_state,
    make_delivered_copy,
    receiver_of,
    set_message_id,
    values_of,
)
from fl_privquant.flower._messages.arrays import records_of
from fl_privquant.flower._messages.clear_replies import is_training
from fl_privquant.flower._messages.cohort_replies import CohortReply, Sent
from fl_privquant.flower._messages.protocol import KEY_COUNTED, PER_CLIENT_KEYS
from fl_privquant.flower.client.cohort import CohortApp
from fl_privquant.flower.client.ledger import RECORD_LEDGER
from fl_privquant.flower.simulation.engine import Federation

# Node ids of SuperLinks are large random numbers. Ids begin at 1 here, because some code takes 0 for none.
FIRST_NODE_ID = 1

BATCH: Final = 256
"""The most clients that an engine trains at once, unless it is told otherwise."""

# Clients who were sent the same count of releases are of one cohort, whatever else is theirs alone.
_OWN_KEYS: Final = PER_CLIENT_KEYS - {KEY_COUNTED}

# Coordinates of all models that are trained at once.
_MAX_COORDINATES: Final = 1 << 22


class Nodes:
    """The nodes of a federation, of which only the states are kept between messages.

    Parameters
    ----------
    client_app
        What the clients run.
    federation
        Number of clients and their configs.
    run_id
        The run that the messages belong to.
    batch
        The most clients that are trained at once, if the app can do that.
    """

    def __init__(self, client_app: ClientApp, federation: Federation, run_id: int, batch: int = 1) -> None:
        self._client_app = client_app
        self.batch = batch
        self.federation = federation
        self.run_id = run_id
        self.states: dict[int, RecordDict] = {}

    @property
    def ids(self) -> range:
        """The ids of all nodes, in the order of partitions."""
        return range(FIRST_NODE_ID, FIRST_NODE_ID + self.federation.num_clients)

    def context(self, node: int) -> Context:
        """The context of a node, with its last state, which clients of one cohort may share."""
        state = self.states.get(node)
        return self.federation.context(self.run_id, node, node - FIRST_NODE_ID, state)

    def answer(self, sent: Sequence[Sent]) -> list[Message]:
        """The replies to messages, in their order."""
        replies = {
            place: reply
            for places in self._divide(sent)
            for place, reply in zip(
                places, self._answer_group([sent[place] for place in places]), strict=True
            )
        }
        return [replies[place] for place in range(len(sent))]

    def _divide(self, sent: Sequence[Sent]) -> Iterator[Sequence[int]]:
        """The places of messages, in groups: a cohort that is sent one content, or all messages of a node."""
        nodes = [receiver_of(message) for message, _ in sent]
        known = all(node in self.ids for node in nodes)
        alone = (
            not known or len(set(nodes)) < len(nodes) or not all(is_training(message) for message, _ in sent)
        )
        if alone or not isinstance(self._client_app, CohortApp):
            yield from group_by_node([message for message, _ in sent])
            return
        contents = {id(message.content): message.content for message, _ in sent}
        keys = {number: _content_key(content) for number, content in contents.items()}
        cohorts: dict[Hashable, list[int]] = {}
        for place, (message, _) in enumerate(sent):
            cohorts.setdefault(keys[id(message.content)], []).append(place)
        for places in cohorts.values():
            size = self._cohort_size(sent[places[0]][0])
            yield from (places[first : first + size] for first in range(0, len(places), size))

    def _cohort_size(self, message: Message) -> int:
        """How many clients are trained at once: fewer with a large model, so that memory suffices."""
        models = [record for _, record in records_of(message.content, ArrayRecord)]
        coordinates = sum(math.prod(array.shape) for record in models for array in record.values())
        return max(1, min(self.batch, _MAX_COORDINATES // max(coordinates, 1)))

    def _answer_group(self, sent: Sequence[Sent]) -> list[Message]:
        # Messages of a group are to different nodes, or all to one.
        several = receiver_of(sent[0][0]) != receiver_of(sent[-1][0])
        if several and isinstance(self._client_app, CohortApp):
            return self._answer_cohort(self._client_app, sent)
        return [self._deliver(message, message_id) for message, message_id in sent]

    def _answer_cohort(self, app: CohortApp, sent: Sequence[Sent]) -> list[Message]:
        contexts = [self.context(receiver_of(message)) for message, _ in sent]
        try:
            replies = app.answer_cohort(sent, contexts)
        finally:
            # Clients that have counted the same, and keep nothing else, have one state.
            shared: dict[int, RecordDict] = {}
            for context in contexts:
                state = context.state
                if isinstance(state, RecordDict) and values_of(state).keys() == {RECORD_LEDGER}:
                    context.state = shared.setdefault(id(values_of(state)[RECORD_LEDGER]), state)
                self._keep_state(context)
        for reply, (_, message_id) in zip(replies, sent, strict=True):
            if type(reply) is not CohortReply:
                set_message_id(reply, f"{message_id}-reply")
        return replies

    def _deliver(self, message: Message, message_id: str) -> Message:
        node = receiver_of(message)
        # The same content object may go to many nodes: each must get its own.
        arrived = make_delivered_copy(message, message_id)
        if node in self.ids:
            context = self.context(node)
            if isinstance(self._client_app, CohortApp):
                # Clients of a cohort may share it.
                context.state = copy_state(context.state)
            try:
                reply = self._run_app(arrived, context)
            finally:
                self._keep_state(context)
        else:
            reply = make_error_reply(arrived, ErrorCode.NODE_UNAVAILABLE, f"node {node} does not exist")
        set_message_id(reply, f"{message_id}-reply")
        return reply

    def _keep_state(self, context: Context) -> None:
        # Also after Ctrl-C: what was released stays counted.
        if context.state or context.node_id in self.states:
            self.states[context.node_id] = context.state

    def _run_app(self, message: Message, context: Context) -> Message:
        try:
            reply = self._client_app(message, context)
            if reply.has_content():
                reply.content = copy_records(reply.content)
            return reply
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return make_error_reply(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)


def _content_key(content: RecordDict) -> Hashable:
    """What messages of one cohort have in common: all but the keys that masks are made of, and seeds."""
    return tuple(
        (
            name,
            tuple((key, type(value), repr(value)) for key, value in record.items() if key not in _OWN_KEYS)
            if isinstance(record, ConfigRecord)
            else id(record),
        )
        for name, record in content.items()
    )


def make_error_reply(message: Message, code: int, reason: str) -> Message:
    """The reply to a message that no client answers."""
    return Message(Error(code, reason), reply_to=message)


def group_by_node(messages: Sequence[Message]) -> list[list[int]]:
    """The places of the messages to each node: a node handles one message at a time."""
    places: dict[int, list[int]] = {}
    for place, message in enumerate(messages):
        places.setdefault(receiver_of(message), []).append(place)
    return list(places.values())
