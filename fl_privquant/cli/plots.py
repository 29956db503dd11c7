"""Plots of mechanisms: the output probabilities of one, and the errors of several.

Needs matplotlib (``pip install fl-privquant[plot]``). A mechanism has the same colour everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_privquant.errors import InvalidSpecError, PrivQuantError, counted
from fl_privquant.law.law import Law
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import colours
from fl_privquant.statement import PrivacyStatement, Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fl_privquant.accounting import PlannedDesigns
    from fl_privquant.cli.comparison import Curves

COLOURS = colours() | {"central_gaussian": "#2a9d8f", "cldp": "#606c38"}
"""The colour of each mechanism, by its name; variants (after a space) have the same."""

STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#777777",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": 9,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
}
"""Settings of matplotlib for the figures of reports and studies."""

_SPARE = ("#3d5a80", "#98c1d9", "#ee6c4d", "#293241", "#7f5539")


def colour_of(label: str) -> str:
    """The fixed colour of a mechanism, by its name or by its name and a variant."""
    for key in (label, label.split(" ")[0]):
        if key in COLOURS:
            return COLOURS[key]
    return _SPARE[sum(map(ord, label)) % len(_SPARE)]


def draw_law(axes: Axes, mechanism: Mechanism) -> None:
    """Draw the probability of each output against the input x, with one line for each output."""
    import matplotlib as mpl

    law = _law_of(mechanism)
    shades = mpl.colormaps["viridis"](np.linspace(0.05, 0.92, law.num_levels))
    # NaN between two pieces interrupts a line, so that jumps are not joined.
    gaps = np.full(law.starts.size, np.nan)
    x = np.column_stack([law.starts, law.ends, gaps]).ravel()
    for i, value in enumerate(law.values):
        probability = np.column_stack([law.start_rows[:, i], law.end_rows[:, i], gaps]).ravel()
        label = f"{value:+.3g}" if law.num_levels <= 16 else None
        axes.plot(x, probability, color=shades[i], linewidth=1.8, label=label)
    axes.set(xlim=(-1, 1), ylim=(0, None), xlabel="input x", ylabel="probability of the output")
    axes.set_title(
        f"{mechanism.name}, certified\n{mechanism.statement.brief}",
        fontsize=10,
    )
    if law.num_levels <= 16:
        axes.legend(title="output", fontsize=8, ncols=2 if law.num_levels > 4 else 1)


def draw_error(axes: Axes, mechanisms: Mapping[str, Mechanism], power: int = 1) -> None:
    """Draw the expected error of each mechanism against the input."""
    # Errors of tuned mechanisms often coincide: thinner lines on top let those below be seen.
    widths = np.linspace(4.0, 1.6, len(mechanisms))
    for width, (label, mechanism) in zip(widths, mechanisms.items(), strict=True):
        law = _law_of(mechanism)
        x = np.unique(np.concatenate([np.linspace(-1.0, 1.0, 801), law.starts, law.ends]))
        error = law.error_at(x, power)
        axes.plot(x, error, color=colour_of(label), linewidth=width, label=label)
    kind = "absolute" if power == 1 else "squared"
    axes.set(xlim=(-1, 1), ylim=(0, None), xlabel="input x", ylabel=f"expected {kind} error")
    axes.set_xticks([-1, -0.5, 0, 0.5, 1])
    axes.legend(fontsize=8, loc="lower left")


def plot_law(mechanism: Mechanism, path: Path) -> Path:
    """Write the law of a mechanism to a PNG or PDF file."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(5.4, 3.8), layout="constrained")
    draw_law(axes, mechanism)
    return save(figure, path)


def plot_errors(mechanisms: Mapping[str, Mechanism], path: Path, title: str = "") -> Path:
    """Write the absolute and the squared error of several mechanisms to a PNG or PDF file."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
    for power, panel in enumerate(axes, start=1):
        draw_error(panel, mechanisms, power)
    figure.suptitle(title, fontsize=11)
    return save(figure, path)


def plot_curves(curves: Curves, path: Path, title: str = "") -> Path:
    """Write mean squared and mean absolute errors against epsilon, a column for each number of levels.

    The dashed line is the limit of all unbiased mechanisms; one with a bias (dotted) may lie below it.
    """
    plt = pyplot()
    columns = sorted({levels for levels, _ in curves.rows})
    biased = {
        row.label for rows in curves.rows.values() for row in rows if row.mechanism and row.mechanism.max_bias
    }
    figure, axes = plt.subplots(
        2,
        len(columns),
        figsize=(1.5 + 3.6 * len(columns), 7.2),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    handles: dict[str, Any] = {}
    axis_name = PrivacyStatement.heading(Unit.COORDINATE).replace(", ", ",\n", 1)
    epsilons = sorted(curves.limits)
    for at, levels in enumerate(columns):
        for place, power in enumerate((2, 1)):
            axis = axes[place, at]
            for label, (x, errors) in curves.lines(levels, power).items():
                style = ":" if label in biased else "-"
                (handles[label],) = axis.plot(
                    x, errors, style, color=colour_of(label), marker=".", linewidth=1.4
                )
            limit = [curves.limits[epsilon][place] for epsilon in epsilons]
            (handles["limit, unbiased"],) = axis.plot(epsilons, limit, "--", color="#000000", linewidth=1.2)
            axis.set(
                yscale="log", xlabel=axis_name if place else "", title="" if place else f"{levels} levels"
            )
            axis.set_ylabel(("mean squared error", "mean absolute error")[place] if at == 0 else "")
            axis.grid(alpha=0.25)
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8)
    figure.suptitle(title, fontsize=11)
    return save(figure, path)


def _law_of(mechanism: Mechanism) -> Law:
    if mechanism.law is None:
        raise InvalidSpecError(f"plot: {mechanism.name} has no table of output probabilities to draw")
    return mechanism.law


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files, or a clear error where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise PrivQuantError("plots need matplotlib: pip install 'fl-privquant[plot]'") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> Path:
    """Write a figure and close it; the ending of the path says in which format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    pyplot().close(figure)
    return path


def plot_plan(planned: PlannedDesigns, path: Path) -> None:
    """Errors of a plan's designs against the epsilon that they reach, around the target."""
    wish = planned.wish
    figure, axes = pyplot().subplots(figsize=(6.4, 4.2), layout="constrained")
    for name, points in planned.curves.items():
        shown = [design for design in points if 0.1 < design.statement.epsilon / wish.epsilon < 10.0]
        axes.plot(
            [design.statement.epsilon for design in shown],
            [design.mean_squared_error for design in shown],
            "o-",
            color=colour_of(name),
            markersize=3,
            linewidth=1.5,
            label=name,
        )
    axes.axvline(wish.epsilon, color="#888888", linestyle=":", linewidth=1)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=f"{PrivacyStatement.heading(wish.unit, wish.view.stated)}, at δ = {wish.delta:g}",
        ylabel="MSE of the mean update, clip²",
        title=", ".join(
            counted(number, noun)
            for number, noun in (
                (wish.num_clients, "client"),
                (wish.dimension, "coordinate"),
                (wish.rounds, "round"),
            )
        ),
    )
    axes.legend(fontsize=8)
    save(figure, path)
