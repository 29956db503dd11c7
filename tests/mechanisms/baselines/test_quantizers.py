"""Quantizers without privacy: errors by algebra and by draws, their bits, and messages that are none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.errors import CodeOverflowError, InvalidSpecError, InvalidUpdateError
from fl_privquant.mechanisms.baselines.drive import _hadamard

QUANTIZERS: dict[str, dict[str, Any]] = {
    "qsgd": {"levels": 8},
    "terngrad": {},
    "drive": {},
    "top_k": {"share": 0.2},
}


def directions(count: int, dimension: int) -> np.ndarray:
    x = np.random.default_rng(8).normal(size=(count, dimension))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("dimension", [2, 7, 60, 65, 300])
def test_errors_of_directions(name: str, dimension: int) -> None:
    """Exact for each input against draws, and their mean against a uniform direction's; 6 standard errors."""
    mechanism = pq.design(name, dimension=dimension, **QUANTIZERS[name])
    x = directions(400, dimension)
    exact = np.array([mechanism.squared_error(row) for row in x])
    margin = 6.0 * float(exact.std()) / math.sqrt(len(x)) + 1e-9
    assert float(exact.mean()) == pytest.approx(mechanism.unit_error, abs=margin)
    stream = pq.RandomStream.seeded(2)
    drawn = np.array([((mechanism.decode(mechanism.encode(row, rng=stream)) - row) ** 2).sum() for row in x])
    margin = 6.0 * float((drawn - exact).std()) / math.sqrt(len(x)) + 1e-6
    assert float(drawn.mean()) == pytest.approx(float(exact.mean()), abs=margin)
    # Half as much again would be noticed.
    assert margin < 0.4 * float(exact.mean())
    assert mechanism.squared_error(0.5 * x[0]) == pytest.approx(0.25 * exact[0])


@pytest.mark.parametrize("name", ["qsgd", "terngrad", "drive"])
@pytest.mark.parametrize("dimension", [4, 100])
def test_estimates_are_unbiased(name: str, dimension: int) -> None:
    """The mean estimate along the input, and across it, to 6 standard errors."""
    mechanism = pq.design(name, dimension=dimension, **QUANTIZERS[name])
    x = directions(1, dimension)[0]
    x[0] = 0.9
    x *= 0.8 / np.linalg.norm(x)
    stream = pq.RandomStream.seeded(3)
    errors = np.array([mechanism.decode(mechanism.encode(x, rng=stream)) - x for _ in range(2000)])
    for direction in (x, np.roll(x, 1), np.ones(dimension)):
        along = errors @ direction
        assert abs(along.mean()) < 6.0 * along.std() / math.sqrt(len(along)) + 1e-9


def test_the_bias_of_top_k_is_what_is_not_sent() -> None:
    mechanism = pq.design("top_k", dimension=5, share=0.4)
    x = np.array([0.1, -0.5, 0.2, 0.0, 0.4])
    assert mechanism.bias(x) == pytest.approx([-0.1, 0.0, -0.2, 0.0, 0.0])
    assert mechanism.decode(mechanism.encode(x)) == pytest.approx([0.0, -0.5, 0.0, 0.0, 0.4])
    assert mechanism.max_bias == 1.0
    assert pq.design("top_k", dimension=5, share=1.0).max_bias == 0.0


def test_sizes() -> None:
    sizes = {
        name: pq.design(name, dimension=1000, **given).message_size for name, given in QUANTIZERS.items()
    }
    assert sizes == {"qsgd": 64 + 3000, "terngrad": 64 + 1600, "drive": 128 + 1024, "top_k": 200 * 42}


def test_the_hadamard_transform_is_its_own_inverse() -> None:
    x = directions(1, 64)[0]
    assert np.linalg.norm(_hadamard(x)) == pytest.approx(1.0)
    assert _hadamard(_hadamard(x)) == pytest.approx(x, abs=1e-14)
    assert _hadamard(np.eye(1, 4)[0]) == pytest.approx(np.full(4, 0.5))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_specs_and_messages_that_are_none(name: str) -> None:
    mechanism = pq.design(name, dimension=6, **QUANTIZERS[name])
    with pytest.raises(InvalidSpecError, match="repeats"):
        pq.design(name, dimension=6, repeats=2)
    with pytest.raises((InvalidUpdateError, CodeOverflowError), match=r"outside|a length of"):
        mechanism.decode(np.ones(mechanism.message_size, np.uint8))
    with pytest.raises(InvalidSpecError, match="squared_error"):
        mechanism.mse(np.array([0.1]))
    assert np.array_equal(mechanism.decode(mechanism.encode(np.zeros(6))), np.zeros(6))


@pytest.mark.parametrize(
    ("name", "given"), [("qsgd", {"levels": 2}), ("top_k", {"share": 0.0}), ("top_k", {"share": 2.0})]
)
def test_parameters_that_are_refused(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpecError, match=next(iter(given))):
        pq.design(name, dimension=6, **given)
