"""Tables that never cut a number off, however narrow the terminal.

A table that fits the width is drawn with all its columns. Where it does not fit, and the width is 100 columns
or more, columns are left out in the order that the table states, and a line under it names them. Below 100
columns, or where leaving them out is not enough, each row becomes a block of headings with their values ("MSE
0.25", "counted by: pld"), which are wrapped between these pairs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.status import Status
from rich.table import Table as RichTable
from rich.text import Text

LEAST_TABLE_WIDTH = 100
"""Terminals narrower than this show a table that does not fit as blocks, with every column."""

_PIPED_WIDTH = 120
_UNLIMITED = 100_000
_BETWEEN_PAIRS = "   "
_INDENT = "  "


@dataclass(frozen=True)
class Column:
    """A column: a short heading, and what it means."""

    heading: str
    """A word or two, on one line."""
    legend: str = ""
    """What the heading stands for, with the unit of the numbers; a line of the legend under the table."""
    words: bool = False
    """Whether it holds words, which are set to the left."""
    dropped: int = 0
    """The order in which columns are left out of a table that is too wide, the lowest number first; 0 for a
    column that is never left out."""


def output_console() -> Console:
    """The console for results: as wide as the terminal, or as ``COLUMNS`` says; else 120 in a pipe."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPED_WIDTH)


def progress(doing: str) -> Status:
    """A line that says what a command is doing, on the error stream, and only on a terminal."""
    return Console(stderr=True).status(doing)


def print_table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Text]],
    title: str = "",
    sections: Sequence[int] = (),
) -> None:
    """Print a title, rows under columns without cutting a number off, and the legend of the columns.

    A rule is drawn above the rows in ``sections``.
    """
    print_legend(console, print_rows(console, columns, rows, title, sections))


def print_legend(console: Console, notes: Sequence[str]) -> None:
    """Print the legend of one table, or of several; what they have in common is printed once."""
    for note in dict.fromkeys(notes):
        console.print(Text(f"{note}.", style="dim"), highlight=False)


def print_rows(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Text]],
    title: str = "",
    sections: Sequence[int] = (),
) -> list[str]:
    """Print a table without its legend, as :func:`print_table` does; the notes of the legend."""
    if title:
        console.print(Text(title, style="italic"), highlight=False)
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    everything = list(range(len(columns)))
    shown = everything
    leave = sorted((columns[at].dropped, at) for at in everything if columns[at].dropped)
    grid = _grid(columns, cells, shown, sections)
    while not _fits(console, grid) and leave and console.width >= LEAST_TABLE_WIDTH:
        _, first = leave.pop(0)
        shown = [at for at in shown if at != first]
        grid = _grid(columns, cells, shown, sections)
    if _fits(console, grid):
        console.print(grid)
    else:
        shown = everything
        _print_blocks(console, columns, cells)
    notes = [f"{columns[at].heading}: {columns[at].legend}" for at in shown if columns[at].legend]
    if left_out := [column.heading for at, column in enumerate(columns) if at not in shown]:
        notes.append(f"not shown at a width of {console.width}: {', '.join(left_out)}")
    return notes


def _fits(console: Console, grid: RichTable) -> bool:
    unlimited = console.options.update(max_width=_UNLIMITED)
    return Measurement.get(console, unlimited, grid).maximum <= console.width


def _grid(
    columns: Sequence[Column],
    cells: Sequence[Sequence[Text]],
    shown: Sequence[int],
    sections: Sequence[int],
) -> RichTable:
    grid = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for at in shown:
        justify: JustifyMethod = "left" if columns[at].words else "right"
        grid.add_column(Text(columns[at].heading), justify=justify, no_wrap=True)
    for number, row in enumerate(cells):
        if number in sections:
            grid.add_section()
        grid.add_row(*(row[at] for at in shown))
    return grid


def _print_blocks(console: Console, columns: Sequence[Column], cells: Sequence[Sequence[Text]]) -> None:
    # A name needs no heading; what the legend explains has the heading that it is explained by.
    named = (f"{columns[0].heading}: ", "dim") if columns[0].legend else ""
    for row in cells:
        console.print(Text.assemble(named, row[0]), highlight=False)
        for line in _lines(console.width, columns, row):
            console.print(line, highlight=False)
    console.print()


def _lines(width: int, columns: Sequence[Column], row: Sequence[Text]) -> Iterator[Text]:
    """The cells of a row after its first, each with its heading, as many on a line as fit."""
    line = Text(_INDENT)
    for column, cell in zip(columns[1:], row[1:], strict=True):
        if not cell.plain:
            continue
        pair = Text.assemble((column.heading + ":" * column.words, "dim"), " ", cell)
        if len(line) > len(_INDENT) and line.cell_len + len(_BETWEEN_PAIRS) + pair.cell_len > width:
            yield line
            line = Text(_INDENT)
        if len(line) > len(_INDENT):
            line.append(_BETWEEN_PAIRS)
        line.append_text(pair)
    yield line
