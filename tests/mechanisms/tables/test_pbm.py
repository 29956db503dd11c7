"""PBM: the exact binomial distribution, local and aggregate privacy, tuning, forgery, bad input."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fl_privquant as pq
from fl_privquant.errors import CertificationError, InvalidSpecError
from fl_privquant.mechanisms.tables.pbm import PbmMechanism
from fl_privquant.privacy_loss.sums.bit_sums import aggregate_renyi


@pytest.mark.parametrize("levels", [2, 4, 16, 256])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_theta_uses_up_epsilon(levels: int, epsilon: float) -> None:
    mechanism = pq.design("pbm", epsilon=epsilon, levels=levels)
    assert mechanism.theta == pytest.approx(math.tanh(epsilon / (2 * (levels - 1))) / 2, rel=1e-4)
    assert epsilon * (1 - 1e-4) < mechanism.epsilon <= epsilon
    assert mechanism.distribution.epsilon == pytest.approx(mechanism.epsilon, rel=1e-6)


def test_probabilities_are_binomial() -> None:
    mechanism = pq.design("pbm", theta=0.3, levels=6)
    success = 0.5 + mechanism.theta * 0.4
    assert mechanism.pmf(0.4)[0] == pytest.approx(stats.binom.pmf(np.arange(6), 5, success))


def test_errors_are_those_of_its_distribution() -> None:
    mechanism = pq.design("pbm", theta=0.25, levels=16)
    samples = np.random.default_rng(0).normal(0.2, 0.3, 200)
    for density in (None, samples):
        # The distribution dithers between its 129 inputs, which adds a little.
        assert 0.0 <= mechanism.distribution.mse(density) - mechanism.mse(density) < 1e-4
        assert mechanism.mae(density) == pytest.approx(mechanism.distribution.mae(density), abs=1e-4)
    assert mechanism.distribution.max_bias < 1e-12


def brute_force(trials: int, theta: float, num_clients: int, order: float, inputs: list[float]) -> float:
    """Largest divergence over all choices of everyone's inputs among the given ones."""
    worst = 0.0
    for others in itertools.combinations_with_replacement(inputs, num_clients - 1):
        for x, y in itertools.permutations(inputs, 2):
            distributions = []
            for own in (x, y):
                distribution = np.ones(1)
                for each in (own, *others):
                    bits = stats.binom.pmf(np.arange(trials + 1), trials, 0.5 + theta * each)
                    distribution = np.convolve(distribution, bits)
                distributions.append(distribution)
            total = (distributions[0] ** order * distributions[1] ** (1 - order)).sum()
            worst = max(worst, math.log(total) / (order - 1))
    return worst


@pytest.mark.parametrize(
    ("trials", "theta", "num_clients", "order"),
    [(1, 0.25, 4, 2.0), (3, 0.1, 3, 1.5), (2, 0.4, 4, 8.0), (5, 0.2, 2, 32.0), (3, 0.2, 1, 2.0)],
)
def test_the_sum_of_clients(trials: int, theta: float, num_clients: int, order: float) -> None:
    exact = brute_force(trials, theta, num_clients, order, [-1.0, -0.4, 0.0, 0.7, 1.0])
    bound = aggregate_renyi(trials, theta, num_clients, order)
    assert exact <= bound <= exact * (1 + 1e-6)


def test_a_crowd_hides_more() -> None:
    found = [aggregate_renyi(15, 0.25, count, 2.0) for count in (1, 3, 10, 100)]
    assert found == sorted(found, reverse=True)
    # As many clients see as little as the central limit lets them: order * (2 theta trials)^2 / (2 variance).
    normal = 2.0 * (2 * 0.25 * 15) ** 2 / (2 * 100 * 15 * 0.1875)
    assert found[-1] == pytest.approx(normal, rel=0.02)


def test_forged_claims_raise() -> None:
    mechanism = pq.design("pbm", epsilon=1.0)
    forged = PbmMechanism(mechanism.name, mechanism.trials, mechanism.rare, mechanism.epsilon)
    object.__setattr__(forged, "claimed_epsilon", mechanism.epsilon * 0.999999)
    with pytest.raises(CertificationError, match="above the claimed"):
        pq.Mechanism.from_bytes(forged.to_bytes())
    for trials, rare in ((15, 0), (15, 1 << 31), (0, 5), (1 << 17, 5)):
        object.__setattr__(forged, "trials", trials)
        object.__setattr__(forged, "rare", rare)
        with pytest.raises(CertificationError):
            pq.Mechanism.from_bytes(forged.to_bytes())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "epsilon: missing; give the privacy loss of a coordinate, or theta"),
        ({"epsilon": 1.0, "theta": 0.1}, r"epsilon, theta: \(1.0, 0.1\); give one of the two"),
        ({"theta": 0.5}, "theta: 0.5"),
        ({"epsilon": 1e-8, "levels": 256}, "too small for 255 trials"),
    ],
)
def test_bad_input(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        pq.design("pbm", **parameters)


@pytest.mark.parametrize(
    ("num_clients", "order", "message"),
    [(0, 2.0, "num_clients: 0"), (10**6, 2.0, "count fewer clients"), (5, 1.0, "order: 1.0")],
)
def test_sums_whose_divergence_cannot_be_computed(num_clients: int, order: float, message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        aggregate_renyi(15, 0.25, num_clients, order)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2049,), (4097,)])
@pytest.mark.parametrize("levels", [2, 3, 16])
def test_trials_that_are_drawn_together_are_those_one_after_the_other(
    shape: tuple[int, ...], levels: int
) -> None:
    mechanism = pq.design("pbm", epsilon=1.0, levels=levels)
    x = np.random.default_rng(2).uniform(-1.2, 1.2, shape)
    streams = [pq.RandomStream.seeded(6) for _ in range(2)]
    trials = [mechanism._sampler.encode(x, clip=0.9, stream=streams[0]) for _ in range(mechanism.trials)]
    codes = mechanism.encode(x, 0.9, streams[1])
    assert codes.shape == shape
    np.testing.assert_array_equal(codes, np.sum(trials, axis=0, dtype=codes.dtype))
    assert streams[0].reserve(0) == streams[1].reserve(0)
