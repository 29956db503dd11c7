"""The figure of the study, drawn from its tables alone."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fl_privquant.cli.plots import colour_of, pyplot
from fl_privquant.statement import PrivacyStatement, StatedView, Unit, ViewKind
from simulations.studies.study import Figure, ReadTable
from simulations.studies.sum_grid.grid import CLIENTS, DELTA, DIMENSIONS, EPSILONS, OURS, PEERS, grid_name
from simulations.studies.sum_grid.numbers import computed_cells

_STYLES = {1.0: ":", 4.0: "--", 10.0: "-"}
_UNIT = "client total, aggregate view"


def _errors(read: ReadTable) -> Any:
    """Errors against bits: a row of panels for each number of coordinates, a column for each of clients."""
    cells = computed_cells(read)
    sizes = (len(DIMENSIONS), len(CLIENTS))
    figure, axes = pyplot().subplots(
        *sizes, figsize=(11.0, 7.6), sharex=True, sharey=True, layout="constrained"
    )
    for row, dimension in zip(axes, DIMENSIONS, strict=True):
        for axis, num_clients in zip(row, CLIENTS, strict=True):
            here = cells[(cells["dimension"] == dimension) & (cells["num_clients"] == num_clients)]
            _draw(axis, here)
            axis.set_title(f"{dimension:,} coordinates, {num_clients:,} clients")
    for axis in axes[-1]:
        axis.set_xlabel("bits that a client sends for a coordinate")
    for row in axes:
        row[0].set_ylabel("error over the central\nGaussian's, less 1")
    _legend(figure)
    return figure


def _draw(axis: Any, cells: pd.DataFrame) -> None:
    for mechanism in (OURS, *PEERS):
        for run_epsilon in EPSILONS:
            rows = cells[(cells["mechanism"] == mechanism) & (cells["run_epsilon"] == run_epsilon)]
            rows = rows[rows["ratio_to_central"] < 3.0].sort_values("bits_in_sum")
            axis.plot(
                rows["bits_in_sum"],
                rows["ratio_to_central"] - 1.0,
                _STYLES[run_epsilon],
                marker=".",
                color=colour_of(mechanism),
            )
    if cells.empty:
        axis.text(0.5, 0.5, "not computed yet", transform=axis.transAxes, ha="center", color="#777777")
    axis.set(yscale="log", ylim=(1e-4, 2.0), xticks=range(6, 22, 2))


def _legend(figure: Any) -> None:
    lines = pyplot().Line2D
    handles = [lines([], [], color=colour_of(name), marker=".", label=name) for name in (OURS, *PEERS)]
    handles += [
        lines(
            [],
            [],
            color="#777777",
            linestyle=style,
            label=PrivacyStatement(run_epsilon, DELTA, Unit.TOTAL, StatedView(ViewKind.AGGREGATE)).brief,
        )
        for run_epsilon, style in _STYLES.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)


FIGURES = (Figure("errors", _errors, (grid_name(7850, 100),)),)
"""Each figure of the page."""
