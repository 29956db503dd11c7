"""Noise with one lag: its cost is the worst of all patterns and cuts, and its error is the measured one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_privquant.errors import InvalidSpecError
from fl_privquant.privacy_loss.correlated_noise import (
    LagNoise,
    RoundSchedule,
    Workload,
    error_ratio,
    find_correlation,
)


def patterns(rounds: int, apart: int) -> list[tuple[int, ...]]:
    """All sets of rounds that are at least ``apart`` rounds from one another."""
    found = []
    for size in range(1, -(-rounds // apart) + 1):
        for chosen in itertools.combinations(range(rounds), size):
            if all(later - earlier >= apart for earlier, later in itertools.pairwise(chosen)):
                found.append(chosen)
    return found


def cut_covariance(noise: LagNoise, fractions: NDArray[np.float64]) -> NDArray[np.float64]:
    """The covariance if a fraction of each round's noise is not taken off in the next round."""
    rounds = len(fractions)
    total = noise.private * np.eye(rounds)
    for t, fraction in enumerate(fractions):
        linked, alone = np.zeros(rounds), np.zeros(rounds)
        linked[t] = alone[t] = 1.0
        if t + 1 < rounds:
            linked[t + 1] = -noise.correlation
        total += (1.0 - fraction) * np.outer(linked, linked) + fraction * np.outer(alone, alone)
    return total


@pytest.mark.parametrize("apart", [1, 2, 3])
@pytest.mark.parametrize("private", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.8, 0.98])
def test_first_rounds_are_the_worst_of_all_patterns(apart: int, private: float, correlation: float) -> None:
    noise, schedule = LagNoise(correlation, private), RoundSchedule(8, apart)
    inverse = np.linalg.inv(noise.covariance(8))
    claimed = noise.squared_sensitivities(schedule)
    worst = np.zeros(schedule.max_participations)
    for chosen in patterns(8, apart):
        cost = inverse[np.ix_(chosen, chosen)].sum()
        worst[len(chosen) - 1] = max(worst[len(chosen) - 1], cost)
    np.testing.assert_allclose(claimed, worst, rtol=1e-8)
    assert np.all(claimed >= worst)


@pytest.mark.parametrize(("correlation", "private"), [(0.8, 0.0), (0.9, 0.05), (0.95, 0.1), (0.5, 0.5)])
def test_cost_covers_all_patterns_and_all_cuts(correlation: float, private: float) -> None:
    noise, schedule = LagNoise(correlation, private), RoundSchedule(7, 2)
    cost = noise.participation_cost(schedule)
    cuts = [np.array(cut, dtype=float) for cut in itertools.product([0.0, 0.3, 1.0], repeat=6)]
    for cut in cuts:
        inverse = np.linalg.inv(cut_covariance(noise, np.append(cut, 0.0)))
        for chosen in patterns(7, 2):
            assert inverse[np.ix_(chosen, chosen)].sum() <= cost * len(chosen)


def test_cuts_can_cost_more_than_the_uncut_run() -> None:
    # The control of the test above: the figure of a run without cuts does not cover runs with cuts.
    noise, schedule = LagNoise(0.98, 0.1), RoundSchedule(100, 10)
    uncut = noise.squared_sensitivities(schedule)[-1] / 10
    assert noise.participation_cost(schedule) > 1.4 * uncut


@pytest.mark.parametrize("signs", [1.0, -1.0])
def test_vectors_in_other_directions_cost_no_more(signs: float) -> None:
    noise, schedule = LagNoise(0.8, 0.1), RoundSchedule(9, 3)
    inverse = np.linalg.inv(noise.covariance(9))
    random = np.random.default_rng(3)
    for _ in range(200):
        changes = np.zeros((9, 4))
        for t in (0, 3, 6):
            changes[t] = random.normal(size=4) * np.array([1.0, signs, 1.0, 1.0])
            changes[t] /= np.linalg.norm(changes[t])
        assert (changes.T @ inverse @ changes).trace() <= noise.squared_sensitivities(schedule)[2] + 1e-9


@pytest.mark.parametrize(
    ("rounds", "apart", "error"),
    [(100, 10, 0.199), (100, 50, 0.150), (100, 4, 0.338), (200, 20, 0.123)],
)
def test_error_of_prefix_sums_is_the_one_computed_elsewhere(rounds: int, apart: int, error: float) -> None:
    schedule = RoundSchedule(rounds, apart)
    best = find_correlation(schedule)
    assert error_ratio(schedule, LagNoise(best)) == pytest.approx(error, abs=6e-4)


@pytest.mark.parametrize(
    ("share", "correlation", "error"),
    [(4, 0.99, 0.228), (6, 0.914, 0.206), (8, 0.857, 0.203), (12, 0.821, 0.200)],
)
def test_private_noise_that_is_counted_costs_little(share: float, correlation: float, error: float) -> None:
    # These figures are for runs without cut links, so the cost of the uncut run is used.
    schedule, noise = RoundSchedule(100, 10), LagNoise(correlation, (1.3 / share) ** 2)
    rounding = 1.0 / (12.0 * share**2)
    uncut = noise.squared_sensitivities(schedule)[-1] / 10 / noise.participation_cost(schedule)
    assert uncut * error_ratio(schedule, noise, not_counted=rounding) == pytest.approx(error, abs=6e-4)


def test_nothing_is_gained_where_a_client_takes_part_in_every_round() -> None:
    schedule = RoundSchedule(100, 1)
    assert find_correlation(schedule) == 0.0
    assert error_ratio(schedule, LagNoise(0.0)) == pytest.approx(1.0)
    assert error_ratio(schedule, LagNoise(0.5)) > 1.0


@pytest.mark.parametrize(("lost", "opened"), [(1, 0), (0, 1), (1, 2)])
def test_measured_error_of_prefix_sums_is_the_predicted_one(lost: int, opened: int) -> None:
    # 40,000 runs of 20 rounds: the mean square has a standard error of some 0.6 %; 3 % are five of them.
    noise, random = LagNoise(0.75, 0.1), np.random.default_rng([11, lost, opened])
    shared = random.normal(size=(40_000, 4, 21)) / 2.0
    shared[:, :, 0] = 0.0
    taken_off = np.array([0.0] * lost + [1.0] * opened + [0.75] * (4 - lost - opened))[:, None]
    drawn = (shared[:, :, 1:] - taken_off * shared[:, :, :-1]).sum(axis=1)
    drawn += np.sqrt(0.1) * random.normal(size=drawn.shape)
    measured = (drawn.cumsum(axis=1) ** 2).mean()
    predicted = noise.model_variance(RoundSchedule(20, 1), lost / 4, opened / 4)
    assert measured == pytest.approx(predicted, rel=0.03)
    assert measured != pytest.approx(noise.model_variance(RoundSchedule(20, 1)), rel=0.03)


def test_workloads_with_momentum_and_decay_have_their_own_correlation() -> None:
    rates = tuple(0.97**t for t in range(60))
    workload = Workload(momentum=0.9, learning_rates=rates)
    schedule = RoundSchedule(60, 6, workload)
    best = find_correlation(schedule)
    errors = [
        error_ratio(schedule, LagNoise(correlation))
        for correlation in (best, find_correlation(RoundSchedule(60, 6)), 0.0)
    ]
    assert errors == sorted(errors)
    assert errors[-1] == pytest.approx(1.0)
    # The variance of models, from their definition and the covariance of all rounds.
    noise, matrix = LagNoise(best, 0.1), workload.matrix(60)
    assert noise.model_variance(schedule) == pytest.approx(
        np.trace(matrix @ noise.covariance(60) @ matrix.T) / 60
    )
    sums = RoundSchedule(60, 6, Workload(learning_rates=(1.0,) * 60))
    assert noise.model_variance(sums, 0.2) == pytest.approx(noise.model_variance(RoundSchedule(60, 6), 0.2))


@pytest.mark.parametrize("bad", [(0, 1), (10, 0), (10_001, 5)])
def test_schedules_out_of_range_are_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(InvalidSpecError):
        RoundSchedule(*bad)
