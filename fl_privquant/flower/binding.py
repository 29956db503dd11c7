"""A digest of what a train message asks for, from which the masks of secure aggregation are derived.

Clients that were sent different models, mechanisms, clips or rounds derive different masks, which do not
cancel. So a server that asks one client for something else than the others learns nothing from the sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from flwr.app import Array, ConfigRecord, Message

from fl_privquant.flower.asked import Asked
from fl_privquant.flower.protocol import Request


def request_digest(request: Request, arrays: Mapping[str, Array]) -> bytes:
    """The digest (32 bytes) of the model's arrays and of the request, but for what differs by client."""
    state = hashlib.sha256(b"fl_privquant request\0")

    def add(data: bytes) -> None:
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)

    written = ConfigRecord()
    replace(request, counted_releases=None).write(written)
    for key in sorted(written):
        value = written[key]
        add(key.encode())
        add(value if isinstance(value, bytes) else repr(value).encode())
    for name, array in arrays.items():
        add(repr((name, array.dtype, tuple(array.shape), array.stype)).encode())
        add(array.data)
    return state.digest()


def message_digest(message: Message) -> bytes:
    """The digest of the request and the arrays in a train message."""
    asked = Asked.read(message)
    return request_digest(asked.request, asked.received)
