"""Replies of clients that were served together, as messages that are made only if somebody reads them.

A server that adds codes up takes them as they are. Everybody else sees ordinary messages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

from flwr.app import Message, RecordDict

from fl_privquant.codec.update import EncodedUpdate
from fl_privquant.flower._flower_internals import (
    copy_metadata,
    make_reply,
    set_message_id,
    unchecked_message,
)
from fl_privquant.flower._messages.protocol import Reply

Sent: TypeAlias = tuple[Message, str]
"""A message, which may share its content with others, and its id."""


class CohortReply(Message):
    """The reply of one client, whose metadata and content are made when they are read.

    Parameters
    ----------
    sent
        The message that is answered.
    reply
        The reply without its payload, which clients of one cohort share.
    update
        The encoded update of this client.
    """

    node: int
    """The node that replies."""

    def __init__(self, sent: Sent, reply: Reply, update: EncodedUpdate) -> None:
        node = sent[0].metadata.dst_node_id
        self.__dict__.update(sent=sent, reply=reply, update=update, node=node, _error=None)

    @property
    def metadata(self) -> Any:
        if "_metadata" not in self.__dict__:
            self.__dict__["_metadata"] = make_reply(address(*self.__dict__["sent"]), RecordDict()).metadata
            set_message_id(self, f"{self.__dict__['sent'][1]}-reply")
        return self.__dict__["_metadata"]

    @property
    def content(self) -> RecordDict:
        if "_content" not in self.__dict__:
            payload = self.__dict__["update"].pack()
            self.__dict__["_content"] = replace(self.__dict__["reply"], payload=payload).to_content()
        content: RecordDict = self.__dict__["_content"]
        return content

    @content.setter
    def content(self, value: RecordDict) -> None:
        self.__dict__["_content"] = value

    def has_content(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        # A reply needs to know whom it answers, not what was asked.
        message, message_id = self.__dict__["sent"]
        bare = unchecked_message(message.metadata, RecordDict()), message_id
        return CohortReply, (bare, self.__dict__["reply"], self.__dict__["update"])


def address(message: Message, message_id: str) -> Message:
    """The message with its id, and the very same content object."""
    addressed = unchecked_message(copy_metadata(message), message.content)
    set_message_id(addressed, message_id)
    return addressed


def source_of(reply: Message) -> int:
    """The node that a reply comes from."""
    return reply.node if type(reply) is CohortReply else reply.metadata.src_node_id


def unread_parts(reply: Message) -> tuple[Reply, EncodedUpdate] | None:
    """The parts of a cohort's reply whose content nobody has read, and so nobody has changed, or None."""
    parts = reply.__dict__
    if type(reply) is not CohortReply or "_content" in parts:
        return None
    return parts["reply"], parts["update"]
