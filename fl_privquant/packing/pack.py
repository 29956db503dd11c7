"""Integers as payloads: as few bits as a fixed layout allows, and everything checked on arrival.

A payload is a header of 16 bytes and a body. All numbers are little-endian.

====== ======= ====================================================================
bytes  holds   meaning
====== ======= ====================================================================
0-1    ``PQ``  magic
2      1       version of this layout
3      kind    1 indices, 2 codes of a fixed width
4-7    uint32  number of levels (indices) or bits of a code (codes)
8-15   uint64  number of coordinates
16-    body    see below
====== ======= ====================================================================

**Fixed width.** Value i occupies the bits i*width to (i+1)*width - 1 of the body, bit b of the body being bit
b % 8 of byte b // 8; the bits that remain in the last byte are 0. Codes and masked sums are sent in this way,
and so are indices of m levels, at ceil(log2 m) bits.

**Grouped.** If m is not a power of two, the indices are digits in base m, and as many digits as fit share a
64-bit word (the first is the least significant), if that takes fewer bits: 1.6 per index instead of 2 for
m = 3, 2.37 instead of 3 for m = 5. The digits left over at the end take the fewest bytes that can hold them.

The layout follows from the header, and every vector has exactly one payload: a payload with another size, a
digit out of range or a padding bit that is set is refused. Sizes depend on the number of coordinates and
levels alone, never on the data.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant import _validation
from fl_privquant._array_types import smallest_code_type
from fl_privquant.distributions.codebook import MAX_LEVELS
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError, describe_other_version

HEADER_BYTES: Final = 16
"""Size of the header of every payload."""

MAX_WIDTH: Final = 32
"""Largest number of bits of a code or of a masked sum."""

KIND_INDICES: Final = 1
KIND_CODES: Final = 2

_HEADER: Final = struct.Struct("<2sBBIQ")
_MAGIC: Final = b"PQ"
_VERSION: Final = 1
_MAX_LENGTH: Final = 1 << 48
# How many values are converted at a time, if their integer type is not the one that the loops work on.
_CHUNK: Final = 1 << 16
_WORD: Final = np.dtype("<u8")

Payload = bytes | bytearray | memoryview | NDArray[np.uint8]
"""The types in which an encoded update may arrive."""

Ints = NDArray[Any]


def pack_indices(indices: ArrayLike, num_levels: int) -> bytes:
    """The payload of bin indices 0 to ``num_levels`` - 1, in C order.

    >>> pack_indices([0, 1, 2, 3, 3], num_levels=4)[HEADER_BYTES:].hex()
    'e403'
    >>> pack_indices([2, 2, 2, 2, 2], num_levels=3)[HEADER_BYTES:].hex()
    'f2'
    """
    num_levels = _check_levels(num_levels)
    width = _index_width(num_levels)
    values = check_integers(indices, "indices", num_levels - 1)
    header = write_header(KIND_INDICES, num_levels, values.size)
    per_word = _digits_per_word(num_levels)
    body = np.empty(packed_size(values.size, num_levels=num_levels) - HEADER_BYTES, dtype=np.uint8)
    if per_word:
        _join(values.astype(smallest_code_type(width), copy=False), num_levels, per_word, body)
    else:
        _narrow(values, width, body)
    return b"".join([header, body.data])


def unpack_indices(payload: Payload, num_levels: int, length: int) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """The ``length`` indices of a payload: uint8, or uint16 past 256 levels.

    Raises InvalidUpdateError unless it is the one payload that :func:`pack_indices` makes of such indices.

    >>> unpack_indices(pack_indices([0, 1, 2, 3, 3], 4), num_levels=4, length=5)
    array([0, 1, 2, 3, 3], dtype=uint8)
    """
    num_levels = _check_levels(num_levels)
    width = _index_width(num_levels)
    expected = packed_size(length, num_levels=num_levels) - HEADER_BYTES
    body = read_body(payload, KIND_INDICES, num_levels, length, expected)
    out = np.empty(length, dtype=smallest_code_type(width))
    per_word = _digits_per_word(num_levels)
    if per_word:
        _split(body, num_levels, per_word, out)
        return out
    _expand(body, width, out)
    if num_levels != 1 << width:
        check_range(out, "indices", num_levels - 1)
    return out


def pack_codes(codes: ArrayLike, width: int) -> bytes:
    """The payload of integers 0 to 2^width - 1, ``width`` (1 to 32) bits each, in C order.

    >>> pack_codes([1, 2, 3], width=12)[HEADER_BYTES:].hex()
    '0120000300'
    """
    width = _check_width(width)
    values = check_integers(codes, "codes", (1 << width) - 1)
    header = write_header(KIND_CODES, width, values.size)
    body = np.empty(packed_size(values.size, width=width) - HEADER_BYTES, dtype=np.uint8)
    _narrow(values, width, body)
    return b"".join([header, body.data])


def unpack_codes(payload: Payload, width: int, length: int) -> NDArray[np.uint32]:
    """The ``length`` integers of a payload of ``width`` bits each.

    Raises InvalidUpdateError unless it is the one payload that :func:`pack_codes` makes of such integers.

    >>> unpack_codes(pack_codes([1, 2, 3], width=12), width=12, length=3)
    array([1, 2, 3], dtype=uint32)
    """
    width = _check_width(width)
    body = read_body(payload, KIND_CODES, width, length, packed_size(length, width=width) - HEADER_BYTES)
    out = np.empty(length, dtype=np.uint32)
    _expand(body, width, out)
    return out


def packed_size(length: int, *, num_levels: int | None = None, width: int | None = None) -> int:
    """Bytes of a payload of ``length`` indices (``num_levels``) or codes (``width``), header included.

    >>> packed_size(1_000_000, num_levels=4), packed_size(1_000_000, width=11)
    (250016, 1375016)
    """
    length = _validation.check_integer("length", length, 0, _MAX_LENGTH)
    if (num_levels is None) == (width is None):
        raise InvalidSpecError("num_levels, width", (num_levels, width), "", "give one of the two")
    if num_levels is not None:
        num_levels = _check_levels(num_levels)
        per_word = _digits_per_word(num_levels)
        if per_word:
            words, left = divmod(length, per_word)
            return HEADER_BYTES + 8 * words + _tail_bytes(num_levels, left)
        width = _index_width(num_levels)
    return HEADER_BYTES + (length * _check_width(width) + 7) // 8


def write_header(kind: int, parameter: int, length: int) -> bytes:
    """The 16 bytes that start a payload."""
    return _HEADER.pack(_MAGIC, _VERSION, kind, parameter, length)


def read_body(payload: Payload, kind: int, parameter: int, length: int, body_size: int) -> NDArray[np.uint8]:
    """The body of a payload whose header and size are as expected."""
    buffer: Any = payload
    try:
        view = memoryview(buffer).cast("B")
    except TypeError as error:
        raise InvalidUpdateError(
            f"payload: {type(payload).__name__}, expected one contiguous buffer of bytes"
        ) from error
    if view.nbytes < HEADER_BYTES:
        raise InvalidUpdateError(f"payload: {view.nbytes} bytes, below the {HEADER_BYTES} of a header")
    magic, version, found_kind, found_parameter, found_length = _HEADER.unpack_from(view)
    if magic == _MAGIC and version != _VERSION:
        advice = "install the same fl-privquant on clients and server"
        raise InvalidUpdateError(describe_other_version("payload", version, _VERSION, advice))
    for name, received, expected in (
        ("magic", magic, _MAGIC),
        ("kind", found_kind, kind),
        ("width" if kind == KIND_CODES else "number of levels", found_parameter, parameter),
        ("length", found_length, length),
    ):
        if received != expected:
            raise InvalidUpdateError(
                f"payload: {name} {received!r}, expected {expected!r}; sender and receiver disagree"
            )
    if view.nbytes != HEADER_BYTES + body_size:
        raise InvalidUpdateError(
            f"payload: {view.nbytes} bytes, expected {HEADER_BYTES + body_size} for {length} coordinates"
        )
    return np.frombuffer(view, dtype=np.uint8)[HEADER_BYTES:]


def check_range(values: Ints, name: str, largest: int) -> None:
    """Raise InvalidUpdateError unless all ``values`` lie in 0..``largest``."""
    if values.size == 0:
        return
    highest = int(values.max())
    lowest = int(values.min()) if values.dtype.kind == "i" else 0
    if lowest < 0 or highest > largest:
        raise InvalidUpdateError(
            f"{name}: {highest if highest > largest else lowest} is outside 0..{largest}"
        )


def check_integers(values: ArrayLike, name: str, largest: int) -> Ints:
    """The values as a vector of integers, all in 0..largest."""
    vector = np.asarray(values)
    if vector.dtype.kind not in "ui":
        if vector.size:
            raise InvalidUpdateError(f"{name}: {vector.dtype}, expected integers")
        vector = vector.astype(np.uint8)
    check_range(vector, name, largest)
    return np.ascontiguousarray(vector).reshape(-1)


def _check_width(width: int | None) -> int:
    return _validation.check_integer("width", width, 1, MAX_WIDTH)


def _check_levels(num_levels: int) -> int:
    return _validation.check_integer("num_levels", num_levels, 2, MAX_LEVELS)


def _index_width(num_levels: int) -> int:
    """ceil(log2 num_levels)."""
    return (num_levels - 1).bit_length()


@functools.lru_cache(maxsize=1024)
def _digits_per_word(num_levels: int) -> int:
    """Number of base-m digits that share a word; 0 where a fixed width is as small."""
    width = _index_width(num_levels)
    count = 64 // width
    while num_levels ** (count + 1) <= 1 << 64:
        count += 1
    return count if count * width > 64 else 0


def _tail_bytes(num_levels: int, count: int) -> int:
    largest: int = num_levels**count - 1
    return (largest.bit_length() + 7) // 8


@functools.lru_cache(maxsize=MAX_WIDTH)
def _steps(width: int) -> tuple[int, NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Bits of a word's worth of values, and the three steps that join neighboring fields in pairs.

    The values stand in lanes of 8, 16 or 32 bits; wider lanes take fewer steps, so the first ones
    then leave the word as it is.
    """
    lane = 8 * smallest_code_type(width).itemsize
    field = width
    shifts: list[int] = []
    low: list[int] = []
    high: list[int] = []
    while lane < 64:
        cells = sum(1 << start for start in range(0, 64, 2 * lane))
        mask = (1 << field) - 1
        shifts.append(lane - field)
        low.append(cells * mask)
        high.append(cells * (mask << lane))
        lane, field = 2 * lane, 2 * field
    idle = 3 - len(shifts)
    return (
        field,
        np.array([0] * idle + shifts, dtype=np.uint64),
        np.array([(1 << 64) - 1] * idle + low, dtype=np.uint64),
        np.array([0] * idle + high, dtype=np.uint64),
    )


def _narrow(values: Ints, width: int, body: NDArray[np.uint8]) -> None:
    """Write values, checked to be below 2^width, at ``width`` bits each."""
    container = smallest_code_type(width)
    if width == 8 * container.itemsize:
        np.copyto(body.view(container.newbyteorder("<")), values, casting="unsafe")
        return
    from fl_privquant.packing._loops import narrow_values

    for start, stop, part in _parts(values.size, width, body, values.dtype == container):
        narrow_values(values[start:stop].astype(container, copy=False), width, *_steps(width), part)


def _expand(body: NDArray[np.uint8], width: int, out: Ints) -> None:
    """Read values of ``width`` bits each into ``out``; bits beyond the last one must be 0."""
    container = smallest_code_type(width)
    if width == 8 * container.itemsize:
        np.copyto(out, body.view(container.newbyteorder("<")))
        return
    from fl_privquant.packing._loops import expand_values

    for start, stop, part in _parts(out.size, width, body, out.dtype == container):
        values = out[start:stop] if out.dtype == container else np.empty(stop - start, dtype=container)
        if not expand_values(part, width, *_steps(width), values):
            raise InvalidUpdateError(
                f"payload: last byte {int(body[-1]):#04x} has bits set beyond {out.size} coordinates, "
                f"expected 0"
            )
        if out.dtype != container:
            out[start:stop] = values


def _parts(
    size: int, width: int, body: NDArray[np.uint8], at_once: bool
) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """Start and end of the values of each part of a body, and its bytes; one part with ``at_once``."""
    step = size if at_once else _CHUNK
    for start in range(0, size, max(step, 1)):
        stop = min(start + step, size)
        yield start, stop, body[start * width // 8 : (stop * width + 7) // 8]


def _join(digits: Ints, num_levels: int, per_word: int, body: NDArray[np.uint8]) -> None:
    """Write digits, checked to be below ``num_levels``, ``per_word`` to a word."""
    from fl_privquant.packing._loops import join_digits

    words = digits.size // per_word
    join_digits(digits, np.uint64(num_levels), per_word, body[: 8 * words].view(_WORD))
    number = 0
    for digit in reversed(digits[words * per_word :].tolist()):
        number = number * num_levels + digit
    left = body[8 * words :]
    left[:] = np.frombuffer(number.to_bytes(left.size, "little"), dtype=np.uint8)


def _split(body: NDArray[np.uint8], num_levels: int, per_word: int, out: Ints) -> None:
    """Read digits, ``per_word`` to a word, into ``out``; no word may exceed its digits."""
    from fl_privquant.packing._loops import split_digits

    count = out.size // per_word
    words = body[: 8 * count].view(_WORD)
    wrong = split_digits(words, np.uint64(num_levels), per_word, out)
    if wrong >= 0:
        raise InvalidUpdateError(
            f"payload: word {wrong} is {int(words[wrong])}, above the {per_word} digits below "
            f"{num_levels} that it holds"
        )
    number = int.from_bytes(body[8 * count :].tobytes(), "little")
    left = out.size - count * per_word
    if number >= num_levels**left:
        raise InvalidUpdateError(
            f"payload: the last word is {number}, above the {left} digits below {num_levels} that it holds"
        )
    for i in range(count * per_word, out.size):
        number, digit = divmod(number, num_levels)
        out[i] = digit
