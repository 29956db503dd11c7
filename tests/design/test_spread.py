"""The clip of rotated updates: closed forms against numbers drawn, and the choice against its neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.design.spread import RunTarget, best_spread, clipped_moments, error_at_norm_bound
from fl_privquant.mechanisms.optm_aggregate import AggregateSpec, planned_norm_ratio


@pytest.mark.parametrize("spread", [0.7, 2.0, 3.1])
def test_moments_of_a_clipped_normal_number(spread: float) -> None:
    numbers = np.random.default_rng(1).normal(size=2_000_000)
    clipped = numbers.clip(-spread, spread)
    square, cut_off = clipped_moments(spread)
    assert square == pytest.approx(float((clipped**2).mean()), rel=5e-3)
    assert cut_off == pytest.approx(float(((numbers - clipped) ** 2).mean()), rel=5e-2)


def test_the_chosen_spread_is_better_than_its_neighbours() -> None:
    target = RunTarget(10.0, 1e-5, 50, 7850, 1000, 1000)
    for stratified in (True, False):
        chosen = best_spread(3, target, stratified)
        least = error_at_norm_bound(chosen, 3, target, stratified)
        for other in (0.85 * chosen, 1.15 * chosen, 3.0):
            assert least <= error_at_norm_bound(other, 3, target, stratified)
    # Independent bits err more at every clip; without a floor a strict budget is clipped narrower.
    assert error_at_norm_bound(2.5, 3, target, stratified=False) > error_at_norm_bound(2.5, 3, target)
    strict = RunTarget(1.0, 1e-5, 50, 650, 50, 50)
    assert best_spread(1, strict, least=0.5) < 1.9 < 2.0 <= best_spread(1, strict)


def test_the_error_of_encoded_updates_is_the_predicted_one() -> None:
    """25 clients with one update at the norm bound, clipped, encoded and averaged: bias and noise."""
    clients, dimension, rounds = 25, 20_001, 3
    spec = AggregateSpec(num_clients=clients, dimension=dimension, run_epsilon=9.0, rounds=rounds, levels=4)
    ratio = planned_norm_ratio(spec)
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
    measured = float(((total / clients - update) ** 2).mean())
    predicted = error_at_norm_bound(spread, 3, spec.target) / clients
    assert measured == pytest.approx(predicted, rel=0.04)
