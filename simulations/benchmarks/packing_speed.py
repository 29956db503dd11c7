"""How fast integers are packed and unpacked, as ratios to other work on the same machine.

Each layout is compared with numpy copying the unpacked integers: a copy is as fast as memory allows, and the
share of its speed that packing reaches is measured. Two bits per coordinate are also compared with numpy's
packbits (which only knows one bit) and with encoding. All run in one process, in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant.packing.pack import (
    pack_codes,
    pack_indices,
    packed_size,
    unpack_codes,
    unpack_indices,
)
from fl_privquant.sampling.kernel import Sampler
from simulations.benchmarks.encode import dithered_table
from simulations.benchmarks.measure import Row, at_most, median_seconds

COORDINATES = 10**7
LEVELS = (2, 3, 4, 5, 16, 256, 1000)
WIDTHS = (11, 16, 20, 32)
ROUNDS = 7
# Far below what is measured: only a layout that loses its vectorised code falls below this.
SHARE_OF_COPY = 0.05


def run() -> list[Row]:
    """Every measurement of packing beside its target."""
    rows = _two_bits()
    generator = np.random.default_rng(0)
    for num_levels in LEVELS:
        dtype = np.uint8 if num_levels <= 256 else np.uint16
        indices = generator.integers(0, num_levels, COORDINATES, dtype=dtype)
        bits = 8 * packed_size(COORDINATES, num_levels=num_levels) / COORDINATES
        rows += _against_copy(
            f"{num_levels} levels, {bits:.3g} bits", indices, pack_indices, unpack_indices, num_levels
        )
    for width in WIDTHS:
        codes = generator.integers(0, 1 << width, COORDINATES, dtype=np.uint32)
        rows += _against_copy(f"codes of {width} bits", codes, pack_codes, unpack_codes, width)
    share = packed_size(10**6, num_levels=4) / (4 * 10**6)
    return [*rows, at_most("2 bits: bytes against float32, 10^6 coordinates", share, 1 / 15)]


def _two_bits() -> list[Row]:
    generator = np.random.default_rng(0)
    sampler = Sampler(dithered_table(4))
    update = generator.normal(0.0, 0.3, COORDINATES).astype(np.float32)
    indices = sampler.encode(update)
    payload = pack_indices(indices, 4)
    bits = indices & 1
    packed_bits = np.packbits(bits)
    encode, pack, unpack, packbits, unpackbits = median_seconds(
        [
            lambda: sampler.encode(update),
            lambda: pack_indices(indices, 4),
            lambda: unpack_indices(payload, 4, COORDINATES),
            lambda: np.packbits(bits),
            lambda: np.unpackbits(packed_bits),
        ],
        ROUNDS,
    )
    return [
        Row("2 bits: speed of pack against encode", encode / pack, 1.0),
        Row("2 bits: speed of unpack against encode", encode / unpack, 1.0),
        Row("2 bits: speed of pack against numpy's packbits", packbits / pack, 0.2),
        Row("2 bits: speed of unpack against numpy's unpackbits", unpackbits / unpack, 0.2),
    ]


def _against_copy(
    layout: str, integers: NDArray[Any], pack: Callable[..., bytes], unpack: Callable[..., Any], size: int
) -> list[Row]:
    """Packing and unpacking against a copy; ``size`` is the number of levels, or the width in bits."""
    payload = pack(integers, size)
    copied, *timed = median_seconds(
        [integers.copy, lambda: pack(integers, size), lambda: unpack(payload, size, COORDINATES)], ROUNDS
    )
    return [
        Row(
            f"{layout}: {name} ({1e9 * seconds / COORDINATES:.2f} ns) against a copy",
            copied / seconds,
            SHARE_OF_COPY,
        )
        for name, seconds in zip(("pack", "unpack"), timed, strict=True)
    ]
