"""Faster access to Flower's arrays: read in place, parsed only once, and serialized only on demand.

Flower serializes every array with ``numpy.save`` and reads it back with ``numpy.load``, which parses the
header and copies the data each time. A round reads the same arrays many times over.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fl_privquant.errors import InvalidUpdateError, one_line

RECORD_KINDS: Final[tuple[type, ...]] = (ArrayRecord, ConfigRecord, MetricRecord)
"""The kinds of Flower's records."""

_STYPE_NUMPY: Final = "numpy.ndarray"
_MAGIC: Final = b"\x93NUMPY"
_CACHED_HEADERS: Final = 4096
_VERSIONS: Final = ((1, 0), (2, 0))
_LENGTH_END: Final = {(1, 0): 10, (2, 0): 12}
_MAX_AXES: Final = 64
# These match just what numpy.save writes for arrays of numbers, and of records of numbers. Nothing is
# evaluated: numpy's own reader hands a received header to Python's tokenizer and parser, which have their own
# errors.
_NUMBER: Final = r"'[<>|=][biufcSUV?][0-9]{0,9}'"
_FIELD: Final = rf"\('(?P<name>[^'\\\n]{{1,100}})', (?P<kind>{_NUMBER})\)"
_FIELDS: Final = re.sub(r"\?P<\w+>", "", _FIELD)
_HEADER: Final = re.compile(
    rf"\{{'descr': (?P<dtype>{_NUMBER}|\[{_FIELDS}(, {_FIELDS})*\]), 'fortran_order': (?P<order>True|False), "
    r"'shape': \((?P<shape>|[0-9]{1,19},|[0-9]{1,19}(, [0-9]{1,19})+)\), \} *\n"
)
# Where an Array keeps what was read of it.
_READ_ATTRIBUTE: Final = "_privquant_read"
# numpy pads a header to this, unless there are many axes or fields.
_TYPICAL_HEADER_BYTES: Final = 128

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


class ReceivedArray(Array):
    """An Array like the given one that does not parse its header each time; read by :func:`read_array`."""

    def __init__(self, array: Array) -> None:
        self.__dict__.update(array.__dict__)

    def numpy(self) -> NDArray[Any]:
        return np.array(read_array(self))


def read_array(array: Array) -> NDArray[Any]:
    """The array's values, read-only and without a copy; in this machine's byte order.

    The values are remembered on the array, and shared by copies of it that are made later.

    Raises InvalidUpdateError if its bytes are not what ``numpy.save`` writes, or hold objects.
    """
    if array.stype != _STYPE_NUMPY:
        raise InvalidUpdateError(
            f"array: serialized as {one_line(repr(array.stype), 40)}, expected {_STYPE_NUMPY!r}"
        )
    if isinstance(array, DecodedArray):
        return array.numpy()
    data = array.data
    remembered = array.__dict__.get(_READ_ATTRIBUTE)
    if remembered is not None and remembered.data is data:
        earlier: NDArray[Any] = remembered.values
        return earlier
    try:
        header = _parse_header(data[:_TYPICAL_HEADER_BYTES])
        if header is None:
            header = _parse_header(data[: _read_header_length(data)])
        if header is None:
            raise ValueError("its header is cut off")
        start, shape, size, order, dtype = header
        values = np.frombuffer(data, dtype, offset=start)
        if values.size != size:
            raise ValueError(f"{values.size} values, expected {size}")
        native = values if dtype.isnative else values.astype(dtype.newbyteorder("="))
        native.flags.writeable = False
        shaped = native.reshape(shape, order=order)
        array.__dict__[_READ_ATTRIBUTE] = _ReadValues(data, shaped)
        return shaped
    except (ValueError, TypeError, IndexError, OverflowError, struct.error) as error:
        raise InvalidUpdateError(f"array: cannot be read ({one_line(error)})") from error


class _ReadValues:
    """The values that were read from an array's data; they are not sent along to another process."""

    __slots__ = ("data", "values")

    def __init__(self, data: bytes | None = None, values: NDArray[Any] | None = None) -> None:
        self.data, self.values = data, values

    def __reduce__(self) -> tuple[Any, ...]:
        return _ReadValues, ()


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


class _Header(NamedTuple):
    """Where the values of a serialized array begin, and what they are."""

    start: int
    shape: tuple[int, ...]
    size: int
    order: Literal["C", "F"]
    dtype: np.dtype[Any]


def _read_header_length(data: bytes) -> int:
    if data[:6] != _MAGIC:
        raise ValueError("its magic is not that of numpy")
    wide = data[6] > 1
    length: int = struct.unpack_from("<I" if wide else "<H", data, 8)[0]
    return (12 if wide else 10) + length


@functools.lru_cache(maxsize=_CACHED_HEADERS)
def _parse_header(beginning: bytes) -> _Header | None:
    """The header that an array begins with; None if it is longer than that."""
    start = _read_header_length(beginning)
    if start > len(beginning):
        return None
    version = (beginning[6], beginning[7])
    if version not in _VERSIONS:
        raise ValueError(f"version {version} of numpy's format, expected one of {_VERSIONS}")
    header = _HEADER.fullmatch(beginning[_LENGTH_END[version] : start].decode("latin-1"))
    if header is None:
        raise ValueError("its header is not one that numpy writes for numbers")
    described = header["dtype"]
    fields = [(field["name"], field["kind"].strip("'")) for field in re.finditer(_FIELD, described)]
    dtype = np.dtype(fields) if described.startswith("[") else np.dtype(described.strip("'"))
    shape = tuple(int(extent) for extent in header["shape"].split(",") if extent.strip())
    if len(shape) > _MAX_AXES:
        raise ValueError(f"{len(shape)} axes, expected at most {_MAX_AXES}")
    return _Header(start, shape, math.prod(shape), "F" if header["order"] == "True" else "C", dtype)
