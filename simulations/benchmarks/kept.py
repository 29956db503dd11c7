"""The cost of sending few of many rotated coordinates: time of the codec, and of planning such a run.

Encoding and decoding are compared with the same codec that sends all coordinates, in one process and taking
turns. Each call has a rotation and a subset of its own, as each round has. A plan is made by the command line
in a process of its own, with an empty cache; its time is in processor seconds, with the start of Python and
all imports.
"""

from __future__ import annotations

import itertools
import resource
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

import fl_privquant as pq
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.encoding import Encoding
from simulations.benchmarks.measure import Call, Row, at_most, median_seconds, output_of, seconds_of

COORDINATES, KEPT, CLIENTS, TIMES = 1_000_000, 5054, 500, 9
PLANNED_CLIENTS, PLANNED_COORDINATES = 10_000, 1_000_000


def run() -> list[Row]:
    """Every measurement beside its target."""
    return [*_codec(), *_plan()]


def _codec() -> Iterator[Row]:
    """Times of the codec with some coordinates over its times with all."""
    target = pq.Target(epsilon=4.0, rounds=100, num_clients=CLIENTS, delta=1e-6)
    everybody = pq.SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    some = target.plan(COORDINATES, max_bits=2, keep=KEPT, aggregation=everybody).encoding
    update = {"update": np.random.default_rng(0).standard_normal(COORDINATES).astype(np.float32)}
    seeds = itertools.count()

    def codec(encoding: Encoding) -> UpdateCodec:
        return UpdateCodec(Layout.of(update), encoding, rotation_seed=next(seeds))

    def encode(encoding: Encoding) -> Call:
        return lambda: codec(encoding).encode(update)

    def decode(encoding: Encoding) -> Call:
        total = CLIENTS * codec(encoding).codes(codec(encoding).encode(update))
        return lambda: codec(encoding).decode_sum(total, CLIENTS)

    for name, call in (("encode", encode), ("decode the sum", decode)):
        kept, whole = median_seconds([call(some), call(replace(some, keep=None))], TIMES)
        yield at_most(f"{name}: time over that with all coordinates", kept / whole, 1.3)


def _plan() -> Iterator[Row]:
    """Processor seconds of the command ``plan``, with an empty cache."""
    command = ["-m", "fl_privquant.cli.main", "plan", "--rounds", "100"]
    command += ["--clients", str(PLANNED_CLIENTS), "--dimension", str(PLANNED_COORDINATES)]
    with tempfile.TemporaryDirectory() as cache:
        plan = partial(output_of, *command, FL_PRIVQUANT_CACHE=cache, OMP_NUM_THREADS="1")
        sizes = f"{PLANNED_COORDINATES} coordinates, {PLANNED_CLIENTS} clients"
        yield at_most(f"plan, {sizes}: seconds, the first time", seconds_of(plan, _children_seconds), 15.0)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
