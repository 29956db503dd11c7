"""Bytes of a mechanism with other claims and a checksum that fits them."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

from fl_privquant.mechanisms.base import Mechanism

_PREFIX = struct.Struct("<6sHI")


def forged(mechanism: Mechanism, **changes: Any) -> bytes:
    """The mechanism's bytes with the given fields of its header changed."""
    blob = mechanism.to_bytes()[:-32]
    magic, version, length = _PREFIX.unpack_from(blob)
    header = json.loads(blob[_PREFIX.size : _PREFIX.size + length]) | changes
    text = json.dumps(header).encode()
    payload = _PREFIX.pack(magic, version, len(text)) + text + blob[_PREFIX.size + length :]
    return payload + hashlib.sha256(payload).digest()
