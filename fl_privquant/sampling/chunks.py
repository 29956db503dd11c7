"""Common code of encoders: an update is checked and cut into chunks.

Every encoder refuses inputs that are not finite, takes any shape and strides without copying the update, and
gives each input its own random words, so that the codes do not depend on how the update was cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fl_privquant import _validation
from fl_privquant._array_types import Array, ArrayLike, Floats, Words
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.sampling.stream import Randomness, RandomStream

# How many random words are in memory at a time: 256 KB, which stays in a core's cache.
_CHUNK = 1 << 15

_NATIVE = (np.dtype(np.float32), np.dtype(np.float64))


class LazyVector(ABC):
    """A vector that is computed part by part when it is read, so that it is never in memory as a whole.

    :func:`encode_in_chunks` reads its parts; elsewhere numpy converts it to an ordinary array.
    """

    def __init__(self, size: int, dtype: np.dtype[Any]) -> None:
        self.size = size
        self.shape = (size,)
        self.dtype = dtype

    @abstractmethod
    def read(self, start: int, stop: int) -> Array:
        """(stop - start,) a new array of these coordinates."""

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        whole = self.read(0, self.size)
        return whole if dtype is None else whole.astype(dtype, copy=False)


class _Given(LazyVector):
    """The coordinates of an array, in C order; no copy of it is made."""

    def __init__(self, inputs: Array) -> None:
        super().__init__(inputs.size, inputs.dtype)
        self.shape = inputs.shape
        plain = inputs.ndim <= 1 or inputs.flags.c_contiguous
        self._flat = inputs.reshape(-1) if plain else inputs.flat

    def read(self, start: int, stop: int) -> Array:
        return np.asarray(self._flat[start:stop])


class Chunk(NamedTuple):
    """A part of an update that is being encoded: k inputs, float32 or float64, and their random words.

    The words are those from the address ``first_word`` on. If an encoder takes two words per input, the
    second ones are in the stream from the address ``second_words`` on. If it takes none, ``words`` is empty.
    Codes are written to ``out``. The inputs are those from the index ``start`` of the update on.
    """

    x: Array
    clip: float
    words: Words
    out: Array
    stream: RandomStream
    first_word: int
    second_words: int
    start: int = 0


def encode_in_chunks(
    x: ArrayLike,
    encode_chunk: Callable[[Chunk], int],
    *,
    dtype: DTypeLike | None,
    clip: float,
    stream: Randomness,
    words_per_input: int = 1,
) -> Array:
    """The inputs encoded by ``encode_chunk``, in their shape.

    Integers are refused: an update that holds counts or indices is a mistake upstream.

    Parameters
    ----------
    x
        Floating-point numbers of any shape and strides.
    encode_chunk
        Writes the codes of a chunk, and returns how many of its inputs are not finite.
    dtype
        The type of codes; None for that of the inputs, single or double precision.
    clip
        The largest absolute value of a coordinate, for ``encode_chunk``.
    stream
        Randomness; None for a fresh key from the operating system.
    words_per_input
        How many random words an input takes, from 0 to 2.

    Returns
    -------
    Array
        The codes.

    Raises
    ------
    InvalidUpdateError
        An input is not a finite floating-point number; nothing is encoded then.
    """
    source = x if isinstance(x, LazyVector) else _Given(np.asarray(x))
    _check(source.dtype, clip, stream)
    randomness = stream if stream is not None else RandomStream.secure()
    first_word = randomness.reserve(words_per_input * source.size)
    out = np.empty(source.shape, dtype=_float_type(source.dtype) if dtype is None else dtype)
    codes = out.reshape(-1)

    # Whole rows, as far as they fit: each may be a client's, whose stream is then set up only once.
    row = source.shape[-1] if source.shape else 1
    length = _CHUNK // row * row if 0 < row <= _CHUNK else _CHUNK
    buffer = np.empty(min(length, source.size) if words_per_input else 0, dtype=np.uint64)
    not_finite = 0
    for start in range(0, source.size, length):
        stop = min(start + length, source.size)
        words = buffer[: stop - start]
        first = first_word + start
        randomness.fill(words, first)
        part = _as_native(source.read(start, stop))
        second = first + source.size
        chunk = Chunk(part, float(clip), words, codes[start:stop], randomness, first, second, start)
        not_finite += encode_chunk(chunk)
    if not_finite:
        raise _not_finite(not_finite, source.size, _first_not_finite(source))
    return out


def check_inputs(x: ArrayLike) -> Floats:
    """The inputs in double precision, for encoders that need them all at once, if they are finite floats."""
    array = np.asarray(x)
    _check_type(array.dtype)
    if array.dtype == np.float64:
        inputs = array.copy()
    else:
        with np.errstate(over="ignore"):
            inputs = array.astype(np.float64)
    check_finite_inputs(inputs)
    return inputs


def check_finite_inputs(inputs: Array) -> None:
    """Raise InvalidUpdateError, with the first place, if an input is not finite."""
    finite = np.isfinite(inputs)
    if not finite.all():
        raise _not_finite(int(np.count_nonzero(~finite)), inputs.size, int(np.argmin(finite)))


def _not_finite(count: int, size: int, first: int) -> InvalidUpdateError:
    return InvalidUpdateError(
        f"update: {count} of {size} inputs are not finite, the first at flat index {first}; nothing was "
        "encoded; check whether training diverged"
    )


def _check_type(dtype: np.dtype[Any]) -> None:
    if dtype.kind != "f":
        raise InvalidUpdateError(
            f"update: {dtype} inputs, expected floating point; convert with astype(numpy.float32)"
        )


def _check(dtype: np.dtype[Any], clip: float, stream: object) -> None:
    _check_type(dtype)
    _validation.check_positive("clip", clip)
    if stream is not None and not isinstance(stream, RandomStream):
        raise InvalidSpecError("rng", stream, "is not a RandomStream, such as RandomStream.seeded(0)")


def _float_type(dtype: np.dtype[Any]) -> type[np.float32] | type[np.float64]:
    return np.float32 if dtype.itemsize <= 4 else np.float64


def _as_native(chunk: Array) -> Array:
    """The chunk as the compiled kernels take it, copied only if it must be."""
    if chunk.dtype not in _NATIVE or not (chunk.flags.c_contiguous and chunk.flags.aligned):
        # A long double beyond the range of a double becomes infinite, and is then refused.
        with np.errstate(over="ignore"):
            chunk = np.require(chunk, _float_type(chunk.dtype), ["C", "A"])
    # Writeable and read-only arrays are different types to numba, which would compile the kernel twice.
    chunk.flags.writeable = False
    return chunk


def _first_not_finite(source: LazyVector) -> int:
    for start in range(0, source.size, _CHUNK):
        bad = np.flatnonzero(~np.isfinite(_as_native(source.read(start, min(start + _CHUNK, source.size)))))
        if bad.size:
            return start + int(bad[0])
    return source.size
