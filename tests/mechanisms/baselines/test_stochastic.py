"""Randomized rounding without privacy: exact shares, no bias, 2 to 65536 levels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

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


def test_shares_are_exact_and_a_wrong_share_is_noticed() -> None:
    mechanism = pq.design("stochastic", levels=5)
    draws = 10**6
    for x in (-0.99, -0.2, 0.3, 0.71):
        share = mechanism.pmf([x])[0].max()
        codes = mechanism.encode(np.full(draws, x, dtype=np.float32), rng=pq.RandomStream.seeded(3))
        count = int((codes == mechanism.pmf([x])[0].argmax()).sum())
        assert stats.binomtest(count, draws, share).pvalue > 1e-6
        assert stats.binomtest(count, draws, share * 0.99).pvalue < 1e-9
        estimates = mechanism.decode(codes)
        assert abs(estimates.mean() - x) < 5.0 * estimates.std() / np.sqrt(draws)


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
    mechanism = pq.design("stochastic")
    with pytest.raises(pq.InvalidUpdateError, match="flat index 1"):
        mechanism.encode([0.0, np.nan])
    with pytest.raises(pq.InvalidSpecError, match="epsilon"):
        pq.design("stochastic", epsilon=1.0)
    with pytest.raises(pq.InvalidSpecError, match="levels"):
        pq.design("stochastic", levels=65537)
    with pytest.raises(pq.CodeOverflowError):
        mechanism.decode([16])
