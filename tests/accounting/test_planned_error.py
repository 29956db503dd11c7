"""What a plan predicts, for updates as they are: encoded, summed and decoded as in a round."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.accounting import PerClient, Plan, SecureSum, Target
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.design.spread import clipped_moments

CLIENTS = 50


@lru_cache
def plan(dimension: int, epsilon: float, mechanism: str) -> Plan:
    everybody = SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    target = Target(epsilon, rounds=2, num_clients=CLIENTS)
    return target.plan(dimension, l2_clip=1.0, mechanism=mechanism, aggregation=everybody)


def update_of(kind: str, dimension: int) -> np.ndarray:
    """An update at the norm bound."""
    positions, numbers = np.arange(dimension), np.random.default_rng(2).normal(size=dimension)
    half = 1 << (dimension.bit_length() - 1)
    shapes = {
        "dense": numbers,
        "one-hot": positions == dimension - 1,
        "block": np.where(positions < half, numbers, 0.0),
        "short block": np.where(positions < 32, numbers, 0.0),
        "all equal": np.ones(dimension),
    }
    return shapes[kind] / np.linalg.norm(shapes[kind])


def measured_error(planned: Plan, update: np.ndarray, rounds: int) -> float:
    """Of one coordinate of the mean of clients that all have this update, at unit gain."""
    gain = clipped_moments(planned.encoding.clip * math.sqrt(update.size))[1]
    arrays = {"x": update.astype(np.float32)}
    encoding, stream = planned.encoding, pq.RandomStream.seeded(7)
    squares = 0.0
    for number in range(rounds):
        codec = UpdateCodec(Layout.of(arrays), encoding, rotation_seed=number)
        mean = np.zeros(update.size)
        for _ in range(CLIENTS):
            mean += codec.decode(codec.encode(arrays, stream))["x"].astype(np.float64) / CLIENTS
        squares += float(np.mean((mean / gain - update) ** 2)) / rounds
    return squares


@pytest.mark.parametrize("kind", ["dense", "one-hot", "block", "short block", "all equal"])
@pytest.mark.parametrize(("dimension", "epsilon", "rounds"), [(650, 6.0, 24), (3000, 150.0, 6)])
@pytest.mark.parametrize("mechanism", ["rounded_gaussian", "pbm"])
def test_the_error_of_real_updates_is_the_predicted_one(
    kind: str, dimension: int, epsilon: float, rounds: int, mechanism: str
) -> None:
    # Squares of 15,600 or 18,000 nearly normal errors: 5 % are 4.4 standard deviations, odds of 1 to 10^5.
    planned = plan(dimension, epsilon, mechanism)
    measured = measured_error(planned, update_of(kind, dimension), rounds)
    assert measured == pytest.approx(planned.mean_squared_error, rel=0.05)


def test_three_deviations_in_the_local_view() -> None:
    planned = Target(40.0, rounds=2, num_clients=3).plan(900, mechanism="one_bit", aggregation=PerClient())
    assert planned.encoding.clip == pytest.approx(0.1)
