"""The figures of the study, drawn from its tables alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.cli.plots import colour_of, pyplot
from simulations.studies.drawing import ERROR, INTERVAL, draw_curve, draw_point, label_values, look_of
from simulations.studies.page import together
from simulations.studies.side_by_side.numbers import Numbers
from simulations.studies.study import Figure, ReadTable

# A narrower axis would make differences that are due to chance look large.
_LEAST_SPAN = 0.02


def _mechanisms(read: ReadTable) -> Any:
    """Accuracy and error of every mechanism, the smallest error on top."""
    table = together(read, ["mechanisms-digits", "vectors-digits"])
    table = table.sort_values("mean_squared_error", ascending=False, ignore_index=True)
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(9.0, 6.2), sharey=True, layout="constrained")
    names = []
    for place, row in table.iterrows():
        draw_point(left, row, place)
        right.plot(row.mean_squared_error, place, linestyle="", **look_of(row.mechanism))
        names.append(_with_privacy(row))
    left.set(yticks=range(len(names)), yticklabels=names, xlabel=INTERVAL)
    right.set(xscale="log", xlabel=ERROR)
    unit = PrivacyStatement.heading(Unit.COORDINATE)
    figure.suptitle(f"digits, softmax regression, 100 clients, 15 rounds; {unit} unless said", fontsize=10)
    return figure


def _with_privacy(row: Any) -> str:
    bits = f"{row.mechanism}, {row.bits_per_coordinate:.3g} bits"
    if not np.isfinite(row.epsilon):
        return f"{bits}, not private"
    unit = Unit(row.unit)
    figures = PrivacyStatement(row.epsilon, row.delta, unit).figures
    return f"{bits}, {figures}{'' if unit is Unit.COORDINATE else f' ({unit})'}"


def _epsilon(read: ReadTable) -> Any:
    """Accuracy and error against the epsilon of a coordinate."""
    table = read("epsilon-mnist")
    return _two_panels(table, "epsilon", PrivacyStatement.heading(Unit.COORDINATE), True)


def _bits(read: ReadTable) -> Any:
    """Accuracy and error against the bits of a coordinate."""
    table = read("bits-mnist")
    # What was asked for: sizes on the wire also hold a header.
    table = table.assign(bits=np.round(table.bits_per_coordinate))
    brief = PrivacyStatement(float(table.epsilon.max().round(6)), 0.0, Unit.COORDINATE).brief
    return _two_panels(table, "bits", f"bits a coordinate, {brief}", False)


def _two_panels(table: pd.DataFrame, column: str, label: str, logarithmic: bool) -> Any:
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
    private = table[np.isfinite(table.epsilon)]
    for place, (mechanism, rows) in enumerate(private.groupby("mechanism", sort=False)):
        rows = rows.sort_values(column)
        # A small shift keeps intervals of nearly equal curves apart.
        x = rows[column] * 1.04**place if logarithmic else rows[column] + 0.03 * place
        draw_curve(left, x, rows, "accuracy", str(mechanism))
        draw_curve(right, x, rows, "mean_squared_error", str(mechanism))
        right.plot(x, rows.noise_error, ":", color=colour_of(str(mechanism)))
    left.plot([], [], ":", color="#777777", label="noise alone,\nexact (right)")
    for row in table[~np.isfinite(table.epsilon)].itertuples():
        left.axhline(
            row.accuracy, color=colour_of(row.mechanism), linestyle="--", label="no privacy, no clip"
        )
    for axis in (left, right):
        label_values(axis, set(private[column].round(3)), logarithmic)
    figure.supxlabel(label, fontsize=9)
    left.set_ylabel(INTERVAL)
    middle, half = np.mean(left.get_ylim()), max(np.ptp(left.get_ylim()) / 2, _LEAST_SPAN / 2)
    left.set_ylim(middle - half, middle + half)
    right.set(yscale="log", ylabel=ERROR)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    return figure


def _settings(read: ReadTable) -> Any:
    """Accuracy by task, model and partition."""
    settings = Numbers(read).settings
    figure, axis = pyplot().subplots(figsize=(9.0, 3.6), layout="constrained")
    for shift, mechanism in enumerate(("none", "optm")):
        for place, setting in enumerate(settings):
            draw_point(axis, setting[mechanism], place + 0.2 * (shift - 0.5), upright=True)
        axis.plot([], [], label=mechanism, **look_of(mechanism))
    labels = [setting["label"].replace(", ", "\n", 1) for setting in settings]
    axis.set(xticks=range(len(settings)), xticklabels=labels, ylabel=INTERVAL)
    figure.legend(loc="outside right center")
    return figure


FIGURES = (
    Figure("mechanisms", _mechanisms, ("mechanisms-digits",)),
    Figure("epsilon", _epsilon, ("epsilon-mnist",)),
    Figure("bits", _bits, ("bits-mnist",)),
    Figure("settings", _settings, ("mechanisms-digits", "epsilon-mnist")),
)
"""Each figure of the page."""
