"""Access to Flower's arrays that copies less: they are read in place, and serialized only on demand.

Flower serializes every array with ``numpy.save`` and reads it back with ``numpy.load``, which copies it.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fl_privquant.errors import InvalidUpdateError, one_line

RECORD_KINDS: Final[tuple[type, ...]] = (ArrayRecord, ConfigRecord, MetricRecord)
"""The kinds of Flower's records."""

_STYPE_NUMPY: Final = "numpy.ndarray"
_MAX_HEADER_BYTES: Final = 10_000
_CACHED_HEADERS: Final = 4096
_Record = TypeVar("_Record")


class DecodedArray(Array):
    """An Array that is decoded when it is read, and serialized only if it has to travel.

    Parameters
    ----------
    compute
        Gives the values as a new array each time, which its owner may change.
    dtype, shape
        Type and shape of the values.
    """

    def __init__(
        self, compute: Callable[[], NDArray[Any]], dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        # Array's own constructor is not called, because it would serialize the values.
        self.__dict__.update(dtype=str(dtype), shape=shape, stype=_STYPE_NUMPY, _compute=compute)

    @classmethod
    def of(cls, values: NDArray[Any]) -> DecodedArray:
        """An Array of these values, which are not copied and must not be changed from now on."""
        values = np.asarray(values)
        return cls(lambda: values, values.dtype, values.shape)

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The array as ``numpy.save`` writes it."""
        if "_serialized" not in self.__dict__:
            self.__dict__["_serialized"] = Array(self.numpy()).data
        return bytes(self.__dict__["_serialized"])

    def numpy(self) -> NDArray[Any]:
        return np.asarray(self.__dict__["_compute"]())

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process gets the values, as the function that computes them may not be picklable.
        return DecodedArray.of, (self.numpy(),)


def read_array(array: Array) -> NDArray[Any]:
    """The array's values, read-only and without a copy; in this machine's byte order.

    Raises InvalidUpdateError if its bytes are not what ``numpy.save`` writes, or hold objects.
    """
    if array.stype != _STYPE_NUMPY:
        raise InvalidUpdateError(
            f"array: serialized as {one_line(repr(array.stype), 40)}, expected {_STYPE_NUMPY!r}"
        )
    if isinstance(array, DecodedArray):
        return array.numpy()
    try:
        data = array.data
        # Version 1 of the format has two bytes for the length of the header, later ones have four.
        start = 10 if data[6] == 1 else 12
        start += int.from_bytes(data[8:start], "little")
        shape, fortran, dtype = _parse_header(data[: min(start, _MAX_HEADER_BYTES)])
        values = np.frombuffer(data, dtype, offset=start)
        if values.size != math.prod(shape) or min(shape, default=0) < 0:
            raise ValueError(f"{values.size} values, expected shape {shape}")
        native = values if dtype.isnative else values.astype(dtype.newbyteorder("="))
        native.flags.writeable = False
        return native.reshape(shape, order="F" if fortran else "C")
    except Exception as error:  # of whatever kind: numpy hands a header to Python's parser, which has many
        raise InvalidUpdateError(f"array: cannot be read ({one_line(error)})") from error


def read_arrays(record: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
    """All arrays of a record; see :func:`read_array`."""
    return {name: read_array(array) for name, array in record.items()}


def records_of(content: RecordDict, kind: type[_Record]) -> list[tuple[str, _Record]]:
    """The records of one kind. Flower's own view of them is rebuilt, and writes itself back, on each use."""
    # None of Flower's own kinds is a subclass of another, and to find that out by isinstance is slow.
    return [
        (key, record)
        for key, record in content.items()
        if type(record) is kind or (type(record) not in RECORD_KINDS and isinstance(record, kind))
    ]


@functools.lru_cache(maxsize=_CACHED_HEADERS)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is in Fortran's order, and type of an array, from the bytes before its values."""
    stream = io.BytesIO(header)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError(f"it holds {dtype}")
    return shape, fortran, dtype
