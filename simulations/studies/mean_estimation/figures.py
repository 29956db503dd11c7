"""The figures of the study, drawn from its tables alone."""

from __future__ import annotations

from typing import Any

from fl_privquant.cli.plots import colour_of, pyplot
from simulations.studies.drawing import label_values, look_of
from simulations.studies.mean_estimation.local import DIMENSIONS, EPSILONS, FLOORS, PRIVATE, local_name
from simulations.studies.mean_estimation.numbers import local_rows, secure_rows
from simulations.studies.mean_estimation.ranked_rounding import CORRELATED
from simulations.studies.mean_estimation.secure import central_error, secure_name
from simulations.studies.study import Figure, ReadTable

_CLIENTS, _EPSILON = 1000, 4.0


def _local(read: ReadTable) -> Any:
    """Errors over the bound against epsilon: a panel for each number of coordinates."""
    rows = local_rows(read)
    rows = rows[rows["data"] == "sphere"]
    figure, axes = pyplot().subplots(
        1, len(DIMENSIONS), figsize=(11.0, 4.2), sharey=True, layout="constrained"
    )
    for axis, dimension in zip(axes, DIMENSIONS, strict=True):
        for name in PRIVATE:
            own = rows[(rows["dimension"] == dimension) & (rows["mechanism"] == name)]
            own = own.sort_values("round_epsilon")
            bound = own["error"] / own["ratio_to_bound"]
            axis.plot(own["round_epsilon"], own["ratio_to_bound"], color=colour_of(name), linewidth=1.3)
            drawn, error = own["drawn"] / bound, 2.0 * own["drawn_standard_error"] / bound
            look = {"markersize": 4.5, "linestyle": "", "capsize": 2, **look_of(name)}
            axis.errorbar(own["round_epsilon"], drawn, yerr=error, label=name, **look)
        axis.set(yscale="log", ylim=(0.9, 200.0), title=f"{dimension:,} coordinates, unit vectors")
        label_values(axis, EPSILONS)
        axis.axhline(1.0, color="#777777", linewidth=0.8)
        axis.set_xlabel("ε of an update and round, local view")
    axes[0].set_ylabel("squared error over the lower bound")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(PRIVATE))
    return figure


def _bits(read: ReadTable) -> Any:
    """Errors of the mean against bits of a client, both views and without privacy; a panel for each size."""
    rows, sums = local_rows(read), secure_rows(read)
    rows = rows[(rows["data"] == "sphere")]
    figure, axes = pyplot().subplots(1, len(DIMENSIONS), figsize=(11.0, 4.6), layout="constrained")
    for axis, dimension in zip(axes, DIMENSIONS, strict=True):
        here = rows[rows["dimension"] == dimension]
        # The bias of top_k does not fall with the number of clients.
        for name in (*PRIVATE, *(floor for floor in FLOORS if floor != "top_k")):
            own = here[(here["mechanism"] == name)]
            own = own[own["round_epsilon"].isin([_EPSILON, float("inf")])]
            look = look_of(name) | ({} if name in PRIVATE else {"marker": "x"})
            axis.plot(own["bits"], own["error"] / _CLIENTS, linestyle="", label=name, **look)
        ranked = read(CORRELATED)
        ranked = ranked[(ranked["data"] == "sphere") & (ranked["dimension"] == dimension)]
        ranked = ranked[ranked["num_clients"] == _CLIENTS]
        colour = colour_of(CORRELATED)
        axis.plot(ranked["bits"], ranked["error"], color=colour, marker="x", linestyle="", label=CORRELATED)
        summed = sums[(sums["dimension"] == dimension) & (sums["round_epsilon"] == _EPSILON)]
        for name, own in summed[summed["num_clients"] == _CLIENTS].groupby("mechanism"):
            look = {"color": colour_of(str(name)), "marker": "s", "markersize": 4, "linestyle": ":"}
            axis.plot(own["bits_in_sum"] * dimension, own["error"], label=f"{name}, secure sum", **look)
        central = central_error(_CLIENTS, dimension, _EPSILON)
        axis.axhline(central, color="#777777", linestyle="--", linewidth=0.8)
        axis.set(xscale="log", yscale="log", title=f"{dimension:,} coordinates")
        axis.set_xlabel("bits of a client's message")
    axes[0].set_ylabel(f"squared error of the mean of {_CLIENTS:,} clients")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return figure


_LOCAL = tuple(local_name(dimension) for dimension in DIMENSIONS)
FIGURES = (
    Figure("local", _local, _LOCAL),
    Figure(
        "bits", _bits, (*_LOCAL, CORRELATED, *(secure_name(_CLIENTS, dimension) for dimension in DIMENSIONS))
    ),
)
"""Each figure of the page."""
