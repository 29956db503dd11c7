"""Every chart and law of a report, drawn once: for the page as SVG, for papers and slides as PDF and PNG."""

from __future__ import annotations

import io
import logging
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fl_privquant.cli.plots import STYLE, draw_law, pyplot
from fl_privquant.files import replace_file
from fl_privquant.mechanisms.base import Mechanism
from simulations.report.charts import (
    ALL_ROUNDS,
    Chart,
    Curve,
    Dimension,
    charts_of,
    dimensions_of,
    extent,
    findings_of,
    log_ticks,
    panels_of,
    place_of,
    shown,
    ticks_of,
)
from simulations.report.marks import Mark, marks_of
from simulations.report.study_data import Study
from simulations.report.words import scientific

# Text stays text in all files: journals refuse the default of PDF, and a page has fonts of its own.
_STYLE = STYLE | {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelcolor": "#555555",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "grid.linewidth": 0.7,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}
_DASHES = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1.2, 1.2))}
_INCHES = (3.7, 2.6)
_LEGEND_COLUMNS, _LEGEND_ROW_INCHES = 3, 0.17
# Letters of a line of a title that fit the width of a file, and the height of a title.
_TITLE_LETTERS, _TITLE_LINE_INCHES, _TITLE_MARGIN_INCHES = 56, 0.14, 0.17


@dataclass(frozen=True, eq=False)
class Drawing:
    """One panel of a chart, or the law of one mechanism.

    Parameters
    ----------
    key
        The chart's key; that of a law is ``laws``.
    name
        The name of its files, without their endings.
    place
        The panel: for each dimension that it has a place in, the value.
    svg
        The picture for the page, without title and legend, which the page has itself.
    figure
        The figure for the files, which have both.
    """

    key: str
    name: str
    place: Mapping[str, Any]
    svg: str
    figure: Any

    def save(self, folder: Path) -> None:
        """Write the files."""
        # Without its date a file is the same whenever it is drawn from the same rows.
        with _style():
            for ending, metadata in (("pdf", {"CreationDate": None}), ("png", None)):
                options = {"format": ending, "dpi": 180, "metadata": metadata}
                path = folder / f"{self.name}.{ending}"
                replace_file(path, partial(self.figure.savefig, **options), durable=False)


@dataclass(frozen=True, eq=False)
class DrawnLaw:
    """A mechanism of the study whose law is drawn, its label, its series, and where it is shown."""

    series: str
    place: dict[str, float | str]
    title: str
    mechanism: Mechanism


def laws_of(study: Study, dimensions: tuple[Dimension, ...]) -> tuple[list[DrawnLaw], list[str]]:
    """Each law once, in the order of the series; and the series that have no law to draw."""
    own = tuple(dimension for dimension in dimensions if dimension.key != "setting")
    drawn: dict[tuple[object, ...], DrawnLaw] = {}
    for series in study.series:
        for run in study.runs_of(series):
            if run.mechanism is None or run.mechanism.law is None:
                continue
            last = run.rounds.iloc[-1]
            # Equal laws in several settings, or with and without secure aggregation, are one picture.
            key = (run.label, run.mechanism.to_bytes())
            if key not in drawn:
                drawn[key] = DrawnLaw(series, place_of(last, own), run.label, run.mechanism)
    with_law = {picture.title for picture in drawn.values()}
    ordered = sorted(
        drawn.values(),
        key=lambda picture: (study.series.index(picture.series), sorted(picture.place.items())),
    )
    return ordered, [series for series in study.series if study.runs_of(series)[0].label not in with_law]


def drawings_of(study: Study) -> list[Drawing]:
    """Every panel of every chart, and every law, of a study."""
    dimensions, marks = dimensions_of(study), marks_of(study.protects)
    with _style():
        drawings = [
            drawing
            for chart in (*findings_of(study), *charts_of(study))
            for drawing in draw_chart(chart, dimensions, marks)
        ]
        return [*drawings, *_draw_laws(laws_of(study, dimensions)[0], dimensions)]


def draw_chart(
    chart: Chart, dimensions: tuple[Dimension, ...], marks: Mapping[str, Mark]
) -> Iterator[Drawing]:
    """Draw each panel of a chart; panels that differ in epsilon or bits have the same vertical axis."""
    by_key = {dimension.key: dimension for dimension in dimensions}
    numbers = {series: number for number, series in enumerate(marks)}
    for place, panel in panels_of(chart, dimensions):
        height = 0.75 + 0.3 * len(panel.curves) if chart.rows else _INCHES[1]
        figure, axes = _new_figure(height)
        for row, curve in enumerate(panel.curves):
            mark, number = marks[curve.series], numbers[curve.series]
            artists = _row(axes, panel, curve, row, mark) if chart.rows else _curve(axes, panel, curve, mark)
            for artist in artists:
                artist.set_gid(f"series-{number}")
        if chart.rows:
            _scale_rows(axes, panel)
        else:
            alike = {key: value for key, value in place.items() if key in ("setting", "rounds")}
            peers = tuple(curve for curve in chart.curves if shown(curve, alike))
            _scale(axes, panel, extent(replace(chart, curves=peers)))
        words = [by_key[key].text(value) for key, value in place.items() if value != ALL_ROUNDS]
        if chart.rows:
            words = [chart.subtitle]
        slugs = [by_key[key].slug(value) for key, value in place.items() if value != ALL_ROUNDS]
        name = "--".join([chart.key, *slugs])
        svg = _svg(figure, name, _description(panel), list(marks))
        _add_title_and_legend(figure, "\n".join([chart.title, *words]), [] if chart.rows else [axes])
        yield Drawing(chart.key, name, place, svg, figure)


def _draw_laws(laws: list[DrawnLaw], dimensions: tuple[Dimension, ...]) -> Iterator[Drawing]:
    by_key = {dimension.key: dimension for dimension in dimensions}
    names: list[str] = []
    for law in laws:
        figure, axes = _new_figure(_INCHES[1])
        draw_law(axes, law.mechanism)
        axes.set_title("")
        if axes.get_legend() is not None:
            axes.get_legend().remove()
            figure.legend(loc="outside right center", title="output", fontsize=7)
        slugs = [by_key[key].slug(value) for key, value in law.place.items()]
        name = "--".join(["laws", law.title.replace(" ", "-"), *slugs])
        # Settings may have designs of their own, each with the same name.
        names.append(name)
        name = name if names.count(name) == 1 else f"{name}--{names.count(name)}"
        certified = f"certified {law.mechanism.statement.brief}"
        words = f"Output probabilities of {law.title} against the input, {certified}"
        svg = _svg(figure, name, words, [])
        _add_title_and_legend(figure, f"{law.title}\n{certified}", [])
        yield Drawing("laws", name, law.place, svg, figure)


def _style() -> Any:
    """The settings of matplotlib while a figure is drawn."""
    # It logs every table of every font that a PDF embeds, and jobs of Hydra print what is logged.
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    return pyplot().rc_context(_STYLE)


def _new_figure(height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # The layout is computed from texts as an SVG has them, which is 72 dots per inch for matplotlib.
    figure = Figure(figsize=(_INCHES[0], height), dpi=72)
    FigureCanvasSVG(figure)
    return figure, figure.subplots()


def _lay_out(figure: Any) -> None:
    """Give axes and legends their places, once: figures with a layout engine are drawn twice for a file."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    ConstrainedLayoutEngine().execute(figure)


def _row(axes: Any, chart: Chart, curve: Curve, row: int, mark: Mark) -> list[Any]:
    """A bar from zero, or a point on an axis that may begin anywhere; with its interval."""
    scale = 100.0 if chart.percent else 1.0
    mean, low, high = (scale * float(curve.points[key].iloc[0]) for key in ("mean", "low", "high"))
    reach = np.array([[mean - low], [high - mean]])
    look: dict[str, Any] = {"color": mark.color, "marker": mark.marker, "markersize": 6}
    bars = []
    if chart.bars:
        bars = list(axes.barh(row, mean, height=0.62, color=mark.color, alpha=0.85, linewidth=0))
        look = {"color": "#000000", "linewidth": 1.2}
        if np.isnan(reach).any():
            return bars
    interval = axes.errorbar(mean, row, xerr=reach, capsize=3, linestyle="", **look)
    return [*bars, *interval.get_children()]


def _curve(axes: Any, chart: Chart, curve: Curve, mark: Mark) -> list[Any]:
    """A line with the band of its intervals; error bars where each point is from other runs."""
    points = curve.points
    scale = 100.0 if chart.percent else 1.0
    x, mean = points["x"].to_numpy(), scale * points["mean"].to_numpy()
    low, high = scale * points["low"].to_numpy(), scale * points["high"].to_numpy()
    look = {"color": mark.color, "linestyle": _DASHES[mark.dash], "linewidth": 1.6, "label": curve.series}
    if chart.points and not curve.flat:
        reach = np.vstack([mean - low, high - mean])
        bars = axes.errorbar(x, mean, yerr=reach, marker=mark.marker, markersize=4.5, capsize=2, **look)
        return list(bars.get_children())
    every = max(1, len(points) // 6)
    marker = None if curve.flat else mark.marker
    drawn = axes.plot(x, mean, marker=marker, markersize=3.8, markevery=every, **look)
    if np.isfinite(low).any():
        drawn.append(axes.fill_between(x, low, high, color=mark.color, alpha=0.14, linewidth=0))
    return list(drawn)


def _scale_rows(axes: Any, chart: Chart) -> None:
    axes.set_yticks(range(len(chart.curves)), [curve.name for curve in chart.curves])
    axes.set(xlabel=chart.x_title, ylim=(len(chart.curves) - 0.4, -0.6))
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=5)
    if chart.percent:
        _percent_labels(axes.xaxis)
    if chart.bars:
        axes.set_xlim(left=0.0)


def _scale(axes: Any, chart: Chart, reach: tuple[float, float]) -> None:
    low, high = reach
    # A long unit takes a second line.
    axes.set_xlabel(chart.x_title.replace(", ", ",\n", 1))
    axes.set_ylabel(chart.y_title)
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


def _add_title_and_legend(figure: Any, title: str, labelled: list[Any]) -> None:
    """Add title and legend above and below the axes: files show them, the page has them as text."""
    handles = dict(
        pair[::-1] for axes in labelled for pair in zip(*axes.get_legend_handles_labels(), strict=True)
    )
    below = _LEGEND_ROW_INCHES * -(-len(handles) // _LEGEND_COLUMNS)
    height = figure.get_figheight()
    lines = [part for line in title.split("\n") for part in textwrap.wrap(line, _TITLE_LETTERS)]
    whole = height + below + _TITLE_LINE_INCHES * len(lines) + _TITLE_MARGIN_INCHES
    # Axes keep their layout: computing another one takes as long as drawing.
    figure.set_figheight(whole)
    for axes in figure.axes:
        box = axes.get_position()
        bottom = (box.y0 * height + below) / whole
        axes.set_position((box.x0, bottom, box.width, box.height * height / whole))
    figure.text(0.01, 1.0 - 0.06 / whole, "\n".join(lines), va="top")
    if handles:
        keys, labels = handles.values(), handles.keys()
        figure.legend(keys, labels, loc="lower center", ncols=_LEGEND_COLUMNS, fontsize=7)


def _svg(figure: Any, name: str, description: str, series: list[str]) -> str:
    """The figure as an element of a page.

    What is drawn of a series is a group with its number (``data-series``) and its name, which browsers show
    under the pointer. Parts such as ``xtick`` are classes: as ids they would not be unique in the page.
    """
    buffer = io.StringIO()
    _lay_out(figure)
    # Ids of clips and markers are hashes of what they are and of this name.
    with pyplot().rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    box = re.search(r'viewBox="[^"]*"', text)
    content = re.sub(
        r"<defs>\s*<style.*?</style>\s*</defs>", "", text.partition("</metadata>")[2], flags=re.S
    )
    content = re.sub(r' id="([a-z0-9.]+)_\d+"', r' class="drawn-\1"', content)
    for number, label in enumerate(series):
        titled = f'<g data-series="{number}"><title>{escape(label)}</title>'
        content = content.replace(f'<g id="series-{number}">', titled)
        # Bars are single paths of the SVG, without a group around them.
        content = content.replace(f' id="series-{number}"', f' data-series="{number}"')
    return f'<svg {box[0] if box else ""} role="img" aria-label="{escape(description)}">{content}'


def _description(chart: Chart) -> str:
    """A description of a panel for those who cannot see it: its axes, and where each curve ends."""
    shape = "{:.1%}" if chart.percent else "{:.3g}"
    ends = [
        f"{curve.name or curve.series} {shape.format(curve.points['mean'].iloc[-1])}"
        for curve in chart.curves
    ]
    axes = chart.x if chart.rows else f"{chart.y} against {chart.x}. Where the curves end"
    return f"{chart.title} {axes}: {'; '.join(ends)}."
