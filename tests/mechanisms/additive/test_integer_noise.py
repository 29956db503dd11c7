"""Discrete Laplace, discrete Gaussian and Skellam: distribution, privacy, sums, bytes and refusals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import fl_privquant as pq
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.additive._integer_noise import AdditiveMechanism, overflow_probability
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.sampling.integer_noise import DiscreteGaussian, DiscreteLaplace
from fl_privquant.sampling.rounding import encode_on_lattice
from tests.exact import g_test
from tests.mechanisms.forgery import assert_forgeries_are_refused, forged

NAMES = ["discrete_laplace", "discrete_gaussian", "skellam"]


@cache
def design(name: str, **parameters: Any) -> AdditiveMechanism:
    return pq.design(name, cache=False, **{"epsilon": 2.0, "levels": 4} | parameters)


def closed_form(mechanism: AdditiveMechanism, k: np.ndarray) -> np.ndarray:
    """The noise's probabilities, written down once more."""
    noise = mechanism.noise
    if isinstance(noise, DiscreteLaplace):
        weights = np.exp(-np.abs(k) / float(noise.scale))
    elif isinstance(noise, DiscreteGaussian):
        weights = np.exp(-(k**2) / (2.0 * float(noise.sigma_squared)))
    else:
        weights = special.ive(np.abs(k), float(noise.variance))
    return weights / weights.sum()


def output_distribution(mechanism: AdditiveMechanism, x: float) -> np.ndarray:
    """Probability of each code for input x: rounding, noise and wrap one after the other."""
    k = np.arange(-3000, 3001)
    position = (x + 1.0) / 2.0 * (mechanism.levels - 1)
    below = min(int(position), mechanism.levels - 2)
    distribution = np.zeros(1 << mechanism.wrap_bits)
    for point, share in ((below, 1.0 - (position - below)), (below + 1, position - below)):
        np.add.at(distribution, (point + k) % distribution.size, share * closed_form(mechanism, k))
    return distribution


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_are_those_of_rounding_noise_and_wrap(name: str) -> None:
    mechanism = design(name)
    for x in (-1.0, -0.4, 0.0, 1.0 / 3.0, 0.77, 1.0):
        np.testing.assert_allclose(
            mechanism.pmf([x])[0], output_distribution(mechanism, x), rtol=1e-8, atol=1e-15
        )


@pytest.mark.parametrize("name", NAMES)
def test_broken_encoders_do_not_have_them(name: str) -> None:
    mechanism = design(name)
    x = np.full(400_000, 0.1)
    distribution = output_distribution(mechanism, 0.1)
    noise = mechanism.noise
    broader = type(noise)(getattr(noise, noise.parameter) * Fraction(103, 100))
    bits = mechanism.wrap_bits
    broken = [
        encode_on_lattice(x, 3, noise=broader, bits=bits, stream=pq.RandomStream.seeded(6)),
        # Rounding that always goes to the nearest point.
        encode_on_lattice(x - 0.1 + 1 / 3, 3, noise=noise, bits=bits, stream=pq.RandomStream.seeded(7)),
    ]
    for codes in broken:
        assert g_test(np.bincount(codes, minlength=distribution.size), distribution * x.size) < 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("levels", [2, 5, 16])
def test_unbiased_by_algebra(name: str, levels: int) -> None:
    mechanism = design(name, levels=levels, overflow_probability=1e-12)
    x = np.linspace(-1.0, 1.0, 23)
    np.testing.assert_allclose(mechanism.pmf(x) @ mechanism.values, x, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("density", [None, [0.1, -0.7, 0.33, 2.0], stats.norm(0.2, 0.3)])
def test_errors_are_those_of_the_distribution(name: str, density: Any) -> None:
    from fl_privquant.distributions.input_density import as_density

    mechanism = design(name, levels=5, overflow_probability=1e-15)
    nodes, weights = as_density(density).quadrature(np.linspace(-1.0, 1.0, 5))
    off = mechanism.values - nodes[:, None]
    pmf = mechanism.pmf(nodes)
    assert mechanism.mse(density) == pytest.approx(weights @ (pmf * off**2).sum(axis=1), rel=1e-9)
    assert mechanism.mae(density) == pytest.approx(weights @ (pmf * np.abs(off)).sum(axis=1), rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_delta_at_another_epsilon(name: str) -> None:
    mechanism = design(name)
    deltas = [mechanism.delta_at(epsilon) for epsilon in (0.5, 1.0, 1.5, mechanism.epsilon)]
    assert all(more > less for more, less in itertools.pairwise(deltas))
    assert deltas[-1] == mechanism.delta
    assert mechanism.max_shift == 3


def test_gaussian_and_skellam_approach_the_continuous_gaussian() -> None:
    reference = pq.design("gaussian", epsilon=1.0).mse()
    for name in ("discrete_gaussian", "skellam"):
        assert design(name, epsilon=1.0, levels=64).mse() == pytest.approx(reference, rel=1e-3)
    laplace = design("discrete_laplace", epsilon=1.0, levels=64).mse()
    assert laplace == pytest.approx(pq.design("laplace", epsilon=1.0).mse(), rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_clients", [1, 2, 9])
def test_overflow_bound_holds_for_the_exact_distribution_of_the_sum(name: str, num_clients: int) -> None:
    mechanism = design(name, num_clients=num_clients, overflow_probability=1e-4)
    k = np.arange(-400, 401)
    total = one = closed_form(mechanism, k)
    for _ in range(num_clients - 1):
        total = np.convolve(total, one)
    reach = (total.size - 1) // 2
    values = np.arange(-reach, reach + 1)
    room = 2**mechanism.wrap_bits - 1 - 3 * num_clients
    # The worst input: all clients at the upper end, or all at the lower one.
    exact = max(total[values < -(room // 2)].sum(), total[values > room - room // 2].sum())
    assert exact <= mechanism.overflow_probability <= 1e-4
    # Fewer clients overflow less: some may drop out.
    bounds = [overflow_probability(mechanism.noise, 4, fewer, mechanism.wrap_bits) for fewer in range(1, 10)]
    assert all(less <= more for less, more in itertools.pairwise(bounds))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("levels", [2, 16])
def test_sums_decode_exactly_whatever_the_ring_did(name: str, levels: int) -> None:
    num_clients = 50
    mechanism = design(name, levels=levels, num_clients=num_clients)
    x = np.random.default_rng(1).uniform(-1.0, 1.0, (num_clients, 200))
    codes = mechanism.encode(0.3 * x, clip=0.3, rng=pq.RandomStream.seeded(9))
    assert codes.dtype == np.uint16 if mechanism.wrap_bits > 8 else np.uint8
    bits = mechanism.sum_bits(num_clients)
    for clients in (1, 7, num_clients):
        total = mechanism.to_codes(codes[:clients]).sum(axis=0)
        mean = mechanism.decode(codes[:clients], clip=0.3).mean(axis=0)
        np.testing.assert_allclose(mechanism.decode_sum(total % 2**bits, clients, clip=0.3), mean, atol=1e-12)
        np.testing.assert_allclose(mechanism.decode_sum(total, clients, clip=0.3), mean, atol=1e-12)
    error = mechanism.decode_sum(total, num_clients) - x.mean(axis=0)
    assert np.sqrt((error**2).mean()) < 1.3 * np.sqrt(mechanism.mse() / num_clients)


def test_a_sum_out_of_the_ring_comes_back_on_the_other_side() -> None:
    mechanism = design("discrete_laplace", num_clients=2, wrap_bits=8, epsilon=4.0)
    room = 2**8 - 1 - 2 * 3
    furthest = 6 + (room - room // 2)
    value = mechanism.decode_sum([furthest, furthest + 1], 2)
    np.testing.assert_allclose(np.diff(value), [mechanism.step / 2 * (1 - 2**8)])
    np.testing.assert_allclose(value.sum(), mechanism.step / 2, atol=1e-9)


def test_more_clients_than_designed_for() -> None:
    mechanism = design("skellam", num_clients=3)
    assert mechanism.sum_bits(2) == mechanism.sum_bits(3) == mechanism.wrap_bits
    with pytest.raises(pq.CodeOverflowError, match="num_clients=4"):
        mechanism.sum_bits(4)
    with pytest.raises(pq.InvalidSpecError, match="num_clients"):
        mechanism.sum_bits(0)


def test_decode_refuses_what_is_no_code() -> None:
    mechanism = design("discrete_laplace")
    with pytest.raises(pq.CodeOverflowError, match="payload"):
        mechanism.decode([2**mechanism.wrap_bits])
    with pytest.raises(pq.CodeOverflowError, match="payload"):
        mechanism.decode([-1])
    with pytest.raises(pq.InvalidUpdateError, match="integers"):
        mechanism.decode([0.5])
    assert mechanism.decode(np.zeros((0, 3), dtype=np.uint8)).shape == (0, 3)


def test_noise_is_clamped_before_it_wraps() -> None:
    noise = DiscreteLaplace(Fraction(50))
    codes = encode_on_lattice(
        np.zeros(5000), 2, noise=noise, reach=4, bits=8, stream=pq.RandomStream.seeded(1)
    )
    assert sorted(set(codes.tolist())) == [0, 1, 2, 3, 4, 5, 6, 252, 253, 254, 255]
    low, high = (codes == 252).mean(), (codes == 6).mean()
    assert low == pytest.approx(noise.tail(4) / 2, abs=0.03)
    assert high == pytest.approx(noise.tail(4) / 2, abs=0.03)


FORGERIES: list[dict[str, Any]] = [
    {"epsilon": (1.99).hex()},
    {"epsilon": "nan"},
    {"delta": (-1e-9).hex()},
    {"delta": "nan"},
    {"levels": 5},
    {"levels": 10**9},
    {"noise": "1/3"},
    {"noise": "0"},
    {"noise": "1/0"},
    {"noise": "1e99999999"},
    {"noise": "9" * 90},
    {"noise": 3},
    {"num_clients": 10**6},
    {"num_clients": 0},
    {"wrap_bits": 3},
    {"wrap_bits": 33},
    {"overflow_probability": (1e-30).hex()},
    {"kind": "gaussian"},
    {"kind": "unheard"},
]


@pytest.mark.parametrize("name", NAMES)
def test_forged_bytes_are_refused(name: str) -> None:
    mechanism = design(name)
    assert pq.Mechanism.from_bytes(forged(mechanism)).epsilon == mechanism.epsilon
    assert_forgeries_are_refused(mechanism, FORGERIES)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("discrete_laplace", {"epsilon": 0.0}, "epsilon"),
        ("discrete_laplace", {"epsilon": 33.0}, "stochastic"),
        ("discrete_laplace", {"delta": 1e-6}, "delta"),
        ("discrete_laplace", {"levels": 1}, "levels"),
        ("discrete_laplace", {"levels": 65536, "epsilon": 1.0}, "fewer levels"),
        ("discrete_laplace", {"num_clients": 0}, "num_clients"),
        ("discrete_laplace", {"num_clients": 1.5}, "num_clients"),
        ("discrete_laplace", {"wrap_bits": 33}, "wrap_bits"),
        ("discrete_laplace", {"overflow_probability": 0.0}, "overflow_probability"),
        ("discrete_gaussian", {"delta": 0.0}, "discrete_laplace"),
        ("discrete_gaussian", {"delta": 1.0}, "delta"),
        ("discrete_gaussian", {"levels": 65536, "epsilon": 1.0}, "fewer levels"),
        ("skellam", {"delta": 0.0}, "delta"),
        ("skellam", {"levels": 65536, "epsilon": 1.0}, "coarser lattice"),
    ],
)
def test_specs_out_of_range(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(pq.InvalidSpecError, match=message):
        design(name, **parameters)


def test_a_ring_that_is_too_narrow() -> None:
    least = design("skellam", num_clients=30).wrap_bits
    assert design("skellam", num_clients=30, wrap_bits=least + 3).wrap_bits == least + 3
    with pytest.raises(pq.InfeasibleDesignError, match=f"needs {least} bits"):
        design("skellam", num_clients=30, wrap_bits=least - 1)
    with pytest.raises(pq.InfeasibleDesignError, match="more than 32 bits"):
        design("discrete_laplace", levels=16, num_clients=2**30)


def test_wide_rings() -> None:
    mechanism = design("discrete_laplace", num_clients=10**6)
    assert mechanism.encode([0.0]).dtype == np.uint32
    assert mechanism.bits_per_coordinate == mechanism.wrap_bits == 22
    with pytest.raises(pq.InvalidSpecError, match=r"wrap_bits: 22 .* at most 20"):
        mechanism.pmf([0.0])
    with pytest.raises(pq.InvalidSpecError, match=r"wrap_bits: 22 .* at most 20"):
        _ = mechanism.values


@pytest.mark.parametrize("name", NAMES)
def test_noise_of_a_given_variance_claims_the_loss_that_it_has(name: str) -> None:
    mechanism = pq.design(name, variance=40.0, levels=9, num_clients=3, cache=False)
    assert float(mechanism.noise.variance) == pytest.approx(40.0, rel=1e-6)
    assert mechanism.epsilon < math.inf
    # As the design for that loss, to the digits of the search.
    other = pq.design(name, epsilon=mechanism.epsilon, levels=9, num_clients=3, cache=False)
    assert float(other.noise.variance) == pytest.approx(40.0, rel=1e-4)
    again = Mechanism.from_bytes(mechanism.to_bytes())
    assert again.epsilon == mechanism.epsilon
    assert again.mse() == mechanism.mse()


@pytest.mark.parametrize("name", ["skellam", "discrete_gaussian"])
def test_noise_too_small_to_hide_a_client_alone_is_not_called_private(name: str) -> None:
    mechanism = pq.design(name, variance=4.0, levels=200, num_clients=1000, cache=False)
    assert mechanism.epsilon == math.inf
    assert Mechanism.from_bytes(mechanism.to_bytes()).epsilon == math.inf


@pytest.mark.parametrize(
    "given", [{}, {"epsilon": 1.0, "variance": 3.0}, {"variance": -1.0}, {"variance": math.nan}]
)
def test_one_of_epsilon_and_variance(given: dict[str, float]) -> None:
    with pytest.raises(InvalidSpecError, match="variance"):
        pq.design("skellam", **given)
