"""What a plan predicts, for updates as they are: encoded, summed and decoded as in a round."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from scipy.special import betaincinv

import fl_privquant as pq
from fl_privquant.accounting import PerClient, SecureSum
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import norm_clip_factor
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.optimize.sums.coordinate_clip import compute_clipped_moments, error_of_kept
from fl_privquant.planning import Plan, Target

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
    gain = compute_clipped_moments(planned.encoding.clip * math.sqrt(update.size))[1]
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


@pytest.mark.parametrize(("kept", "least"), [(20, 0.97), (100, 0.994), (1000, 0.999)])
@pytest.mark.parametrize("spread", [1.9, 2.5, 3.0])
@pytest.mark.parametrize("noise", [0.0, 2.0, 50.0])
def test_the_stated_error_of_few_kept_coordinates_is_little_above_the_true_one(
    kept: int, least: float, spread: float, noise: float
) -> None:
    """Against exact moments: the norm of the part, and a coordinate given it, are beta distributed."""
    dimension, share = 10 * kept, norm_clip_factor(kept)
    levels = (np.arange(801) + 0.5) / 801
    squares = betaincinv(0.5 * kept, 0.5 * (dimension - kept), levels)[:, None] * (dimension / kept)
    coordinates = np.sqrt(kept * betaincinv(0.5, 0.5 * (kept - 1), levels))
    sent = np.minimum(np.sqrt(np.minimum(squares, share**2)) * coordinates, spread * share)
    gain = float((sent * np.sqrt(squares) * coordinates).mean())
    true = dimension / kept * (noise + float((sent**2).mean())) / gain**2 - 1.0
    square, clip_gain = compute_clipped_moments(spread)
    own = noise / clip_gain**2 + share**2 * (square / clip_gain**2 - 1.0)
    stated = error_of_kept(own, spread, kept, dimension, share)
    assert least * stated <= true <= 1.002 * stated
