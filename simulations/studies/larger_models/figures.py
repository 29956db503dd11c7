"""The figures of the study, drawn from its tables alone: one for each network."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fl_privquant.cli.plots import colour_of, pyplot
from simulations.studies.drawing import INTERVAL, draw_curve, label_values
from simulations.studies.larger_models.numbers import BUDGETS, Setting
from simulations.studies.study import Figure, ReadTable

_TITLES = {
    "fashion-cnn": "Fashion-MNIST, a CNN",
    "shakespeare-gru": "Shakespeare, a GRU",
    "shakespeare-gru-61": "Shakespeare, each role once, a GRU",
}
# Darker than the orange of our mechanism, so that colour-blind readers can tell the two by brightness.
_ONE_BIT = "#a33c00"
_GREY = "#555555"
# Labels stand at least so far apart, as a share of the height.
_LABEL_HEIGHT = 0.06


def _accuracies(name: str, read: ReadTable) -> Any:
    """Accuracy against the budget: a curve for each mechanism, lines without privacy and for guessing."""
    setting = Setting(read(name))
    figure, axis = pyplot().subplots(figsize=(7.6, 4.6), layout="constrained")
    ends: list[tuple[float, str, str]] = []
    for place, (series, rows) in enumerate(setting.private.groupby("series", sort=False)):
        rows = rows.sort_values("run_epsilon")
        first = next(rows.itertuples())
        colour = _ONE_BIT if first.bits == 1 else colour_of(first.mechanism)
        # A small shift keeps the intervals of nearly equal curves apart.
        draw_curve(axis, rows["run_epsilon"] * 1.025 ** (place - 2.5), rows, "accuracy", first.mechanism)
        for drawn in axis.containers[-1].get_children():
            drawn.set_color(colour)
        if first.keep > 0.0:
            axis.containers[-1].lines[0].set(linestyle="--", markerfacecolor="white")
        ends.append((float(rows["accuracy"].iloc[-1]), str(series), colour))
    for value, label in ((float(setting.none.accuracy), "no privacy"), (setting.guessing, "guessing")):
        axis.axhline(value, color=_GREY, linestyle=(0, (1, 2)), linewidth=1.0)
        ends.append((value, label, _GREY))
    lowest = min(setting.guessing, setting.private["accuracy_low"].min())
    highest = max(setting.none.accuracy, setting.private["accuracy_high"].max())
    margin = 0.08 * (highest - lowest)
    label_values(axis, BUDGETS)
    axis.set(xlim=(min(BUDGETS) / 1.12, max(BUDGETS) * 1.12), ylim=(lowest - margin, highest + margin))
    axis.set_ylabel(INTERVAL)
    axis.set_xlabel("ε (client total, aggregate view of all clients of a round)")
    axis.set_title(f"{_TITLES[name]} with {int(setting.none.dimension)} parameters")
    _label(axis, ends)
    return figure


def _label(axis: Any, ends: list[tuple[float, str, str]]) -> None:
    """Write the name of each curve beside its end; those that would overlap are moved apart."""
    low, high = axis.get_ylim()
    ordered = sorted(ends)
    wanted = np.array([(value - low) / (high - low) for value, _, _ in ordered])
    # Labels that overlap are pushed up, or pulled down: the mean of both keeps a group centred on its curves.
    steps = np.arange(len(wanted)) * _LABEL_HEIGHT
    pushed = np.maximum.accumulate(wanted - steps) + steps
    pulled = np.minimum.accumulate((wanted - steps)[::-1])[::-1] + steps
    for (value, label, colour), place in zip(ordered, (pushed + pulled) / 2.0, strict=True):
        axis.annotate(
            label,
            xy=(1.0, value),
            xycoords=("axes fraction", "data"),
            xytext=(1.09, place),
            textcoords="axes fraction",
            color="#222222",
            fontsize=8.5,
            va="center",
            annotation_clip=False,
            # From the middle of the label's left edge.
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 1.3, "relpos": (0.0, 0.5)},
        )


FIGURES = tuple(Figure(name, partial(_accuracies, name), (name,)) for name in _TITLES)
"""Each figure of the page."""
