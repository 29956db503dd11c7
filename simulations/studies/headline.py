"""README's figure: accuracy at equal ε, for whoever protects clients and for whoever protects records."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from fl_privquant.plotting import color_of, import_pyplot, save_figure
from fl_privquant.statement import PrivacyStatement, Relation, Unit
from simulations.report.statistics import Interval, student_interval
from simulations.studies._pages import read_table, zero_out_epsilon
from simulations.studies.beyond_trusted_server.training import DELTA

HERE = Path(__file__).parent
FIGURE = HERE / "headline.png"
EPSILON = 1.0
OURS = "ours, sums only"

CLIENTS = {
    "no privacy": "no privacy",
    "trusted server, fresh noise": "trusted server,\nfresh noise",
    "trusted server, correlated noise": "trusted server,\ncorrelated noise",
    "secure sum, correlated noise": OURS,
    "Flower's wrapper, trusted server": "Flower's wrapper,\ntrusted server",
}
"""Arms of the study ``beyond_trusted_server``, and what the figure calls them."""

RECORDS = {
    "no privacy": "no privacy",
    "central DP-SGD, trusted server": "trusted server",
    "secure sum, shared noise": OURS,
    "Opacus in each silo": "Opacus in\neach client",
}
"""Ways of the study ``records``, and what the figure calls them."""


def client_runs() -> pd.DataFrame:
    """Accuracies on MNIST with 1000 clients that take turns, at the ε of the figure or without privacy."""
    table = read_table(HERE / "beyond_trusted_server", "correlated-mnist")
    table = table[table["epsilon"].isin([EPSILON, float("inf")])]
    return table.assign(name=table["arm"].map(CLIENTS), accuracy=table["average_accuracy"])


def record_runs() -> pd.DataFrame:
    """Accuracies on MNIST with ten silos, at the ε of the figure or without privacy."""
    read = partial(read_table, HERE / "records")
    table = pd.concat([read("ten-silos"), read("opacus")], ignore_index=True)
    table = table[table["epsilon"].isin([EPSILON, float("inf")])]
    return table.assign(name=table["way"].map(RECORDS))


def mean_accuracies(runs: pd.DataFrame, names: Iterable[str]) -> dict[str, Interval]:
    """By the name in the figure, the mean accuracy in per cent with its interval over seeds."""
    return {name: student_interval(100.0 * runs.loc[runs["name"] == name, "accuracy"]) for name in names}


def draw_headline() -> Path:
    """Draw the figure from the tables of the two studies; its path."""
    # One above the other, so that the words can still be read on a phone.
    panels = {"height_ratios": (len(CLIENTS), len(RECORDS))}
    figure, (clients, records) = import_pyplot().subplots(
        2, 1, figsize=(6.0, 4.6), layout="constrained", sharex=True, gridspec_kw=panels
    )
    total = PrivacyStatement(EPSILON, DELTA, Unit.TOTAL)
    zero_out = replace(total, epsilon=zero_out_epsilon(EPSILON, DELTA), relation=Relation.ZERO_OUT)
    record = replace(total, unit=Unit.RECORD, relation=Relation.ADD_REMOVE)
    costs = f"ε = {total.epsilon_number} ({total.relation}; {zero_out.epsilon_number} by {zero_out.relation})"
    _draw_bars(clients, client_runs(), CLIENTS.values())
    clients.set_title(f"1000 clients, each protected: {costs}", fontsize=9.5)
    _draw_bars(records, record_runs(), RECORDS.values())
    costs = f"ε = {record.epsilon_number} ({record.relation})"
    records.set_title(f"10 clients, each record protected: {costs}", fontsize=9.5)
    records.set_xlabel("test accuracy on MNIST, %")
    return save_figure(figure, FIGURE)


def _draw_bars(axis: Any, runs: pd.DataFrame, names: Collection[str]) -> None:
    for place, (name, interval) in enumerate(mean_accuracies(runs, names).items()):
        mean, low, high, _ = interval
        color = color_of("rounded_gaussian") if name == OURS else "#b8b8b8"
        axis.barh(place, mean, color=color, height=0.66)
        axis.plot([low, high], [place, place], color="black", linewidth=1.2)
        axis.text(max(high, mean) + 1.0, place, f"{mean:.1f}", va="center", fontsize=9)
    axis.set_yticks(range(len(names)), names, fontsize=9)
    axis.invert_yaxis()
    axis.set_xlim(0, 104)
    axis.spines[["top", "right"]].set_visible(False)
