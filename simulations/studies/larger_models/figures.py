"""The figures of the study, drawn from its tables alone."""

from __future__ import annotations

from functools import partial
from typing import Any

from fl_privquant.cli.plots import pyplot
from simulations.studies.drawing import INTERVAL, draw_curve
from simulations.studies.larger_models.numbers import BUDGETS, FASHION, SHAKESPEARE, read_setting, with_series
from simulations.studies.study import Figure, ReadTable

__all__ = ["FIGURES"]

_STYLES = ("-", "--", "-.", ":")


def _accuracies(name: str, read: ReadTable) -> Any:
    """Accuracy against the budget, a curve for each mechanism, and a line without privacy."""
    table = read_setting(read, name)
    figure, axis = pyplot().subplots(figsize=(8.0, 3.6), layout="constrained")
    drawn: dict[str, int] = {}
    for place, (series, rows) in enumerate(with_series(table).groupby("series", sort=False)):
        mechanism = rows["mechanism"].iloc[0]
        rows = rows.sort_values("run_epsilon")
        draw_curve(axis, rows["run_epsilon"] * 1.01**place, rows, "accuracy", mechanism)
        line = axis.containers[-1]
        line.set_label(series)
        line.lines[0].set_linestyle(_STYLES[drawn.get(mechanism, 0) % len(_STYLES)])
        drawn[mechanism] = drawn.get(mechanism, 0) + 1
    (none,) = table[table["mechanism"] == "none"].itertuples()
    axis.axhline(none.accuracy, color="#777777", linestyle=":", label="no privacy, no clip")
    budgets = sorted(table["run_epsilon"].dropna().unique())
    axis.set(xscale="log", xticks=budgets, xticklabels=[f"{value:g}" for value in budgets])
    axis.minorticks_off()
    axis.set(xlabel="ε (client total, aggregate view of all clients)", ylabel=INTERVAL)
    figure.legend(loc="outside right center", fontsize=8)
    return figure


FIGURES = tuple(
    Figure(name, partial(_accuracies, name), (f"{name}-{BUDGETS[0]}",)) for name in (FASHION, SHAKESPEARE)
)
"""Each figure of the page."""
