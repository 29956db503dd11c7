"""What privacy costs on MNIST, if every arm is tuned with the same budget on validation examples.

The best settings of each arm are then run on other seeds and the test examples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from fl_privquant.mechanisms.registry import default_mechanisms
from simulations.report.statistics import student_interval
from simulations.runner.config import CENTRAL, RunConfig
from simulations.runner.planned import plan_run
from simulations.studies._pages import (
    Compute,
    ReadTable,
    Tables,
    data_root,
    mean_with_half,
    one_row,
    zero_out_epsilon,
)
from simulations.studies._sweeps import Sweep, execute_runs, run_columns, sweep_runs

OURS = default_mechanisms(in_sum=True)[0]
"""The mechanism that plans take by default for secure sums."""

SWEEP = Sweep(
    name="tuned",
    experiment="tuned_headline/tuning",
    overrides=(f"mechanism={CENTRAL},{OURS},optm,skellam", "privacy.epsilon=1,4,8"),
    variants=(
        ("mechanism=none", "privacy.epsilon=null", "secagg=none"),
        (f"mechanism={OURS}", "secagg.corrupt_fraction=0.1", "secagg.dropout_fraction=0.1"),
    ),
    needs="mnist",
)
"""The trials of all arms on MNIST."""

TEST_SEEDS = range(10)

NONE, TRUSTED = "no privacy", "trusted server"
DEFAULT = "default plan"
WARY = "default plan, a tenth corrupt and a tenth lost"

TUNED = ["learning_rate", "l2_clip"]
_ARM = ["arm", "mechanism", "run_epsilon"]
_PLANNED = ["zero_out_epsilon", "kilobytes", "error_over_central", "coordinate_epsilon", "epsilon_reached"]
_RUN = ["trial", *_ARM, *TUNED, "seed", "accuracy", *_PLANNED]


def arm_of(config: RunConfig) -> str:
    """What tables call the arm that a run belongs to."""
    if config.mechanism["name"] == OURS:
        return WARY if config.secagg.corrupt_fraction else DEFAULT
    return {"none": NONE, CENTRAL: TRUSTED}.get(config.label, config.label)


def best_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """The settings of each arm with the highest validation accuracy, averaged over the tuning seeds.

    ``trials`` is the number of settings that were tried, ``trial`` the place of the first run with the best
    ones; of settings that are equally good the first is taken.
    """
    means = trials.groupby([*_ARM, *TUNED], as_index=False, sort=False).agg(
        trial=("trial", "first"), validation_accuracy=("accuracy", "mean")
    )
    means["trials"] = means.groupby(_ARM)["arm"].transform("size")
    ordered = means.sort_values("validation_accuracy", ascending=False, kind="stable")
    return ordered.drop_duplicates(_ARM).sort_index(ignore_index=True)


def summarize(runs: pd.DataFrame, best: pd.DataFrame) -> pd.DataFrame:
    """One row for each arm: test accuracy with its 95 % interval, and what it loses to both references.

    Losses are to the run of the same seed without privacy, and to that with a trusted server at the same ε.
    """
    by_arm = {key: rows.set_index("seed") for key, rows in runs.groupby(["arm", "run_epsilon"])}
    rows = []
    for chosen in best.itertuples(index=False):
        own = by_arm[chosen.arm, chosen.run_epsilon]
        row = {**chosen._asdict(), "seeds": len(own), **_interval("accuracy", own["accuracy"])}
        for name, other in (("none", (NONE, math.inf)), ("trusted", (TRUSTED, chosen.run_epsilon))):
            if other in by_arm:
                row |= _interval(f"lost_to_{name}", by_arm[other]["accuracy"] - own["accuracy"])
        rows.append(row | own[_PLANNED].max().to_dict())
    return pd.DataFrame(rows).drop(columns="trial")


def _interval(name: str, values: pd.Series) -> dict[str, float]:
    mean, low, high, _ = student_interval(values)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def compute_tuned(
    sweep: Sweep = SWEEP, test_seeds: Sequence[int] = TEST_SEEDS, overrides: Sequence[str] = ()
) -> Tables:
    """Tune each arm, and repeat its best settings on other seeds and the test examples.

    The tables are a summary, the runs on the test examples, and the trials.
    """
    data = [f"task.data_root={data_root(sweep.needs)}"] if sweep.needs else []
    tuning = sweep_runs(sweep, *data, *overrides)
    execute_runs(tuning)
    trials = _table(tuning)
    best = best_trials(trials)
    tests = final_runs(tuning, best, test_seeds)
    execute_runs(tests)
    runs = _table(tests)
    return {
        sweep.name: summarize(runs, best),
        f"{sweep.name}-runs": runs.drop(columns="trial"),
        f"{sweep.name}-trials": trials,
    }


def final_runs(
    tuning: Sequence[RunConfig], best: pd.DataFrame, seeds: Sequence[int] = TEST_SEEDS
) -> list[RunConfig]:
    """The runs of the best settings on the test examples, with seeds that no trial had."""
    tuned = {config.seed for config in tuning}
    tests = []
    for trial in best["trial"]:
        task = {**tuning[trial].task}
        del task["validation_examples"]
        tests += [
            dataclasses.replace(tuning[trial], task=task, seed=seed) for seed in seeds if seed not in tuned
        ]
    return tests


def _table(configs: Sequence[RunConfig]) -> pd.DataFrame:
    """The table of finished runs, one row each."""
    return pd.DataFrame([_row(trial, config) for trial, config in enumerate(configs)])[_RUN]


def _row(trial: int, config: RunConfig) -> dict[str, Any]:
    row = run_columns(config)
    plan = plan_run(config, row["dimension"])
    epsilon = math.inf if config.privacy.epsilon is None else config.privacy.epsilon
    zero_out = zero_out_epsilon(epsilon, config.privacy.delta) if math.isfinite(epsilon) else epsilon
    return row | {
        "trial": trial,
        "arm": arm_of(config),
        "run_epsilon": epsilon,
        "zero_out_epsilon": zero_out if plan is None else plan.other_statement.epsilon,
        "learning_rate": config.federation.learning_rate,
        "l2_clip": config.l2_clip,
        "error_over_central": math.nan if plan is None else plan.ratio_to_central,
        "coordinate_epsilon": math.nan if plan is None else plan.encoding.mechanism.epsilon,
        # The other arms have no secure sum to count.
        "epsilon_reached": math.nan if plan is None else row["epsilon_reached"],
    }


PARTS: dict[str, Compute] = {SWEEP.name: compute_tuned}
"""By name, the functions that compute the tables."""


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    table, trials = read(SWEEP.name), read("tuned-trials")
    return {
        "none": NONE,
        "trusted": TRUSTED,
        "default": DEFAULT,
        "wary": WARY,
        "per_cent": mean_with_half,
        # First without privacy, then from the laxest to the strictest budget.
        "arms": table.sort_values("run_epsilon", ascending=False, kind="stable"),
        "arm": lambda name, epsilon=4.0: one_row(table, arm=name, run_epsilon=epsilon),
        "grid": {name: sorted(trials[name].unique()) for name in TUNED},
        "seeds": [sorted(runs["seed"].unique()) for runs in (trials, read("tuned-runs"))],
    }


FIGURES: dict[str, Callable[[ReadTable], Any]] = {}
"""The page has tables alone."""
