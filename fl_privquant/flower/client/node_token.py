"""How a node that encodes updates itself tells the mods inside an app to step aside.

The node puts a random token into the configuration that the app sees, and into each message that it hands to
the app (:mod:`fl_privquant.flower.client.node_gate`). A server does not know the token, and a configuration
alone changes nothing, so neither can switch the mods off.
"""

from __future__ import annotations

import hmac
from typing import Final

from flwr.app import ConfigRecord, Context, Message, RecordDict

NODE_TOKEN: Final = "privquant-node-token"  # noqa: S105 (the name of a key)
_RECORD: Final = "privquant-node"


def make_token_record(token: str) -> RecordDict:
    """The record that goes into a message for the app."""
    return RecordDict({_RECORD: ConfigRecord({NODE_TOKEN: token})})


def node_encodes(message: Message, context: Context) -> bool:
    """Whether the node that handed over this message encodes the reply."""
    expected = context.node_config.get(NODE_TOKEN)
    record = message.content.get(_RECORD) if message.has_content() else None
    given = record.get(NODE_TOKEN) if isinstance(record, ConfigRecord) else None
    if not (isinstance(expected, str) and isinstance(given, str) and expected):
        return False
    return hmac.compare_digest(expected.encode(), given.encode())
