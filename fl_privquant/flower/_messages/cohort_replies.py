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


class CohortReply(Message):
    """The reply of one client of a cohort, whose parts are made when they are read."""

    def __init__(self, cohort: CohortReplies, request: int, place: int) -> None:
        self.__dict__.update(cohort=cohort, request=request, place=place, _error=None)

    @property
    def node(self) -> int:
        """The node that replies."""
        return self.cohort.messages.node(self.request)

    @property
    def cohort(self) -> CohortReplies:
        """What it shares with others."""
        shared: CohortReplies = self.__dict__["cohort"]
        return shared

    @property
    def request(self) -> int:
        """The place of its request among the messages of the cohort."""
        return int(self.__dict__["request"])

    @property
    def place(self) -> int:
        """The place of its codes among those of the cohort."""
        return int(self.__dict__["place"])

    @property
    def payload(self) -> bytes:
        """The encoded update as it would be sent."""
        return self.cohort.encoded.pack(self.place)

    @property
    def metadata(self) -> Any:
        if "_metadata" not in self.__dict__:
            request = self.cohort.messages[self.request]
            self.__dict__["_metadata"] = make_reply(request, RecordDict()).metadata
            set_message_id(self, f"{request.metadata.message_id}-reply")
        return self.__dict__["_metadata"]

    @property
    def content(self) -> RecordDict:
        if "_content" not in self.__dict__:
            self.__dict__["_content"] = replace(self.cohort.reply, payload=self.payload).to_content()
        content: RecordDict = self.__dict__["_content"]
        return content

    @content.setter
    def content(self, value: RecordDict) -> None:
        self.__dict__["_content"] = value

    def has_content(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        return CohortReply, (self.cohort, self.request, self.place)


def source_of(reply: Message) -> int:
    """The node that a reply comes from."""
    return reply.node if type(reply) is CohortReply else reply.metadata.src_node_id


def as_cohort_reply(reply: Message) -> CohortReply | None:
    """A reply of a cohort whose content nobody has read, and so nobody has changed; None for others."""
    return reply if type(reply) is CohortReply and "_content" not in reply.__dict__ else None
