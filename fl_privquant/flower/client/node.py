"""The node that a client's process serves: whether it encodes updates itself, and where files are kept on it.

A node that encodes updates itself (:mod:`fl_privquant.flower.client.node_gate`) tells the mods inside an app
to step aside. It puts a random token into the configuration that the app sees, and into each message that it
hands to the app. A server does not know the token, and a configuration alone changes nothing, so neither can
switch the mods off.

A SuperNode handles each message in a process of its own, ``flwr-clientapp``. Nothing that such a process
remembers reaches the next one, and the client's state may be lost. What must not be forgotten is in files.
A node that encodes updates itself is one process, which may be restarted.
"""

from __future__ import annotations

import hmac
import os
import sys
from pathlib import Path
from typing import Final

from flwr.app import ConfigRecord, Context, Message, RecordDict

NODE_TOKEN: Final = "privquant-node-token"  # noqa: S105 (the name of a key)
_RECORD: Final = "privquant-node"
_PROCESSES: Final = ("flwr-clientapp", "flower-supernode")


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


def on_supernode() -> bool:
    """Whether this process handles messages for a SuperNode."""
    program = sys.argv[0].rpartition(os.sep)[2] if sys.argv else ""
    return program.replace("_", "-").startswith(_PROCESSES)


def node_folder() -> Path:
    """The folder for files of this package in Flower's home (``FLWR_HOME``, or ``~/.flwr``)."""
    home = os.environ.get("FLWR_HOME")
    return (Path(home) if home else Path.home() / ".flwr") / "privquant"
