"""The study in which every arm is tuned alike: what its tables show, and that it tunes and tests apart."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from simulations.studies.__main__ import study_folder
from simulations.studies._pages import mean_with_half, read_table, round_up
from simulations.studies._sweeps import sweep_runs
from simulations.studies.tuned_headline.study import (
    _PLANNED,
    DEFAULT,
    NONE,
    OURS,
    SWEEP,
    TRUSTED,
    TUNED,
    WARY,
    best_trials,
    compute_tuned,
    final_runs,
    page_numbers,
    summarize,
)

ROOT = Path(__file__).parents[4]
READ = partial(read_table, study_folder("tuned_headline"))
NUMBERS = page_numbers(READ)


def test_every_arm_has_the_same_trials() -> None:
    trials = READ("tuned-trials")
    grids = {
        key: set(own[[*TUNED, "seed"]].itertuples(index=False, name=None))
        for key, own in trials.groupby(["arm", "run_epsilon"])
    }
    (grid,) = set(map(frozenset, grids.values()))
    assert len(grid) == len(trials) / len(grids) == 12
    assert {arm for arm, epsilon in grids if epsilon in (4.0, math.inf)} == {
        *(NONE, TRUSTED, DEFAULT, WARY),
        *("optm", "skellam"),
    }


def test_the_default_plan_of_the_table_is_the_one_that_plans_choose_today() -> None:
    table = READ("tuned")
    assert set(table[table["arm"].isin([DEFAULT, WARY])]["mechanism"]) == {OURS}
    assert set(table["arm"]) == set(READ("tuned-trials")["arm"]) >= {DEFAULT, WARY}


def test_nothing_that_is_tested_was_used_for_tuning() -> None:
    tuning, testing = NUMBERS["seeds"]
    assert len(testing) >= 5
    assert not set(tuning) & set(testing)
    runs = sweep_runs(SWEEP)
    assert {config.task["validation_examples"] for config in runs} == {10_000}
    best = pd.DataFrame({"trial": [0, len(runs) - 1]})
    for config in final_runs(runs, best):
        assert "validation_examples" not in config.task
        assert config.seed not in {tuned.seed for tuned in runs}
        assert config.federation == runs[0].federation or config.federation == runs[-1].federation


def test_the_committed_summary_is_that_of_the_committed_runs() -> None:
    best = best_trials(READ("tuned-trials"))
    again = summarize(READ("tuned-runs"), best)
    pd.testing.assert_frame_equal(again, READ("tuned"), rtol=1e-5, atol=1e-6)


def test_no_budget_is_exceeded() -> None:
    runs = READ("tuned-runs")
    in_sums = runs.dropna(subset="epsilon_reached")
    assert set(in_sums["arm"]) == {DEFAULT, WARY, "optm", "skellam"}
    assert (in_sums["epsilon_reached"] <= in_sums["run_epsilon"]).all()
    assert (in_sums["epsilon_reached"] > 0.9 * in_sums["run_epsilon"]).all()


def test_every_private_arm_is_stated_by_zero_out_too() -> None:
    table = NUMBERS["arms"].query("run_epsilon < inf")
    assert len(table) == 15
    assert table["zero_out_epsilon"].between(0.43 * table["run_epsilon"], 0.5 * table["run_epsilon"]).all()


def test_the_best_settings_are_those_of_the_mean_over_seeds() -> None:
    columns = ["arm", "mechanism", "run_epsilon", *TUNED, "seed", "accuracy"]
    rows = [
        ("a", "m", 4.0, 0.3, 1.0, 100, 0.90),
        ("a", "m", 4.0, 1.0, 1.0, 100, 0.80),
        ("a", "m", 4.0, 0.3, 1.0, 101, 0.10),
        ("a", "m", 4.0, 1.0, 1.0, 101, 0.80),
        ("b", "m", math.inf, 1.0, 0.1, 100, 0.70),
    ]
    trials = pd.DataFrame(rows, columns=columns).reset_index(names="trial")
    best = best_trials(trials)
    assert list(best["arm"]) == ["a", "b"]
    assert list(best["learning_rate"]) == [1.0, 1.0]
    assert list(best["trial"]) == [1, 4]
    assert list(best["trials"]) == [2, 1]
    assert list(best["validation_accuracy"]) == pytest.approx([0.8, 0.7])


def test_losses_are_paired_by_seed() -> None:
    """Seeds differ by far more than arms do, which pairs cancel."""
    accuracies = {NONE: [0.9, 0.7, 0.5], TRUSTED: [0.8, 0.6, 0.4], DEFAULT: [0.79, 0.59, 0.39]}
    runs = pd.DataFrame(
        [
            {"arm": arm, "run_epsilon": math.inf if arm == NONE else 4.0, "seed": seed, "accuracy": accuracy}
            | dict.fromkeys(_PLANNED, 1.0)
            for arm, values in accuracies.items()
            for seed, accuracy in enumerate(values)
        ]
    )
    best = runs[runs["seed"] == 0][["arm", "run_epsilon"]].assign(trial=0)
    (row,) = summarize(runs, best).query("arm == @DEFAULT").itertuples()
    assert row.accuracy_high - row.accuracy_low > 0.5
    assert mean_with_half(row, "lost_to_none") == "11.0 ± 0.0"
    assert mean_with_half(row, "lost_to_trusted") == "1.0 ± 0.0"


def test_a_small_one_runs_from_end_to_end(tmp_path: Path) -> None:
    small = (
        *("task=digits", "task.max_examples=null", "task.validation_examples=300"),
        *("federation.num_clients=12", "federation.rounds=1"),
        *("encoding.l2_clip=0.5,2", "federation.learning_rate=0.5"),
    )
    sweep = dataclasses.replace(
        SWEEP, needs="", overrides=("mechanism=central_gaussian",), variants=SWEEP.variants[:1]
    )
    summary, runs, trials = compute_tuned(sweep, (3, 4), (*small, f"output={tmp_path}")).values()
    assert list(summary["arm"]) == [TRUSTED, NONE]
    assert list(summary["trials"]) == [2, 2]
    assert set(runs["seed"]) == {3, 4}
    assert set(trials["seed"]) == {100}
    # 359 test examples of digits, 300 validation examples.
    assert ((359 * runs["accuracy"]) % 1.0).round(6).isin([0.0, 1.0]).all()
    assert ((300 * trials["accuracy"]) % 1.0).round(6).isin([0.0, 1.0]).all()


def words(path: str) -> str:
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def test_the_documentation_says_what_the_study_found() -> None:
    text = words("docs/pages/studies.md")
    for arm, rows in NUMBERS["arms"].groupby("arm"):
        by_epsilon = {row.run_epsilon: row for row in rows.itertuples()}
        cells = [
            mean_with_half(by_epsilon[epsilon]) if epsilon in by_epsilon else ""
            for epsilon in (1.0, 4.0, 8.0)
        ]
        if arm == NONE:
            cells = [mean_with_half(by_epsilon[math.inf])] * 3
        ratio = "" if arm in (NONE, TRUSTED) else f"{by_epsilon[4.0].error_over_central:.3f}"
        line = f"| {arm} | {' | '.join([*cells, ratio])} |"
        assert " ".join(line.split()) in text, line
    cost, trusted = (100 * NUMBERS["arm"](arm).lost_to_none for arm in (DEFAULT, TRUSTED))
    assert f"at ε = 4 privacy costs {cost:.1f} points here, and {trusted:.1f} with a trusted server" in text
    optm = NUMBERS["arm"]("optm")
    assert f"at ε = 4 leaves ε = {round_up(optm.coordinate_epsilon, 3)} for one coordinate" in text
    assert f"`optm` with 2 bits has {optm.error_over_central:.2f} times the squared error" in text
    concepts = words("docs/pages/concepts.md")
    assert f"{cost:.1f} points on MNIST at ε = 4 (replace-one, client total) with 100 clients" in concepts
    assert f"a trusted server pays {trusted:.1f}." in concepts
