"""The study of noise that is correlated over rounds: its tuning, its tables, and the noise of Flower."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from simulations.studies.__main__ import study_folder
from simulations.studies._pages import one_row, read_table, zero_out_epsilon
from simulations.studies.beyond_trusted_server.models import MODELS
from simulations.studies.beyond_trusted_server.study import (
    COMPARISONS,
    ERRORS,
    MAX_TRIALS,
    NO_PRIVACY,
    TEST_SEEDS,
    TUNING_SEED,
    compare_pairs,
    find_epsilons,
    score,
    summarize,
)
from simulations.studies.beyond_trusted_server.training import DELTA, flower_epsilon, flower_multiplier

READ = partial(read_table, study_folder("beyond_trusted_server"))
OURS, TRUSTED = "secure sum, correlated noise", "trusted server, fresh noise"


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_flowers_wrapper_gets_the_noise_that_its_accountant_needs(epsilon: float) -> None:
    wanted = zero_out_epsilon(epsilon, DELTA)
    assert flower_epsilon(flower_multiplier(epsilon)) == pytest.approx(wanted, rel=1e-6)
    # The control: with a tenth less noise it states more.
    assert flower_epsilon(0.9 * flower_multiplier(epsilon)) > 1.05 * wanted


def test_secure_sums_with_correlated_noise_beat_a_trusted_server_with_every_seed() -> None:
    for table in COMPARISONS:
        runs = READ(table)
        assert find_epsilons(runs)
        for epsilon in find_epsilons(runs):
            assert compare_pairs(runs, epsilon, OURS, TRUSTED)[1] > 0.0
    for epsilon, least in ((1.0, 0.81), (4.0, 0.885)):
        ours = one_row(summarize(READ("correlated-mnist")), arm=OURS, epsilon=epsilon)
        assert ours.average_accuracy_low >= least


@pytest.mark.parametrize("table", COMPARISONS)
def test_all_arms_have_the_same_seeds_and_tuned_ones_their_best_clip(table: str) -> None:
    compared, runs, trials = COMPARISONS[table], READ(table), READ(f"{table}-trials")
    assert set(trials["seed"]) == {TUNING_SEED}
    assert TUNING_SEED not in TEST_SEEDS
    assert set(find_epsilons(runs)) == set(compared.epsilons)
    assert set(runs["arm"]) == {NO_PRIVACY, *compared.arms}
    for arm in (NO_PRIVACY, *compared.arms):
        for epsilon in [math.inf] if arm == NO_PRIVACY else compared.epsilons:
            own = runs[(runs["arm"] == arm) & (runs["epsilon"] == epsilon)]
            assert sorted(own["seed"]) == list(TEST_SEEDS)
            tuned = trials[(trials["arm"] == arm) & (trials["epsilon"] == epsilon)].to_dict("records")
            assert len(tuned) <= MAX_TRIALS
            if tuned:
                assert set(own["l2_clip"]) == {max(tuned, key=score)["l2_clip"]}


@pytest.mark.parametrize(("name", "tolerance"), [("softmax", 0.0), ("cnn", 1e-6)])
def test_clients_take_the_step_of_the_gradient_alone_and_with_others(name: str, tolerance: float) -> None:
    model, generator = MODELS[name], np.random.default_rng(4)
    inputs = generator.random((3, 5, 785), np.float32)
    inputs[..., -1] = 1.0
    labels = generator.integers(0, 10, (3, 5))
    weights = {
        key: generator.normal(0.0, 0.1, array.shape).astype(np.float32)
        for key, array in model.initialize(0).items()
    }
    together = model.train(weights, inputs, labels, 2.0)
    for client in range(3):
        alone = model.train(weights, inputs[[client]], labels[[client]], 2.0)
        for key in weights:
            np.testing.assert_allclose(together[key][client], alone[key][0], rtol=0.0, atol=tolerance)

    def mean_loss(moved: dict[str, Any]) -> float:
        scores = model.scores(moved, inputs[0]).astype(np.float64)
        totals = np.log(np.exp(scores).sum(axis=1))
        return float(np.mean(totals - scores[np.arange(5), labels[0]]))

    # The loss falls along a short step as the squared length of the gradient says.
    slope = {key: (weights[key] - together[key][0]) / 2.0 for key in weights}
    squared = sum(float(np.square(each.astype(np.float64)).sum()) for each in slope.values())
    moved = {key: weights[key] - np.float32(1e-3) * slope[key] for key in weights}
    assert mean_loss(weights) - mean_loss(moved) == pytest.approx(1e-3 * squared, rel=0.05)


def test_measured_errors_are_those_that_were_planned() -> None:
    table = READ(ERRORS)
    # A measured figure has a standard error of some 0.6 %.
    assert list(table["measured_error"]) == pytest.approx(list(table["planned_error"]), rel=0.03)
    honest = table[table["corrupt_and_lost"] == 0.0].set_index("bits")["measured_error"]
    assert honest[10] <= 0.24
    assert honest[11] <= 0.215
    assert table["measured_error"].max() < 0.4
