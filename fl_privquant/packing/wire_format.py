"""Wire formats: how an encoded update is written, read, decoded and added up.

A mechanism says which wire format it has (``Mechanism.wire_format``), and may bring one of its own:

* :class:`PackedIndices`, for indices of up to 65536 levels, in as few bits as a fixed layout allows;
* :class:`PackedIntegers`, for wider codes, and for the few integers that a mechanism for whole updates draws;
* :class:`PackedFloats`, for mechanisms without a quantizer, little-endian.

Sizes depend on the mechanism and the number of coordinates, never on the data; a payload of another size, or
with a value out of range, is refused (:mod:`fl_privquant.packing.pack`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np

from fl_privquant._array_types import Array, Ints
from fl_privquant.errors import InvalidUpdateError
from fl_privquant.packing.pack import (
    HEADER_BYTES,
    check_range,
    pack_codes,
    pack_indices,
    packed_size,
    read_body,
    unpack_codes,
    unpack_indices,
    write_header,
)

# A kind besides those of fl_privquant.packing.pack: floating-point numbers, which were not quantized.
_KIND_FLOATS: Final = 16

AddOnDemand = Callable[[slice, Array], Array]
"""A function of a part of the update and its old coordinates: these plus their estimates, as a new array."""


class Decoder(Protocol):
    """The interface of a mechanism that a wire format needs."""

    def decode(self, indices: Array, clip: float = 1.0) -> Array:
        """Estimates of the inputs that were encoded."""
        ...

    def to_codes(self, indices: Array) -> Ints:
        """The integers to be added up."""
        ...


@dataclass(frozen=True, eq=False)
class WireFormat(ABC):
    """How an update of ``dimension`` coordinates is written, after ``mechanism`` encoded it with this clip.

    Estimates have the type ``dtype``.
    """

    mechanism: Decoder
    dimension: int
    clip: float
    dtype: np.dtype[Any]

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Size of every payload."""

    @abstractmethod
    def pack(self, encoded: Array) -> bytes:
        """The payload of an update that the mechanism's ``encode`` returned."""

    @abstractmethod
    def unpack(self, payload: bytes) -> Array:
        """The input of :meth:`pack`; raises InvalidUpdateError for bytes that it never writes."""

    def codes(self, encoded: Array) -> Ints:
        """The integers of an encoded update that can be added up over clients."""
        return self.mechanism.to_codes(encoded)

    def add_codes(self, payload: bytes, total: Ints) -> None:
        """Add the :meth:`codes` of a payload to a vector, in place; a bad payload adds nothing."""
        self.add_drawn(self.unpack(payload), total)

    def add_drawn(self, encoded: Array, total: Ints) -> None:
        """Add the :meth:`codes` of an encoded update to a vector, in place."""
        total += self.codes(encoded)

    def estimate(self, payload: bytes) -> Array:
        """Estimates of the coordinates that were encoded."""
        return self.mechanism.decode(self.unpack(payload), self.clip).astype(self.dtype, copy=False)

    def on_demand(self, payload: bytes) -> AddOnDemand | None:
        """A function that adds estimates part by part, so that not all are in memory at once; None if none.

        The payload is checked at this call, and takes less memory than its estimates.
        """
        return None


@dataclass(frozen=True, eq=False)
class PackedIndices(WireFormat):
    """One index below ``num_levels`` for each coordinate; the value that it stands for is looked up."""

    num_levels: int

    @property
    def num_bytes(self) -> int:
        return packed_size(self.dimension, num_levels=self.num_levels)

    def pack(self, encoded: Array) -> bytes:
        return pack_indices(encoded, self.num_levels)

    def unpack(self, payload: bytes) -> Array:
        return unpack_indices(payload, self.num_levels, self.dimension)

    def add_drawn(self, encoded: Array, total: Ints) -> None:
        from fl_privquant.packing._loops import add_codes

        add_codes(encoded, self._level_codes, total)

    def estimate(self, payload: bytes) -> Array:
        from fl_privquant.packing._loops import look_up

        estimates = np.empty(self.dimension, dtype=self.dtype)
        look_up(self.unpack(payload), self._level_values, estimates)
        return estimates

    def on_demand(self, payload: bytes) -> AddOnDemand:
        from fl_privquant.packing._loops import look_up_and_add

        indices = self.unpack(payload)

        def add(place: slice, old: Array) -> Array:
            new = np.empty(old.shape, dtype=self.dtype)
            look_up_and_add(indices[place], self._level_values, old.reshape(-1), new.reshape(-1))
            return new

        return add

    @cached_property
    def _level_values(self) -> Array:
        return self.mechanism.decode(np.arange(self.num_levels), self.clip).astype(self.dtype)

    @cached_property
    def _level_codes(self) -> Ints:
        return np.ascontiguousarray(self.mechanism.to_codes(np.arange(self.num_levels)), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class PackedIntegers(WireFormat):
    """``count`` integers of ``width`` bits: one for each coordinate, or a few for the whole update.

    ``largest`` is the largest valid integer; None allows all of that width.
    """

    count: int
    width: int
    largest: int | None = None

    def __post_init__(self) -> None:
        packed_size(self.count, width=self.width)

    @property
    def num_bytes(self) -> int:
        return packed_size(self.count, width=self.width)

    def pack(self, encoded: Array) -> bytes:
        return pack_codes(encoded, self.width)

    def unpack(self, payload: bytes) -> Ints:
        integers = unpack_codes(payload, self.width, self.count)
        if self.largest is not None:
            check_range(integers, "codes", self.largest)
        return integers.astype(np.int64)


class PackedFloats(WireFormat):
    """One float for each coordinate, in the precision of the update."""

    @property
    def num_bytes(self) -> int:
        return HEADER_BYTES + self.dimension * self.dtype.itemsize

    def pack(self, encoded: Array) -> bytes:
        with np.errstate(over="ignore"):
            body = np.asarray(encoded).astype(self._little_endian)
        check_finite(body)
        return write_header(_KIND_FLOATS, self.dtype.itemsize, self.dimension) + body.tobytes()

    def unpack(self, payload: bytes) -> Array:
        size = self.dimension * self.dtype.itemsize
        body = read_body(payload, _KIND_FLOATS, self.dtype.itemsize, self.dimension, size)
        values = body.view(self._little_endian).astype(self.dtype)
        check_finite(values)
        return values

    @property
    def _little_endian(self) -> np.dtype[Any]:
        return self.dtype.newbyteorder("<")


def check_finite(values: Array) -> None:
    """Raise InvalidUpdateError if a float of a payload is not finite."""
    if not np.isfinite(values).all():
        raise InvalidUpdateError("payload: a value is not finite; the client's training diverged")
