"""Whether this process answers for a SuperNode, and where such a process keeps files.

A SuperNode handles each message in a process of its own, ``flwr-clientapp``. Nothing that such a process
remembers reaches the next one, and the client's state may be lost. What must not be forgotten is in files.
A node that encodes updates itself (:mod:`fl_privquant.flower.client.node_gate`) is one process, which may be
restarted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_PROCESSES: Final = ("flwr-clientapp", "flower-supernode")


def on_supernode() -> bool:
    """Whether this process handles messages for a SuperNode."""
    program = sys.argv[0].rpartition(os.sep)[2] if sys.argv else ""
    return program.replace("_", "-").startswith(_PROCESSES)


def node_folder() -> Path:
    """The folder for files of this package in Flower's home (``FLWR_HOME``, or ``~/.flwr``)."""
    home = os.environ.get("FLWR_HOME")
    return (Path(home) if home else Path.home() / ".flwr") / "privquant"
