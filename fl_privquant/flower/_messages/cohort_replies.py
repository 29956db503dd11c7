"""Replies of clients that were served together, as messages that are made only if somebody reads them.

A server that adds codes up takes them as they are. Everybody else sees ordinary messages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

from flwr.app import Message, RecordDict

from fl_privquant.codec.update import EncodedUpdate
from fl_privquant.flower._flower_internals import (
    LazyMessage,
    copy_metadata,
    make_reply,
    receiver_of,
    set_message_id,
    unchecked_message,
)
from fl_privquant.flower._messages.protocol import Reply

Sent: TypeAlias = tuple[Message, str]
"""A message, which may share its content with others, and its id."""


class CohortReply(LazyMessage):
    """The reply of one client.

    Parameters
    ----------
    sent
        The message that is answered.
    reply
        The reply without its payload, which clients of one cohort share.
    update
        The encoded update of this client.
    """

    def __init__(self, sent: Sent, reply: Reply, update: EncodedUpdate) -> None:
        super().__init__()
        self.sent, self.reply, self.update = sent, reply, update
        self.node = receiver_of(sent[0])

    def make_metadata(self) -> Any:
        reply = make_reply(address(*self.sent), RecordDict())
        set_message_id(reply, f"{self.sent[1]}-reply")
        return reply.metadata

    def make_content(self) -> RecordDict:
        return replace(self.reply, payload=self.update.pack()).to_content()

    def __reduce__(self) -> Any:
        # A reply needs to know whom it answers, not what was asked.
        message, message_id = self.sent
        bare = unchecked_message(message.metadata, RecordDict()), message_id
        return CohortReply, (bare, self.reply, self.update)


def address(message: Message, message_id: str) -> Message:
    """The message with its id, and the very same content object."""
    addressed = unchecked_message(copy_metadata(message), message.content)
    set_message_id(addressed, message_id)
    return addressed


def source_of(reply: Message) -> int:
    """The node that a reply comes from."""
    return reply.node if type(reply) is CohortReply else reply.metadata.src_node_id


def as_cohort_reply(reply: Message) -> CohortReply | None:
    """A reply of a cohort whose content nobody has read, and so nobody has changed; None for others."""
    return reply if type(reply) is CohortReply and not reply.has_made_content else None
