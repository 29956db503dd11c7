"""All that a study is turned into, in order."""

from __future__ import annotations

from pathlib import Path

from simulations.report.chart_files import draw_charts, draw_findings, draw_laws
from simulations.report.charts import charts_of, dimensions_of, findings_of
from simulations.report.collect import write_atomically, write_tidy_tables
from simulations.report.html_page import render
from simulations.report.laws import laws_of
from simulations.report.marks import marks_of
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
    if study.runs:
        write_tidy_tables(study)
        for table in (privacy_table(study), summary_table(study)):
            write_atomically(study.directory / "tables" / f"{table.name}.md", table.markdown().encode())
            write_atomically(study.directory / "tables" / f"{table.name}.tex", table.latex().encode())
        dimensions = dimensions_of(study)
        marks = marks_of(study.protects)
        draw_findings(findings_of(study), marks, study.directory / "figures")
        draw_charts(charts_of(study), dimensions, marks, study.directory / "figures")
        draw_laws(laws_of(study, dimensions)[0], dimensions, study.directory / "figures")
    return write_atomically(study.directory / "report.html", render(study).encode())
