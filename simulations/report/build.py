"""All that a study is turned into, in order."""

from __future__ import annotations

from pathlib import Path

from simulations.report.charts import LATE_ROUNDS
from simulations.report.collect import write_atomically, write_tidy_tables
from simulations.report.drawings import drawings_of
from simulations.report.html_page import render
from simulations.report.study_data import Study
from simulations.report.summary_tables import privacy_table, summary_table
from simulations.report.terminal import print_summary


def build_report(study_dir: Path) -> Path:
    """Write tables, figures and ``report.html`` of the study in a directory; the path of the page.

    Nothing of the runs is touched; what was built before is replaced file by file.
    """
    return _report_on(Study.load(Path(study_dir)))


def show_report(study_dir: Path) -> Path:
    """Build the report, print the table of results and where the page is; its path."""
    study = Study.load(Path(study_dir))
    path = _report_on(study)
    print_summary(study)
    print(f"report: {path}")
    return path


def _report_on(study: Study) -> Path:
    drawings = drawings_of(study)
    if study.runs:
        write_tidy_tables(study)
        for table in (privacy_table(study), summary_table(study)):
            write_atomically(study.directory / "tables" / f"{table.name}.md", table.markdown().encode())
            write_atomically(study.directory / "tables" / f"{table.name}.tex", table.latex().encode())
        for drawing in drawings:
            if drawing.place.get("rounds") != LATE_ROUNDS:
                drawing.save(study.directory / "figures")
    return write_atomically(study.directory / "report.html", render(study, drawings).encode())
