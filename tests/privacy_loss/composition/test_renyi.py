"""The search for the best rate of the Rényi bound."""

from __future__ import annotations

import math

import pytest

from fl_privquant.privacy_loss.closed_forms import response_loss
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss
from fl_privquant.privacy_loss.composition.renyi import Part, minimize, quick_epsilon, renyi_epsilon


def test_the_moments_of_a_loss_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    exact = PrivacyLoss.log_moment

    def count(self: PrivacyLoss, rate: float) -> float:
        rates.append(rate)
        return exact(self, rate)

    monkeypatch.setattr(PrivacyLoss, "log_moment", count)
    loss = response_loss(0.3)
    quick = quick_epsilon([Part(loss, 1000)], 1e-5)
    assert quick_epsilon([Part(loss, 500), Part(loss, 500)], 1e-5) == pytest.approx(quick, rel=1e-9)
    assert len(set(rates)) == len(rates)
    assert 0.99 * quick < renyi_epsilon([Part(loss, 1000)], 1e-5)[0] <= quick


@pytest.mark.parametrize("lowest", [-20.0, -3.0, 0.0, 5.5, 20.0])
def test_a_valley_is_searched_wherever_it_lies(lowest: float) -> None:
    def function(log_rate: float) -> float:
        return math.exp(log_rate - lowest) + math.exp(lowest - log_rate)

    assert minimize(function) == pytest.approx(lowest, abs=1e-4)


def test_what_floats_cannot_hold_is_not_the_least() -> None:
    assert minimize(lambda log_rate: math.nan if log_rate < 3.0 else (log_rate - 5.0) ** 2) == pytest.approx(
        5.0, abs=1e-4
    )
