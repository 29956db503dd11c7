"""The figures of the study, drawn from its tables alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from scipy.stats import t as student

from fl_privquant.cli.plots import colour_of, pyplot
from fl_privquant.statement import PrivacyStatement, StatedView, Unit, ViewKind
from simulations.config import CENTRAL
from simulations.studies.drawing import look_of
from simulations.studies.equal_budget.numbers import GRADIENTS, LABELS, series_of
from simulations.studies.equal_budget.planned_errors import ALLOWED, PEERS, ROUNDS
from simulations.studies.page import TASKS, table_or_none
from simulations.studies.study import Figure, ReadTable

# This figure is also the first that a reader sees: large text, and hatches that repeat what colours say.
_LARGE = {"font.size": 14, "hatch.linewidth": 1.4}
_PER_CENT = round(100.0 * (ALLOWED - 1.0), 6)
_HATCHES = ("", "//", "..", "\\\\", "xx")

_HEADING = PrivacyStatement.heading(Unit.TOTAL, StatedView(ViewKind.AGGREGATE))


def _secure_sum(read: ReadTable) -> Any:
    """Bits that a client sends for a coordinate at an equal error and epsilon: bars that begin at zero."""
    rows = read("equal_error")
    counts = sorted(rows["num_clients"].unique())
    plt = pyplot()
    with plt.rc_context(_LARGE):
        figure, axes = plt.subplots(
            1, len(counts), figsize=(5.2 * len(counts), 4.6), sharey=True, layout="constrained"
        )
        for axis, num_clients in zip(axes, counts, strict=True):
            _draw_bits(axis, rows[rows["num_clients"] == num_clients])
            axis.set_title(f"{num_clients} clients in the sum", fontsize=15)
        # Both panels share an axis, on which bars begin at zero.
        axes[0].set_ylim(0.0, 1.15 * rows["bits_in_sum"].max())
        axes[0].yaxis.get_major_locator().set_params(integer=True, nbins=5)
        axes[0].set_ylabel("bits that a client sends\nfor one coordinate")
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4 if len(PEERS) <= 4 else 3)
        figure.suptitle(
            f"At most {_PER_CENT:g} % more error than with a trusted server, at the same ε", fontsize=16
        )
    return figure


def _draw_bits(axis: Any, rows: pd.DataFrame) -> None:
    epsilons = sorted(rows["run_epsilon"].unique())
    width = 0.84 / len(PEERS)
    for place, mechanism in enumerate(PEERS):
        own = rows[rows["mechanism"] == mechanism].sort_values("run_epsilon")
        at = [epsilons.index(value) + (place - (len(PEERS) - 1) / 2) * width for value in own["run_epsilon"]]
        hatched = {"hatch": _HATCHES[place], "edgecolor": "white", "linewidth": 0.0}
        colour, label = colour_of(mechanism), LABELS[mechanism]
        bars = axis.bar(at, own["bits_in_sum"], width=0.94 * width, color=colour, label=label, **hatched)
        axis.bar_label(bars, padding=1, fontsize=13)
    axis.set_xticks(range(len(epsilons)), [f"{value:g}" for value in epsilons])
    axis.set_xlabel(f"ε for all {ROUNDS} rounds of a client")
    axis.grid(visible=False, axis="x")


def _gradients(read: ReadTable) -> Any:
    """Accuracies of training by gradients, and what is lost to the central Gaussian, paired by seed."""
    tables = [table for name in GRADIENTS if (table := table_or_none(read, name)) is not None]
    figure, axes = pyplot().subplots(
        2, len(tables), figsize=(1.5 + 3.0 * len(tables), 6.0), squeeze=False, layout="constrained"
    )
    for (top, bottom), table in zip(axes.T, tables, strict=True):
        first = next(table.itertuples())
        top.set_title(f"{TASKS[first.task]}, {first.num_clients} clients, {first.rounds} rounds")
        bottom.axhline(0.0, color=colour_of(CENTRAL), linestyle="--", linewidth=1.0)
        _draw_training(top, bottom, table)
    axes[0, 0].set_ylabel("test accuracy, %, 95 % over seeds")
    axes[1, 0].set_ylabel("points of accuracy lost, paired by seed:\none standard error (thick), 95 % (thin)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_training(top: Any, bottom: Any, table: pd.DataFrame) -> None:
    epsilons = sorted(table["run_epsilon"].unique())
    kinds = table[["mechanism", "bits"]].drop_duplicates().sort_values("bits", na_position="first")
    width = 0.8 / len(kinds)
    for place, (mechanism, bits) in enumerate(kinds.itertuples(index=False)):
        same = table["bits"].isna() if np.isnan(bits) else table["bits"].eq(bits)
        rows = table[table["mechanism"].eq(mechanism) & same].sort_values("run_epsilon")
        at = np.array([epsilons.index(epsilon) for epsilon in rows["run_epsilon"]])
        at = at + (place - (len(kinds) - 1) / 2) * width
        face = colour_of(mechanism) if np.isnan(bits) else _shade(mechanism, bits)
        look = look_of(mechanism) | {"markerfacecolor": face, "markersize": 5, "linestyle": ""}
        half = 100.0 * (rows["accuracy_high"] - rows["accuracy_low"]) / 2
        label = series_of(mechanism, bits)
        top.errorbar(at, 100.0 * rows["accuracy"], yerr=half, capsize=2, label=label, **look)
        if mechanism == CENTRAL:
            continue
        lost, error = 100.0 * rows["accuracy_lost"], 100.0 * rows["accuracy_lost_error"]
        student_half = error * student.ppf(0.975, rows["seeds"] - 1)
        bottom.errorbar(at, lost, yerr=student_half, elinewidth=0.8, capsize=2, **look)
        bottom.errorbar(at, lost, yerr=error, elinewidth=2.6, **look)
    for axis in (top, bottom):
        axis.set_xticks(range(len(epsilons)), [f"{value:g}" for value in epsilons])
        axis.set_xlim(-0.5, len(epsilons) - 0.5)
        axis.grid(visible=False, axis="x")
    bottom.set_xlabel(_HEADING)


def _shade(mechanism: str, bits: float) -> Any:
    """White for one bit, and the mechanism's colour for five or more."""
    full = min((bits - 1.0) / 4.0, 1.0)
    return tuple(1.0 - full * (1.0 - part) for part in to_rgb(colour_of(mechanism)))


FIGURES = (
    Figure("secure-sum", _secure_sum, ("equal_error",)),
    Figure("gradients", _gradients, (GRADIENTS[0],)),
)
"""Each figure of the page."""
