"""The summary of a study on the terminal."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console
from rich.text import Text

from fl_privquant.cli.layout import Column, output_console, print_legend, print_rows
from fl_privquant.cli.printing import say
from simulations.report.charts import CERTIFIED
from simulations.report.compared import verdict_of
from simulations.report.marks import marks_of
from simulations.report.study_data import Study
from simulations.report.summary_tables import LEVELS, Table, large_total, seeds_note, summary_table

SHORT = {
    CERTIFIED: "ε release",
    LEVELS["epsilon_client_total"]: "ε total",
    LEVELS["epsilon_client_total_sum"]: "ε total, sum",
    LEVELS["epsilon_client_total_models"]: "ε total, models",
    "MSE of the mean": "MSE",
}
"""Headings of the table in the words of a terminal."""

_CAPTION = (
    "What each ε covers, and its δ, is in the privacy table of the report; mechanisms are described in "
    "docs/pages/studies.md"
)
_LEGENDS = {
    "accuracy, %": "as evaluated after the last round",
    "loss": "as evaluated after the last round",
    "bits": "the width of the code of one coordinate; secure aggregation may send more, see MB up",
    "MB up": "megabytes that all clients together send in all rounds",
    "MB handshake": "megabytes of keys, shares and lists of secure aggregation, up and down, in all rounds",
    "MSE of the mean": "mean squared error of the decoded mean update, per coordinate, averaged over rounds",
    LEVELS["epsilon_client_total"]: "all updates of a client together, its codes seen",
    LEVELS["epsilon_client_total_sum"]: "all updates of a client together, only sums over clients seen",
    LEVELS["epsilon_client_total_models"]: "all updates of a client together, only the models seen",
    CERTIFIED: "one coordinate in one round, its code seen",
}
# Columns that a narrow terminal leaves out, the lowest number first.
_DROPPED = {"seeds": 1, "MB handshake": 2, CERTIFIED: 3, "bits": 4, "MB up": 5}


def print_summary(
    study: Study, console: Console | None = None, panels: Collection[str | None] | None = None
) -> None:
    """Print the tables of results, what is wrong with the runs that are not in them, and the verdict.

    Of a study that asks several questions, only the results of these ``panels`` are printed, if they are
    given, and the others are named.
    """
    console = output_console() if console is None else console
    told = _settings_of(study, panels)
    table, marks = summary_table(study, short=True), marks_of(study.protects)
    columns = [_column(heading) for heading in table.headings if heading != "setting"]
    notes: list[str] = []
    for setting, rows in table.by_setting().items():
        if setting not in told:
            continue
        cells: list[list[str | Text]] = []
        for series, *texts in map(dict.values, rows):
            name = Text.assemble((marks[series].glyph, marks[series].color), " ", series)
            cells.append([name, *texts])
        notes += print_rows(console, columns, cells, setting or str(study.constant.get("panel") or ""))
    if table.rows:
        print_legend(console, [*notes, seeds_note(study), _CAPTION])
    for problem in study.problems:
        say(console, f"{problem.kind}: {problem.run}: {problem.message}")
    for remark in filter(None, (study.repeated, large_total(study))):
        console.print(Text(remark), highlight=False)
    for sentence in verdict_of(study, told):
        console.print(Text(sentence, style="bold"), highlight=False)
    for setting in study.settings:
        if setting not in told:
            console.print(Text(f"Also in the report: {setting}"), highlight=False)


def _settings_of(study: Study, panels: Collection[str | None] | None) -> tuple[str, ...]:
    """The settings of these panels; all settings, where the study has no panels."""
    if panels is None or not study.panels:
        return study.settings
    told = {study.setting_of(run) for run in study.runs if run.config.get("panel") in panels}
    return tuple(setting for setting in study.settings if setting in told)


def _column(heading: str) -> Column:
    short = SHORT.get(heading, heading)
    legend = _LEGENDS.get(heading, "")
    if heading != short and "ε" in heading:
        legend = f"{heading}: {legend}" if legend else heading
    return Column(short, legend, Table.is_words(heading), _DROPPED.get(heading, 0))
