"""The best rate of the Rényi bound is the one that a look at all rates would choose."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.privacy_loss.closed_forms import gaussian_loss, laplace_loss, response_loss
from fl_privquant.privacy_loss.composition import renyi
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss
from fl_privquant.privacy_loss.composition.renyi import Part, Valley, minimize, quick_epsilon, renyi_epsilon
from fl_privquant.privacy_loss.update_bounds import NormBound, SlowNormBound, continuous_distribution_loss


def a_loss(rng: np.random.Generator) -> PrivacyLoss:
    scale = float(10.0 ** rng.uniform(-5.0, 1.0))
    kind = rng.integers(4)
    if kind < 3:
        return (gaussian_loss, laplace_loss, response_loss)[kind](max(scale, 1e-4))
    losses = np.unique(rng.normal(0.0, scale, size=rng.integers(1, 60)))
    masses = rng.random(losses.size) * np.exp(0.5 * losses)
    return PrivacyLoss(losses, masses / masses.sum(), infinity=float(rng.choice([0.0, 1e-13])))


def test_few_rates_give_the_bound_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        losses = [a_loss(rng) for _ in range(rng.choice([1, 1, 3]))]
        parts = [Part(loss, int(10.0 ** rng.uniform(0.0, 8.0))) for loss in losses]
        runs = parts, [Part(part.loss, part.count + 7) for part in parts]
        deltas = 10.0 ** rng.uniform(-12.0, -0.1, size=2)
        # The second search begins where the first one ended.
        quick = [quick_epsilon(composed, float(delta)) for composed in runs for delta in deltas]
        best = [renyi_epsilon(composed, float(delta)) for composed in runs for delta in deltas]
        with monkeypatch.context() as patch:
            patch.setattr(renyi, "_valley", lambda parts, left: None)
            assert quick == [quick_epsilon(composed, float(delta)) for composed in runs for delta in deltas]
            assert best == [renyi_epsilon(composed, float(delta)) for composed in runs for delta in deltas]


def test_moments_are_computed_at_few_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    exact = PrivacyLoss.log_moment

    def counted(self: PrivacyLoss, rate: float) -> float:
        rates.append(rate)
        return exact(self, rate)

    monkeypatch.setattr(PrivacyLoss, "log_moment", counted)
    parts = [Part(response_loss(0.3), 1000)]
    quick_epsilon(parts, 1e-5)
    assert len(rates) < 20
    quick_epsilon(parts, 1e-5)
    assert len(rates) < 20
    assert len(set(rates)) == len(rates)


@pytest.mark.parametrize("lowest", [-20.0, -3.0, 0.0, 5.5, 20.0])
@pytest.mark.parametrize("start", [None, 0.0, 19.0])
def test_a_valley_is_searched_from_any_start(lowest: float, start: float | None) -> None:
    def function(log_rate: float) -> float:
        return math.exp(log_rate - lowest) + math.exp(lowest - log_rate)

    assert minimize(function, Valley(0.0, start)) == minimize(function, None)
    assert minimize(function, Valley(0.0, start)) == pytest.approx(lowest, abs=1e-4)


def test_a_plateau_is_searched_at_all_rates() -> None:
    """Values that differ by rounding only do not say where the least one is."""
    rng = np.random.default_rng(3)
    noise = {}

    def flat(log_rate: float) -> float:
        return noise.setdefault(log_rate, 1.0 + 1e-15 * float(rng.integers(5)))

    assert minimize(flat, Valley(0.0)) == minimize(flat, None)


def test_rates_at_which_the_bound_is_known_to_be_larger_are_not_computed() -> None:
    """The divergences of slow bounds are computed at few orders, and the others would not change a figure."""
    orders: set[float] = set()

    def renyi(order: float) -> float:
        orders.add(order)
        return 0.01 * order * (1.2 + 0.1 * math.sin(5.0 * math.log(order)))

    slow = SlowNormBound(renyi, least=lambda order: 0.01 * order)
    plain = NormBound(renyi)
    for count, delta in ((1, 1e-5), (30, 1e-5), (3000, 1e-9)):
        orders.clear()
        figures = quick_epsilon([Part(slow, count)], delta), renyi_epsilon([Part(slow, count)], delta)
        assert len(orders) < 100
        assert figures[0] == quick_epsilon([Part(plain, count)], delta)
        assert figures[1] == renyi_epsilon([Part(plain, count)], delta)


def test_what_divergences_are_not_below() -> None:
    table = pq.design("optm", epsilon=2.0, bits=2).table
    named = continuous_distribution_loss(table, 4.0, 50, 1)
    assert named is not None
    assert isinstance(named.loss, SlowNormBound)
    for rate in (1e-3, 0.1, 1.0, 7.0, 200.0):
        assert 0.0 < named.loss.min_log_moment(rate) <= named.loss.log_moment(rate)
