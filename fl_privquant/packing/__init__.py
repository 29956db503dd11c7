"""How encoded updates are written as bytes: packed integers, and the wire formats of mechanisms."""

from fl_privquant.packing.wire_format import PackedFloats, PackedIndices, PackedIntegers, WireFormat

__all__ = [
    "PackedFloats",
    "PackedIndices",
    "PackedIntegers",
    "WireFormat",
]
