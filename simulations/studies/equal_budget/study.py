"""Mechanisms at an equal budget for a client's whole run, in the secure sum: bits and exact errors."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fl_privquant.plotting import color_of, import_pyplot
from simulations.studies._pages import ReadTable
from simulations.studies.equal_budget.planned_errors import ALLOWED, PARTS, PEERS, ROUNDS

__all__ = ["FIGURES", "PARTS", "page_numbers"]

LABELS = {
    "rounded_gaussian": "rounded Gaussian",
    "pbm": "Poisson binomial",
    "discrete_gaussian": "discrete Gaussian",
    "skellam": "Skellam",
}
"""What mechanisms are called in figures and tables."""


def best_errors(errors: pd.DataFrame) -> pd.DataFrame:
    """For each mechanism, number of clients and budget the bit-width with the least error."""
    keys = ["num_clients", "run_epsilon", "mechanism"]
    return errors.sort_values("ratio_to_central").groupby(keys, as_index=False).first()


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    by_setting = ["num_clients", "run_epsilon"]
    by_rounds = read("by_rounds").pivot_table("ratio_to_central", ["dimension", "rounds"], "run_epsilon")
    return {
        "peers": PEERS,
        "labels": LABELS,
        # By how many per cent errors exceed the central Gaussian's, where bits are compared.
        "allowed": round(100.0 * (ALLOWED - 1.0), 6),
        "errors": best_errors(read("secure_sum")).groupby(by_setting),
        "equal_errors": read("equal_error").groupby(by_setting),
        "by_rounds": by_rounds,
    }


# This figure is also the first that a reader sees: large text, and hatches that repeat what colors say.
_LARGE = {"font.size": 14, "hatch.linewidth": 1.4}
_PER_CENT = round(100.0 * (ALLOWED - 1.0), 6)
_HATCHES = ("", "//", "..", "\\\\", "xx")


def _draw_secure_sum(read: ReadTable) -> Any:
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
        figure.legend(*handles, loc="outside lower center", ncols=4 if len(PEERS) <= 4 else 3)
        figure.suptitle(
            f"At most {_PER_CENT:g} % more error than with a trusted server, at the same ε", fontsize=16
        )
    return figure


def _draw_bits(axis: Any, rows: pd.DataFrame) -> None:
    epsilons = sorted(rows["run_epsilon"].unique())
    width = 0.84 / len(PEERS)
    for place, mechanism in enumerate(PEERS):
        own = rows[rows["mechanism"] == mechanism].sort_values("run_epsilon")
        at = [epsilons.index(value) + (place - (len(PEERS) - 1) / 2) * width for value in own["run_epsilon"]]
        hatched = {"hatch": _HATCHES[place], "edgecolor": "white", "linewidth": 0.0}
        color, label = color_of(mechanism), LABELS[mechanism]
        bars = axis.bar(at, own["bits_in_sum"], width=0.94 * width, color=color, label=label, **hatched)
        axis.bar_label(bars, padding=1, fontsize=13)
    axis.set_xticks(range(len(epsilons)), [f"{value:g}" for value in epsilons])
    axis.set_xlabel(f"ε for all {ROUNDS} rounds of a client, replace-one")
    axis.grid(visible=False, axis="x")


FIGURES = {"secure-sum": _draw_secure_sum}
"""By name, the functions that draw the figures of the page."""
