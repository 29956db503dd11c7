"""The empirical audit: below the claim for our encoders, above it for broken ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

import fl_privquant as pq
from fl_privquant.accounting import empirical_bound
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import TableMechanism


class Careless(TableMechanism):
    """A broken encoder: one draw in twenty is not randomized at all, but the nearest value."""

    def encode(self, x: ArrayLike, clip: float = 1.0, rng: pq.RandomStream | None = None) -> NDArray[Any]:
        inputs = np.asarray(x)
        honest = super().encode(inputs, clip, rng)
        nearest = np.abs(inputs[:, None] / clip - self.values).argmin(axis=1)
        careless = np.random.default_rng(7).random(inputs.size) < 0.05
        return np.where(careless, nearest, honest)


@pytest.mark.parametrize(
    ("name", "parameters", "least"),
    [
        ("optm", {"bits": 2}, 0.95),
        ("one_bit", {}, 0.95),
        ("discrete_laplace", {"levels": 8}, 0.9),
        ("skellam", {"levels": 8}, 0.3),
        ("laplace", {}, 0.9),
        ("pbm", {"levels": 4}, 0.9),
    ],
)
def test_our_encoders_are_not_refuted(name: str, parameters: dict[str, int], least: float) -> None:
    mechanism = pq.design(name, epsilon=1.0, **parameters)
    found = empirical_bound(mechanism, num_draws=200_000, rng=pq.RandomStream.seeded(3))
    assert least < found.lower <= mechanism.epsilon
    assert not found.refuted
    assert "not refuted" in str(found)
    assert "local view" in str(found)


def test_a_broken_encoder_is_refuted() -> None:
    ours = pq.design("optm", epsilon=1.0, bits=2)
    broken = Careless(ours.name, ours.table, ours.claimed_epsilon)
    found = empirical_bound(broken, num_draws=200_000, rng=pq.RandomStream.seeded(3))
    assert found.lower > 1.05
    assert found.refuted
    assert "REFUTED" in str(found)


def test_no_privacy_shows() -> None:
    assert empirical_bound(pq.design("none"), num_draws=20_000).lower > 5.0


def test_unusable_requests() -> None:
    mechanism = pq.design("one_bit", epsilon=1.0)
    for keywords in ({"num_draws": 10}, {"confidence": 1.0}, {"inputs": (0.0,)}):
        with pytest.raises(InvalidSpecError, match="expected a confidence"):
            empirical_bound(mechanism, **keywords)
