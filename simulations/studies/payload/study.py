"""What a client sends through a secure sum, and which error that leaves."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from fl_privquant.plotting import color_of, import_pyplot
from simulations.runner.config import CENTRAL
from simulations.studies._drawing import look_of
from simulations.studies._pages import ReadTable
from simulations.studies.payload.sizes import ERRORS, MECHANISMS, PARTS

__all__ = ["FIGURES", "PARTS", "page_numbers"]


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """The page names nothing besides the tables."""
    return {}


def _draw_payloads(read: ReadTable) -> Any:
    """Errors against kilobytes, planned and measured."""
    cells = read(ERRORS)
    dimensions = sorted(cells["dimension"].unique())
    figure, panels = import_pyplot().subplots(
        1, len(dimensions), squeeze=False, figsize=(11.0, 4.6), layout="constrained"
    )
    for axis, dimension in zip(panels[0], dimensions, strict=True):
        _draw_errors(axis, cells[cells["dimension"] == dimension])
        axis.set_title(f"error of the mean, {dimension:,} coordinates")
    panels[0][0].set_ylabel("squared error over the central Gaussian's\nlines planned, marks measured")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


_FLOATS = "central Gaussian (32-bit floats, trusted server)"


def _draw_errors(axis: Any, cells: pd.DataFrame) -> None:
    for mechanism in MECHANISMS:
        sizes = cells[cells["mechanism"] == mechanism].sort_values("kilobytes")
        # The two kinds of integer noise have the same plans: one is drawn inside the other.
        size = 4.0 if mechanism == MECHANISMS[-1] else 7.0
        look = {"linestyle": "", "markersize": size, "capsize": 2, **look_of(mechanism)}
        label = f"{mechanism} (± 2 standard errors)"
        axis.plot(sizes["kilobytes"], sizes["predicted"], color=color_of(mechanism), linewidth=1.2)
        axis.errorbar(sizes["kilobytes"], sizes["measured"], 2.0 * sizes["error"], label=label, **look)
    axis.axhline(1.0, color=color_of(CENTRAL), linestyle=":", label=_FLOATS)
    _use_kilobyte_axis(axis)


def _use_kilobyte_axis(axis: Any) -> None:
    """A logarithmic axis with sizes in plain figures."""
    axis.set(xscale="log", xlabel="kB a client and round")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.xaxis.set_minor_locator(NullLocator())


FIGURES = {"payload": _draw_payloads}
"""By name, the functions that draw the figures of the page."""
