"""Tables of the command line and of reports: every number whole at every width from 80 columns up."""

from __future__ import annotations

import io
import re
from operator import itemgetter

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fl_privquant.cli.layout import Column, output_console, print_table
from fl_privquant.cli.main import app

WIDTHS = (80, 120)
COLUMNS = (
    Column("mechanism", itemgetter(0), words=True),
    Column("MSE", itemgetter(1), "mean squared error, in clip²"),
    Column("accuracy, %", itemgetter(2)),
    Column("bytes", itemgetter(3)),
    Column("s", itemgetter(4), "seconds"),
)
ROWS = [
    ("optm independent", "(7.148 ± 0.050) × 10⁻³", "93.7 ± 3.1", "123456", "0.01"),
    ("one_bit", "0.25", "9.8", "88", "12.34"),
]


def printed(width: int, rows: list[tuple[str, ...]], columns: tuple[Column, ...] = COLUMNS) -> str:
    file = io.StringIO()
    print_table(Console(file=file, width=width), columns, rows, "a title")
    return file.getvalue()


def words_in(text: str) -> set[str]:
    return set(text.split())


@pytest.mark.parametrize("width", range(20, 200, 7))
def test_no_word_is_cut_and_no_line_is_too_long(width: int) -> None:
    wide = [(f"{row[0]} {'x ' * 20}", *row[1:]) for row in ROWS]
    for rows in (ROWS, wide):
        shown = printed(width, rows)
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= width
        for row in rows:
            for cell in row if width > 25 else ():
                assert words_in(cell) <= words_in(shown), (width, cell)


def test_a_table_without_rows_has_its_headings() -> None:
    assert words_in("mechanism MSE bytes") <= words_in(printed(80, []))


def test_names_are_no_markup() -> None:
    assert "[bold]" in printed(80, [("[bold]", *ROWS[0][1:])])


@pytest.mark.parametrize(("width", "as_table"), [(30, False), (70, True), (200, True)])
def test_where_no_table_fits_each_row_is_a_list(width: int, as_table: bool) -> None:
    lines = printed(width, ROWS).splitlines()
    assert (sum(line.split()[:1] == ["mechanism"] for line in lines) == 1) == as_table
    assert (["bytes", "88"] in [line.split() for line in lines]) != as_table


def test_a_legend_says_what_shown_headings_mean() -> None:
    assert "MSE: mean squared error, in clip².\ns: seconds.\n" in printed(160, ROWS)


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
    def numbers(width: int) -> list[str]:
        shown = CliRunner().invoke(
            app, COMMANDS[command], env={"COLUMNS": str(width)}, catch_exceptions=False
        )
        assert shown.exit_code == 0
        assert "…" not in shown.output
        return sorted(re.findall(r"(?<![\w.])\d+\.\d{3,}(?!\w)|\b\de-\d+\b", shown.output))

    widest = numbers(400)
    assert widest
    for width in WIDTHS:
        assert numbers(width) == widest, width
