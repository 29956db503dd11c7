"""The figures of the studies, drawn from their tables alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.cli.plots import colour_of, pyplot, save
from simulations.federated.collect import read_table, table_or_none
from simulations.report.marks import mark_of

__all__ = ["DRAWN", "FIGURES", "draw"]

FIGURES = Path(__file__).parent / "figures"
"""Where the committed figures are."""

_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#777777",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": 9,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
}
# A narrower axis would make a sight of what is chance.
_LEAST_SPAN = 0.02
_ERROR = "mean squared error of the decoded mean,\na coordinate and round"
_INTERVAL = "test accuracy, 95 % over seeds"

Tables = Callable[[str], pd.DataFrame]


def draw(name: str, folder: Path = FIGURES, tables: Tables = read_table) -> Path:
    """Draw one figure of :data:`DRAWN`; its path."""
    drawer, _ = DRAWN[name]
    plt = pyplot()
    with plt.rc_context(_STYLE):
        return save(drawer(plt, tables), folder / f"{name}.png")


def _mechanisms(plt: Any, tables: Tables) -> Any:
    """Accuracy and error of every mechanism, the smallest error on top."""
    parts = [table_or_none(tables, name) for name in ("mechanisms-digits", "vectors-digits")]
    table = pd.concat([part for part in parts if part is not None])
    table = table.sort_values("mean_squared_error", ascending=False).reset_index(drop=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 6.2), sharey=True, layout="constrained")
    names = []
    for place, row in table.iterrows():
        colour = colour_of(row.mechanism)
        marker = mark_of(row.mechanism).marker
        _point(left, row, "accuracy", place, colour, marker)
        right.plot(row.mean_squared_error, place, marker=marker, color=colour, linestyle="")
        names.append(_with_privacy(row))
    left.set(yticks=range(len(names)), yticklabels=names, xlabel=_INTERVAL)
    right.set(xscale="log", xlabel=_ERROR)
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


def _epsilon(plt: Any, tables: Tables) -> Any:
    """Accuracy and error against the epsilon of a coordinate."""
    table = tables("epsilon-mnist")
    return _two_panels(plt, table, "epsilon", PrivacyStatement.heading(Unit.COORDINATE), True)


def _bits(plt: Any, tables: Tables) -> Any:
    """Accuracy and error against the bits of a coordinate."""
    table = tables("bits-mnist")
    # What was asked for: sizes on the wire also hold a header.
    table = table.assign(bits=np.round(table.bits_per_coordinate))
    brief = PrivacyStatement(float(table.epsilon.max().round(6)), 0.0, Unit.COORDINATE).brief
    return _two_panels(plt, table, "bits", f"bits a coordinate, {brief}", False)


def _two_panels(plt: Any, table: pd.DataFrame, column: str, label: str, logarithmic: bool) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
    private = table[np.isfinite(table.epsilon)]
    for place, (mechanism, rows) in enumerate(private.groupby("mechanism", sort=False)):
        rows = rows.sort_values(column)
        # A small shift keeps intervals of nearly equal curves apart.
        x = rows[column] * 1.04**place if logarithmic else rows[column] + 0.03 * place
        _curve(left, x, rows, "accuracy", str(mechanism))
        _curve(right, x, rows, "mean_squared_error", str(mechanism))
        right.plot(x, rows.noise_error, ":", color=colour_of(str(mechanism)))
    left.plot([], [], ":", color="#777777", label="noise alone,\nexact (right)")
    for row in table[~np.isfinite(table.epsilon)].itertuples():
        left.axhline(
            row.accuracy, color=colour_of(row.mechanism), linestyle="--", label="no privacy, no clip"
        )
    values = sorted(set(private[column].round(3)))
    for axis in (left, right):
        if logarithmic:
            axis.set_xscale("log")
        axis.set(xticks=values, xticklabels=[f"{value:g}" for value in values])
        axis.minorticks_off()
    figure.supxlabel(label, fontsize=9)
    left.set_ylabel(_INTERVAL)
    middle, half = np.mean(left.get_ylim()), max(np.ptp(left.get_ylim()) / 2, _LEAST_SPAN / 2)
    left.set_ylim(middle - half, middle + half)
    right.set(yscale="log", ylabel=_ERROR)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    return figure


def _settings(plt: Any, tables: Tables) -> Any:
    """Accuracy by task, model and partition."""
    names = {
        "digits\nsoftmax, IID": "mechanisms-digits",
        "digits\nsoftmax, Dirichlet 0.3": "partition-digits",
        "digits\nCNN, IID": "cnn-digits",
        "MNIST\nsoftmax, IID": "epsilon-mnist",
        "MNIST\nsoftmax, Dirichlet 0.3": "partition-mnist",
        "MNIST\nCNN, IID": "cnn-mnist",
    }
    found = {label: table_or_none(tables, name) for label, name in names.items()}
    shown = {label: _centre(table) for label, table in found.items() if table is not None}
    figure, axis = plt.subplots(figsize=(9.0, 3.6), layout="constrained")
    for shift, mechanism in enumerate(("none", "optm")):
        for place, table in enumerate(shown.values()):
            (row,) = table[table.mechanism == mechanism].itertuples()
            at = place + 0.2 * (shift - 0.5)
            _point(axis, row, "accuracy", at, colour_of(mechanism), mark_of(mechanism).marker, upright=True)
        axis.plot([], [], color=colour_of(mechanism), marker=mark_of(mechanism).marker, label=mechanism)
    axis.set(xticks=range(len(shown)), xticklabels=shown, ylabel=_INTERVAL)
    figure.legend(loc="outside right center")
    return figure


def _centre(table: pd.DataFrame) -> pd.DataFrame:
    """Of a sweep over epsilon, its centre."""
    several = table[table.mechanism == "optm"].shape[0] > 1
    return (
        table[np.isclose(table.epsilon, 2.0, rtol=1e-3) | ~np.isfinite(table.epsilon)] if several else table
    )


def _budget(plt: Any, tables: Tables) -> Any:
    """Accuracy and error at an equal budget for the whole run."""
    figure, axes = plt.subplots(2, 2, figsize=(9.0, 6.0), sharex=True, layout="constrained")
    for column, task in enumerate(("digits", "mnist")):
        table = tables(f"equal-budget-{task}")
        top, bottom = axes[:, column]
        for place, (mechanism, rows) in enumerate(table.groupby("mechanism", sort=False)):
            rows = rows.sort_values("run_epsilon")
            x = rows.run_epsilon * 1.03**place
            _curve(top, x, rows, "accuracy", str(mechanism))
            _curve(bottom, x, rows, "mean_squared_error", str(mechanism))
        values = sorted(set(table.run_epsilon))
        top.set(title={"digits": "digits, 650 coordinates", "mnist": "MNIST, 7850 coordinates"}[task])
        bottom.set(
            yscale="log", xscale="log", xlabel=PrivacyStatement.heading(Unit.TOTAL, "aggregate of 100")
        )
        bottom.set(xticks=values, xticklabels=[f"{value:g}" for value in values])
        bottom.minorticks_off()
    axes[0, 0].set_ylabel(_INTERVAL)
    axes[1, 0].set_ylabel(_ERROR)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


def _curve(axis: Any, x: Any, rows: pd.DataFrame, column: str, mechanism: str) -> None:
    mean = rows[column].to_numpy()
    spread = np.abs(np.stack([rows[f"{column}_low"], rows[f"{column}_high"]]) - mean)
    mark = mark_of(mechanism)
    axis.errorbar(
        x,
        mean,
        yerr=np.nan_to_num(spread),
        color=colour_of(mechanism),
        marker=mark.marker,
        markersize=4.5,
        linewidth=1.3,
        capsize=2,
        label=mechanism,
    )


def _point(
    axis: Any, row: Any, column: str, place: Any, colour: str, marker: str, upright: bool = False
) -> None:
    mean, low, high = (getattr(row, f"{column}{end}") for end in ("", "_low", "_high"))
    spread = np.nan_to_num(np.abs(np.array([[mean - low], [high - mean]])))
    where = {"x": place, "y": mean, "yerr": spread} if upright else {"x": mean, "y": place, "xerr": spread}
    axis.errorbar(**where, color=colour, marker=marker, markersize=5, capsize=2, linestyle="")


DRAWN: Mapping[str, tuple[Callable[[Any, Tables], Any], tuple[str, ...]]] = {
    "mechanisms": (_mechanisms, ("mechanisms-digits",)),
    "epsilon": (_epsilon, ("epsilon-mnist",)),
    "bits": (_bits, ("bits-mnist",)),
    "settings": (_settings, ("mechanisms-digits", "epsilon-mnist")),
    "equal-budget": (_budget, ("equal-budget-digits", "equal-budget-mnist")),
}
"""Each figure: what draws it, and the tables that it cannot do without."""
