"""Encoding of updates, against numpy on the same numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fl_privquant as pq
from simulations.benchmarks.harness import Ratio, median_seconds, peak_bytes

# numpy needs temporary numbers for every level; blocks keep these in the processor's cache.
_BLOCK = 1 << 16


def encode(coordinates: int = 10**7, bits: tuple[int, ...] = (2, 4), turns: int = 5) -> list[Ratio]:
    """Encoding with secure randomness, against numpy: rounding, and drawing from the same distribution."""
    generator = np.random.default_rng(0)
    update = generator.normal(0.0, 0.3, coordinates).astype(np.float32)
    ratios = []
    for width in bits:
        mechanism = pq.design("rqm", epsilon=1.0, bits=width)
        encoding = partial(mechanism.encode, update)
        rounding = partial(_round_randomly, update, 1 << width, generator)
        same = partial(_encode_in_numpy, mechanism.distribution, update, generator)
        own, rounded, drawn = median_seconds([encoding, rounding, same], turns)
        what = f"encode {coordinates:.0e} coordinates with {width} bits"
        memory = peak_bytes(encoding) / update.nbytes
        ratios += [
            Ratio(what, "numpy rounds at random to as many levels, without privacy", own / rounded),
            Ratio(what, "numpy draws from the same distribution", own / drawn),
            Ratio(what, "the update as float32", memory, "memory"),
        ]
    return ratios


def _round_randomly(x: NDArray[np.float32], levels: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Unbiased rounding to a lattice, as in QSGD: the usual way to quantize without privacy."""
    out = np.empty(x.size, dtype=np.uint8)
    for begin in range(0, x.size, _BLOCK):
        inputs = np.clip(x[begin : begin + _BLOCK], -1.0, 1.0)
        scaled = (inputs + 1.0) * ((levels - 1) / 2)
        out[begin : begin + _BLOCK] = scaled + generator.random(inputs.size)
    return out


def _encode_in_numpy(
    distribution: Any, x: NDArray[np.float32], generator: np.random.Generator
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
