"""Encoding and packing of updates, against numpy on the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fl_privquant as pq
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.packing.pack import pack_codes, pack_indices, packed_size, unpack_codes, unpack_indices
from simulations.benchmarks.harness import Ratio, median_seconds, peak_bytes

# numpy needs temporary numbers for every level; blocks keep these in the processor's cache.
_BLOCK = 1 << 16


def encode(coordinates: int = 10**7, bits: tuple[int, ...] = (2, 4), turns: int = 5) -> list[Ratio]:
    """Encoding with secure randomness, against numpy: drawing floats, rounding, and the same distribution."""
    generator = np.random.default_rng(0)
    update = generator.normal(0.0, 0.3, coordinates).astype(np.float32)
    uniforms = np.empty(coordinates)
    ratios = []
    for width in bits:
        mechanism = pq.design("rqm", epsilon=1.0, bits=width)
        distribution = mechanism.distribution
        if distribution is None:
            raise RuntimeError("rqm has no output distribution")
        own, fill, rounding, same = median_seconds(
            [
                lambda mechanism=mechanism: mechanism.encode(update),  # type: ignore[misc]
                lambda: generator.random(out=uniforms),
                lambda width=width: _round_randomly(update, 1 << width, generator),  # type: ignore[misc]
                lambda distribution=distribution: _encode_in_numpy(distribution, update, generator),  # type: ignore[misc]
            ],
            turns,
        )
        what = f"encode {coordinates:.0e} coordinates with {width} bits"
        ratios += [
            Ratio(what, "numpy draws as many float64", own / fill),
            Ratio(what, "numpy rounds at random to as many levels, without privacy", own / rounding),
            Ratio(what, "numpy draws from the same distribution", own / same),
        ]
        memory = peak_bytes(lambda mechanism=mechanism: mechanism.encode(update))  # type: ignore[misc]
        ratios.append(Ratio(what, "the update as float32", memory / update.nbytes, "memory"))
    return ratios


def pack(
    coordinates: int = 10**7,
    levels: tuple[int, ...] = (2, 3, 4, 5, 16, 256),
    widths: tuple[int, ...] = (11, 16, 20),
    turns: int = 5,
) -> list[Ratio]:
    """Packing of indices and of codes for secure sums, against a copy, and bytes against float32."""
    generator = np.random.default_rng(0)
    ratios = []
    for number in levels:
        indices = generator.integers(0, number, coordinates, dtype=np.uint8)
        name = f"indices of {number} levels"
        ratios += _against_copy(name, indices, pack_indices, unpack_indices, number, turns)
        size = packed_size(coordinates, num_levels=number) / (4 * coordinates)
        ratios.append(Ratio(name, "float32", size, "bytes"))
    for width in widths:
        codes = generator.integers(0, 1 << width, coordinates, dtype=np.uint32)
        ratios += _against_copy(f"codes of {width} bits", codes, pack_codes, unpack_codes, width, turns)
    return ratios


def _against_copy(
    name: str,
    integers: NDArray[Any],
    pack: Callable[..., bytes],
    unpack: Callable[..., Any],
    size: int,
    turns: int,
) -> list[Ratio]:
    """Times against a copy of the unpacked integers; ``size`` is the number of levels or the width."""
    payload = pack(integers, size)
    copy, packing, unpacking = median_seconds(
        [integers.copy, lambda: pack(integers, size), lambda: unpack(payload, size, integers.size)], turns
    )
    return [
        Ratio(f"pack {name}", "a copy of them", packing / copy),
        Ratio(f"unpack {name}", "a copy of them", unpacking / copy),
    ]


def _round_randomly(x: NDArray[np.float32], levels: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Unbiased rounding to a lattice, as in QSGD: the usual way to quantize without privacy."""
    out = np.empty(x.size, dtype=np.uint8)
    for begin in range(0, x.size, _BLOCK):
        inputs = np.clip(x[begin : begin + _BLOCK], -1.0, 1.0)
        scaled = (inputs + 1.0) * ((levels - 1) / 2)
        out[begin : begin + _BLOCK] = scaled + generator.random(inputs.size)
    return out


def _encode_in_numpy(
    distribution: OutputDistribution, x: NDArray[np.float32], generator: np.random.Generator
) -> NDArray[np.uint8]:
    """Indices drawn from the same distribution with vectorised numpy, the way one would write it first."""
    start_cdf = np.cumsum(distribution.start_rows, axis=1)[:, :-1]
    end_cdf = np.cumsum(distribution.end_rows, axis=1)[:, :-1]
    lengths = distribution.ends - distribution.starts
    out = np.empty(x.size, dtype=np.uint8)
    for begin in range(0, x.size, _BLOCK):
        inputs = np.clip(x[begin : begin + _BLOCK], -1.0, 1.0)
        piece = np.clip(np.searchsorted(distribution.starts, inputs, side="right") - 1, 0, None)
        fraction = (inputs - distribution.starts[piece]) / lengths[piece]
        at_end = generator.random(inputs.size) < fraction
        cdf = np.where(at_end[:, None], end_cdf[piece], start_cdf[piece])
        out[begin : begin + _BLOCK] = (generator.random(inputs.size)[:, None] >= cdf).sum(axis=1)
    return out
