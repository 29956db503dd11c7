"""Mean estimation: error, bits and time of every mechanism, in the local view and in secure sums."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fl_privquant.mechanisms.vectors.sphere import privunit_squared_error
from fl_privquant.plotting import color_of, import_pyplot
from simulations.studies._drawing import label_values, look_of
from simulations.studies._pages import ReadTable, join_tables
from simulations.studies.mean_estimation import local, secure
from simulations.studies.mean_estimation.local import (
    CHECK,
    CLIENTS,
    DATA,
    DELTA,
    DIMENSIONS,
    EPSILONS,
    FLOORS,
    LOCAL,
    PRIVATE,
)
from simulations.studies.mean_estimation.secure import SAMPLED, SECURE, central_error
from simulations.studies.sum_grid.grid import OURS

PARTS = local.PARTS | secure.PARTS

WITHIN = 1.02
"""Mechanisms are as good as the best up to this many times the least error; then the fewest bits win."""
_MANY = 30
_ALIKE = 1e-9
_SETTING = ["num_clients", "dimension", "round_epsilon"]


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    rows, sums = join_tables(read, LOCAL), secure_table(read)
    certified = rows[rows["certified"]]
    kinds = ["data", "dimension", "round_epsilon"]
    errors = certified.pivot_table("error", ["dimension", "round_epsilon", "mechanism"], "data")
    # For each setting the row of each mechanism with the fewest bits of nearly its least error.
    best = winners(sums, [*_SETTING, "mechanism"], "bits_in_sum").reset_index()
    return {
        "clients": CLIENTS,
        "dimensions": DIMENSIONS,
        "epsilons": EPSILONS,
        "delta": DELTA,
        "data": tuple(DATA),
        "private": PRIVATE,
        "floors": tuple(FLOORS),
        "within": WITHIN,
        "lower_bound": privunit_squared_error,
        "central_error": central_error,
        "check": read(CHECK),
        "local": rows,
        "sphere": rows[rows["data"] == "sphere"],
        "data_ratios": errors.div(errors["sphere"], axis=0),
        "draws": compare_draws(rows),
        "secure_table": {
            key: {row.mechanism: row for row in own.itertuples()} for key, own in best.groupby(_SETTING)
        },
        "secure_names": sorted(sums["mechanism"].unique(), key=lambda name: (name != OURS, name)),
        "regimes": compare_views(certified, sums),
        "local_winners": dict(winners(certified, kinds)["mechanism"].value_counts()),
        "secure_winners": dict(winners(sums, _SETTING, "bits_in_sum")["mechanism"].value_counts()),
    }


def secure_table(read: ReadTable) -> pd.DataFrame:
    """All rows of secure sums, of the settings in which mechanisms can be compared."""
    rows = join_tables(read, SECURE)
    return pd.concat([rows, read(SAMPLED).merge(rows[_SETTING].drop_duplicates())], ignore_index=True)


def winners(rows: pd.DataFrame, setting: list[str], bits: str = "bits") -> pd.DataFrame:
    """For each setting the row with the fewest bits among those of nearly the least error."""
    least = rows.groupby(setting)["error"].transform("min")
    near = rows[rows["error"] <= WITHIN * least].sort_values([*setting, bits, "error"])
    return near.drop_duplicates(setting).set_index(setting)


def compare_draws(rows: pd.DataFrame) -> dict[str, Any]:
    """How near drawn errors are to exact ones, in standard errors, of all mechanisms that are random.

    Cells in which all draws had the same error are counted apart: their standard error is zero because
    rarer outcomes did not occur in so few draws.
    """
    rows = rows[rows["mechanism"] != "top_k"]
    spread = rows[rows["drawn_standard_error"] > _ALIKE * rows["error"]]
    away = (spread["drawn"] - spread["error"]).abs() / spread["drawn_standard_error"]
    # A standard error of fewer draws is itself rough.
    many = spread["draws"] >= _MANY
    worst = spread[many].loc[away[many].idxmax()]
    return {
        "cells": len(spread),
        "alike": len(rows) - len(spread),
        "within_two": float((away < 2.0).mean()),
        "many": _MANY,
        "most": float(away[many].max()),
        "where": worst["mechanism"],
    }


def compare_views(certified: pd.DataFrame, sums: pd.DataFrame) -> pd.DataFrame:
    """The winner in the secure sum for each size, number of clients and epsilon, beside the local one.

    Columns that end in ``_local`` are those of the winner in the local view, whose error is that of the
    mean here; ``gain`` is its error over the secure sum's.
    """
    size = ["dimension", "round_epsilon"]
    sphere = certified[certified["data"] == "sphere"]
    in_sum = winners(sums, _SETTING, "bits_in_sum").reset_index()
    both = in_sum.join(winners(sphere, size).add_suffix("_local"), on=size, how="inner")
    error = both["error_local"] / both["num_clients"]
    return both.assign(error_local=error, gain=error / both["error"])


_CLIENTS, _EPSILON = 1000, 4.0


def _draw_local(read: ReadTable) -> Any:
    """Errors over the bound against epsilon: a panel for each number of coordinates."""
    rows = join_tables(read, LOCAL)
    rows = rows[rows["data"] == "sphere"]
    figure, axes = import_pyplot().subplots(
        1, len(DIMENSIONS), figsize=(11.0, 4.2), sharey=True, layout="constrained"
    )
    for axis, dimension in zip(axes, DIMENSIONS, strict=True):
        for name in PRIVATE:
            own = rows[(rows["dimension"] == dimension) & (rows["mechanism"] == name)]
            own = own.sort_values("round_epsilon")
            bound = own["error"] / own["ratio_to_bound"]
            axis.plot(own["round_epsilon"], own["ratio_to_bound"], color=color_of(name), linewidth=1.3)
            drawn, error = own["drawn"] / bound, 2.0 * own["drawn_standard_error"] / bound
            look = {"markersize": 4.5, "linestyle": "", "capsize": 2, **look_of(name)}
            axis.errorbar(own["round_epsilon"], drawn, yerr=error, label=name, **look)
        axis.set(yscale="log", ylim=(0.9, 200.0), title=f"{dimension:,} coordinates, unit vectors")
        label_values(axis, EPSILONS)
        axis.axhline(1.0, color="#777777", linewidth=0.8)
        axis.set_xlabel("ε of an update and round, local view, replace-one")
    axes[0].set_ylabel("squared error over the lower bound")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(PRIVATE))
    return figure


def _draw_bits(read: ReadTable) -> Any:
    """Errors of the mean against bits of a client, both views and without privacy; a panel for each size."""
    rows, sums = join_tables(read, LOCAL), secure_table(read)
    rows = rows[(rows["data"] == "sphere")]
    figure, axes = import_pyplot().subplots(1, len(DIMENSIONS), figsize=(11.0, 4.6), layout="constrained")
    for axis, dimension in zip(axes, DIMENSIONS, strict=True):
        here = rows[rows["dimension"] == dimension]
        # The bias of top_k does not fall with the number of clients.
        for name in (*PRIVATE, *(floor for floor in FLOORS if floor != "top_k")):
            own = here[(here["mechanism"] == name)]
            own = own[own["round_epsilon"].isin([_EPSILON, float("inf")])]
            look = look_of(name) | ({} if name in PRIVATE else {"marker": "x"})
            axis.plot(own["bits"], own["error"] / _CLIENTS, linestyle="", label=name, **look)
        summed = sums[(sums["dimension"] == dimension) & (sums["round_epsilon"] == _EPSILON)]
        for name, own in summed[summed["num_clients"] == _CLIENTS].groupby("mechanism"):
            look = {"color": color_of(str(name)), "marker": "s", "markersize": 4, "linestyle": ":"}
            axis.plot(own["bits_in_sum"] * dimension, own["error"], label=f"{name}, secure sum", **look)
        central = central_error(_CLIENTS, dimension, _EPSILON)
        axis.axhline(central, color="#777777", linestyle="--", linewidth=0.8)
        axis.set(xscale="log", yscale="log", title=f"{dimension:,} coordinates")
        axis.set_xlabel("bits of a client's message")
    axes[0].set_ylabel(f"squared error of the mean of {_CLIENTS:,} clients")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return figure


FIGURES = {"local": _draw_local, "bits": _draw_bits}
"""By name, the functions that draw the figures of the page."""
