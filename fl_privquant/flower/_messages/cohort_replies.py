"""The replies of clients that were encoded together, as messages that are made only if somebody reads them.

A server that adds codes up takes them as they are. Everybody else sees ordinary messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message, RecordDict

from fl_privquant.codec.update import EncodedCohort
from fl_privquant.flower._flower_internals import (
    LazyMessage,
    copy_metadata,
    make_reply,
    set_message_id,
    unchecked_message,
)
from fl_privquant.flower._messages.protocol import Reply


class AddressedMessages(Sequence[Message]):
    """Messages with their ids, each made when it is read; all have the very same content objects as sent."""

    def __init__(self, sent: Sequence[tuple[Message, str]]) -> None:
        self._sent = sent

    def __len__(self) -> int:
        return len(self._sent)

    def __getitem__(self, place: Any) -> Any:
        message, message_id = self._sent[place]
        addressed = unchecked_message(copy_metadata(message), message.content)
        set_message_id(addressed, message_id)
        return addressed

    def node(self, place: int) -> int:
        """The receiver of a message."""
        return self._sent[place][0].metadata.dst_node_id

    def __reduce__(self) -> Any:
        # A reply needs to know whom it answers, not what was asked.
        bare = [(unchecked_message(message.metadata, RecordDict()), name) for message, name in self._sent]
        return AddressedMessages, (bare,)


@dataclass(frozen=True, eq=False)
class CohortReplies:
    """What the clients of a cohort reply: the same, except for their codes."""

    messages: AddressedMessages
    reply: Reply
    """The reply without its payload."""
    encoded: EncodedCohort


class CohortReply(LazyMessage):
    """The reply of one client of a cohort, whose parts are made when they are read."""

    def __init__(self, cohort: CohortReplies, request: int, place: int) -> None:
        super().__init__()
        self.cohort = cohort
        # The place of its request among the messages of the cohort, and the row of its codes.
        self.request, self.place = request, place

    @property
    def node(self) -> int:
        """The node that replies."""
        return self.cohort.messages.node(self.request)

    @property
    def payload(self) -> bytes:
        """The encoded update as it would be sent."""
        return self.cohort.encoded.pack(self.place)

    def make_metadata(self) -> Any:
        request = self.cohort.messages[self.request]
        reply = make_reply(request, RecordDict())
        set_message_id(reply, f"{request.metadata.message_id}-reply")
        return reply.metadata

    def make_content(self) -> RecordDict:
        return replace(self.cohort.reply, payload=self.payload).to_content()

    def __reduce__(self) -> Any:
        return CohortReply, (self.cohort, self.request, self.place)


def source_of(reply: Message) -> int:
    """The node that a reply comes from."""
    return reply.node if type(reply) is CohortReply else reply.metadata.src_node_id


def as_cohort_reply(reply: Message) -> CohortReply | None:
    """A reply of a cohort whose content nobody has read, and so nobody has changed; None for others."""
    return reply if type(reply) is CohortReply and not reply.has_made_content else None
