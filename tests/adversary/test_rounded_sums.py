"""A server that knows everything but one client's update, and tests real sums of rounded codes for it.

It knows the other clients' inputs, has chosen them, and takes the best test there is: the likelihood ratio of
the sum's exact distribution. What it achieves on sums of the real encoder must stay below the stated epsilon.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Release, UpdateNorms, View
from fl_privquant.mechanisms.additive.rounded_gaussian import RoundedGaussianMechanism

HONEST, DIMENSION, RUNS = 4, 6, 60_000
DELTA = 1e-2
# Odds that either of the two binomial bounds of an attack is wrong.
ODDS = 1e-6


def design(deviation: float, spacing: float) -> RoundedGaussianMechanism:
    return pq.design("rounded_gaussian", deviation=deviation, spacing=spacing, num_clients=HONEST)


def inputs(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """(HONEST, DIMENSION) inputs in two worlds: only the first client differs, from one end to the other."""
    update = np.ones(DIMENSION) / math.sqrt(DIMENSION)
    others = {
        "zeros": np.zeros((HONEST - 1, DIMENSION)),
        "far": np.tile(update, (HONEST - 1, 1)),
        "halves": np.full((HONEST - 1, DIMENSION), 0.25),
    }[kind]
    return np.vstack([update[None], others]), np.vstack([-update[None], others])


def sums(mechanism: RoundedGaussianMechanism, world: np.ndarray, seed: int) -> np.ndarray:
    """(RUNS, DIMENSION) sums of codes, each client with a stream of its own, as the secure sum opens them."""
    total = np.zeros((RUNS, DIMENSION), dtype=np.int64)
    for client, update in enumerate(world):
        stream = pq.RandomStream.seeded(seed, client=client)
        total += mechanism.to_codes(mechanism.encode(np.tile(update, (RUNS, 1)), rng=stream))
    return total & ((1 << mechanism.wrap_bits) - 1)


def log_distributions(mechanism: RoundedGaussianMechanism, world: np.ndarray) -> np.ndarray:
    """(DIMENSION, 2^wrap_bits) logarithms of the exact distribution of each coordinate of the sum."""
    transforms = np.fft.fft(np.array([mechanism.pmf(update) for update in world]), axis=2)
    return np.log(np.maximum(np.fft.ifft(transforms.prod(axis=0), axis=1).real, 1e-15))


def attacked(encoder: RoundedGaussianMechanism, kind: str) -> float:
    """A lower bound of epsilon, by the best of the likelihood-ratio tests, chosen on half of the runs."""
    worlds = inputs(kind)
    ratio = np.subtract(*(log_distributions(encoder, world) for world in worlds))
    scores = [
        ratio[np.arange(DIMENSION), sums(encoder, world, 11 + i)].sum(axis=1)
        for i, world in enumerate(worlds)
    ]
    half = RUNS // 2
    thresholds = np.quantile(scores[0][:half], np.linspace(0.02, 0.98, 49))

    def bound(threshold: float, part: slice) -> float:
        hits, misses = (int((score[part] > threshold).sum()) for score in scores)
        least = beta.ppf(ODDS, hits, half - hits + 1)
        most = beta.isf(ODDS, misses + 1, half - misses)
        return math.log(max(least - DELTA, 1e-9) / most)

    best = max(thresholds.tolist(), key=lambda threshold: bound(threshold, slice(0, half)))
    return bound(best, slice(half, RUNS))


def stated(mechanism: RoundedGaussianMechanism) -> float:
    release = Release(mechanism, DIMENSION, View.aggregate(HONEST), norms=UpdateNorms(l2=1.0))
    return Accountant({release: 1}).statement(DELTA).epsilon


@pytest.mark.parametrize("kind", ["zeros", "far", "halves"])
@pytest.mark.parametrize(("deviation", "spacing"), [(1.5, 0.5), (1.2, 0.6)])
def test_the_best_test_of_a_server_stays_below_the_stated_loss(
    kind: str, deviation: float, spacing: float
) -> None:
    mechanism = design(deviation, spacing)
    epsilon = stated(mechanism)
    lower = attacked(mechanism, kind)
    # Close, too: the attack would notice a third more loss.
    assert 0.65 * epsilon < lower < epsilon


@pytest.mark.parametrize("kind", ["zeros", "halves"])
def test_shares_that_are_too_small_are_found_out(kind: str) -> None:
    """A negative control: clients add half of the noise that is counted."""
    counted, drawn = design(3.0, 0.25), design(1.5, 0.25)
    assert attacked(drawn, kind) > stated(counted)
