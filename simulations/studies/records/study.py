"""Ten silos, and privacy for each record: accuracy, ε and bytes of five ways."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fl_privquant.plotting import import_pyplot
from simulations.studies._pages import Compute, ReadTable, compute_rows
from simulations.studies.records import correlated
from simulations.studies.records import training as runs

OURS, CENTRAL = list(runs.WAYS)[:2]


def _compute_runs() -> pd.DataFrame:
    return compute_rows(runs.run_way, itertools.product(runs.WAYS, runs.EPSILONS, runs.SEEDS))


def _compute_opacus() -> dict[str, pd.DataFrame]:
    tried = compute_rows(
        runs.run_opacus, itertools.product(runs.EPSILONS, [runs.TUNING_SEED], runs.OPACUS_RATES)
    )
    best = tried.loc[tried.groupby("epsilon")["accuracy"].idxmax()].set_index("epsilon")["learning_rate"]
    cells = [(epsilon, seed, float(best[epsilon])) for epsilon in runs.EPSILONS for seed in runs.SEEDS]
    return {"opacus": compute_rows(runs.run_opacus, cells), "opacus-tuning": tried}


def _compute_correlated() -> pd.DataFrame:
    cells = [(epsilon, runs.DELTA, runs.RATE, runs.ROUNDS) for epsilon in correlated.EPSILONS]
    return compute_rows(correlated.compare, cells)


PARTS: dict[str, Compute] = {
    "ten-silos": _compute_runs,
    "opacus": _compute_opacus,
    "correlated-records": _compute_correlated,
}
"""By name, the functions that compute the tables."""


def _draw_accuracy(read: ReadTable) -> Any:
    """Accuracy against the epsilon of a record: a line for each way that protects records, or nobody."""
    figure, axis = import_pyplot().subplots(figsize=(7.0, 4.0), layout="constrained")
    ways = _all_ways(read)
    for way, rows in ways[ways["way"] != runs.FLOWER].groupby("way", sort=False):
        means = 100.0 * rows.groupby("epsilon")["accuracy"].mean()
        # It lies on the line of the secure sum.
        axis.plot(means.index, means, marker="o", linestyle="--" if way == CENTRAL else "-", label=way)
    axis.set(
        xlabel="ε asked for (record total, add-remove)",
        ylabel="test accuracy, %",
        xscale="log",
        xticks=runs.EPSILONS,
    )
    axis.set_xticklabels([f"{tick:g}" for tick in runs.EPSILONS])
    axis.minorticks_off()
    axis.legend()
    return figure


FIGURES = {"accuracy": _draw_accuracy}
"""By name, the functions that draw the figures of the page."""


def _all_ways(read: ReadTable) -> pd.DataFrame:
    return pd.concat([read("ten-silos"), read("opacus").drop(columns="learning_rate")], ignore_index=True)


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    table, of_opacus = _all_ways(read), read("opacus")
    lines = [_summarize(rows) for _, rows in table.groupby(["way", "epsilon"], sort=False)]
    return {
        "runs": runs,
        "lines": lines,
        "behind_central": [_lead(table, CENTRAL, OURS, epsilon) for epsilon in runs.EPSILONS],
        "ahead_of_opacus": [_lead(table, OURS, runs.OPACUS, epsilon) for epsilon in runs.EPSILONS],
        "opacus_rates": of_opacus.groupby("epsilon")["learning_rate"].first().tolist(),
        "correlated": read("correlated-records").to_dict("records"),
    }


def _summarize(rows: pd.DataFrame) -> dict[str, Any]:
    """One line of the table: the mean over seeds, and half of its 95 % interval."""
    first = rows.iloc[0]
    return {
        "way": first["way"],
        "seeds": len(rows),
        "epsilon": float(first["epsilon"]),
        "accuracy": 100.0 * float(rows["accuracy"].mean()),
        "half": _half_interval(100.0 * rows["accuracy"].to_numpy()),
        "private": math.isfinite(first["add_remove"]),
        "add_remove": float(first["add_remove"]),
        "replace_one": float(first["replace_one"]),
        "bytes": int(first["bytes"]),
    }


def _lead(table: pd.DataFrame, ahead: str, behind: str, epsilon: float) -> dict[str, float]:
    """Points that one way is ahead of another at the same ε, seed by seed."""
    here = table[table["epsilon"] == epsilon].pivot(index="seed", columns="way", values="accuracy")
    points = 100.0 * (here[ahead] - here[behind]).dropna().to_numpy()
    return {"epsilon": epsilon, "points": float(points.mean()), "half": _half_interval(points)}


def _half_interval(values: np.ndarray) -> float:
    """Half of the 95 % interval of a mean (Student t)."""
    number = len(values)
    return float(stats.t.ppf(0.975, number - 1) * values.std(ddof=1) / math.sqrt(number))
