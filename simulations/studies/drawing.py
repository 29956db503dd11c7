"""Common code of the figures of studies: means over seeds with intervals, and words on axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from fl_privquant.cli.plots import colour_of
from simulations.report.marks import mark_of

ERROR = "mean squared error of the decoded mean,\na coordinate and round"
INTERVAL = "test accuracy, 95 % over seeds"


def draw_curve(axis: Any, x: Any, rows: pd.DataFrame, column: str, mechanism: str) -> None:
    """Draw the means of a column against x, with their 95 % intervals."""
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


def draw_point(
    axis: Any, row: Any, column: str, place: Any, colour: str, marker: str, upright: bool = False
) -> None:
    """Draw the mean of one row with its 95 % interval; ``place`` is the position on the other axis."""
    mean, low, high = (getattr(row, f"{column}{end}") for end in ("", "_low", "_high"))
    spread = np.nan_to_num(np.abs(np.array([[mean - low], [high - mean]])))
    where = {"x": place, "y": mean, "yerr": spread} if upright else {"x": mean, "y": place, "xerr": spread}
    axis.errorbar(**where, color=colour, marker=marker, markersize=5, capsize=2, linestyle="")


def label_values(axis: Any, values: Iterable[float], logarithmic: bool = True) -> None:
    """Label the horizontal axis at these values alone."""
    ticks = sorted(values)
    if logarithmic:
        axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axis.minorticks_off()
