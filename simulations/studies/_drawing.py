"""Common code of the figures of studies: means over seeds with intervals, and words on axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fl_privquant.plotting import COLORS, color_of


def look_of(mechanism: str) -> dict[str, Any]:
    """Color and marker of a mechanism, as matplotlib takes them."""
    place = list(COLORS).index(mechanism) if mechanism in COLORS else 0
    return {"color": color_of(mechanism), "marker": "osD^vpP*X<>hd8"[place % 14]}


def label_values(axis: Any, values: Iterable[float], logarithmic: bool = True) -> None:
    """Label the horizontal axis at these values alone."""
    ticks = sorted(values)
    if logarithmic:
        axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axis.minorticks_off()
