"""Compiles the loops that tests need most, which numba keeps: ``python -m tests.compile_loops``.

Part of setting up. Otherwise every worker of the first run of the tests, and every process that they start,
would compile them at the same time.
"""

from __future__ import annotations

import os
import tempfile

import numpy as np

import fl_privquant as pq
from tests.codec.test_update import OPTIONS, codec, mechanism_of


def main() -> None:
    """Encode, decode and add up updates of both precisions with every mechanism."""
    generator = np.random.default_rng(0)
    for mechanism in map(mechanism_of, pq.mechanisms()):
        for dtype in (np.float32, np.float64):
            update = {"weight": generator.normal(0, 0.05, 300).astype(dtype)}
            for options in OPTIONS:
                coder = codec(mechanism, arrays=update, **options)
                coder.decode(coder.encode(update, pq.RandomStream.seeded(1)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as designs:
        os.environ["FL_PRIVQUANT_CACHE"] = designs
        main()
