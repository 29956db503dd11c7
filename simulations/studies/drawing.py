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


def look_of(mechanism: str) -> dict[str, Any]:
    """Colour and marker of a mechanism, as matplotlib takes them."""
    return {"color": colour_of(mechanism), "marker": mark_of(mechanism).marker}


def draw_curve(axis: Any, x: Any, rows: pd.DataFrame, column: str, mechanism: str) -> None:
    """Draw the means of a column against x, with their 95 % intervals."""
    mean = rows[column].to_numpy()
    spread = np.nan_to_num(np.abs(np.stack([rows[f"{column}_low"], rows[f"{column}_high"]]) - mean))
    look = look_of(mechanism)
    axis.errorbar(x, mean, yerr=spread, markersize=4.5, linewidth=1.3, capsize=2, label=mechanism, **look)


def draw_point(axis: Any, row: Any, place: float, upright: bool = False) -> None:
    """Draw the mean accuracy of a row with its 95 % interval; ``place`` is the position on the other axis."""
    spread = [[row.accuracy - row.accuracy_low], [row.accuracy_high - row.accuracy]]
    error = np.nan_to_num(np.abs(np.array(spread)))
    where = (
        {"x": place, "y": row.accuracy, "yerr": error}
        if upright
        else {"x": row.accuracy, "y": place, "xerr": error}
    )
    axis.errorbar(**where, markersize=5, capsize=2, linestyle="", **look_of(row.mechanism))


def label_values(axis: Any, values: Iterable[float], logarithmic: bool = True) -> None:
    """Label the horizontal axis at these values alone."""
    ticks = sorted(values)
    if logarithmic:
        axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axis.minorticks_off()
