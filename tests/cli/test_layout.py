"""Tables of the command line and of reports: every number whole at every width from 80 columns up."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from fl_privquant.cli.layout import LEAST_TABLE_WIDTH, Column, output_console, print_table
from fl_privquant.cli.main import app
from simulations.report import terminal
from simulations.report.study_data import Study
from simulations.report.summary_tables import summary_table
from simulations.report.terminal import print_summary
from tests.simulations.synthetic import write_study

WIDTHS = (80, 100, 120, 160)
COLUMNS = (
    Column("mechanism", words=True),
    Column("MSE", "mean squared error, in clip²"),
    Column("accuracy, %"),
    Column("bytes", dropped=2),
    Column("s", "seconds", dropped=1),
)
ROWS = [
    ("optm independent", "(7.148 ± 0.050) × 10⁻³", "93.7 ± 3.1", "123 456", "0.01"),
    ("one_bit", "0.25", "9.8", "88", "12.34"),
]


def printed(width: int, rows: list[tuple[str, ...]], columns: tuple[Column, ...] = COLUMNS) -> str:
    file = io.StringIO()
    print_table(Console(file=file, width=width), columns, rows, "a title")
    return file.getvalue()


def left_out(shown: str) -> list[str]:
    note = re.search(r"not shown at a width of \d+: ([^.;]*)", " ".join(shown.split()))
    return note[1].split(", ") if note else []


@pytest.mark.parametrize("width", range(20, 200, 7))
def test_no_cell_is_cut_and_no_line_is_too_long(width: int) -> None:
    wide = [(f"{row[0]} {'x' * 40}", *row[1:]) for row in ROWS]
    for rows in (ROWS, wide):
        shown = printed(width, rows)
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= width
        gone = left_out(shown)
        if width < 60:
            continue  # below 80 columns pairs may be wrapped at spaces
        for row in rows:
            for column, cell in zip(COLUMNS[1:], row[1:], strict=True):
                assert (cell in shown) != (column.heading in gone), (width, cell)


def test_columns_are_left_out_in_their_order_and_named() -> None:
    rows = [(f"{row[0]} {'x' * 38}", *row[1:]) for row in ROWS]
    dropped = [left_out(printed(width, rows)) for width in range(LEAST_TABLE_WIDTH, 160)]
    assert dropped[0] == ["bytes", "s"]
    assert ["s"] in dropped
    assert dropped[-1] == []
    assert [len(gone) for gone in dropped] == sorted((len(gone) for gone in dropped), reverse=True)
    # Below that width every column is there, as a block for each row.
    assert left_out(printed(LEAST_TABLE_WIDTH - 1, rows)) == []


def test_a_legend_says_what_shown_headings_mean() -> None:
    assert "MSE: mean squared error, in clip².\ns: seconds.\n" in printed(160, ROWS)


@pytest.mark.parametrize("width", [60, 400])
def test_what_a_legend_explains_has_its_heading_in_every_layout(width: int) -> None:
    """Blocks began with "3 bits", and the legend spoke of "codes"."""
    columns = (Column("codes", "the width of a code", words=True), *COLUMNS[1:])
    shown = printed(width, [("3 bits", *ROWS[0][1:])], columns)
    assert "codes: the width of a code.\n" in shown
    assert ("codes: 3 bits\n" in shown) == (width == 60)
    assert ("codes " in shown) == (width == 400)


def test_columns_of_the_environment_are_taken_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "93")
    assert output_console().width == 93
    monkeypatch.delenv("COLUMNS")
    assert output_console().width == 120


COMMANDS = {
    "compare": ["compare", "--mechanism", "biased", "--mechanism", "one_bit", "--mechanism", "cldp_l2"],
    "plan": [
        *("plan", "--epsilon", "8", "--clients", "100", "--dimension", "100", "--rounds", "5"),
        *("--mechanism", "one_bit", "--mechanism", "discrete_gaussian"),
    ],
    "joint plan": ["plan", "--clients", "40", "--dimension", "2000", "--rounds", "10", "--bits", "1"],
    "statement": ["statement", "--mechanism", "one_bit", "--dropout-fraction", "0"],
    "design": ["design", "one_bit", "--epsilon", "1"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_show_the_same_numbers_at_every_width(command: str) -> None:
    def numbers(width: int) -> tuple[str, list[str]]:
        shown = CliRunner().invoke(
            app, COMMANDS[command], env={"COLUMNS": str(width)}, catch_exceptions=False
        )
        assert shown.exit_code == 0
        assert "…" not in shown.output
        figures = re.findall(r"(?<![\w.])\d+\.\d{3,}(?!\w)|\b\de-\d+\b", shown.output)
        return shown.output, sorted(figures)

    widest = numbers(400)
    assert widest[1]
    for width in WIDTHS:
        shown, figures = numbers(width)
        assert figures == widest[1], (width, left_out(shown))


def test_the_summary_of_a_study_is_whole_at_every_width(tmp_path: Path) -> None:
    write_study(tmp_path / "study", labels=("optm", "stochastic", "one_bit"), seeds=(0, 1, 2), rounds=2)
    write_study(
        tmp_path / "study",
        labels=("optm",),
        seeds=(0, 1, 2),
        rounds=2,
        settings=({"secagg": {"enabled": True, "corrupt_fraction": 0.1, "dropout_fraction": 0.1}},),
    )
    study = Study.load(tmp_path / "study")
    table = summary_table(study, short=True)
    for width in WIDTHS:
        file = io.StringIO()
        print_summary(study, Console(file=file, width=width))
        shown = file.getvalue()
        assert "…" not in shown
        assert max(len(Text(line)) for line in shown.splitlines()) <= width
        gone = left_out(shown)
        assert width >= LEAST_TABLE_WIDTH or not gone
        assert not {"accuracy, %", "ε total", "ε total, sum", "MSE"} & set(gone)
        for row in table.rows:
            for heading, cell in row.items():
                assert cell in shown or terminal.SHORT.get(heading, heading) in gone, (
                    width,
                    heading,
                    cell,
                )
