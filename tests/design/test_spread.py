"""The clip of rotated updates: closed forms against numbers drawn, and the choice against its neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.design.spread import (
    RunTarget,
    at_unit_gain,
    best_spread,
    clipped_moments,
    error_at_norm_bound,
)
from fl_privquant.mechanisms.optm_aggregate import AggregateSpec


@pytest.mark.parametrize("spread", [0.7, 2.0, 3.1])
def test_moments_of_a_clipped_normal_number(spread: float) -> None:
    numbers = np.random.default_rng(1).normal(size=2_000_000)
    clipped = numbers.clip(-spread, spread)
    square, gain = clipped_moments(spread)
    assert square == pytest.approx(float((clipped**2).mean()), rel=5e-3)
    assert gain == pytest.approx(float((numbers * clipped).mean()), rel=5e-3)
    # What is left after division by the gain errs by noise and by what the clip distorts.
    noise, clients = 4.0, 20
    noisy = clipped + np.random.default_rng(2).normal(scale=math.sqrt(noise / clients), size=numbers.size)
    error = float(((noisy / gain - numbers) ** 2).mean())
    assert at_unit_gain(noise, spread, clients) / clients == pytest.approx(error, rel=1e-2)


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 10.0])
def test_no_clip_takes_what_more_noise_would(epsilon: float) -> None:
    """By the plain squared error a strict budget would be clipped so that a tenth of the signal is lost."""
    target = RunTarget(epsilon, 1e-5, 50, 7850, 100, 100)
    for trials in (1, 3, 7):
        spread = best_spread(trials, target)
        assert clipped_moments(spread)[1] > 0.995
        least = error_at_norm_bound(spread, trials, target)
        assert least < 1.06 * target.central < error_at_norm_bound(2.0, trials, target)


def test_the_chosen_spread_is_better_than_its_neighbours() -> None:
    target = RunTarget(10.0, 1e-5, 50, 7850, 1000, 1000)
    for stratified in (True, False):
        chosen = best_spread(3, target, stratified)
        least = error_at_norm_bound(chosen, 3, target, stratified)
        for other in (0.85 * chosen, 1.15 * chosen, 2.0):
            assert least <= error_at_norm_bound(other, 3, target, stratified)
    # Independent bits err more at every clip.
    assert error_at_norm_bound(2.5, 3, target, stratified=False) > error_at_norm_bound(2.5, 3, target)


def test_the_error_of_encoded_updates_is_the_predicted_one() -> None:
    """25 clients with one update at the norm bound, clipped, encoded and averaged: bias and noise."""
    clients, dimension, rounds = 25, 20_001, 3
    spec = AggregateSpec(num_clients=clients, dimension=dimension, run_epsilon=9.0, rounds=rounds, levels=4)
    ratio = spec.planned_norm_ratio
    mechanism = pq.design(
        "optm_aggregate",
        num_clients=clients,
        dimension=dimension,
        run_epsilon=9.0,
        rounds=rounds,
        levels=4,
        norm_ratio=ratio,
    )
    update = np.random.default_rng(3).normal(size=dimension)
    update *= math.sqrt(dimension) / np.linalg.norm(update)
    spread = math.sqrt(dimension) / ratio
    stream = pq.RandomStream.seeded(4)
    total = np.zeros(dimension)
    for _ in range(clients):
        total += mechanism.decode(
            mechanism.encode(update.astype(np.float32), clip=spread, rng=stream), clip=spread
        )
    measured = float(((total / clients / clipped_moments(spread)[1] - update) ** 2).mean())
    predicted = error_at_norm_bound(spread, 3, spec.target) / clients
    assert measured == pytest.approx(predicted, rel=0.04)
