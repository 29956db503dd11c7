"""Builds the report of a study: tidy tables, tables and figures for a paper, and one HTML page."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import jinja2
import pandas as pd

from fl_privquant._files import replace_file
from fl_privquant.errors import pluralize
from fl_privquant.plotting import color_of
from simulations.report.figures import Drawing, draw_study
from simulations.report.measures import MEASURES
from simulations.report.study import Study, describe_repeated, setting_value
from simulations.report.tables import (
    pivot_table,
    privacy_table,
    results_caption,
    results_table,
    to_latex,
    to_markdown,
)
from simulations.report.terminal import print_summary
from simulations.report.verdict import describe


def build_report(folder: Path, style: str | None = None) -> Path:
    """Write tables, figures and ``report.html`` of the study in a folder.

    Parameters
    ----------
    folder
        The folder of the study, with one folder for each run.
    style
        A style of matplotlib's for the figures, or a file with one.

    Returns
    -------
    pathlib.Path
        The page.
    """
    return _write_report(Study.load(folder), style)


def show_report(folder: Path, panels: Collection[str | None] | None = None, style: str | None = None) -> Path:
    """Build the report and print its results and verdict.

    Parameters
    ----------
    folder
        The folder of the study.
    panels
        Of a study that asks several questions, those to print; all by default.
    style
        As in :func:`build_report`.

    Returns
    -------
    pathlib.Path
        The page.
    """
    study = Study.load(folder)
    path = _write_report(study, style)
    print_summary(study, panels=panels)
    print(f"report: {path}")
    return path


def write_latex(folder: Path, columns: Sequence[str]) -> list[Path]:
    """Write tables for LaTeX: a pivot of every measure in every setting.

    Parameters
    ----------
    folder
        The folder of the study.
    columns
        What goes across the top, of :data:`~simulations.report.tables.PIVOT_KEYS`.

    Returns
    -------
    list of pathlib.Path
        The files.
    """
    study, paths = Study.load(folder), []
    for number, setting in enumerate(study.settings, start=1):
        results = study.results[study.results["setting"] == setting]
        for measure in MEASURES:
            if results[measure.key].notna().any():
                # A question keeps its mark.
                asked = setting if setting.endswith(("?", ".")) or not setting else f"{setting}."
                caption = [
                    f"{measure.heading.capitalize()}.",
                    asked,
                    results_caption(study, setting, measure),
                ]
                name = f"{measure.key}-{number}"
                text = to_latex(pivot_table(results, measure, columns), " ".join(filter(None, caption)), name)
                paths.append(_write(study.directory / "tables" / f"{name}.tex", text))
    return paths


def _write_report(study: Study, style: str | None) -> Path:
    drawings = draw_study(study, style)
    if study.runs:
        _write_tidy_tables(study)
        results = [
            to_markdown(
                results_table(study, setting), f"{setting}\n\n{results_caption(study, setting)}".strip()
            )
            for setting in study.settings
        ]
        _write(study.directory / "tables" / "results.md", "\n".join(results))
        privacy = to_markdown(privacy_table(study), "What each run guarantees, as upper bounds.")
        _write(study.directory / "tables" / "privacy.md", privacy)
    for drawing in drawings:
        drawing.save(study.directory / "figures")
    return _write(study.directory / "report.html", render_page(study, drawings))


def render_page(study: Study, drawings: Sequence[Drawing]) -> str:
    """The page as HTML: the verdict, one figure for each question, and all else folded."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    settings = study.settings if study.runs else ()
    return environment.get_template("page.html.jinja").render(
        study=study,
        verdicts={setting: describe(study, setting) for setting in settings},
        results={setting: results_table(study, setting) for setting in settings},
        captions={setting: results_caption(study, setting) for setting in settings},
        privacy=privacy_table(study) if study.runs else None,
        drawings=drawings,
        repeated=describe_repeated(study),
        pluralize=pluralize,
        lines=_distinct_lines(study),
        audits=_embed_audits(study),
        num_simulated=sum(bool(run.provenance.get("simulated")) for run in study.runs),
        constant={key: setting_value(value) for key, value in study.constant.items()},
        versions=study.runs[0].provenance.get("versions", {}) if study.runs else {},
        color_of=color_of,
    )


def _distinct_lines(study: Study) -> dict[str, list[str]]:
    """What the runs of each series said about their privacy, word for word, each line once."""
    lines: dict[str, dict[str, None]] = {series: {} for series in study.series}
    for run in study.runs:
        lines[run.label] |= dict.fromkeys(run.lines)
    return {series: list(said) for series, said in lines.items() if said}


def _embed_audits(study: Study) -> dict[str, str]:
    """The pictures of what was stated and attacked, by run, of the runs that were audited."""
    pictures = {run.name: study.directory / run.name / "audit.png" for run in study.runs}
    return {
        name: f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"
        for name, picture in pictures.items()
        if picture.exists()
    }


def _write_tidy_tables(study: Study) -> None:
    """Write ``rounds`` and ``summary`` of all finished runs, as parquet and as CSV."""
    summary = study.results.drop(columns=["statement", "certified", "budget_delta"])
    for key in study.varying:
        values = {run.name: setting_value(run.config.get(key)) for run in study.runs}
        summary[key] = summary["run"].map(values)
    for name, frame in (("rounds", study.rounds.copy()), ("summary", summary)):
        # Parquet has one type in a column.
        mixed = [key for key in frame if pd.api.types.is_object_dtype(frame[key])]
        frame[mixed] = frame[mixed].astype(str)
        for ending, write in (("parquet", frame.to_parquet), ("csv", frame.to_csv)):
            replace_file(study.directory / f"{name}.{ending}", partial(write, index=False), durable=False)


def _write(path: Path, text: str) -> Path:
    """Write a file so that a reader finds the old or the new one, never a part."""
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8"), durable=False)
    return path
