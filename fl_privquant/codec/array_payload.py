"""Trained arrays as a payload: as they are, each in its own type, where nothing is encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fl_privquant.codec.array_layout import Arrays, Layout
from fl_privquant.packing.pack import HEADER_BYTES, read_body, write_header
from fl_privquant.packing.wire_format import check_finite

# Beside the kinds of fl_privquant.packing: arrays that no mechanism has seen.
_KIND_ARRAYS: Final = 17


@dataclass(frozen=True)
class ArrayPayload:
    """How the arrays of a layout are written, little-endian."""

    layout: Layout

    @property
    def num_bytes(self) -> int:
        """Size of every payload."""
        return HEADER_BYTES + self.layout.num_bytes

    def pack(self, arrays: Arrays) -> bytes:
        """The payload of arrays that fit the layout."""
        self.layout.check(arrays)
        parts = [write_header(_KIND_ARRAYS, 0, self.layout.dimension)]
        for name, dtype in zip(self.layout.names, self.layout.dtypes, strict=True):
            parts.append(np.asarray(arrays[name], dtype=dtype.newbyteorder("<")).tobytes())
        return b"".join(parts)

    def unpack(self, payload: bytes) -> dict[str, NDArray[Any]]:
        """The arrays in a payload; raises InvalidUpdateError for one of another size, or not finite."""
        body = read_body(payload, _KIND_ARRAYS, 0, self.layout.dimension, self.layout.num_bytes).tobytes()
        arrays: dict[str, NDArray[Any]] = {}
        start = 0
        for name, shape, dtype, count in zip(
            self.layout.names, self.layout.shapes, self.layout.dtypes, self.layout.sizes, strict=True
        ):
            values = np.frombuffer(body, dtype.newbyteorder("<"), count=count, offset=start)
            check_finite(values)
            arrays[name] = values.astype(dtype).reshape(shape)
            start += count * dtype.itemsize
        return arrays
