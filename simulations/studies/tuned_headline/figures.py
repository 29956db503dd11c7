"""The figure of the study, drawn from its table alone."""

from __future__ import annotations

import math
from typing import Any

from fl_privquant.cli.plots import pyplot
from simulations.studies.drawing import look_of
from simulations.studies.study import Figure, ReadTable
from simulations.studies.tuned_headline.arms import WARY


def _accuracies(read: ReadTable) -> Any:
    """Test accuracies of all arms against ε, with 95 % intervals; a band for training without privacy."""
    table = read("tuned")
    private = table[table["run_epsilon"] < math.inf]
    (none,) = table[table["run_epsilon"] == math.inf].itertuples()
    figure, axis = pyplot().subplots(figsize=(7.2, 4.6), layout="constrained")
    axis.axhspan(100 * none.accuracy_low, 100 * none.accuracy_high, color="#999999", label=none.arm)
    epsilons = sorted(private["run_epsilon"].unique())
    arms = list(private["arm"].unique())
    for place, (arm, rows) in enumerate(private.groupby("arm", sort=False)):
        at = [epsilons.index(value) + 0.12 * (place - (len(arms) - 1) / 2) for value in rows["run_epsilon"]]
        ends = [rows["accuracy"] - rows["accuracy_low"], rows["accuracy_high"] - rows["accuracy"]]
        look = look_of(str(rows["mechanism"].iloc[0])) | {"markerfacecolor": "white" if arm == WARY else None}
        axis.errorbar(
            at,
            100 * rows["accuracy"],
            yerr=[100 * end for end in ends],
            linestyle="",
            capsize=3,
            label=arm,
            **look,
        )
    axis.set_xticks(range(len(epsilons)), [f"{value:g}" for value in epsilons])
    axis.grid(visible=False, axis="x")
    axis.set_xlabel("ε, client total, aggregate view (trusted server: of the models), δ = 1e-5")
    axis.set_ylabel("test accuracy, %, 95 % over seeds")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


FIGURES = (Figure("accuracies", _accuracies, ("tuned",)),)
"""Each figure of the page."""
