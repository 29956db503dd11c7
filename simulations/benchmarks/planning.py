"""Design and planning: what happens once before a run."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from unittest import mock

import numpy as np

import fl_privquant as pq
from simulations.benchmarks.harness import Call, Ratio, median_seconds, seconds_of


def design(mechanisms: tuple[str, ...] = ("optm", "mvu", "rqm", "pbm"), turns: int = 3) -> list[Ratio]:
    """The design of a mechanism with 2 bits from scratch, against encoding."""
    ratios = []
    for name in mechanisms:
        fresh = partial(pq.design, name, epsilon=1.0, bits=2, cache=False)
        own, encoded = median_seconds([fresh, _encoding()], turns)
        ratios.append(Ratio(f"design {name} with 2 bits", "encode 10^6 coordinates", own / encoded))
    return ratios


def plan(num_clients: int = 10_000, coordinates: int = 10**6, rounds: int = 100) -> list[Ratio]:
    """The plan for a target, mechanism and clip searched, against encoding; nothing is cached before."""
    target = pq.Target(epsilon=4.0, rounds=rounds, num_clients=num_clients)
    (encoded,) = median_seconds([_encoding()], 3)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"FL_PRIVQUANT_CACHE": folder}),
    ):
        own = seconds_of(partial(target.plan, coordinates))
    what = f"plan {rounds} rounds, {num_clients} clients, {coordinates:.0e} coordinates"
    return [Ratio(what, "encode 10^6 coordinates", own / encoded)]


def _encoding() -> Call:
    """The baseline: one client encodes a small model with one bit."""
    mechanism = pq.design("one_bit", epsilon=1.0)
    update = np.random.default_rng(0).normal(0.0, 0.3, 10**6).astype(np.float32)
    return partial(mechanism.encode, update)
