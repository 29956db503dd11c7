"""How encoded updates are written as bytes: packed integers, and the wire formats of mechanisms."""

from fl_privquant.packing.pack import pack_codes, pack_indices, packed_size, unpack_codes, unpack_indices
from fl_privquant.packing.wire_format import PackedFloats, PackedIndices, PackedIntegers, WireFormat

__all__ = [
    "PackedFloats",
    "PackedIndices",
    "PackedIntegers",
    "WireFormat",
    "pack_codes",
    "pack_indices",
    "packed_size",
    "unpack_codes",
    "unpack_indices",
]
