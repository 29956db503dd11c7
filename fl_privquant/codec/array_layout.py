"""The layout of named arrays in one vector, and how arrays are written where nothing is encoded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from fl_privquant._array_types import Array
from fl_privquant.errors import InvalidUpdateError
from fl_privquant.packing.pack import HEADER_BYTES, read_body, write_header
from fl_privquant.packing.wire_format import check_finite
from fl_privquant.sampling.chunks import LazyVector

# A kind of payload besides those of fl_privquant.packing: arrays as they are, without a mechanism.
_KIND_ARRAYS: Final = 17

_FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Layout:
    """Names, shapes and types of the arrays of an update, in the order in which they are flattened.

    Only floating-point arrays are included: counters and other buffers are not part of an update. Arrays may
    have scales (:mod:`fl_privquant.codec.array_selection`): the vector holds each array divided by its scale.
    Without scales all are 1.

    >>> layout = Layout.of({"weight": np.zeros((2, 3)), "steps": np.array(7), "bias": np.array(0.5)})
    >>> layout.names, layout.dimension
    (('weight', 'bias'), 7)
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    scales: tuple[float, ...] = ()

    @classmethod
    def of(cls, arrays: Arrays, scales: Mapping[str, float] | None = None) -> Layout:
        """The layout of the floating-point arrays among ``arrays``, with their scales."""
        floats: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for name, values in arrays.items():
            array = np.asarray(values)
            if array.dtype.kind == "f":
                native = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
                if native not in _FLOATS:
                    raise InvalidUpdateError(
                        f"{name}: {native}, expected float16, float32 or float64; convert it before training"
                    )
                floats[name] = array.shape, native
        shapes, dtypes = zip(*floats.values(), strict=True) if floats else ((), ())
        factors = () if scales is None else tuple(scales[name] for name in floats)
        return cls(tuple(floats), shapes, dtypes, () if set(factors) == {1.0} else factors)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each array."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def places(self) -> list[slice]:
        """Where each array lies in the flat vector."""
        ends = np.cumsum(self.sizes, dtype=np.int64).tolist()
        return [slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]

    @cached_property
    def dimension(self) -> int:
        """Number of coordinates of all arrays together."""
        return sum(self.sizes)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Type of the flat vector: float64 if any array is, else float32."""
        return np.dtype(np.float64 if np.dtype(np.float64) in self.dtypes else np.float32)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the arrays in their own types."""
        return sum(size * dtype.itemsize for size, dtype in zip(self.sizes, self.dtypes, strict=True))

    def check(self, arrays: Arrays) -> None:
        """Raise InvalidUpdateError unless ``arrays`` has all arrays of this layout, with their shapes."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in arrays:
                raise InvalidUpdateError(f"update: {name!r} is missing")
            array = arrays[name]
            # Other floats are fine: clients may train in another precision than the server keeps.
            if array.shape != shape or array.dtype.kind != "f":
                raise InvalidUpdateError(
                    f"update: {name!r} is {array.dtype} of shape {array.shape}, expected floats of shape "
                    f"{shape}"
                )

    def flatten(self, arrays: Arrays) -> Array:
        """A new vector of all coordinates."""
        self.check(arrays)
        vector = np.empty(self.dimension, dtype=self.dtype)
        for name, part, scale in zip(self.names, self._split(vector), self._factors, strict=True):
            np.copyto(part, arrays[name])
            _divide(part, scale)
        return vector

    @property
    def _factors(self) -> tuple[float, ...]:
        return self.scales or (1.0,) * len(self.names)

    def difference(self, new: Arrays, old: Arrays) -> LazyVector:
        """All coordinates of ``new - old``, subtracted in the vector's precision when they are read."""
        self.check(new)
        return _Difference(self, new, old)

    def stacked_differences(self, new: Arrays, old: Arrays) -> Array:
        """(n, dimension) the differences of n clients, which are the first axis of ``new`` arrays."""
        num_clients = len(new[self.names[0]])
        vectors = np.empty((num_clients, self.dimension), dtype=self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            for name, place, shape, scale in zip(
                self.names, self.places, self.shapes, self._factors, strict=True
            ):
                if new[name].shape != (num_clients, *shape):
                    raise InvalidUpdateError(
                        f"update: {name!r} is of shape {new[name].shape}, expected {(num_clients, *shape)}"
                    )
                rows, out = new[name].reshape(num_clients, -1), vectors[:, place]
                np.subtract(rows, old[name].reshape(-1), out=out, dtype=self.dtype)
                _divide(out, scale)
        return vectors

    def unflatten(self, vector: Array) -> dict[str, Array]:
        """The arrays, by name, in their own shapes and in the vector's precision; views of it if unscaled."""
        parts = self._split(vector)
        if self.scales:
            parts = [part * scale for part, scale in zip(parts, self.scales, strict=True)]
        return dict(zip(self.names, parts, strict=True))

    def _split(self, vector: Array) -> list[Array]:
        return [vector[place].reshape(shape) for place, shape in zip(self.places, self.shapes, strict=True)]

    @property
    def payload_bytes(self) -> int:
        """Size of the payload that :meth:`pack` makes."""
        return HEADER_BYTES + self.num_bytes

    def pack(self, arrays: Arrays) -> bytes:
        """The payload of arrays that fit the layout, as they are, little-endian."""
        self.check(arrays)
        parts = [write_header(_KIND_ARRAYS, 0, self.dimension)]
        for name, dtype in zip(self.names, self.dtypes, strict=True):
            parts.append(np.asarray(arrays[name], dtype=dtype.newbyteorder("<")).tobytes())
        return b"".join(parts)

    def unpack(self, payload: bytes) -> dict[str, Array]:
        """The arrays in a payload; raises InvalidUpdateError for one of another size, or not finite."""
        body = read_body(payload, _KIND_ARRAYS, 0, self.dimension, self.num_bytes)
        arrays: dict[str, Array] = {}
        start = 0
        for name, shape, dtype, count in zip(self.names, self.shapes, self.dtypes, self.sizes, strict=True):
            stop = start + count * dtype.itemsize
            arrays[name] = _read_floats(body[start:stop], dtype).reshape(shape)
            start = stop
        return arrays


def _read_floats(body: Array, dtype: np.dtype[Any]) -> Array:
    """A new array of the floats in some bytes; raises InvalidUpdateError unless all are finite."""
    values = body.view(dtype.newbyteorder("<")).astype(dtype)
    check_finite(values)
    return values


class _Difference(LazyVector):
    """The difference of two sets of arrays, computed part by part."""

    def __init__(self, layout: Layout, new: Arrays, old: Arrays) -> None:
        super().__init__(layout.dimension, layout.dtype)
        self._parts = [
            (place, new[name].reshape(-1), old[name].reshape(-1), scale)
            for name, place, scale in zip(layout.names, layout.places, layout._factors, strict=True)
        ]

    def read(self, start: int, stop: int) -> Array:
        vector = np.empty(stop - start, dtype=self.dtype)
        # An overflow becomes infinite here, and is refused as such when it is encoded.
        with np.errstate(over="ignore", invalid="ignore"):
            for place, new, old, scale in self._parts:
                first, last = max(place.start, start), min(place.stop, stop)
                if first < last:
                    inside = slice(first - place.start, last - place.start)
                    out = vector[first - start : last - start]
                    np.subtract(new[inside], old[inside], out=out, dtype=self.dtype)
                    _divide(out, scale)
        return vector


def _divide(part: Array, scale: float) -> None:
    """Divide in place; an overflow becomes infinite, and is refused as such when it is encoded."""
    if scale != 1.0:
        with np.errstate(over="ignore", invalid="ignore"):
            np.divide(part, scale, out=part)
