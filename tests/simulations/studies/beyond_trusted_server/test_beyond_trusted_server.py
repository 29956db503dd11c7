"""The study of noise that is correlated over rounds: its tuning, its tables, and the noise of Flower."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from simulations.studies.__main__ import study_folder
from simulations.studies._pages import one_row, read_table, zero_out_epsilon
from simulations.studies.beyond_trusted_server import study
from simulations.studies.beyond_trusted_server.study import (
    ERRORS,
    MAX_TRIALS,
    NO_PRIVACY,
    TEST_SEEDS,
    TUNING_SEED,
    compare_pairs,
    find_epsilons,
    read_runs,
    score,
    summarize,
    tune_clip,
)
from simulations.studies.beyond_trusted_server.training import ARMS, DELTA, flower_epsilon, flower_multiplier

READ = partial(read_table, study_folder("beyond_trusted_server"))
OURS, TRUSTED = "secure sum, correlated noise", "trusted server, fresh noise"


@pytest.mark.parametrize(("peak", "tried"), [(0.1, 3), (0.05, 4), (0.2, 4), (0.025, 5), (1.6, 6), (1e-6, 6)])
def test_tuning_goes_to_where_it_gets_no_better_within_its_budget(
    peak: float, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Any, task: str, arm: str, epsilon: float, clip: float, seed: int, validate: bool) -> Any:
        assert (seed, validate) == (TUNING_SEED, True)
        return {"l2_clip": clip, "accuracy": -abs(math.log(clip / peak)), "average_accuracy": -100.0}

    monkeypatch.setattr(study, "compute_once", run)
    trials = tune_clip("mnist", TRUSTED, 1.0)
    assert len({trial["l2_clip"] for trial in trials}) == len(trials) == tried <= MAX_TRIALS
    if tried < MAX_TRIALS:
        assert max(trials, key=score)["l2_clip"] == pytest.approx(peak)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_flowers_wrapper_gets_the_noise_that_its_accountant_needs(epsilon: float) -> None:
    wanted = zero_out_epsilon(epsilon, DELTA)
    assert flower_epsilon(flower_multiplier(epsilon)) == pytest.approx(wanted, rel=1e-6)
    # The control: with a tenth less noise it states more.
    assert flower_epsilon(0.9 * flower_multiplier(epsilon)) > 1.05 * wanted


def test_secure_sums_with_correlated_noise_beat_a_trusted_server_with_every_seed() -> None:
    runs = read_runs(READ)["mnist"]
    for epsilon, least in ((1.0, 0.81), (4.0, 0.885)):
        assert one_row(summarize(runs), arm=OURS, epsilon=epsilon).average_accuracy >= least
        _, lowest, _ = compare_pairs(runs, epsilon, OURS, TRUSTED)
        assert lowest > 0.0


def test_all_arms_have_the_same_seeds_and_tuned_ones_their_best_clip() -> None:
    for task, runs in read_runs(READ).items():
        trials = READ(f"correlated-{task}-trials")
        assert set(trials["seed"]) == {TUNING_SEED}
        assert TUNING_SEED not in TEST_SEEDS
        for arm in ARMS:
            for epsilon in [math.inf] if arm == NO_PRIVACY else find_epsilons(runs):
                own = runs[(runs["arm"] == arm) & (runs["epsilon"] == epsilon)]
                assert sorted(own["seed"]) == list(TEST_SEEDS)
                tuned = trials[(trials["arm"] == arm) & (trials["epsilon"] == epsilon)].to_dict("records")
                assert len(tuned) <= MAX_TRIALS
                if tuned:
                    assert set(own["l2_clip"]) == {max(tuned, key=score)["l2_clip"]}


def test_measured_errors_are_those_that_were_planned() -> None:
    table = READ(ERRORS)
    # A measured figure has a standard error of some 0.6 %.
    assert list(table["measured_error"]) == pytest.approx(list(table["planned_error"]), rel=0.03)
    honest = table[table["corrupt_and_lost"] == 0.0].set_index("bits")["measured_error"]
    assert honest[10] <= 0.24
    assert honest[11] <= 0.215
    assert table["measured_error"].max() < 0.4
