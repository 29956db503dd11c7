"""The charts of a report as PDF and PNG, for papers and slides."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_privquant.cli.plots import STYLE, draw_law, pyplot
from simulations.report.charts import ASKED, Chart, Curve, Dimension, extent, log_ticks, shown, ticks_of
from simulations.report.collect import write_atomically
from simulations.report.laws import DrawnLaw
from simulations.report.marks import Mark
from simulations.report.words import scientific

# Type 42 keeps text as text: journals refuse the default.
_STYLE = STYLE | {"grid.linewidth": 0.7, "pdf.fonttype": 42}
_DASHES = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1.2, 1.2))}
_PANEL_INCHES = (3.4, 2.5)
_SINGLE_INCHES = (4.8, 3.2)
_ROWS_WIDTH = 6.0


def draw_findings(charts: list[Chart], marks: Mapping[str, Mark], folder: Path) -> list[Path]:
    """Draw each chart of rows: bars from zero, or points on an axis that may begin anywhere."""
    written: list[Path] = []
    for chart in charts:
        plt = pyplot()
        with plt.rc_context(_STYLE):
            size = (_ROWS_WIDTH, 1.1 + 0.32 * len(chart.curves))
            figure, axes = plt.subplots(figsize=size, layout="constrained")
            for place, curve in enumerate(chart.curves):
                _draw_row(axes, chart, curve, place, marks[curve.series])
            axes.set_yticks(range(len(chart.curves)), [curve.name for curve in chart.curves])
            axes.set(xlabel=chart.x_title, ylim=(len(chart.curves) - 0.4, -0.6))
            axes.grid(visible=False, axis="y")
            if chart.percent:
                _percent_labels(axes.xaxis)
            if chart.bars:
                axes.set_xlim(left=0.0)
            figure.suptitle(f"{chart.title}\n{chart.caption.split('. ')[0]}", fontsize=9.5, x=0.01, ha="left")
            written += _save(figure, folder / chart.key)
    return written


def _draw_row(axes: Any, chart: Chart, curve: Curve, place: int, mark: Mark) -> None:
    scale = 100.0 if chart.percent else 1.0
    mean, low, high = (scale * float(curve.points[key].iloc[0]) for key in ("mean", "low", "high"))
    reach = np.nan_to_num(np.array([[mean - low], [high - mean]]))
    if chart.bars:
        axes.barh(place, mean, height=0.62, color=mark.light, alpha=0.85, linewidth=0)
        axes.errorbar(mean, place, xerr=reach, color="#1c2229", capsize=3, linestyle="", linewidth=1.2)
        return
    axes.errorbar(
        mean, place, xerr=reach, color=mark.light, marker=mark.marker, markersize=6, capsize=3, linestyle=""
    )


def draw_charts(
    charts: list[Chart], dimensions: tuple[Dimension, ...], marks: Mapping[str, Mark], folder: Path
) -> list[Path]:
    """Draw each chart, with a panel for each epsilon (down) and bits (across); one file per setting."""
    written = []
    by_key = {dimension.key: dimension for dimension in dimensions}
    settings = by_key["setting"].values if "setting" in by_key else ("",)
    # What comes before the first comma names a file, where that is enough to tell files apart.
    beginnings = {setting.partition(",")[0] for setting in settings}
    names = {
        setting: setting.partition(",")[0] if len(beginnings) == len(settings) else setting
        for setting in settings
    }
    for chart, setting in itertools.product(charts, settings):
        if "setting" in chart.ignores and setting != settings[0]:
            continue
        fixed = {"setting": setting} if setting and "setting" not in chart.ignores else {}
        rows, columns = (
            [
                value
                for value in by_key[key].values
                if any(shown(c, fixed | {key: value}) for c in chart.curves)
            ]
            if key in by_key and key not in chart.ignores
            else [None]
            for key in ("epsilon", "bits")
        )
        curves = [curve for curve in chart.curves if shown(curve, fixed)]
        if not curves or not rows or not columns:
            continue
        name = chart.key + (f"--{_slug(names[setting])}" if fixed else "")
        written += _draw_grid(chart, curves, fixed, by_key, rows, columns, marks, folder / name)
    return written


def draw_laws(laws: list[DrawnLaw], dimensions: tuple[Dimension, ...], folder: Path) -> list[Path]:
    """Draw all laws of one epsilon and number of bits side by side; one file for each of these."""
    written: list[Path] = []
    by_key = {dimension.key: dimension for dimension in dimensions}
    for place in sorted({tuple(sorted(law.place.items())) for law in laws}):
        chosen = [law for law in laws if tuple(sorted(law.place.items())) == place]
        columns = min(3, len(chosen))
        rows = -(-len(chosen) // columns)
        plt = pyplot()
        with plt.rc_context(_STYLE):
            size = (columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1] * 1.15)
            figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
            for axes, law in itertools.zip_longest(grid.flat, chosen):
                if law is None:
                    axes.set_visible(False)
                    continue
                draw_law(axes, law.mechanism)
                words = ", ".join([law.title, *(by_key[key].text(value) for key, value in law.place.items())])
                axes.set_title(f"{words}\ncertified {law.mechanism.statement.brief}", fontsize=8)
                axes.legend_ and axes.legend_.set_frame_on(False)
            name = "laws" + "".join(f"--{key}-{value:g}" for key, value in place)
            written += _save(figure, folder / name)
    return written


def _draw_grid(
    chart: Chart,
    curves: list[Curve],
    fixed: dict[str, Any],
    by_key: dict[str, Dimension],
    rows: list[Any],
    columns: list[Any],
    marks: Mapping[str, Mark],
    path: Path,
) -> list[Path]:
    plt = pyplot()
    width, height = _SINGLE_INCHES if len(rows) == len(columns) == 1 else _PANEL_INCHES
    with plt.rc_context(_STYLE):
        figure, grid = plt.subplots(
            len(rows),
            len(columns),
            figsize=(width * len(columns), height * len(rows) + 0.5),
            layout="constrained",
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for (down, epsilon), (across, bits) in itertools.product(enumerate(rows), enumerate(columns)):
            panel = {key: value for key, value in (("epsilon", epsilon), ("bits", bits)) if value is not None}
            axes = grid[down, across]
            for curve in curves:
                if shown(curve, panel):
                    _draw(axes, chart, curve, marks[curve.series])
            # Panels are narrow: a long unit takes a second line.
            across_words = chart.x_title if len(columns) == 1 else chart.x_title.replace(", ", ",\n", 1)
            axes.set_xlabel(across_words if down == len(rows) - 1 else "")
            axes.set_ylabel(chart.y_title if across == 0 else "")
            axes.set_title(", ".join(by_key[key].text(value) for key, value in panel.items()), loc="left")
        _scale(grid[0, 0], replace(chart, curves=tuple(curves)))
        drawn = dict(
            pair[::-1] for axes in grid.flat for pair in zip(*axes.get_legend_handles_labels(), strict=True)
        )
        handles = {curve.series: drawn[curve.series] for curve in chart.curves if curve.series in drawn}
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=min(len(handles), 3 if len(columns) == 1 else 6),
            fontsize=8,
        )
        words = [chart.title, fixed.get("setting", "")]
        if "epsilon" in by_key and "epsilon" not in chart.ignores:
            words.append(ASKED)
        figure.suptitle("\n".join(filter(None, words)), fontsize=9.5, x=0.01, ha="left")
        return _save(figure, path)


def _draw(axes: Any, chart: Chart, curve: Curve, mark: Mark) -> None:
    points = curve.points
    scale = 100.0 if chart.percent else 1.0
    x, mean = points["x"].to_numpy(), scale * points["mean"].to_numpy()
    low, high = scale * points["low"].to_numpy(), scale * points["high"].to_numpy()
    look = {"color": mark.light, "linestyle": _DASHES[mark.dash], "linewidth": 1.6, "label": curve.series}
    if chart.points and not curve.flat:
        reach = np.nan_to_num(np.vstack([mean - low, high - mean]))
        axes.errorbar(x, mean, yerr=reach, marker=mark.marker, markersize=4.5, capsize=2, **look)
        return
    every = max(1, len(points) // 6)
    axes.plot(x, mean, marker=None if curve.flat else mark.marker, markersize=3.8, markevery=every, **look)
    if np.isfinite(low).any():
        axes.fill_between(x, low, high, color=mark.light, alpha=0.14, linewidth=0)


def _scale(axes: Any, chart: Chart) -> None:
    low, high = extent(chart)
    if chart.log_y:
        axes.set_yscale("log")
        _label_log(axes.yaxis, low, high)
    if chart.percent:
        _percent_labels(axes.yaxis)
        low, high = max(100 * low, -1.0), min(100 * high, 101.0)
    axes.set_ylim(low, high)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.points:
        ticks = ticks_of(chart)
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.minorticks_off()
    elif chart.log_x:
        _label_log(axes.xaxis, *axes.get_xlim())
    else:
        from matplotlib.ticker import MaxNLocator

        # Rounds are whole.
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _percent_labels(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(decimals=0))


def _label_log(axis: Any, low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    axis.set_ticks(ticks, labels=[scientific(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def _save(figure: Any, path: Path) -> list[Path]:
    written = []
    # Without its date a file is the same whenever it is drawn from the same rows.
    for ending, metadata in (("pdf", {"CreationDate": None}), ("png", None)):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=ending, dpi=180, metadata=metadata)
        # Laid out once, it stays: to find the layout takes as long as to draw.
        figure.set_layout_engine("none")
        written.append(write_atomically(path.with_name(f"{path.name}.{ending}"), buffer.getvalue()))
    pyplot().close(figure)
    return written


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
