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
from fl_privquant.sampling import chunks
from tests.mechanisms.forgery import forged

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


@pytest.mark.parametrize("name", NAMES)
def test_chunks_threads_and_layout_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = pq.design(name, epsilon=1.0)
    x = np.random.default_rng(2).uniform(-1.0, 1.0, (30, 31))
    expected = mechanism.encode(x, rng=pq.RandomStream.seeded(3))
    monkeypatch.setattr(chunks, "_CHUNK", 50)
    for threads in (1, 4):
        again = mechanism.encode(np.asfortranarray(x), rng=pq.RandomStream.seeded(3), threads=threads)
        np.testing.assert_array_equal(again, expected)
    assert mechanism.encode(0.5).shape == ()
    assert mechanism.encode(np.zeros((0, 2))).shape == (0, 2)
    assert np.all(np.isfinite(mechanism.encode(np.array([1e308, -1e308]), clip=1e-5)))


@pytest.mark.parametrize("name", [*NAMES, "none"])
def test_refusals(name: str) -> None:
    mechanism = pq.design(name, **({} if name == "none" else {"epsilon": 1.0}))
    assert not mechanism.summable
    for call in (
        lambda: mechanism.to_codes(np.zeros(2)),
        lambda: mechanism.sum_bits(2),
        lambda: mechanism.decode_sum([0.0], 2),
    ):
        with pytest.raises(pq.InvalidSpecError, match="summable"):
            call()
    with pytest.raises(pq.InvalidUpdateError, match="flat index 2"):
        mechanism.encode([0.0, 1.0, np.inf, np.nan])
    with pytest.raises(pq.InvalidUpdateError, match="floating point"):
        mechanism.encode([1, 2])
    with pytest.raises(pq.InvalidUpdateError, match="floating point"):
        mechanism.decode([1, 2])


def test_specs_out_of_range() -> None:
    with pytest.raises(pq.InvalidSpecError, match="epsilon"):
        pq.design("laplace", epsilon=-1.0)
    with pytest.raises(pq.InvalidSpecError, match="delta"):
        pq.design("gaussian", epsilon=1.0, delta=0.0)


@pytest.mark.parametrize("name", NAMES)
def test_bytes(name: str) -> None:
    mechanism = pq.design(name, epsilon=1.0)
    assert pq.Mechanism.from_bytes(mechanism.to_bytes()).to_bytes() == mechanism.to_bytes()
    for changes in (
        {"epsilon": (0.999).hex()},
        {"epsilon": "nan"},
        {"delta": (-1.0).hex()},
        {"scale": (0.5).hex()},
        {"scale": "inf"},
        {"scale": "nan"},
    ):
        with pytest.raises(pq.CertificationError):
            pq.Mechanism.from_bytes(forged(mechanism, **changes))


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
    assert pq.Mechanism.from_bytes(mechanism.to_bytes()).to_bytes() == mechanism.to_bytes()
