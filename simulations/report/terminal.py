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

_CAPTION = (
    "±: half of the 95 % interval over seeds (Student t). What each ε covers, and its δ, is in the privacy "
    "table of the report."
)
_LEGENDS = {
    **NOTES,
    "MSE of the mean": "mean squared error of the decoded mean update, per coordinate, averaged over rounds",
    "MB handshake": "keys, shares and lists of secure aggregation, up and down, all clients and rounds",
}
# What a cell says besides its number, in fewer words, so that more columns have room.
_SHORT_CELLS = {" (not private)": "", "(trusted server)": "(trusted)"}
# Columns that a narrow terminal leaves out, the lowest number first.
_DROPPED = {"seeds": 1, "MB handshake": 2, CERTIFIED: 3, "bits": 4, "MB up": 5}


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
            cells.append([name, *map(short_cell, texts)])
        print_table(console, columns, cells, setting)
    if table.rows:
        console.print(Text(_CAPTION, style="dim"), highlight=False)
    for problem in study.problems:
        say(console, f"{problem.kind}: {problem.run}: {problem.message}")
    for sentence in verdict_of(study):
        console.print(Text(sentence, style="bold"), highlight=False)


def short_cell(cell: str) -> str:
    """A cell of the table in the words of a terminal."""
    for words, fewer in _SHORT_CELLS.items():
        cell = cell.replace(words, fewer)
    return cell


def _column(heading: str) -> Column:
    short = SHORT.get(heading, heading)
    legend = (
        heading if heading != short and "ε" in heading else _LEGENDS.get(heading, "").replace("\u00a0", " ")
    )
    return Column(short, legend, Table.is_words(heading), _DROPPED.get(heading, 0))
