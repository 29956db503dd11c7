"""The summary of a study on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fl_privquant.cli.layout import Column, output_console, print_table
from fl_privquant.cli.printing import say
from simulations.report.charts import CERTIFIED
from simulations.report.compared import verdict_of
from simulations.report.marks import marks_of
from simulations.report.study_data import Study
from simulations.report.summary_tables import LEVELS, NOTES, Table, summary_table

SHORT = {
    CERTIFIED: "ε release",
    LEVELS["epsilon_client_total"]: "ε total",
    LEVELS["epsilon_client_total_sum"]: "ε total, sum",
    "MSE of the mean": "MSE",
}
"""Headings of the table in the words of a terminal."""

# Columns that a narrow terminal leaves out, the lowest number first.
_DROPPED = {"seeds": 1, "MB handshake": 2, "MB up": 3, "bits": 4, CERTIFIED: 5}


def print_summary(study: Study, console: Console | None = None) -> None:
    """Print the table of results, what is wrong with the runs that are not in it, and the verdict."""
    console = output_console() if console is None else console
    table, marks = summary_table(study), marks_of(study.protects)
    columns = [_column(heading) for heading in table.headings if heading != "setting"]
    for setting, rows in table.by_setting().items():
        cells: list[list[str | Text]] = []
        for series, *texts in map(dict.values, rows):
            # The colour for dark backgrounds, which most terminals have.
            name = Text.assemble((marks[series].glyph, marks[series].dark), " ", series)
            cells.append([name, *texts])
        print_table(console, columns, cells, setting)
    if table.rows:
        console.print(Text(table.caption, style="dim"), highlight=False)
    for problem in study.problems:
        say(console, f"{problem.kind}: {problem.run}: {problem.message}")
    for sentence in verdict_of(study):
        console.print(Text(sentence, style="bold"), highlight=False)


def _column(heading: str) -> Column:
    short = SHORT.get(heading, heading)
    legend = heading if heading != short and "ε" in heading else NOTES.get(heading, "").replace("\u00a0", " ")
    return Column(short, legend, Table.is_words(heading), _DROPPED.get(heading, 0))
