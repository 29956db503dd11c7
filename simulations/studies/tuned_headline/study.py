"""What privacy costs on MNIST, if every arm is tuned with the same budget on validation examples."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from fl_privquant.plotting import import_pyplot
from simulations.studies._drawing import look_of
from simulations.studies._pages import Compute, ReadTable, one_row, round_up
from simulations.studies.tuned_headline.arms import (
    DEFAULT,
    NONE,
    RELATIONS,
    SWEEP,
    TRUSTED,
    TUNED,
    WARY,
    compute_relations,
    compute_tuned,
    read_arms,
)

PARTS: dict[str, Compute] = {SWEEP.name: compute_tuned, RELATIONS: compute_relations}
HEADLINE_EPSILON = 4.0


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    table, trials = read_arms(read), read("tuned-trials")
    return {
        "none": NONE,
        "trusted": TRUSTED,
        "default": DEFAULT,
        "wary": WARY,
        "per_cent": per_cent,
        # First without privacy, then from the laxest to the strictest budget.
        "arms": table.sort_values("run_epsilon", ascending=False, kind="stable"),
        "arm": lambda name, epsilon=HEADLINE_EPSILON: arm_row(table, name, epsilon),
        "grid": {name: sorted(trials[name].unique()) for name in TUNED},
        "seeds": [sorted(runs["seed"].unique()) for runs in (trials, read("tuned-runs"))],
    }


def arm_row(table: pd.DataFrame, name: str, epsilon: float = HEADLINE_EPSILON) -> Any:
    """The row of an arm."""
    return one_row(table, arm=name, run_epsilon=epsilon)


def per_cent(row: Any, name: str = "accuracy") -> str:
    """The mean of a row in per cent, and half of its 95 % interval, rounded up: 80.4 ± 0.5."""
    mean, low, high = (100.0 * getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{mean:.1f} ± {round_up((high - low) / 2, 1)}"


def _draw_accuracies(read: ReadTable) -> Any:
    """Test accuracies of all arms against ε, with 95 % intervals; a band for training without privacy."""
    table = read("tuned")
    private = table[table["run_epsilon"] < math.inf]
    (none,) = table[table["run_epsilon"] == math.inf].itertuples()
    figure, axis = import_pyplot().subplots(figsize=(7.2, 4.6), layout="constrained")
    axis.axhspan(100 * none.accuracy_low, 100 * none.accuracy_high, color="#999999", label=none.arm)
    epsilons = sorted(private["run_epsilon"].unique())
    arms = list(private["arm"].unique())
    for place, (arm, rows) in enumerate(private.groupby("arm", sort=False)):
        at = [epsilons.index(value) + 0.12 * (place - (len(arms) - 1) / 2) for value in rows["run_epsilon"]]
        ends = [rows["accuracy"] - rows["accuracy_low"], rows["accuracy_high"] - rows["accuracy"]]
        look = look_of(str(rows["mechanism"].iloc[0])) | {"markerfacecolor": "white" if arm == WARY else None}
        axis.errorbar(
            at,
            100 * rows["accuracy"],
            yerr=[100 * end for end in ends],
            linestyle="",
            capsize=3,
            label=arm,
            **look,
        )
    axis.set_xticks(range(len(epsilons)), [f"{value:g}" for value in epsilons])
    axis.grid(visible=False, axis="x")
    axis.set_xlabel("ε, client total, replace-one, aggregate view (trusted server: of the models), δ = 1e-5")
    axis.set_ylabel("test accuracy, %, 95 % over seeds")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


FIGURES = {"accuracies": _draw_accuracies}
"""By name, the functions that draw the figures of the page."""
