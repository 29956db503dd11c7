"""Compiles the loops that tests need most, which numba keeps: ``python -m tests.compile_loops``.

Part of setting up. Otherwise every worker of the first run of the tests, and every process that they start,
would compile them at the same time.
"""

from __future__ import annotations

import os
import tempfile

import numpy as np

import fl_privquant as pq
from fl_privquant.codec.subset import Subset
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.loss.blanket_loops import gather_cells
from fl_privquant.packing.pack import pack_codes, pack_indices, unpack_codes, unpack_indices
from tests.codec.test_update import OPTIONS, codec, mechanism_of


def main() -> None:
    """Encode, decode and add up updates of both precisions with every mechanism; pack, choose and sum."""
    generator = np.random.default_rng(0)
    for mechanism in map(mechanism_of, pq.mechanisms()):
        for dtype in (np.float32, np.float64):
            update = {"weight": generator.normal(0, 0.05, 300).astype(dtype)}
            for options in OPTIONS:
                coder = codec(mechanism, arrays=update, **options)
                payload = coder.encode(update, pq.RandomStream.seeded(1))
                coder.decode(payload)
                add_up(coder, payload, update["weight"])
    # Indices of one byte and of two, in whole bits and as digits; codes of sums, which are wider.
    for num_levels in (3, 4, 300, 512, 1500):
        unpack_indices(pack_indices(np.zeros(300, int), num_levels), num_levels, 300)
    for width in (5, 8, 13, 16, 20, 32):
        unpack_codes(pack_codes(np.zeros(300, int), width), width, 300)
    _ = Subset(dimension=300, kept=30, seed=1).places
    cells = np.ones((1, 4))
    gather_cells(np.ones((2, 3)), np.zeros((2, 3)), np.array([[0, 1]]), 1.0, cells, cells)


def add_up(coder: UpdateCodec, payload: bytes, old: np.ndarray) -> None:
    """Add the codes of a payload to others, and its estimates to a model, which may be read only."""
    if coder.mechanism.summable:
        coder.add_codes(payload, np.zeros(coder.dimension, np.int64))
    read_only = old.copy()
    read_only.flags.writeable = False
    if (add := coder.wire.on_demand(payload)) is not None:
        for model in (old, read_only):
            add(slice(0, model.size), model)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as designs:
        os.environ["FL_PRIVQUANT_CACHE"] = designs
        main()
