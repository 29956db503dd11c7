"""Builds the whole report of a study, in order: tables, figures, and the page."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

from fl_privquant.files import replace_file
from simulations.report.charts import LATE_ROUNDS
from simulations.report.drawings import drawings_of
from simulations.report.html_page import render
from simulations.report.study_data import Study
from simulations.report.summary_tables import privacy_table, summary_table
from simulations.report.terminal import print_summary

# Columns for the report alone; the label and the columns of what varies say the same.
_INTERNAL = ["series", "setting", "private"]


def build_report(study_dir: Path) -> Path:
    """Write tables, figures and ``report.html`` of the study in a directory; the path of the page.

    Nothing of the runs is touched; what was built before is replaced file by file.
    """
    return _report_on(Study.load(Path(study_dir)))


def show_report(study_dir: Path, panels: Collection[str | None] | None = None) -> Path:
    """Build the report, print the table of results and where the page is; its path.

    Of a study that asks several questions, only the results of these ``panels`` are printed, if they are
    given.
    """
    study = Study.load(Path(study_dir))
    path = _report_on(study)
    print_summary(study, panels=panels)
    print(f"report: {path}")
    return path


def _report_on(study: Study) -> Path:
    drawings = drawings_of(study)
    if study.runs:
        write_tidy_tables(study)
        for table in (privacy_table(study), summary_table(study)):
            _write(study.directory / "tables" / f"{table.name}.md", table.markdown())
            _write(study.directory / "tables" / f"{table.name}.tex", table.latex())
        for drawing in drawings:
            if drawing.place.get("rounds") != LATE_ROUNDS:
                drawing.save(study.directory / "figures")
    return _write(study.directory / "report.html", render(study, drawings))


def write_tidy_tables(study: Study) -> None:
    """Write ``rounds`` and ``summary`` of all finished runs, as parquet and as CSV."""
    keys = {"rounds": ["run", "round"], "summary": ["run"]}
    for name, frame in (("rounds", study.rounds), ("summary", study.summary)):
        tidy = frame.drop(columns=_INTERNAL, errors="ignore").drop_duplicates(keys[name], ignore_index=True)
        for ending, write in (("parquet", tidy.to_parquet), ("csv", tidy.to_csv)):
            path = study.directory / f"{name}.{ending}"
            replace_file(path, partial(write, index=False), durable=False)


def _write(path: Path, text: str) -> Path:
    """Write a file so that a reader finds the old or the new one, never a part."""
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8"), durable=False)
    return path
