"""The figure of the study, drawn from its tables alone."""

from __future__ import annotations

from typing import Any

from fl_privquant.cli.plots import colour_of, pyplot
from simulations.studies.payload.sizes import ERRORS
from simulations.studies.study import Figure, ReadTable


def _errors(read: ReadTable) -> Any:
    """Errors against kilobytes, a panel for each number of coordinates: lines are planned, marks measured."""
    cells = read(ERRORS)
    dimensions = sorted(cells["dimension"].unique())
    figure, axes = pyplot().subplots(
        1, len(dimensions), figsize=(10.0, 4.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, dimension in zip(axes[0], dimensions, strict=True):
        here = cells[cells["dimension"] == dimension]
        for mechanism, rows in here.groupby("mechanism"):
            sizes = rows.sort_values("kilobytes")
            colour = colour_of(str(mechanism))
            axis.plot(
                sizes["kilobytes"], sizes["predicted"], "-", color=colour, label=f"{mechanism}, planned"
            )
            axis.errorbar(
                sizes["kilobytes"],
                sizes["measured"],
                2.0 * sizes["error"],
                fmt="o",
                color=colour,
                capsize=3,
                label=f"{mechanism}, measured ± 2 standard errors",
            )
        axis.axhline(1.0, color="#777777", linestyle=":", label="central Gaussian (float, trusted server)")
        clients = int(here["num_clients"].iloc[0])
        axis.set(xscale="log", xlabel="kB a client and round")
        axis.set_title(f"{dimension:,} coordinates, {clients} clients")
    axes[0][0].set_ylabel("squared error over the central Gaussian's")
    axes[0][-1].legend(fontsize=8)
    return figure


FIGURES = (Figure("errors", _errors, (ERRORS,)),)
"""Each figure of the page."""
