"""Arms that are tuned alike on validation examples, and then run on other seeds and the test examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fl_privquant.mechanisms.registry import planned_mechanisms
from simulations.config import CENTRAL, RunConfig
from simulations.planned import plan_of
from simulations.report.statistics import student_interval
from simulations.studies.study import Scale, Tables, Tell
from simulations.studies.sweep import Sweep, run_columns

OURS = planned_mechanisms(in_sum=True)[0]
"""The mechanism that plans take by default for secure sums."""

NONE, TRUSTED = "no privacy", "trusted server"
DEFAULT = "default plan"
WARY = "default plan, a tenth corrupt and a tenth lost"

TUNED = ["learning_rate", "local_epochs", "l2_clip"]
_ARM = ["arm", "mechanism", "run_epsilon"]
_PLANNED = ["kilobytes", "error_over_central", "coordinate_epsilon", "epsilon_reached"]
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


@dataclass(frozen=True, kw_only=True)
class TunedSweep(Sweep):
    """A sweep that tunes each arm, and repeats its best settings on other seeds and the test examples.

    Its tables are a summary, the runs on the test examples, and the trials.
    """

    test_seeds: tuple[int, ...]

    @property
    def tables(self) -> tuple[str, ...]:
        """The summary first."""
        return self.name, f"{self.name}-runs", f"{self.name}-trials"

    def compute(self, scale: Scale, tell: Tell) -> Tables:
        """Run the trials and tests that are missing; the tables."""
        tuning = self.runs(scale)
        self.execute(tuning, tell)
        trials = self.table(tuning)
        best = best_trials(trials)
        tests = self.tests(tuning, best)
        self.execute(tests, tell)
        runs = self.table(tests)
        summary = summarize(runs, best)
        return dict(zip(self.tables, (summary, runs.drop(columns="trial"), trials), strict=True))

    def tests(self, tuning: Sequence[RunConfig], best: pd.DataFrame) -> list[RunConfig]:
        """The best settings of each arm on the test examples, with seeds that tuned nothing."""
        tuned = {config.seed for config in tuning}
        tests = []
        for trial in best["trial"]:
            task = {**tuning[trial].task}
            del task["validation_examples"]
            tests += [
                dataclasses.replace(tuning[trial], task=task, seed=seed)
                for seed in self.test_seeds
                if seed not in tuned
            ]
        return tests

    def table(self, configs: Sequence[RunConfig]) -> pd.DataFrame:
        """The table of finished runs, one row each."""
        return pd.DataFrame([_row(trial, config) for trial, config in enumerate(configs)])[_RUN]


def _row(trial: int, config: RunConfig) -> dict[str, Any]:
    row = run_columns(config)
    plan = plan_of(config, row["dimension"])
    return row | {
        "trial": trial,
        "arm": arm_of(config),
        "run_epsilon": math.inf if config.privacy.epsilon is None else config.privacy.epsilon,
        "learning_rate": config.federation.learning_rate,
        "local_epochs": config.federation.local_epochs,
        "l2_clip": config.l2_clip,
        "error_over_central": math.nan if plan is None else plan.ratio_to_central,
        "coordinate_epsilon": math.nan if plan is None else plan.encoding.mechanism.epsilon,
        # The other arms have no secure sum to count.
        "epsilon_reached": math.nan if plan is None else row["epsilon_reached"],
    }


PARTS = (
    TunedSweep(
        name="tuned",
        title="MNIST, every arm tuned alike",
        note="run epsilon: client total, aggregate view of all clients, δ = 1e-5",
        experiment="tuned_headline/tuning",
        overrides=(f"mechanism={CENTRAL},{OURS},optm,skellam", "privacy.epsilon=1,4,8"),
        variants=(
            ("mechanism=none", "privacy.epsilon=null", "secagg=off"),
            (f"mechanism={OURS}", "secagg.corrupt_fraction=0.1", "secagg.dropout_fraction=0.1"),
        ),
        needs="mnist",
        shown=("arm", "run_epsilon", *TUNED, "trials", "accuracy", "lost_to_none", "lost_to_trusted"),
        test_seeds=tuple(range(10)),
    ),
)
