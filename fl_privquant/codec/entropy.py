"""Indices as payloads whose size follows their law, where levels are far from equally likely.

The law is public: the mechanism's average output probabilities for a reference input density, given
as integer frequencies so that sender and receiver hold the very same model. An asymmetric numeral
system (the package `constriction`, extra ``entropy``) then spends -log2(frequency / total) bits on
an index, within 0.2 % of the entropy for long vectors.

Designs for a small epsilon make their levels nearly equally likely, and nothing is left to save:
ask :func:`expected_saving` first. It pays for levels that are rarely used (epsilon of 3 and more,
inputs that crowd around 0, additive noise in a wide range).

**What the size says.** Unlike the payloads of :mod:`fl_privquant.packing.pack`, the number of bytes
depends on the indices. They are the output of the private mechanism, so their size is
post-processing of it and costs no privacy in the local view, where whoever counts the bytes may
see the indices. Under secure aggregation nobody may see them: masked sums are uniform, cannot be
compressed, and are always sent at a fixed width.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.law.codebook import MAX_LEVELS
from fl_privquant.packing.pack import (
    KIND_ENTROPY,
    Payload,
    bits_per_coordinate,
    integers,
    read_body,
    write_header,
)

__all__ = ["WORTHWHILE_SAVING", "expected_saving", "pack_likely_indices", "unpack_likely_indices"]

WORTHWHILE_SAVING: Final = 0.05
"""Share of the wire below which the time of entropy coding (8 to 20 ns an index) is not worth it."""

_WORD: Final = np.dtype("<u4")
_MODEL_BYTES: Final = 4
_CHUNK: Final = 1 << 20
_MAX_FREQUENCY: Final = 1 << 32


def expected_saving(frequencies: ArrayLike) -> float:
    """Share of the wire that entropy coding saves on indices of this law; negative where it loses.

    >>> round(expected_saving([1, 1, 1, 1]), 3), round(expected_saving([7, 1, 1, 1]), 3)
    (0.0, 0.322)
    """
    counts = _frequencies(frequencies)
    shares = counts / counts.sum()
    entropy = -float(shares @ np.log2(shares))
    return 1.0 - entropy / bits_per_coordinate(counts.size)


def pack_likely_indices(indices: ArrayLike, frequencies: ArrayLike) -> bytes:
    """The payload of indices, short where they are likely: one frequency >= 1 for each level."""
    counts = _frequencies(frequencies)
    values = integers(indices, "indices", counts.size - 1)
    stream, model = _coder(counts)
    coder = stream.stack.AnsCoder()
    # A stack gives back last what was put on first; so the receiver reads forward.
    for start in reversed(range(0, values.size, _CHUNK)):
        coder.encode_reverse(values[start : start + _CHUNK].astype(np.int32), model)
    words = coder.get_compressed().astype(_WORD)
    return b"".join((write_header(KIND_ENTROPY, counts.size, values.size), _fingerprint(counts), words.data))


def unpack_likely_indices(
    payload: Payload, frequencies: ArrayLike, length: int
) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """The ``length`` indices of a payload: uint8, or uint16 past 256 levels.

    Raises InvalidUpdateError unless this is the one payload that :func:`pack_likely_indices` makes
    of ``length`` indices with these frequencies. Time and memory are bounded by ``length`` and
    the payload's own size, whatever it says: the decoder takes every sequence of words for indices
    in range, and being a bijection leaves an empty stack only for what the encoder would have sent.
    """
    counts = _frequencies(frequencies)
    body = read_body(payload, KIND_ENTROPY, counts.size, length, None)
    fingerprint = _fingerprint(counts)
    if body[:_MODEL_BYTES].tobytes() != fingerprint:
        raise InvalidUpdateError(
            f"payload: frequencies {body[:_MODEL_BYTES].tobytes().hex()}, expected {fingerprint.hex()} "
            f"(CRC-32); sender and receiver disagree on the law"
        )
    if body.size % _WORD.itemsize:
        raise InvalidUpdateError(f"payload: a body of {body.size} bytes, expected a multiple of 4")
    stream, model = _coder(counts)
    words = body[_MODEL_BYTES:].view(_WORD).astype(np.uint32)
    out: NDArray[Any] = np.empty(length, dtype=np.uint8 if counts.size <= 256 else np.uint16)
    try:
        coder = stream.stack.AnsCoder(words)
    except ValueError as error:
        raise InvalidUpdateError(f"payload: {error}") from error
    for start in range(0, length, _CHUNK):
        out[start : start + _CHUNK] = coder.decode(model, min(_CHUNK, length - start))
    if not coder.is_empty():
        raise InvalidUpdateError(
            f"payload: {coder.num_bits()} bits are left after {length} coordinates, expected none"
        )
    return out


def _frequencies(frequencies: ArrayLike) -> NDArray[np.int64]:
    counts = np.asarray(frequencies)
    if counts.ndim != 1 or not 2 <= counts.size <= MAX_LEVELS or counts.dtype.kind not in "ui":
        raise InvalidSpecError(
            f"frequencies: {counts.dtype} of shape {counts.shape}, expected 2 to {MAX_LEVELS} integers"
        )
    if counts.min() < 1 or counts.max() > _MAX_FREQUENCY:
        raise InvalidSpecError(
            f"frequencies: {counts.min()}..{counts.max()}, expected 1 to 2^32; an index of frequency 0 "
            f"could not be sent"
        )
    return counts.astype(np.int64)


def _fingerprint(counts: NDArray[np.int64]) -> bytes:
    return zlib.crc32(counts.astype("<i8").tobytes()).to_bytes(_MODEL_BYTES, "little")


def _coder(counts: NDArray[np.int64]) -> tuple[Any, Any]:
    try:
        stream = importlib.import_module("constriction").stream
    except ImportError as error:
        raise InvalidSpecError(
            "entropy coding needs the package constriction: pip install 'fl-privquant[entropy]'"
        ) from error
    # perfect=False is the quantization to 24 bits that the package keeps fixed within a version.
    return stream, stream.model.Categorical(counts.astype(np.float64), perfect=False)
