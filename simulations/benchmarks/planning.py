"""Design, planning and accounting: what happens once before a run, and once after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

import fl_privquant as pq
from fl_privquant.accounting import Release, View
from fl_privquant.accounting.accountant import statement_levels
from simulations.benchmarks.harness import Call, Ratio, median_seconds, seconds_of

_DELTA = 1e-5


def design(mechanisms: tuple[str, ...] = ("optm", "mvu", "rqm", "pbm"), turns: int = 3) -> list[Ratio]:
    """The design of a mechanism with 2 bits, against encoding, and from the cache against from scratch."""
    ratios = []
    for name in mechanisms:
        fresh = partial(pq.design, name, epsilon=1.0, bits=2, cache=False)
        cached = partial(pq.design, name, epsilon=1.0, bits=2)
        with _empty_cache():
            own, loaded, encoded = median_seconds([fresh, cached, _encoding()], turns)
        ratios.append(Ratio(f"design {name} with 2 bits", "encode 10^6 coordinates", own / encoded))
        ratios.append(Ratio(f"load {name} from the cache", "design it", loaded / own))
    return ratios


def plan(num_clients: int = 10_000, coordinates: int = 10**6, rounds: int = 100) -> list[Ratio]:
    """The plan for a target, mechanism and clip searched, against encoding; nothing is cached before."""
    target = pq.Target(epsilon=4.0, rounds=rounds, num_clients=num_clients, delta=_DELTA)
    (encoded,) = median_seconds([_encoding()], 3)
    with _empty_cache():
        own = seconds_of(partial(target.plan, coordinates))
    what = f"plan {rounds} rounds, {num_clients} clients, {coordinates:.0e} coordinates"
    return [Ratio(what, "encode 10^6 coordinates", own / encoded)]


def accounting(num_clients: int = 10_000, coordinates: int = 10**6, rounds: int = 1000) -> list[Ratio]:
    """All privacy statements of a run, as first asked for, against encoding."""
    designs: dict[str, dict[str, Any]] = {
        "optm": {"epsilon": 1.0, "bits": 2},
        "one_bit": {"epsilon": 1.0},
        "pbm": {"epsilon": 1.0, "bits": 2},
        "skellam": {"epsilon": 1.0, "num_clients": num_clients},
    }
    # The first statement of a process imports and compiles code, which is not counted.
    statement_levels(Release(pq.design("one_bit", epsilon=0.5), 10, View.aggregate(10)), 2, _DELTA)
    (encoded,) = median_seconds([_encoding()], 3)
    ratios = []
    for name, parameters in designs.items():
        release = Release(pq.design(name, **parameters), coordinates, View.aggregate(num_clients))
        own = seconds_of(partial(statement_levels, release, rounds, _DELTA))
        what = f"statements of {name}: {rounds} rounds, {num_clients} clients, {coordinates:.0e} coordinates"
        ratios.append(Ratio(what, "encode 10^6 coordinates", own / encoded))
    return ratios


def _encoding() -> Call:
    """The baseline: one client encodes a small model with one bit."""
    mechanism = pq.design("one_bit", epsilon=1.0)
    update = np.random.default_rng(0).normal(0.0, 0.3, 10**6).astype(np.float32)
    return partial(mechanism.encode, update)


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Designs are cached in a folder that is empty at first."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"FL_PRIVQUANT_CACHE": folder}),
    ):
        yield
