"""The loss of a sampled record: against dp_accounting, against integrals, and for vectors in a plane."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta
from fl_privquant.privacy_loss.additive.sampled_gaussian import sampled_gaussian_losses
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.statement import Relation

RUNS = [(4.0, 0.05, 300, 1e-5), (0.6, 0.01, 1000, 1e-5), (1.1, 0.004, 2000, 1e-6), (1.0, 0.001, 1000, 1e-5)]
RUNS += [(1.0, 0.5, 20, 1e-5), (0.5, 0.1, 5, 1e-5), (3.0, 1.0, 50, 1e-5), (30.0, 0.25, 40, 1e-3)]


def _epsilon(
    multiplier: float, rate: float, rounds: int, delta: float, relation: Relation = Relation.ADD_REMOVE
) -> float:
    losses = sampled_gaussian_losses(1.0 / multiplier, rate, relation)
    return max(compose_epsilon([Part(loss, rounds)], delta).epsilon for loss in losses)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("multiplier", "rate", "rounds", "delta"), RUNS)
@pytest.mark.parametrize(
    ("relation", "peers"),
    [(Relation.ADD_REMOVE, "ADD_OR_REMOVE_ONE"), (Relation.REPLACE_ONE, "REPLACE_ONE")],
)
def test_epsilon_is_never_below_and_at_most_one_percent_above_dp_accounting(
    multiplier: float, rate: float, rounds: int, delta: float, relation: Relation, peers: str
) -> None:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    peer = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier,
        sampling_prob=rate,
        neighboring_relation=NeighboringRelation[peers],
        # With much noise its usual cells are so wide that its upper bound is above ours.
        value_discretization_interval=1e-4 if multiplier < 10.0 else 2e-5,
    )
    theirs = peer.self_compose(rounds).get_epsilon_for_delta(delta)

    ours = _epsilon(multiplier, rate, rounds, delta, relation)

    assert theirs <= ours <= 1.01 * theirs
    # The comparison would notice a slightly larger rate, which costs a little more.
    larger = _epsilon(multiplier, min(1.1 * rate, 1.0), rounds, delta, relation)
    assert larger > 1.01 * theirs or rate == 1.0


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
@pytest.mark.parametrize("rate", [0.02, 0.4, 0.6, 1.0])
def test_one_round_is_the_integral_over_its_densities(relation: Relation, rate: float) -> None:
    separation = 0.8
    losses = sampled_gaussian_losses(separation, rate, relation)
    y = np.linspace(-14.0, 14.0, 2_800_001)

    def density(mean: float) -> np.ndarray:
        return np.exp(-0.5 * (y - mean) ** 2) / math.sqrt(2.0 * math.pi)

    more = (1.0 - rate) * density(0.0) + rate * density(separation)
    other = density(0.0)
    if relation is Relation.REPLACE_ONE:
        other = (1.0 - rate) * density(0.0) + rate * density(-separation)
    orders = [(more, other), (other, more)][: len(losses)]
    for loss, (first, second) in zip(losses, orders, strict=True):
        for epsilon in (0.0, 0.1, 0.5, 1.5):
            exact = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum() * (y[1] - y[0]))
            assert exact * (1.0 - 1e-6) - 1e-12 <= loss.delta(epsilon) <= exact * 1.001 + 1e-9


def test_zero_out_is_counted_as_add_remove_and_replace_one_of_all_records_as_a_pair_two_apart() -> None:
    assert _epsilon(1.0, 0.05, 10, 1e-5, Relation.ZERO_OUT) == _epsilon(1.0, 0.05, 10, 1e-5)
    (loss,) = sampled_gaussian_losses(0.7, 1.0, Relation.REPLACE_ONE)
    for epsilon in (0.0, 1.0, 3.0):
        assert loss.delta(epsilon) == pytest.approx(gaussian_delta(1.4, epsilon), rel=1e-4)


def test_no_two_vectors_in_a_plane_are_easier_to_tell_than_opposite_ones_of_full_length() -> None:
    """Hockey-stick divergences of (1-q) N(0) + q N(u) and (1-q) N(0) + q N(v), for |u|, |v| <= a."""
    separation, rate = 1.3, 0.3
    (worst,) = sampled_gaussian_losses(separation, rate, Relation.REPLACE_ONE)
    grid = np.linspace(-9.0, 9.0, 901)
    x, y = np.meshgrid(grid, grid)
    weight = np.exp(-0.5 * (x**2 + y**2)) / (2.0 * math.pi) * (grid[1] - grid[0]) ** 2

    def ratio(length: float, angle: float) -> np.ndarray:
        shift = length * (math.cos(angle) * x + math.sin(angle) * y) - 0.5 * length**2
        return 1.0 - rate + rate * np.exp(shift)

    found = []
    for first, second, angle in [(1.3, 1.3, 2.0), (1.3, 0.6, math.pi), (0.9, 1.3, 2.6), (1.3, 1.3, 3.1)]:
        for epsilon in (0.0, 0.3, 0.8):
            apart = ratio(first, 0.0) - math.exp(epsilon) * ratio(second, angle)
            divergence = float((weight * np.maximum(apart, 0.0)).sum())
            found.append(divergence / worst.delta(epsilon))
            assert divergence <= worst.delta(epsilon) * (1.0 + 1e-4)
    # The last pair is nearly opposite: the bound is not a loose one.
    assert max(found) > 0.99


def test_a_log_ratio_and_a_revealed_share_only_add_to_the_loss() -> None:
    plain = sampled_gaussian_losses(1.0, 0.1)
    rough = sampled_gaussian_losses(1.0, 0.1, revealed=1e-6, log_ratio=1e-3)
    for without, larger in zip(plain, rough, strict=True):
        for epsilon in (0.05, 0.5):
            assert larger.delta(epsilon) >= without.delta(epsilon - 1e-3) + 1e-6
    assert sampled_gaussian_losses(1e3, 0.1)[0].infinity == 1.0
