"""The figures of the study, drawn from its tables alone."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fl_privquant.cli.plots import pyplot
from simulations.studies.drawing import INTERVAL, draw_curve
from simulations.studies.larger_models.numbers import BUDGETS, FASHION, SHAKESPEARE, read_setting, with_series
from simulations.studies.page import table_or_none
from simulations.studies.study import Figure, ReadTable

__all__ = ["FIGURES"]

_STYLES = ("-", "--", "-.", ":")


def _accuracies(read: ReadTable) -> Any:
    """A panel for each setting that was computed."""
    settings = [
        name for name in (FASHION, SHAKESPEARE) if table_or_none(read, f"{name}-{BUDGETS[0]}") is not None
    ]
    figure, axes = pyplot().subplots(
        1, len(settings), figsize=(3.5 + 4.5 * len(settings), 3.6), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes[0], settings, strict=True):
        _draw_setting(axis, read_setting(read, name))
        axis.set_title(name)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def _draw_setting(axis: Any, table: pd.DataFrame) -> None:
    """Accuracy against the budget, a curve for each mechanism, and a line without privacy."""
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


FIGURES = (Figure("accuracies", _accuracies, (f"{FASHION}-{BUDGETS[0]}",)),)
"""Each figure of the page."""
