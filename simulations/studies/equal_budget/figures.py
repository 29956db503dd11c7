"""The figures of the study, drawn from its tables alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fl_privquant.cli.plots import colour_of, pyplot
from fl_privquant.statement import PrivacyStatement, Unit
from simulations.config import CENTRAL
from simulations.studies.drawing import ERROR, INTERVAL, draw_curve
from simulations.studies.equal_budget.numbers import GRADIENTS, LABELS, best_errors
from simulations.studies.equal_budget.secure_sum import PEERS
from simulations.studies.page import table_or_none
from simulations.studies.study import Figure, ReadTable

__all__ = ["FIGURES"]

_HEADING = PrivacyStatement.heading(Unit.TOTAL, "aggregate")


def _secure_sum(read: ReadTable) -> Any:
    """Exact errors against the budget, and accuracies of training by gradients, beside a central Gaussian."""
    errors = best_errors(read("secure_sum"))
    trained = pd.concat([table for name in GRADIENTS if (table := table_or_none(read, name)) is not None])
    counts = sorted(errors["num_clients"].unique())
    settings = list(trained.groupby(["task", "num_clients"]))
    wide = max(len(counts) + 1, len(settings))
    figure, (upper, lower) = pyplot().subplots(2, wide, figsize=(3.7 * wide, 6.4), squeeze=False)
    for unused in (*upper[len(counts) :], *lower[len(settings) :]):
        unused.axis("off")
    for axis, num_clients in zip(upper, counts, strict=False):
        _draw_errors(axis, errors[errors["num_clients"] == num_clients])
        axis.set_title(f"{num_clients} clients, exact")
    for axis, ((task, num_clients), table) in zip(lower, settings, strict=False):
        _draw_accuracies(axis, table)
        axis.set_title(f"{task}, {num_clients} clients")
    upper[0].set_ylabel("error of the mean update,\ntimes the central Gaussian's")
    upper[len(counts)].legend(*upper[0].get_legend_handles_labels(), loc="center left")
    lower[0].set_ylabel("test accuracy, %, 95 % over seeds")
    figure.tight_layout()
    return figure


def _draw_errors(axis: Any, errors: pd.DataFrame) -> None:
    epsilons = sorted(errors["run_epsilon"].unique())
    axis.axhline(1.0, color=colour_of(CENTRAL), linestyle="--", label=LABELS[CENTRAL])
    for mechanism in PEERS:
        rows = errors[errors["mechanism"] == mechanism].sort_values("run_epsilon")
        axis.plot(
            rows["run_epsilon"],
            rows["ratio_to_central"],
            marker="o",
            color=colour_of(mechanism),
            label=LABELS[mechanism],
        )
    axis.set(xlabel=_HEADING, xscale="log")
    axis.set_xticks(epsilons, [f"{value:g}" for value in epsilons])
    axis.minorticks_off()


def _draw_accuracies(axis: Any, table: pd.DataFrame) -> None:
    epsilons = sorted(table["run_epsilon"].unique())
    width = 0.8 / (1 + len(PEERS))
    for place, mechanism in enumerate((CENTRAL, *PEERS)):
        rows = table[table["mechanism"] == mechanism].sort_values("run_epsilon")
        at = np.array([epsilons.index(epsilon) for epsilon in rows["run_epsilon"]]) + (place - 2) * width
        half = 100 * (rows["accuracy_high"] - rows["accuracy_low"]) / 2
        axis.bar(at, 100 * rows["accuracy"], width, yerr=half, color=colour_of(mechanism), capsize=2)
    axis.set_xticks(range(len(epsilons)), [f"{value:g}" for value in epsilons])
    axis.grid(visible=False, axis="x")
    axis.set(xlabel=_HEADING, ylim=(max(0.0, 100 * float(table["accuracy_low"].min()) - 3.0), None))


def _local_training(read: ReadTable) -> Any:
    """Accuracy and error of local training at an equal budget for the whole run."""
    figure, axes = pyplot().subplots(2, 2, figsize=(9.0, 6.0), sharex=True, layout="constrained")
    for column, task in enumerate(("digits", "mnist")):
        table = read(f"equal-budget-{task}")
        top, bottom = axes[:, column]
        for place, (mechanism, rows) in enumerate(table.groupby("mechanism", sort=False)):
            rows = rows.sort_values("run_epsilon")
            x = rows.run_epsilon * 1.03**place
            draw_curve(top, x, rows, "accuracy", str(mechanism))
            draw_curve(bottom, x, rows, "mean_squared_error", str(mechanism))
        values = sorted(set(table.run_epsilon))
        top.set(title={"digits": "digits, 650 coordinates", "mnist": "MNIST, 7850 coordinates"}[task])
        bottom.set(
            yscale="log", xscale="log", xlabel=PrivacyStatement.heading(Unit.TOTAL, "aggregate of 100")
        )
        bottom.set(xticks=values, xticklabels=[f"{value:g}" for value in values])
        bottom.minorticks_off()
    axes[0, 0].set_ylabel(INTERVAL)
    axes[1, 0].set_ylabel(ERROR)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


FIGURES = (
    Figure("secure-sum", _secure_sum, ("secure_sum", "gradients-digits")),
    Figure("local-training", _local_training, ("equal-budget-digits", "equal-budget-mnist")),
)
"""Each figure of the page."""
