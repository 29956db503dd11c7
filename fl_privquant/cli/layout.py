"""What commands print: rich's tables, with a legend under them, and sentences."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

_PIPED_WIDTH = 120
# Wider than any table, so that rich measures what a table needs and not what it gets.
_ANY_WIDTH = 10_000


@dataclass(frozen=True)
class Column:
    """A column: a short heading, what stands below it, and what it means."""

    heading: str
    """A word or two."""
    cell: Callable[[Any], str | Text]
    """The text in the row of an object."""
    legend: str = ""
    """What the heading stands for, with the unit of the numbers; a line of the legend under the table."""
    words: bool = False
    """Whether it holds words, which are set to the left."""


def output_console() -> Console:
    """The console for results: as wide as the terminal, or as ``COLUMNS`` says; else 120 in a pipe."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPED_WIDTH)


def progress(doing: str) -> Status:
    """A line that says what a command is doing, on the error stream, and only on a terminal."""
    return Console(stderr=True).status(doing)


def print_sentence(console: Console, sentence: str, copied: bool = False) -> None:
    """Print a sentence, wrapped between words on a terminal; in a pipe it stays one line.

    What is ``copied``, such as a command, gets no line break on a terminal either.
    """
    console.print(Text(sentence), soft_wrap=copied or not console.is_terminal, highlight=False)


def print_table(console: Console, columns: Sequence[Column], rows: Iterable[Any], title: str = "") -> None:
    """Print a title, a row for each object, and the legend of the columns.

    Only the widest column of words is wrapped, so that no number is cut off or broken. Where a terminal is
    too narrow for that, each row is printed as a list of headings and cells.
    """
    if title:
        console.print(Text(title, style="italic"), highlight=False)
    cells = [[_as_text(column.cell(row)) for column in columns] for row in rows]
    widths = [max((row[at].cell_len for row in cells), default=0) for at in range(len(columns))]
    wrapped = max(range(len(widths)), key=lambda at: (columns[at].words, widths[at]))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for at, column in enumerate(columns):
        wraps = column.words and at == wrapped
        table.add_column(
            Text(textwrap.fill(column.heading, max(widths[at], *map(len, column.heading.split())))),
            justify="left" if column.words else "right",
            no_wrap=not wraps,
            min_width=None if wraps else widths[at],
        )
    for row in cells:
        table.add_row(*row)
    if console.measure(table, options=console.options.update_width(_ANY_WIDTH)).minimum <= console.width:
        console.print(table)
    else:
        for row in cells:
            console.print(_list_cells(columns, row))
    console.print()
    for column in columns:
        if column.legend:
            console.print(Text(f"{column.heading}: {column.legend}.", style="dim"), highlight=False)


def _as_text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _list_cells(columns: Sequence[Column], row: Sequence[Text]) -> Table:
    """One row as a table with a line for each heading and its cell."""
    lines = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_header=False)
    lines.add_column(style="dim", overflow="fold")
    lines.add_column(overflow="fold")
    for column, cell in zip(columns, row, strict=True):
        lines.add_row(Text(column.heading), cell)
    return lines
