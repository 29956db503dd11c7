"""The encoder: from real inputs to random indices with exactly the law of a certified table."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.sampling.stream import RandomStream
from fl_privquant.sampling.tables import prepare
from fl_privquant.table import CertifiedTable

__all__ = ["Sampler"]

# Words of randomness in memory at a time, for each thread: 256 KB, which stays in a core's cache.
_CHUNK = 1 << 15

_Flat: TypeAlias = "NDArray[Any] | np.flatiter[NDArray[Any]]"


class Sampler:
    """Draws indices with the law of a certified table, one 64-bit random word a coordinate.

    For input x in a piece [a, b], the high half of the word chooses the row at b with probability
    (x - a) / (b - a), to the nearest multiple of 2^-32, else the row at a; the low half draws from
    that row's integer weights, exactly.

    Guarantee: the table's certified epsilon, for each coordinate and release. Every output comes
    from one of the certified rows, whatever the input, the clip and the rounding of either.
    Assumes: words that nobody else can predict, each used once; see :class:`RandomStream`.

    Examples
    --------
    >>> from fl_privquant.codebook import Codebook
    >>> from fl_privquant.law import Law
    >>> law = Law.from_knots([-2.0, 2.0], [-1.0, 1.0], [[0.75, 0.25], [0.25, 0.75]])
    >>> table = CertifiedTable.from_law(law, Codebook.from_values(law.values), epsilon=1.1)
    >>> Sampler(table).encode([[0.1, -0.1], [0.0, 7.0]], clip=0.1, stream=RandomStream.seeded(1))
    array([[1, 0],
           [0, 1]], dtype=uint8)
    """

    def __init__(self, table: CertifiedTable) -> None:
        self.table = table
        self._tables = prepare(table)

    @property
    def dtype(self) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
        """Type of the indices: uint8 up to 256 levels, else uint16."""
        return np.dtype(np.uint8) if self.table.codebook.num_levels <= 256 else np.dtype(np.uint16)

    def encode(
        self,
        x: ArrayLike,
        *,
        clip: float = 1.0,
        stream: RandomStream | None = None,
        threads: int = 1,
    ) -> NDArray[np.uint8] | NDArray[np.uint16]:
        """Random indices of the shape of ``x``: the values they stand for, times ``clip``, average to ``x``.

        Parameters
        ----------
        x
            Floating-point inputs of any shape and strides, clipped to [-clip, clip]. Integers are
            refused: an update that holds counts or indices is a mistake upstream.
        clip
            Half the width of the input range.
        stream
            Where randomness comes from: by default a stream with a fresh key from the operating
            system. A call takes ``x.size`` words from it. The same words give the same indices,
            however many threads, and in single as in double precision.
        threads
            Threads that share the work; more than one pays off from some 10^5 inputs on.

        Raises
        ------
        InvalidUpdateError
            If an input is not a finite floating-point number; nothing is encoded then.
        """
        inputs = np.asarray(x)
        if inputs.dtype.kind != "f":
            raise InvalidUpdateError(
                f"update: {inputs.dtype} inputs, expected floating point; convert with astype(numpy.float32)"
            )
        if not (math.isfinite(clip) and clip > 0.0):
            raise InvalidSpecError(f"clip: {clip} is not a finite number above 0")
        if threads < 1:
            raise InvalidSpecError(f"threads: {threads} is below 1")
        words = stream if stream is not None else RandomStream.secure()
        first_word = words.reserve(inputs.size)
        source = _flat(inputs)
        out = np.empty(inputs.shape, dtype=self.dtype)
        flat_out = out.reshape(-1)

        def encode_range(begin: int, end: int) -> int:
            return self._encode_range(source, clip, words, first_word, flat_out, begin, end)

        chunks = -(-inputs.size // _CHUNK)
        workers = min(threads, chunks)
        if workers <= 1:
            not_finite = encode_range(0, inputs.size)
        else:
            bounds = [min(chunks * worker // workers * _CHUNK, inputs.size) for worker in range(workers + 1)]
            with ThreadPoolExecutor(workers) as pool:
                not_finite = sum(pool.map(encode_range, bounds[:-1], bounds[1:]))
        if not_finite:
            raise InvalidUpdateError(
                f"update: {not_finite} of {inputs.size} inputs are not finite, the first at flat index "
                f"{_first_not_finite(source, inputs.size)}; nothing was encoded, look for divergence upstream"
            )
        return out

    def _encode_range(
        self,
        source: _Flat,
        clip: float,
        stream: RandomStream,
        first_word: int,
        out: NDArray[Any],
        begin: int,
        end: int,
    ) -> int:
        """Number of inputs from ``begin`` to ``end`` that are not finite; ``out`` is written there."""
        from fl_privquant.sampling import loops

        buffer = np.empty(min(_CHUNK, end - begin), dtype=np.uint64)
        not_finite = 0
        for start in range(begin, end, _CHUNK):
            stop = min(start + _CHUNK, end)
            words = buffer[: stop - start]
            stream.fill(words, first_word + start)
            chunk = _readable(source[start:stop])
            not_finite += loops.encode_chunk(chunk, float(clip), words, self._tables, out[start:stop])
        return not_finite


def _flat(inputs: NDArray[Any]) -> _Flat:
    """The inputs in C order, to be sliced; no copy of them is made."""
    return inputs.reshape(-1) if inputs.ndim <= 1 or inputs.flags.c_contiguous else inputs.flat


def _readable(chunk: NDArray[Any]) -> NDArray[Any]:
    """The chunk as the compiled kernel takes it, copied only if it must be."""
    dtype = np.float32 if chunk.dtype.itemsize <= 4 else np.float64
    # A long double beyond the range of a double becomes infinite, and is refused as such.
    with np.errstate(over="ignore"):
        native = np.require(chunk, dtype, ["C", "A"])
    # To numba, what may be written is another type: without this it would compile the kernel twice.
    native.flags.writeable = False
    return native


def _first_not_finite(source: _Flat, size: int) -> int:
    for start in range(0, size, _CHUNK):
        bad = np.flatnonzero(~np.isfinite(_readable(source[start : start + _CHUNK])))
        if bad.size:
            return start + int(bad[0])
    return size
