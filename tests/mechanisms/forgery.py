"""Bytes of a mechanism with other claims and a checksum that fits them."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from typing import Any

import pytest

from fl_privquant.errors import CertificationError
from fl_privquant.mechanisms.base import Mechanism

_PREFIX = struct.Struct("<6sHI")


def assert_forgeries_are_refused(
    mechanism: Mechanism, changes: Iterable[dict[str, Any]], match: str | None = None
) -> None:
    """None of the changed headers, nor a byte more than there should be, is read as a mechanism."""
    for change in changes:
        with pytest.raises(CertificationError, match=match):
            Mechanism.from_bytes(forged(mechanism, **change))
    longer = mechanism.to_bytes()[:-32] + b"\0"
    with pytest.raises(CertificationError):
        Mechanism.from_bytes(longer + hashlib.sha256(longer).digest())


def forged(mechanism: Mechanism, body: bytes | None = None, **changes: Any) -> bytes:
    """The mechanism's bytes with the given fields of its header changed, and with another body if given."""
    blob = mechanism.to_bytes()[:-32]
    magic, version, length = _PREFIX.unpack_from(blob)
    header = json.loads(blob[_PREFIX.size : _PREFIX.size + length]) | changes
    text = json.dumps(header).encode()
    payload = _PREFIX.pack(magic, version, len(text)) + text
    payload += blob[_PREFIX.size + length :] if body is None else body
    return payload + hashlib.sha256(payload).digest()
