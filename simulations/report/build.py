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
        saved = [drawing for drawing in drawings if drawing.place.get("rounds") != LATE_ROUNDS]
        for drawing in saved:
            drawing.save(study.directory / "figures")
        _remove_outdated(study.directory / "figures", {drawing.name for drawing in saved})
    return _write(study.directory / "report.html", render(study, drawings))


def _remove_outdated(folder: Path, names: Collection[str]) -> None:
    """Remove figures of the same kinds that this report does not have: they show runs that it has moved.

    A second panel gives the first one's figures other names, for example. Files of other kinds are not ours.
    """
    kinds = {name.partition("--")[0] for name in names}
    for path in folder.iterdir():
        is_ours = path.suffix in (".pdf", ".png") and path.stem.partition("--")[0] in kinds
        if is_ours and path.stem not in names:
            path.unlink()


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
