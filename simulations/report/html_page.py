"""The report as one HTML file: text, tables, interactive charts, and no request to anywhere."""

from __future__ import annotations

import base64
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline
from markupsafe import Markup

from fl_privquant.accounting import PrivacyStatement, Unit
from simulations.report.charts import (
    ASKED,
    FLOOR,
    LEAST_ROOM,
    Chart,
    Curve,
    Dimension,
    charts_of,
    dimensions_of,
    findings_of,
    ticks_of,
)
from simulations.report.compared import verdict_of
from simulations.report.laws import laws_of, legend_of, svg_of
from simulations.report.marks import Mark, marks_of
from simulations.report.study_data import SECURE, Study, setting_value
from simulations.report.summary_tables import NOTES, privacy_table, summary_table

# A client total above this guarantees next to nothing by itself.
_LARGE_TOTAL = 20.0


def render(study: Study) -> str:
    """The whole page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    dimensions = dimensions_of(study)
    findings, charts = findings_of(study), charts_of(study)
    marks = marks_of(study.protects)
    return environment.get_template("page.html.jinja").render(
        study=study,
        facts=_facts(study),
        asked=ASKED,
        notes=NOTES,
        verdict=verdict_of(study),
        marks=marks,
        privacy=privacy_table(study),
        statements=_statements(study),
        num_simulated=sum(run.simulated for run in study.runs),
        large_total=_large_total(study),
        dimensions=dimensions,
        start=_start(dimensions),
        findings=findings,
        charts=charts,
        descriptions={chart.key: _description(chart) for chart in (*findings, *charts)},
        laws=_laws(study, dimensions),
        summary=summary_table(study),
        settings=_by_room(study.constant),
        partitions=_partitions(study),
        provenance=_provenance(study),
        problems=sorted(study.problems, key=lambda problem: (problem.kind, problem.run)),
        num_left_out=len({problem.run for problem in study.problems if problem.kind != "repaired"}),
        seconds=study.summary["wall_seconds"].sum() if "wall_seconds" in study.summary else None,
        text_of=setting_value,
        payload=Markup(_payload(study, dimensions, marks, [*findings, *charts])),
        plotly=Markup(plotly.offline.get_plotlyjs()),
    )


def _facts(study: Study) -> list[str]:
    """The study in one line."""
    if not study.runs:
        return ["no finished run yet"]
    config = study.constant
    seeds = study.summary["seed"].nunique()
    facts = [
        str(config["task.name"]) if "task.name" in config else "",
        _counted(len(study.runs), "finished run"),
        _counted(len({run.label for run in study.runs}), "mechanism"),
        _counted(seeds, "seed"),
        _counted(config["federation.num_clients"], "client") if "federation.num_clients" in config else "",
        _counted(config["federation.rounds"], "round") if "federation.rounds" in config else "",
    ]
    return [fact for fact in facts if fact]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _statements(study: Study) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """The distinct privacy statements of each series, and of which of its runs each one speaks."""
    statements: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for series in study.series:
        speaks: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for run in study.runs_of(series):
            last = run.rounds.iloc[-1]
            words = [f"asked {run.asked.brief}"] if math.isfinite(last["epsilon"]) else []
            words += [f"{last['bits']:g} bits"] if math.isfinite(last["bits"]) else []
            words += [study.setting_of(run)] if study.varying else []
            if run.statement and "; ".join(words) not in speaks[run.statement]:
                speaks[run.statement].append("; ".join(words))
        # What is said of many runs needs no list of them.
        named = [
            (" | ".join(words) if len(words) <= 3 else "", lines) for lines, words in speaks.items() if words
        ]
        if named:
            statements[series] = named if len(named) > 1 else [("", named[0][1])]
    return statements


def _large_total(study: Study) -> str:
    """The largest client total, local view, if it is so large that it needs a word."""
    totals = [
        (row["epsilon_client_total"], row["delta_client_total"]) for row in study.summary.to_dict("records")
    ]
    epsilon, delta = max((total for total in totals if math.isfinite(total[0])), default=(0.0, 0.0))
    return PrivacyStatement(epsilon, delta, Unit.TOTAL).brief if epsilon > _LARGE_TOTAL else ""


def _start(dimensions: tuple[Dimension, ...]) -> dict[str, int]:
    """The panel that is shown first: the middle of what was swept, the first setting."""
    return {
        dimension.key: 0 if dimension.key == "setting" else (len(dimension.values) - 1) // 2
        for dimension in dimensions
    }


def _indices(place: Any, dimensions: tuple[Dimension, ...]) -> dict[str, int]:
    return {
        dimension.key: dimension.values.index(place[dimension.key])
        for dimension in dimensions
        if dimension.key in place
    }


def _description(chart: Chart) -> str:
    """A description of the chart for those who cannot see it: its axes, and where each curve ends."""
    if chart.rows:
        shape = "{:.1%}" if chart.percent else "{:.3g}"
        means = [f"{curve.name} {shape.format(curve.points['mean'].iloc[0])}" for curve in chart.curves]
        return f"{chart.title} {chart.x}: {'; '.join(means)}."
    last: dict[str, list[float]] = defaultdict(list)
    for curve in chart.curves:
        last[curve.series].append(float(curve.points["mean"].iloc[-1]))
    shape = "{:.1%}" if chart.percent else "{:.3g}"
    ends = [
        f"{series} {' to '.join(dict.fromkeys(shape.format(end(values)) for end in (min, max)))}"
        for series, values in last.items()
    ]
    return f"{chart.title} {chart.y} against {chart.x}. Where the curves end: {'; '.join(ends)}."


def _laws(study: Study, dimensions: tuple[Dimension, ...]) -> dict[str, Any]:
    by_key = {dimension.key: dimension for dimension in dimensions}
    drawn, without = laws_of(study, dimensions)
    cards = []
    for picture in drawn:
        law, mechanism = picture.law, picture.mechanism
        certified = mechanism.statement.brief
        cards.append(
            {
                "series": picture.series,
                "title": picture.title,
                # The certified epsilon follows, with its unit.
                "place": [
                    by_key[key].text(value) for key, value in picture.place.items() if key != "epsilon"
                ],
                "indices": _indices(picture.place, dimensions),
                "certified": certified,
                "levels": law.num_levels,
                "mse": f"{mechanism.mse():.3g}",
                "svg": Markup(
                    svg_of(
                        law,
                        f"Output probabilities of {picture.title} against the input, "
                        f"{law.num_levels} outputs, certified {certified}",
                    )
                ),
                "legend": legend_of(law),
            }
        )
    return {"cards": cards, "without": without}


def _partitions(study: Study) -> list[tuple[str, str]]:
    """How the data lie on the clients: a picture of the first seed of each setting, as a data address."""
    pictures: dict[str, str] = {}
    for run in sorted(
        study.runs, key=lambda run: (study.settings.index(study.setting_of(run)), run.config["seed"])
    ):
        if run.partition_picture is not None and study.setting_of(run) not in pictures:
            encoded = base64.b64encode(run.partition_picture).decode()
            pictures[study.setting_of(run)] = f"data:image/png;base64,{encoded}"
    # Settings that do not touch the partition have the same picture.
    return [
        (setting, picture) for picture, setting in {pictures[key]: key for key in reversed(pictures)}.items()
    ][::-1]


def _by_room(constant: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Constant settings by the group of the config they belong to."""
    rooms: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, value in constant.items():
        room, _, rest = key.partition(".")
        rooms[room if rest else "study"][rest or key] = value
    return dict(sorted(rooms.items(), key=lambda item: item[0] != "study"))


def _provenance(study: Study) -> dict[str, str]:
    """Versions, commit and solver; where runs differ, each value with the number of its runs."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for run in study.runs:
        versions = run.provenance.get("versions")
        origin = {"git commit": run.provenance.get("git_commit"), "solver": run.provenance.get("solver")}
        for key, value in (origin | (versions if isinstance(versions, dict) else {})).items():
            counts[key][setting_value(value)] += 1
    return {
        key: next(iter(values))
        if len(values) == 1
        else ", ".join(f"{value} ({_counted(number, 'run')})" for value, number in values.items())
        for key, values in counts.items()
    }


def _payload(
    study: Study, dimensions: tuple[Dimension, ...], marks: dict[str, Mark], charts: list[Chart]
) -> str:
    """The data for the page's script."""
    content = {
        "series": [
            {
                "name": series,
                "light": mark.light,
                "dark": mark.dark,
                "dash": mark.dash,
                "symbol": mark.plotly_symbol,
                "secure": series.endswith(SECURE),
            }
            for series, mark in marks.items()
        ],
        "start": _start(dimensions),
        "floor": FLOOR,
        "leastRoom": LEAST_ROOM,
        "charts": [_chart(study, chart, dimensions) for chart in charts],
    }
    # A "<" inside a script element could end it.
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _chart(study: Study, chart: Chart, dimensions: tuple[Dimension, ...]) -> dict[str, Any]:
    return {
        "key": chart.key,
        "x": chart.x_title,
        "y": chart.y_title,
        "percent": chart.percent,
        "logX": chart.log_x,
        "logY": chart.log_y,
        "points": chart.points,
        "rows": chart.rows,
        "bars": chart.bars,
        "ticks": ticks_of(chart),
        "curves": [_curve(study, curve, dimensions) for curve in chart.curves],
    }


def _curve(study: Study, curve: Curve, dimensions: tuple[Dimension, ...]) -> dict[str, Any]:
    return {
        "series": study.series.index(curve.series),
        "name": curve.name,
        "place": _indices(curve.place, dimensions),
        "flat": curve.flat,
        **{key: _numbers(curve.points[key]) for key in ("x", "mean", "low", "high")},
        "count": int(curve.points["count"].max()),
    }


def _numbers(values: Any) -> list[float | None]:
    """Six digits are more than a screen shows; JSON has no NaN."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
