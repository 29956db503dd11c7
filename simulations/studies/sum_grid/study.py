"""Exact errors of mechanisms in the secure sum, each at its own best, over that of a central Gaussian."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pandas as pd

from fl_privquant.plotting import color_of, import_pyplot
from fl_privquant.statement import PrivacyStatement, StatedView, Unit, ViewKind
from simulations.studies._pages import ReadTable, join_tables
from simulations.studies.sum_grid.grid import (
    ALLOWED,
    CLIENTS,
    DELTA,
    DIMENSIONS,
    EPSILONS,
    GRID,
    OURS,
    PARTS,
    PEERS,
    ROUNDS,
)

__all__ = ["FIGURES", "PARTS", "page_numbers"]

LABELS = {
    "rounded_gaussian": "rounded Gaussian",
    "pbm": "Poisson binomial",
    "discrete_gaussian": "discrete Gaussian",
    "skellam": "Skellam",
}
"""What mechanisms are called in the figure of bits and in its table."""

# Errors are told apart if they differ by more than this factor.
_TOLD_APART = 1.005
_SETTING = ["dimension", "num_clients", "run_epsilon"]


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    cells = join_tables(read, GRID)
    return {
        "rounds": ROUNDS,
        "delta": DELTA,
        "ours_name": OURS,
        "peers": PEERS,
        "close": ALLOWED,
        "ours": cells[cells["mechanism"] == OURS],
        "in_as_many_bits": partial(best_in_as_many_bits, cells),
        "least": lambda ours, peer: next(peer_rows(cells, ours, peer).itertuples(), None),
        "behind": settings_behind(cells),
        "labels": LABELS,
        "equal_errors": read("equal_error").groupby(["num_clients", "run_epsilon"]),
        "by_rounds": read("by_rounds").pivot_table(
            "ratio_to_central", ["dimension", "rounds"], "run_epsilon"
        ),
    }


def peer_rows(cells: pd.DataFrame, ours: Any, peer: str) -> pd.DataFrame:
    """The cells of a peer in the setting of one of ours, the one of least error first."""
    same = (cells[_SETTING] == [getattr(ours, key) for key in _SETTING]).all(axis=1)
    rows = cells[same & (cells["mechanism"] == peer)]
    return rows.sort_values(["ratio_to_central", "bits_in_sum"])


def best_in_as_many_bits(cells: pd.DataFrame, ours: Any, peer: str) -> Any | None:
    """The cell of least error of a peer that sends no more bits than ours; None if it needs more."""
    rows = peer_rows(cells, ours, peer)
    return next(rows[rows["bits_in_sum"] <= ours.bits_in_sum].itertuples(), None)


def settings_behind(cells: pd.DataFrame) -> list[tuple[Any, Any]]:
    """Settings in which a peer has clearly less error in no more bits: our cell and the peer's."""
    pairs = [
        (ours, other)
        for ours, peer in itertools.product(list(cells[cells["mechanism"] == OURS].itertuples()), PEERS)
        if (other := best_in_as_many_bits(cells, ours, peer)) is not None
    ]
    return [pair for pair in pairs if pair[0].ratio_to_central > _TOLD_APART * pair[1].ratio_to_central]


_STYLES = {1.0: ":", 4.0: "--", 10.0: "-"}


def _draw_errors(read: ReadTable) -> Any:
    """Errors against bits: a row of panels for each number of coordinates, a column for each of clients."""
    cells = join_tables(read, GRID)
    sizes = (len(DIMENSIONS), len(CLIENTS))
    figure, axes = import_pyplot().subplots(
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
    _draw_legend(figure)
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
                color=color_of(mechanism),
            )
    axis.set(yscale="log", ylim=(1e-4, 2.0), xticks=range(6, 22, 2))


def _draw_legend(figure: Any) -> None:
    lines = import_pyplot().Line2D
    handles = [lines([], [], color=color_of(name), marker=".", label=name) for name in (OURS, *PEERS)]
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
    figure.legend(handles=handles, loc="outside lower center", ncols=2)


# Large text, and hatches that repeat what colors say.
_LARGE = {"font.size": 14, "hatch.linewidth": 1.4}
_PER_CENT = round(100.0 * (ALLOWED - 1.0), 6)
_HATCHES = ("", "//", "..", "\\\\", "xx")


def _draw_equal_error(read: ReadTable) -> Any:
    """Bits that a client sends for a coordinate at an equal error and epsilon: bars that begin at zero."""
    rows = read("equal_error")
    counts = sorted(rows["num_clients"].unique())
    plt = import_pyplot()
    with plt.rc_context(_LARGE):
        figure, axes = plt.subplots(
            1, len(counts), figsize=(5.2 * len(counts), 4.6), sharey=True, layout="constrained"
        )
        for axis, num_clients in zip(axes, counts, strict=True):
            _draw_bits(axis, rows[rows["num_clients"] == num_clients])
            axis.set_title(f"{num_clients} clients in the sum", fontsize=15)
        # Both panels share an axis, on which bars begin at zero.
        axes[0].set_ylim(0.0, 1.15 * rows["bits_in_sum"].max())
        axes[0].yaxis.get_major_locator().set_params(integer=True, nbins=5)
        axes[0].set_ylabel("bits that a client sends\nfor one coordinate")
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4)
        figure.suptitle(
            f"At most {_PER_CENT:g} % more error than with a trusted server, at the same ε", fontsize=16
        )
    return figure


def _draw_bits(axis: Any, rows: pd.DataFrame) -> None:
    epsilons = sorted(rows["run_epsilon"].unique())
    width = 0.84 / len(LABELS)
    for place, mechanism in enumerate(LABELS):
        own = rows[rows["mechanism"] == mechanism].sort_values("run_epsilon")
        at = [epsilons.index(value) + (place - (len(LABELS) - 1) / 2) * width for value in own["run_epsilon"]]
        hatched = {"hatch": _HATCHES[place], "edgecolor": "white", "linewidth": 0.0}
        color, label = color_of(mechanism), LABELS[mechanism]
        bars = axis.bar(at, own["bits_in_sum"], width=0.94 * width, color=color, label=label, **hatched)
        axis.bar_label(bars, padding=1, fontsize=13)
    axis.set_xticks(range(len(epsilons)), [f"{value:g}" for value in epsilons])
    axis.set_xlabel(f"ε for all {ROUNDS} rounds of a client, replace-one")
    axis.grid(visible=False, axis="x")


FIGURES = {"errors": _draw_errors, "equal-error": _draw_equal_error}
"""By name, the functions that draw the figures of the page."""
