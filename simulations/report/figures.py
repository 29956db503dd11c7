"""The figures of a report: one for each question, and what happened in the course of the rounds."""

from __future__ import annotations

import base64
import io
import logging
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fl_privquant._files import replace_file
from fl_privquant.plotting import STYLE, color_of, import_pyplot
from fl_privquant.statement import PrivacyStatement
from simulations.report.measures import ERROR, Measure, quality_of
from simulations.report.study import Study
from simulations.report.verdict import Comparison, compare, describe_budget

_MARKERS = "osD^vpP*X<>hd8"
_WIDTH, _HEIGHT = 4.4, 3.0


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure.

    Parameters
    ----------
    name
        The name of its files, without their endings.
    question
        What it answers; its title on the page.
    description
        What is shown, with the numbers, for those who cannot see it.
    kind
        ``answer`` for the figure of a question, else ``rounds``.
    setting
        The setting whose question it answers.
    """

    name: str
    question: str
    description: str
    figure: Any
    kind: str = "answer"
    setting: str = ""

    def data_url(self) -> str:
        """The figure as an SVG for the page."""
        buffer = io.BytesIO()
        with import_pyplot().rc_context({"svg.hashsalt": self.name}):
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"

    def save(self, folder: Path) -> None:
        """Write the PDF and the PNG file; without its date a file depends on its rows only."""
        for ending, metadata in (("pdf", {"CreationDate": None}), ("png", None)):
            save = partial(self.figure.savefig, format=ending, dpi=180, metadata=metadata)
            replace_file(folder / f"{self.name}.{ending}", save, durable=False)


def draw_study(study: Study, style: str | None = None) -> list[Drawing]:
    """All figures of a study.

    Parameters
    ----------
    study
        The study.
    style
        A style of matplotlib's or a file with one, used on top of the report's own.
    """
    # It logs every table of every font that a PDF embeds, and Hydra's jobs print what is logged.
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    own = STYLE | {"figure.constrained_layout.use": True, "pdf.fonttype": 42}
    with import_pyplot().style.context([own, *([style] if style else [])]):
        return [*_draw_answers(study), *_draw_rounds(study)]


def _new_figure(height: float = _HEIGHT) -> tuple[Any, Any]:
    figure = Figure(figsize=(_WIDTH, height))
    return figure, figure.subplots()


def _draw_answers(study: Study) -> Iterator[Drawing]:
    """One figure for each question: against ε or bits if these were swept, else a row for each mechanism."""
    groups: dict[tuple[str, Measure], list[Comparison]] = {}
    for comparison in compare(study):
        groups.setdefault((comparison.setting, comparison.measure), []).append(comparison)
    for number, ((setting, measure), same) in enumerate(groups.items(), start=1):
        names = pd.concat([comparison.runs["run"] for comparison in same])
        rows = study.results[study.results["run"].isin(names)]
        swept = [key for key in ("epsilon", "bits") if (rows.groupby("series")[key].nunique() > 1).any()]
        question = f"{measure.question}{f' ({setting})' if setting else ''}"
        draw = partial(Drawing, question=setting if study.has_panels else question, setting=setting)
        if not swept:
            figure, axes = _new_figure(0.9 + 0.3 * rows["series"].nunique())
            text = _draw_rows(axes, same[0].decided, study.series)
            yield draw(f"answer-{number}", description=f"{same[0].budget}: {text}", figure=figure)
        for key in swept:
            figure, axes = _new_figure()
            text = _draw_lines(axes, rows, key, measure, study.series)
            _set_x_axis(axes, key, rows)
            name = f"answer-{number}" + (f"-{key}" if len(swept) > 1 else "")
            yield draw(name, description=text, figure=figure)


def _draw_rows(axes: Any, comparison: Comparison, order: Sequence[str]) -> str:
    """A row for each mechanism with its mean and interval, the best on top; the numbers as text."""
    measure = comparison.measure
    intervals = {
        str(name): measure.interval(runs[measure.key]) for name, runs in comparison.runs.groupby("name")
    }
    ranked = dict(sorted(intervals.items(), key=lambda item: item[1].mean, reverse=measure.percent))
    for place, (name, (mean, low, high, _)) in enumerate(ranked.items()):
        reach = None if math.isnan(low) else [[mean - low], [high - mean]]
        look = _look(name.partition(" with ")[0], order) | {"linestyle": ""}
        axes.errorbar(mean, place, xerr=reach, capsize=3, markersize=6, **look)
    # A long name takes two lines, so that it leaves room for the axis and its label.
    axes.set_yticks(range(len(ranked)), [textwrap.fill(name, 30) for name in ranked])
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    # Below the whole figure: beside long names the axis is shorter than its label.
    settings = import_pyplot().rcParams
    look = {"fontsize": settings["axes.labelsize"], "color": settings["axes.labelcolor"]}
    axes.figure.supxlabel(measure.axis, **look)
    if measure is ERROR:
        axes.set_xlim(left=0.0)
    return "; ".join(f"{name} {interval.mean:.3g}" for name, interval in ranked.items())


def _draw_lines(axes: Any, rows: pd.DataFrame, x: str, measure: Measure, order: Sequence[str]) -> str:
    """The mean with its interval against ``x``, a line for each series; the last points as text."""
    texts, y = [], measure.key
    if measure is ERROR:
        # An exact mean has an error of 10⁻¹⁷, which would flatten all others.
        rows = rows[rows[y] > 1e-4 * rows[y].max()]
        axes.set_yscale("log")
    for series in [name for name in order if name in set(rows["series"])]:
        own = rows[rows["series"] == series].dropna(subset=[x, y])
        if own.empty:
            continue
        points = own.groupby(x)[y].apply(measure.interval)
        mean, low, high, _ = np.array(points.to_list()).T
        look = _look(series, order) | {"markevery": max(1, len(points) // 6), "markersize": 4}
        axes.plot(points.index, mean, label=series, linewidth=1.5, **look)
        if np.isfinite(low).any():
            axes.fill_between(points.index, low, high, color=look["color"], alpha=0.14, linewidth=0)
        texts.append(f"{series} {mean[-1]:.3g}")
    # A long label takes two lines, as the axis is short.
    axes.set_ylabel(measure.axis.replace(" of ", "\nof ", 1))
    if texts:
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return "; ".join(texts)


def _set_x_axis(axes: Any, key: str, rows: pd.DataFrame) -> None:
    values = sorted(value for value in rows[key].unique() if math.isfinite(value))
    if key == "epsilon" and values[-1] >= 8 * values[0]:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(values, [f"{value:g}" for value in values])
    if key == "bits":
        axes.set_xlabel("bits per coordinate")
        return
    own = rows[rows["private"] & ~rows["baseline"]]
    statement: PrivacyStatement = own["statement" if own["whole_run"].all() else "certified"].iloc[0]
    heading = statement.heading(statement.unit, statement.view, relation=statement.relation)
    axes.set_xlabel(textwrap.fill(heading, 40))


def _draw_rounds(study: Study) -> Iterator[Drawing]:
    """Accuracy (or loss) and error after each round: two figures for each setting and ε."""
    if not study.runs:
        return
    rounds = study.rounds.rename(columns={"mean_squared_error": ERROR.key})
    number = 0
    for setting in study.settings:
        here = rounds[rounds["setting"] == setting]
        for level in sorted(here["epsilon"].dropna().unique()) or [math.nan]:
            # Runs without privacy are drawn beside those of every ε.
            rows = here[(here["epsilon"] == level) | here["epsilon"].isna()]
            results = study.results[study.results["run"].isin(rows["run"]) & study.results["private"]]
            words = [setting, *([] if results.empty else [describe_budget(results)])]
            number += 1
            for measure in (quality_of(rounds), ERROR):
                drawn = rows.dropna(subset=[measure.key])
                if not drawn.empty:
                    figure, axes = _new_figure()
                    text = _draw_lines(axes, drawn, "round", measure, study.series)
                    axes.set_xlabel("round")
                    axes.xaxis.get_major_locator().set_params(integer=True)
                    title = f"{measure.by_rounds}: {', '.join(filter(None, words))}"
                    name = f"{measure.key}-rounds-{number}"
                    yield Drawing(name, title, f"{title}. At the end: {text}", figure, "rounds")


def _look(series: str, order: Sequence[str]) -> dict[str, Any]:
    """The color of a mechanism, and a marker of its own for print and for color-blind readers."""
    place = list(order).index(series) if series in order else 0
    return {"color": color_of(series), "marker": _MARKERS[place % len(_MARKERS)]}
