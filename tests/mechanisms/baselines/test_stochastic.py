"""Randomized rounding without privacy: exact shares, no bias, 2 to 65536 levels."""

from __future__ import annotations

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.mechanisms.additive._integer_noise import rounding_variance


@pytest.mark.parametrize("levels", [2, 3, 16, 256, 257, 65536])
def test_each_input_goes_to_a_neighbor_with_its_share(levels: int) -> None:
    mechanism = pq.design("stochastic", levels=levels)
    x = np.random.default_rng(1).uniform(-1.3, 1.3, 5000)
    words = pq.RandomStream.seeded(4).words(x.size)
    codes = mechanism.encode(x, rng=pq.RandomStream.seeded(4))
    assert codes.dtype == (np.uint8 if levels <= 256 else np.uint16)
    position = (np.clip(x, -1.0, 1.0) + 1.0) * (0.5 * (levels - 1))
    below = np.floor(position)
    up = (words >> np.uint64(32)).astype(np.float64) + 0.5 < (position - below) * 2.0**32
    np.testing.assert_array_equal(codes, below + up)
    assert 0.3 < up[np.abs(x) < 1.0].mean() < 0.7
    lattice = np.linspace(-0.7, 0.7, levels)
    np.testing.assert_array_equal(mechanism.encode(np.array([-0.7, 0.7]), clip=0.7), [0, levels - 1])
    np.testing.assert_allclose(mechanism.decode(np.arange(levels), clip=0.7), lattice, atol=1e-12)


def test_errors() -> None:
    mechanism = pq.design("stochastic", levels=5)
    nodes = (np.arange(4000) + 0.5) / 2000.0 - 1.0
    off = np.abs(mechanism.values - nodes[:, None])
    for power, error in ((1, mechanism.mae), (2, mechanism.mse)):
        by_distribution = (mechanism.pmf(nodes) * off**power).sum(axis=1)
        assert error() == pytest.approx(by_distribution.mean(), rel=1e-5)
        assert error(nodes[:7]) == pytest.approx(by_distribution[:7].mean(), rel=1e-12)
    assert rounding_variance(65536) == pytest.approx(1 / 6)
    assert rounding_variance(3, [0.5, -1.0, 0.0, 1.0]) == pytest.approx(0.25 / 4)


def test_refusals() -> None:
    with pytest.raises(pq.InvalidSpecError, match="levels"):
        pq.design("stochastic", levels=65537)
    with pytest.raises(pq.CodeOverflowError):
        pq.design("stochastic").decode([16])
