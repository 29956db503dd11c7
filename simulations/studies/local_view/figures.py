"""The figure of the study, drawn from its tables alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.cli.plots import colour_of, pyplot
from simulations.studies.drawing import INTERVAL, draw_curve, label_values
from simulations.studies.local_view.numbers import EPSILONS, MECHANISMS, TABLES
from simulations.studies.page import TASKS
from simulations.studies.study import Figure, ReadTable


def _accuracy(read: ReadTable) -> Any:
    """Accuracy against the epsilon of an update and round: a panel for each task."""
    figure, axes = pyplot().subplots(1, len(TABLES), figsize=(10.0, 3.6), sharey=True, layout="constrained")
    for axis, table in zip(axes, map(read, TABLES), strict=True):
        for place, mechanism in enumerate(MECHANISMS):
            rows = table[table["mechanism"] == mechanism].sort_values("epsilon")
            # A small shift keeps intervals of nearly equal curves apart.
            draw_curve(axis, rows["epsilon"] * 1.02**place, rows, "accuracy", mechanism)
        (none,) = table[~np.isfinite(table["epsilon"])].itertuples()
        axis.axhline(none.accuracy, color=colour_of("none"), linestyle="--", label="no privacy, same clip")
        axis.set_title(f"{TASKS[none.task]}, {int(none.dimension)} coordinates")
        label_values(axis, EPSILONS)
    axes[0].set_ylabel(INTERVAL)
    figure.supxlabel(PrivacyStatement.heading(Unit.ROUND), fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


FIGURES = (Figure("accuracy", _accuracy, TABLES),)
"""Each figure of the page."""
