"""Inputs that nobody meant to send: mutations of good bytes, and a watch over what is done with them."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from fl_privquant.errors import PrivQuantError

__all__ = ["EXTREMES", "any_value", "forged_mechanism", "mutated", "mutated_json", "watched"]

MAX_BYTES = 200_000_000

EXTREMES = (
    *(0, 1, -1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
    *(2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**308, 10**309, -(10**400)),
)
_FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0**-1074,
    1e-300,
    1e300,
    1.7976931348623157e308,
    float("inf"),
    float("nan"),
)
_HEX_FLOATS = (
    *("0x0.0p+0", "0x1p-1074", "0x1p-1022", "0x1p-30", "0x1p+9", "0x1p+1023"),
    *("inf", "-inf", "nan", "-0x1p+0"),
)
_TEXTS = (
    *("", "0", "1e999999999", "1/0", "9" * 5000, "\x1b[2J\x1b[31mforged", "line\nWARNING : forged"),
    *("\u202e", "\x00", "a" * 100_000, "[/]", "%s%n", "l2-grid", "table", "\ud800", *_HEX_FLOATS),
)


def mutated(blob: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """The bytes after one to four random changes."""
    data = bytearray(blob)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(8)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22))
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + rng.choice((1, 2, 4, 8, 16))]
        elif kind == 4:
            data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))
        elif kind == 5:
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice(EXTREMES) % (1 << (8 * size))
            data[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
        elif kind == 6 and (other := rng.choice([*others, blob])):
            start = rng.randrange(len(other))
            data[at:] = other[start:]
        else:
            part = data[at : at + rng.choice((4, 16, 64))]
            data[at:at] = part * rng.choice((1, 2, 50))
    return bytes(data)


def any_value(rng: random.Random) -> Any:
    """A value of any kind that JSON can hold."""
    kind = rng.randrange(7)
    if kind == 0:
        return rng.choice(EXTREMES)
    if kind == 1:
        return rng.choice(_FLOATS)
    if kind == 2:
        return rng.choice(_TEXTS)
    if kind == 3:
        return rng.choice((True, False, None))
    if kind == 4:
        return rng.choice(_HEX_FLOATS)
    if kind == 5:
        return [any_value(rng) for _ in range(rng.randrange(3))]
    return {rng.choice(("a", "kind", "name")): any_value(rng) for _ in range(rng.randrange(2))}


def mutated_json(value: Any, rng: random.Random) -> Any:
    """The JSON value with one part, at whatever depth, replaced, left out or added."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        changed = dict(value)
        key = rng.choice(list(changed))
        action = rng.randrange(10)
        if action == 0:
            del changed[key]
        elif action == 1:
            changed[rng.choice(("kind", "", "extra"))] = any_value(rng)
        elif action == 2 and len(changed) > 1:
            changed[key] = changed[rng.choice(list(changed))]
        else:
            changed[key] = mutated_json(changed[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        changed_list = list(value)
        at = rng.randrange(len(changed_list))
        changed_list[at] = mutated_json(changed_list[at], rng)
        return changed_list
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.3:
        return value + rng.choice((-2, -1, 1, 2, value, 1000 * value))
    return any_value(rng)


_PREFIX = struct.Struct("<6sHI")


def forged_mechanism(blob: bytes, rng: random.Random) -> bytes:
    """The bytes of a mechanism with another header or other arrays, and a checksum that fits."""
    magic, version, length = _PREFIX.unpack_from(blob)
    header = blob[_PREFIX.size : _PREFIX.size + length]
    body = blob[_PREFIX.size + length : -32]
    if not body or rng.random() < 0.6:
        content = json.loads(header)
        for _ in range(rng.choice((1, 1, 2, 3))):
            content = mutated_json(content, rng)
        header = json.dumps(content).encode()
    if rng.random() < 0.1:
        header = mutated(header, rng)
    if body and rng.random() < 0.5:
        body = mutated(body, rng)
    length = len(header) if rng.random() < 0.95 else rng.choice((0, 1, len(header) // 2, 2**32 - 1))
    payload = _PREFIX.pack(magic, version, length) + header + body
    return payload + hashlib.sha256(payload).digest()


def watched(action: Callable[[], Any]) -> str:
    """What is wrong with what the action does, or nothing.

    It may succeed or raise a PrivQuantError, with a message of one printable line; within 200 MB.
    """
    tracemalloc.start()
    problem = ""
    try:
        action()
    except PrivQuantError as error:
        text = str(error)
        if not text.isprintable() or len(text) > 2000:
            problem = f"a message of {len(text)} characters, printable {text.isprintable()}: {text[:200]!r}"
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error)[:200]}"
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return problem + (f" took {memory / 1e6:.0f} MB" if memory > MAX_BYTES else "")
