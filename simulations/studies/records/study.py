"""Ten silos, and privacy for each record: accuracy, ε and bytes of five ways, each tuned alike."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from fl_privquant.plotting import import_pyplot
from fl_privquant.statement import PrivacyStatement, Relation, Unit, ViewKind
from simulations.runner.config import RunConfig
from simulations.runner.results import RunDirectory
from simulations.studies._pages import (
    Compute,
    ReadTable,
    Tables,
    compute_once,
    compute_rows,
    data_root,
    half_interval,
    join_tables,
    tune_by_twos,
)
from simulations.studies._sweeps import Sweep, execute_runs, run_columns, sweep_runs
from simulations.studies.records import correlated
from simulations.studies.records import training as runs

CNN = Sweep(name="records-cnn", experiment="records/mnist_cnn", needs="mnist")
"""A convolutional network on all of MNIST."""


def _compute_ways(table: str, ways: Sequence[str]) -> Tables:
    """Tune the learning rate of each way at each ε on one seed, and run it on the others.

    The secure sum takes the rate that was tuned for the trusted server with the same noise, so that it is not
    favored.
    """
    trials, cells = [], []
    for way in ways:
        for epsilon in [math.inf] if way == runs.NO_PRIVACY else runs.EPSILONS:
            tried = tune_rate(runs.CENTRAL if way == runs.OURS else way, epsilon)
            trials += tried if way != runs.OURS else []
            best = max(tried, key=lambda trial: trial["accuracy"])["learning_rate"]
            cells += [(way, epsilon, seed, best) for seed in runs.SEEDS]
    return {table: compute_rows(runs.run_way, cells), f"{table}-tuning": pd.DataFrame(trials)}


def tune_rate(way: str, epsilon: float) -> list[dict[str, Any]]:
    """The trials of a way: by factors of two from the first learning rate to where it gets no better."""

    def run(learning_rate: float) -> dict[str, Any]:
        return compute_once(runs.run_way, way, epsilon, runs.TUNING_SEED, learning_rate)

    return tune_by_twos(run, runs.FIRST_RATE, runs.MAX_TRIALS, lambda row: float(row["accuracy"]))


def _compute_cnn() -> pd.DataFrame:
    configs = sweep_runs(CNN, f"task.data_root={data_root(CNN.needs)}")
    execute_runs(configs)
    return pd.DataFrame([_cnn_row(config) for config in configs])


def _cnn_row(config: RunConfig) -> dict[str, Any]:
    path = RunDirectory.of(config).path
    stated = json.loads((path / "provenance.json").read_text())["statements"]
    spent = {
        statement.relation: statement.epsilon
        for statement in map(PrivacyStatement.from_dict, stated)
        if statement.unit is Unit.RECORD and statement.view.kind is ViewKind.AGGREGATE
    }
    columns, rounds = run_columns(config), pd.read_parquet(path / "rounds.parquet")
    return {
        "seed": config.seed,
        # One fewer than planned for each time that a run was interrupted, as that round counts as spent.
        "rounds": int(rounds["round"].iloc[-1]),
        "dimension": columns["dimension"],
        "accuracy": columns["accuracy"],
        "add_remove": spent[Relation.ADD_REMOVE],
        "replace_one": spent[Relation.REPLACE_ONE],
        "kilobytes": rounds["bytes_up"].diff().iloc[-1] / config.federation.num_clients / 1000.0,
        "overflowed_sums": columns["overflowed_sums"],
    }


def _compute_correlated() -> pd.DataFrame:
    cells = [(epsilon, runs.DELTA, runs.RATE, runs.ROUNDS) for epsilon in correlated.EPSILONS]
    return compute_rows(correlated.compare, cells)


PARTS: dict[str, Compute] = {
    "ten-silos": lambda: _compute_ways("ten-silos", [way for way in runs.WAYS if way != runs.OPACUS]),
    "opacus": lambda: _compute_ways("opacus", [runs.OPACUS]),
    "records-cnn": _compute_cnn,
    "correlated-records": _compute_correlated,
}
"""By name, the functions that compute the tables."""


def _draw_accuracy(read: ReadTable) -> Any:
    """Accuracy against the epsilon of a record: a line for each way that protects records, or nobody."""
    figure, axis = import_pyplot().subplots(figsize=(7.0, 4.0), layout="constrained")
    for way, rows in join_tables(read, ("ten-silos", "opacus")).groupby("way", sort=False):
        means = 100.0 * rows.groupby("epsilon")["accuracy"].mean()
        if way == runs.NO_PRIVACY:
            axis.axhline(means.iloc[0], color="gray", label=way)
        elif way != runs.FLOWER:
            # It lies on the line of the secure sum.
            dashed = "--" if way == runs.CENTRAL else "-"
            axis.plot(means.index, means, marker="o", linestyle=dashed, label=way)
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


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    table = join_tables(read, ("ten-silos", "opacus"))
    lines = [_summarize(rows) for _, rows in table.groupby(["way", "epsilon"], sort=False)]
    cnn = read("records-cnn")
    return {
        "runs": runs,
        "lines": lines,
        "behind_central": [_lead(table, runs.CENTRAL, runs.OURS, epsilon) for epsilon in runs.EPSILONS],
        "ahead_of_opacus": [_lead(table, runs.OURS, runs.OPACUS, epsilon) for epsilon in runs.EPSILONS],
        "cnn": {
            **cnn.iloc[0].to_dict(),
            "seeds": cnn["seed"].tolist(),
            "rounds_of": cnn["rounds"].tolist(),
            "accuracies": (100.0 * cnn["accuracy"]).tolist(),
        },
        "correlated": read("correlated-records").to_dict("records"),
    }


def _summarize(rows: pd.DataFrame) -> dict[str, Any]:
    """One line of the table: the mean over seeds, and half of its 95 % interval."""
    first = rows.iloc[0]
    return {
        "way": first["way"],
        "seeds": len(rows),
        "epsilon": float(first["epsilon"]),
        "learning_rate": float(first["learning_rate"]),
        "accuracy": 100.0 * float(rows["accuracy"].mean()),
        "half": half_interval(100.0 * rows["accuracy"]),
        "add_remove": float(first["add_remove"]),
        "replace_one": float(first["replace_one"]),
        "bytes": int(first["bytes"]),
    }


def _lead(table: pd.DataFrame, ahead: str, behind: str, epsilon: float) -> dict[str, float]:
    """Points that one way is ahead of another at the same ε, seed by seed."""
    here = table[table["epsilon"] == epsilon].pivot(index="seed", columns="way", values="accuracy")
    points = 100.0 * (here[ahead] - here[behind]).dropna()
    return {"epsilon": epsilon, "points": float(points.mean()), "half": half_interval(points)}
