"""Figures: colors of mechanisms, their output probabilities, and their errors.

Needs matplotlib (``pip install fl-privquant[plot]``). A mechanism has the same color everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InvalidSpecError, PrivQuantError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import mechanism_colors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = mechanism_colors() | {"central_gaussian": "#2a9d8f", "cldp": "#606c38"}
"""The color of each mechanism, by its name; variants (after a space) have the same."""

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


def color_of(label: str) -> str:
    """The fixed color of a mechanism, by its name or by its name and a variant."""
    for key in (label, label.split(" ")[0]):
        if key in COLORS:
            return COLORS[key]
    return _SPARE[sum(map(ord, label)) % len(_SPARE)]


def draw_distribution(axes: Axes, mechanism: Mechanism) -> None:
    """Draw the probability of each output against the input x, with one line for each output."""
    import matplotlib as mpl

    distribution = _require_distribution(mechanism)
    shades = mpl.colormaps["viridis"](np.linspace(0.05, 0.92, distribution.num_levels))
    # NaN between two pieces interrupts a line, so that jumps are not joined.
    gaps = np.full(distribution.starts.size, np.nan)
    x = np.column_stack([distribution.starts, distribution.ends, gaps]).ravel()
    for i, value in enumerate(distribution.values):
        probability = np.column_stack(
            [distribution.start_rows[:, i], distribution.end_rows[:, i], gaps]
        ).ravel()
        label = f"{value:+.3g}" if distribution.num_levels <= 16 else None
        axes.plot(x, probability, color=shades[i], linewidth=1.8, label=label)
    axes.set(xlim=(-1, 1), ylim=(0, None), xlabel="input x", ylabel="probability of the output")
    axes.set_title(
        f"{mechanism.name}, certified\n{mechanism.statement.brief}",
        fontsize=10,
    )
    if distribution.num_levels <= 16:
        axes.legend(title="output", fontsize=8, ncols=2 if distribution.num_levels > 4 else 1)


def draw_error(axes: Axes, mechanisms: Mapping[str, Mechanism], power: int = 1) -> None:
    """Draw the expected error of each mechanism against the input."""
    # Errors of tuned mechanisms often coincide: thinner lines on top let those below be seen.
    widths = np.linspace(4.0, 1.6, len(mechanisms))
    for width, (label, mechanism) in zip(widths, mechanisms.items(), strict=True):
        distribution = _require_distribution(mechanism)
        x = np.unique(np.concatenate([np.linspace(-1.0, 1.0, 801), distribution.starts, distribution.ends]))
        error = distribution.error_at(x, power)
        axes.plot(x, error, color=color_of(label), linewidth=width, label=label)
    kind = "absolute" if power == 1 else "squared"
    axes.set(xlim=(-1, 1), ylim=(0, None), xlabel="input x", ylabel=f"expected {kind} error")
    axes.set_xticks([-1, -0.5, 0, 0.5, 1])
    axes.legend(fontsize=8, loc="lower left")


def plot_distribution(mechanism: Mechanism, path: Path) -> Path:
    """Write the distribution of a mechanism to a PNG or PDF file."""
    plt = import_pyplot()
    figure, axes = plt.subplots(figsize=(5.4, 3.8), layout="constrained")
    draw_distribution(axes, mechanism)
    return save_figure(figure, path)


def plot_errors(mechanisms: Mapping[str, Mechanism], path: Path, title: str = "") -> Path:
    """Write the absolute and the squared error of several mechanisms to a PNG or PDF file."""
    plt = import_pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
    for power, panel in enumerate(axes, start=1):
        draw_error(panel, mechanisms, power)
    figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)


def _require_distribution(mechanism: Mechanism) -> OutputDistribution:
    if mechanism.distribution is None:
        raise InvalidSpecError("plot", mechanism.name, "has no table of output probabilities to draw")
    return mechanism.distribution


def import_pyplot() -> Any:
    """matplotlib.pyplot, drawing to files, or a clear error where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise PrivQuantError("plots need matplotlib: pip install 'fl-privquant[plot]'") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure and close it; the ending of the path says in which format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    import_pyplot().close(figure)
    return path
