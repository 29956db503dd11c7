"""Correlated quantization: unbiased for each client, errors that cancel over clients, and the exact error."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError

CLIENTS = 7


def means_of(mechanism: pq.Mechanism, x: np.ndarray, trials: int) -> np.ndarray:
    """(trials, d) means of decoded estimates of ranked clients, a new public seed each time."""
    stream = pq.RandomStream.seeded(5)
    rows = [
        [mechanism.decode(mechanism.encode_ranked(row, rank, seed, rng=stream)) for rank, row in enumerate(x)]
        for seed in range(trials)
    ]
    return np.mean(rows, axis=1)


@pytest.mark.parametrize("levels", [2, 5])
def test_the_exact_error_and_no_bias_are_what_draws_show(levels: int) -> None:
    generator, trials = np.random.default_rng(0), 800
    x = np.concatenate([np.full((CLIENTS, 2), 0.3), generator.uniform(-1.0, 1.0, (CLIENTS, 4))], axis=1)
    mechanism = pq.design("correlated", levels=levels, num_clients=CLIENTS)
    means = means_of(mechanism, x, trials)
    squares = ((means - x.mean(axis=0)) ** 2).sum(axis=1)
    # 5 standard errors: odds below 1e-5 for the 14 comparisons of both tests together.
    margin = 5.0 / math.sqrt(trials)
    assert squares.mean() == pytest.approx(mechanism.squared_error_of_mean(x), abs=margin * squares.std())
    assert np.all(np.abs(means.mean(axis=0) - x.mean(axis=0)) < margin * means.std(axis=0) + 1e-9)


def test_errors_cancel_where_clients_agree_and_not_without_ranks() -> None:
    x = np.full((200, 3), 0.13)
    mechanism = pq.design("correlated", num_clients=200)
    independent = 3 * (1.0 - 0.13**2) / 200
    assert mechanism.squared_error_of_mean(x) < 0.01 * independent
    # One sum of 200 clients is off by at most about a step; without ranks by some 14.
    stream = pq.RandomStream.seeded(2)
    codes = sum(mechanism.encode_ranked(row, rank, 9, rng=stream).astype(int) for rank, row in enumerate(x))
    assert np.all(np.abs(codes - 200 * 1.13 / 2) <= 1.5)


def test_ranks_take_every_part_once() -> None:
    mechanism = pq.design("correlated", num_clients=5)
    # Just above k fifths of the way up: k clients round up for certain, and one more may.
    for k in range(5):
        x = np.full(1, 2.0 * (k + 0.001) / 5 - 1.0)
        told = [
            int(mechanism.encode_ranked(x, rank, 3, rng=pq.RandomStream.seeded(1))[0]) for rank in range(5)
        ]
        assert sum(told) in (k, k + 1)


def test_bad_input_is_named() -> None:
    mechanism = pq.design("correlated", num_clients=3)
    with pytest.raises(InvalidSpecError, match="rank"):
        mechanism.encode_ranked(np.zeros(2), 3, 0)
    with pytest.raises(InvalidSpecError, match="num_clients"):
        pq.design("correlated", num_clients=0)
    with pytest.raises(InvalidUpdateError, match="floating"):
        mechanism.encode_ranked(np.zeros(2, int), 0, 0)
    with pytest.raises(InvalidUpdateError, match="finite"):
        mechanism.encode_ranked(np.array([np.nan]), 0, 0)
    with pytest.raises(InvalidUpdateError, match="shape"):
        mechanism.squared_error_of_mean(np.zeros((2, 2)))
