"""Float baselines: laplace and gaussian have their distribution and calibration, none changes nothing.

With fresh seeds an honest encoder would fail a Kolmogorov-Smirnov test here once in 10^6.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

import fl_privquant as pq
from fl_privquant.mechanisms.additive.gaussian import analytic_sigma
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta
from tests.mechanisms.forgery import assert_forgeries_are_refused

NAMES = ["laplace", "gaussian"]


def noise_distribution(mechanism: Any) -> Any:
    return (stats.laplace if mechanism.name == "laplace" else stats.norm)(scale=mechanism.scale)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_has_its_distribution(name: str, dtype: type) -> None:
    mechanism = pq.design(name, epsilon=2.0)
    x = np.full(200_000, 0.03, dtype=dtype)
    released = mechanism.encode(x, clip=0.1, rng=pq.RandomStream.seeded(2))
    assert released.dtype == dtype
    off = (mechanism.decode(released, clip=0.1) - 0.03) / 0.1
    assert stats.kstest(off, noise_distribution(mechanism).cdf).pvalue > 1e-6
    assert stats.kstest(off * 1.03, noise_distribution(mechanism).cdf).pvalue < 1e-6
    assert np.mean(off**2) == pytest.approx(mechanism.mse(), rel=0.02)
    assert np.mean(np.abs(off)) == pytest.approx(mechanism.mae(), rel=0.02)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 8.0, 50.0])
def test_privacy_of_the_ideal_distribution(name: str, epsilon: float) -> None:
    mechanism = pq.design(name, epsilon=epsilon)
    noise = noise_distribution(mechanism)
    grid = np.linspace(-1.0, 3.0, 4001) * 12.0 * mechanism.scale
    loss = noise.logpdf(grid + 1.0) - noise.logpdf(grid - 1.0)
    excess = noise.pdf(grid + 1.0) * np.maximum(-np.expm1(epsilon - loss), 0.0)
    delta = integrate.trapezoid(excess, grid)
    if name == "laplace":
        assert np.abs(loss).max() <= epsilon * (1.0 + 1e-9)
        assert mechanism.delta == 0.0
    else:
        assert delta == 0.0 or delta <= 1e-6 * 1.01
    assert mechanism.epsilon == epsilon


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-3, 0.4])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0])
def test_analytic_calibration_is_tight(epsilon: float, delta: float) -> None:
    sigma = analytic_sigma(2.0, epsilon, delta)
    assert gaussian_delta(2.0 / sigma, epsilon) <= delta
    assert gaussian_delta(2.0 / (sigma * 0.9999), epsilon) > delta
    mean = 2.0 / sigma
    direct = stats.norm.cdf(mean / 2 - epsilon / mean) - math.exp(epsilon) * stats.norm.cdf(
        -mean / 2 - epsilon / mean
    )
    assert direct == pytest.approx(delta, rel=1e-3, abs=1e-15)


def test_numbers_beyond_the_clip_stay_finite() -> None:
    for name in NAMES:
        encoded = pq.design(name, epsilon=1.0).encode(np.array([1e308, -1e308]), clip=1e-5)
        assert np.all(np.isfinite(encoded))


@pytest.mark.parametrize("name", NAMES)
def test_forged_bytes(name: str) -> None:
    mechanism = pq.design(name, epsilon=1.0)
    changes = ({"delta": (-1.0).hex()}, {"scale": (0.5).hex()}, {"scale": "inf"}, {"scale": "nan"})
    assert_forgeries_are_refused(mechanism, [{"epsilon": "nan"}, *changes])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_none_changes_no_bit(dtype: type) -> None:
    mechanism = pq.design("none")
    x = np.array([[-0.0, 1e-42, 3e38], [-7.5, 0.1, np.finfo(dtype).max]], dtype=dtype).T
    encoded = mechanism.encode(x, clip=0.1)
    decoded = mechanism.decode(encoded, clip=0.1)
    assert encoded.dtype == decoded.dtype == dtype
    assert encoded.tobytes() == decoded.tobytes() == x.tobytes()
    assert encoded is not x
    assert math.isinf(mechanism.epsilon)
    assert mechanism.mae() == mechanism.mse() == 0.0
