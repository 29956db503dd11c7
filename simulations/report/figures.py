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

from fl_privquant._files import replace_file
from fl_privquant.plotting import STYLE, color_of, draw_distribution, import_pyplot
from fl_privquant.statement import PrivacyStatement
from simulations.report.statistics import shown_interval
from simulations.report.study import Study
from simulations.report.verdict import ACCURACY, ERROR, LOSS, Comparison, compare, describe_budget

_MARKERS = "osD^vpP*X<>hd8"
_AXES = {
    ACCURACY: "test accuracy, %",
    LOSS: "test loss",
    ERROR: "squared error of the mean update",
    "mean_squared_error": "squared error of the mean update",
    "bits": "bits per coordinate",
}
_WIDTH, _HEIGHT = 4.4, 3.0
_QUESTIONS = {
    ACCURACY: "Who learns best?",
    LOSS: "Who learns best?",
    ERROR: "Whose mean update errs least?",
}


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
        ``answer`` for the figure of a question, else ``rounds`` or ``probabilities``.
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
    pyplot = import_pyplot()
    own = STYLE | {"figure.constrained_layout.use": True, "pdf.fonttype": 42}
    with pyplot.style.context([own, *([style] if style else [])]):
        drawings = [*_draw_answers(study), *_draw_rounds(study), *_draw_probabilities(study)]
    names = [drawing.name for drawing in drawings]
    assert len(names) == len(set(names))
    return drawings


def _new_figure(height: float = _HEIGHT) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height))
    return figure, figure.subplots()


def _draw_answers(study: Study) -> Iterator[Drawing]:
    """One figure for each question: against ε or bits if these were swept, else a row for each mechanism."""
    comparisons = compare(study)
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault((comparison.setting, comparison.measure), []).append(comparison)
    for number, ((setting, measure), same) in enumerate(groups.items(), start=1):
        rows = study.results[
            study.results["run"].isin(pd.concat([comparison.runs for comparison in same])["run"])
        ]
        swept = [
            key
            for key in ("epsilon", "bits")
            if (rows.groupby("series")[key].nunique() > 1).any() and rows[key].nunique() > 1
        ]
        question = (
            setting if study.has_panels else f"{_QUESTIONS[measure]}{f' ({setting})' if setting else ''}"
        )
        if not swept:
            figure, axes = _new_figure(0.9 + 0.3 * rows["series"].nunique())
            text = _draw_rows(axes, same[0].decided, study.series)
            yield Drawing(f"answer-{number}", question, f"{same[0].budget}: {text}", figure, setting=setting)
        for key in swept:
            figure, axes = _new_figure()
            text = _draw_lines(axes, rows, key, measure, study.series)
            _set_x_axis(axes, key, rows)
            name = f"answer-{number}" + (f"-{key}" if len(swept) > 1 else "")
            yield Drawing(name, question, text, figure, setting=setting)


def _draw_rows(axes: Any, comparison: Comparison, order: Sequence[str]) -> str:
    """A row for each mechanism with its mean and interval, the best on top; the numbers as text."""
    measure, scale = comparison.measure, 100.0 if comparison.measure == ACCURACY else 1.0
    by_name = dict(iter(comparison.runs.groupby("name", sort=False)))
    means = {name: rows[measure].mean() for name, rows in by_name.items()}
    ranked = sorted(by_name, key=lambda name: means[name], reverse=measure == ACCURACY)
    for place, name in enumerate(ranked):
        series = by_name[name]["series"].iloc[0].partition(" with ")[0]
        mean, low, high, _ = shown_interval(scale * by_name[name][measure])
        reach = np.nan_to_num([[mean - low], [high - mean]])
        look = _look(series, order) | {"linestyle": ""}
        axes.errorbar(mean, place, xerr=reach if reach.any() else None, capsize=3, markersize=6, **look)
    # A long name takes two lines, so that it leaves room for the axis and its label.
    axes.set_yticks(range(len(ranked)), [textwrap.fill(name, 30) for name in ranked])
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    # Below the whole figure: beside long names the axis is shorter than its label.
    settings = import_pyplot().rcParams
    look = {"fontsize": settings["axes.labelsize"], "color": settings["axes.labelcolor"]}
    axes.figure.supxlabel(_AXES[measure], **look)
    if measure == ERROR:
        axes.set_xlim(left=0.0)
    return "; ".join(f"{name} {scale * means[name]:.3g}" for name in ranked)


def _draw_lines(axes: Any, rows: pd.DataFrame, x: str, y: str, order: Sequence[str]) -> str:
    """The mean of ``y`` with its interval against ``x``, a line for each series; the last points as text."""
    texts, scale = [], 100.0 if y == ACCURACY else 1.0
    if y in (ERROR, "mean_squared_error"):
        # An exact mean has an error of 10⁻¹⁷, which would flatten all others.
        rows = rows[rows[y] > 1e-4 * rows[y].max()]
        axes.set_yscale("log")
    for series in [name for name in order if name in set(rows["series"])]:
        own = rows[rows["series"] == series].dropna(subset=[x, y])
        points = [
            (value, *shown_interval(scale * part[y], logarithmic=axes.get_yscale() == "log"))
            for value, part in own.groupby(x)
        ]
        if points:
            at, mean, low, high, _ = np.array(points).T
            look = _look(series, order) | {"markevery": max(1, len(at) // 6), "markersize": 4}
            axes.plot(at, mean, label=series, linewidth=1.5, **look)
            if np.isfinite(low).any():
                axes.fill_between(at, low, high, color=look["color"], alpha=0.14, linewidth=0)
            texts.append(f"{series} {mean[-1]:.3g}")
    # A long label takes two lines, as the axis is short.
    axes.set_ylabel(_AXES[y].replace(" of ", "\nof ", 1))
    if texts:
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return "; ".join(texts)


def _set_x_axis(axes: Any, key: str, rows: pd.DataFrame) -> None:
    values = sorted(value for value in rows[key].unique() if math.isfinite(value))
    axes.set_xticks(values, [f"{value:g}" for value in values])
    if key == "epsilon" and values[-1] >= 8 * values[0]:
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    axes.set_xlabel(_epsilon_axis(rows) if key == "epsilon" else _AXES[key])


def _epsilon_axis(rows: pd.DataFrame) -> str:
    """The heading of the ε at which the runs were compared."""
    own = rows[rows["private"] & ~rows["baseline"]]
    statement: PrivacyStatement = own["statement" if own["whole_run"].all() else "certified"].iloc[0]
    return textwrap.fill(statement.heading(statement.unit, statement.view, relation=statement.relation), 40)


def _budget_words(study: Study, setting: str, epsilon: float) -> str:
    """The epsilon of some runs of a setting, with its meaning."""
    rows = study.results[(study.results["setting"] == setting) & (study.results["epsilon"] == epsilon)]
    return "" if rows.empty else textwrap.fill(describe_budget(rows), 60)


def _draw_rounds(study: Study) -> Iterator[Drawing]:
    """Accuracy (or loss) and error against rounds, and accuracy against bytes, for each setting and ε."""
    if not study.runs:
        return
    rounds = study.rounds.assign(
        megabytes=study.rounds["bytes_up"] / 1e6, accuracy=study.rounds["accuracy"], x=study.rounds["round"]
    )
    quality = ACCURACY if rounds[ACCURACY].notna().any() else LOSS
    epsilons = sorted(rounds["epsilon"].dropna().unique()) or [math.nan]
    for place, setting in enumerate(study.settings, start=1):
        for level in epsilons:
            here = rounds[
                (rounds["setting"] == setting) & (rounds["epsilon"].isna() | (rounds["epsilon"] == level))
            ]
            if here["epsilon"].isna().all() and not math.isnan(level) and level != epsilons[0]:
                continue
            budget = _budget_words(study, setting, level) if len(epsilons) > 1 else ""
            words = ", ".join(filter(None, [setting, budget]))
            suffix = (f"-{place}" if len(study.settings) > 1 else "") + (
                f"-epsilon-{level:g}" if len(epsilons) > 1 else ""
            )
            yield from _draw_course(here, quality, words, suffix, study.series)


def _draw_course(
    rounds: pd.DataFrame, quality: str, words: str, suffix: str, order: Sequence[str]
) -> Iterator[Drawing]:
    # Bytes differ a little between seeds; their mean stands for all.
    sent = rounds.groupby(["series", "round"])["megabytes"].transform("mean")
    charts = {
        f"{quality}-rounds": (rounds, "round", quality, "round", f"{quality} after each round"),
        "error-rounds": (rounds, "round", "mean_squared_error", "round", "error of each round's mean update"),
        f"{quality}-bytes": (
            rounds.assign(megabytes=sent).query("megabytes > 0"),
            *("megabytes", quality, "MB sent by all clients", f"{quality} for the bytes that are sent"),
        ),
    }
    for name, (rows, x, y, label, title) in charts.items():
        if rows[y].notna().any():
            figure, axes = _new_figure()
            text = _draw_lines(axes, rows, x, y, order)
            axes.set_xlabel(label)
            if x == "megabytes":
                axes.set_xscale("log")
            else:
                axes.xaxis.get_major_locator().set_params(integer=True)
            title = f"{title[:1].upper()}{title[1:]}{f' ({words})' if words else ''}"
            yield Drawing(f"{name}{suffix}", title, f"{title}. At the end: {text}", figure, "rounds")


def _draw_probabilities(study: Study) -> Iterator[Drawing]:
    """The output probabilities of every mechanism that has a finite table of them, each once."""
    seen: dict[bytes, None] = {}
    for run in study.runs:
        mechanism = run.mechanism
        if mechanism is None or mechanism.distribution is None or mechanism.to_bytes() in seen:
            continue
        seen[mechanism.to_bytes()] = None
        figure, axes = _new_figure()
        draw_distribution(axes, mechanism)
        axes.set_title("")
        title = f"{run.label}: probability of each output"
        name = f"probabilities-{run.label.replace(' ', '-')}-{len(seen)}"
        text = f"{title} against the input, certified {mechanism.statement.brief}"
        yield Drawing(name, title, text, figure, "probabilities")


def _look(series: str, order: Sequence[str]) -> dict[str, Any]:
    """The color of a mechanism, and a marker of its own for print and for color-blind readers."""
    place = list(order).index(series) if series in order else 0
    return {"color": color_of(series), "marker": _MARKERS[place % len(_MARKERS)]}
