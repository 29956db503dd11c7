"""The figure of the study, drawn from its tables alone."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from fl_privquant.cli.plots import colour_of, pyplot
from simulations.config import CENTRAL
from simulations.studies.drawing import draw_curve, look_of
from simulations.studies.page import TASKS, table_or_none
from simulations.studies.payload.sizes import ERRORS, MECHANISMS
from simulations.studies.study import Figure, ReadTable

_FLOATS = "central Gaussian (32-bit floats, trusted server)"


def _who_needs_how_many_bytes(read: ReadTable) -> Any:
    """Above, errors against kilobytes, planned and measured; below, accuracies against kilobytes."""
    trained = {task: table_or_none(read, f"payload-{task}") for task in TASKS}
    tables = {task: table for task, table in trained.items() if table is not None}
    cells = read(ERRORS)
    dimensions = sorted(cells["dimension"].unique())
    plt = pyplot()
    figure = plt.figure(figsize=(11.0, 8.4 if tables else 4.4), layout="constrained")
    rows = figure.subfigures(2 if tables else 1, 1, squeeze=False)[:, 0]
    upper = rows[0].subplots(1, len(dimensions), squeeze=False)[0]
    for axis, dimension in zip(upper, dimensions, strict=True):
        _draw_errors(axis, cells[cells["dimension"] == dimension])
        axis.set_title(f"error of the mean, {dimension:,} coordinates")
    upper[0].set_ylabel("squared error over the central Gaussian's\nlines planned, marks measured")
    if tables:
        lower = rows[1].subplots(1, len(tables), squeeze=False)[0]
        for axis, (task, table) in zip(lower, tables.items(), strict=True):
            _draw_accuracies(axis, table)
            size = int(table["kept"].max())
            axis.set_title(f"accuracy, {TASKS[task]}, {size:,} coordinates")
        lower[0].set_ylabel("test accuracy, 95 % over seeds")
    handles, labels = upper[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def _draw_errors(axis: Any, cells: pd.DataFrame) -> None:
    for mechanism in MECHANISMS:
        sizes = cells[cells["mechanism"] == mechanism].sort_values("kilobytes")
        # The two kinds of integer noise have the same plans: one is drawn inside the other.
        size = 4.0 if mechanism == MECHANISMS[-1] else 7.0
        look = {"linestyle": "", "markersize": size, "capsize": 2, **look_of(mechanism)}
        label = f"{mechanism} (± 2 standard errors)"
        axis.plot(sizes["kilobytes"], sizes["predicted"], color=colour_of(mechanism), linewidth=1.2)
        axis.errorbar(sizes["kilobytes"], sizes["measured"], 2.0 * sizes["error"], label=label, **look)
    axis.axhline(1.0, color=colour_of(CENTRAL), linestyle=":", label=_FLOATS)
    _in_kilobytes(axis)


def _draw_accuracies(axis: Any, table: pd.DataFrame) -> None:
    for mechanism in MECHANISMS:
        rows = table[table["mechanism"] == mechanism].sort_values("kilobytes")
        draw_curve(axis, rows["kilobytes"], rows, "accuracy", mechanism)
    central = table[table["mechanism"] == CENTRAL]
    axis.axhline(float(central["accuracy"].iloc[0]), color=colour_of(CENTRAL), linestyle=":")
    draw_curve(axis, central["kilobytes"], central, "accuracy", CENTRAL)
    _in_kilobytes(axis)


def _in_kilobytes(axis: Any) -> None:
    """A logarithmic axis with sizes in plain figures."""
    axis.set(xscale="log", xlabel="kB a client and round")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.xaxis.set_minor_locator(NullLocator())


FIGURES = (Figure("payload", _who_needs_how_many_bytes, (ERRORS,)),)
"""Each figure of the page."""
