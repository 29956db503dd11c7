"""What commands print: rich's tables, with a legend under them, and sentences.

Only headings and the widest column of words are wrapped, so that no number is cut off or broken. Where a
terminal is too narrow for that, each row is printed as a table of its own, with one line for each heading.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

_PIPED_WIDTH = 120
_BETWEEN_COLUMNS = 2


@dataclass(frozen=True)
class Column:
    """A column: a short heading, and what it means."""

    heading: str
    """A word or two, on one line."""
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


def print_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], title: str = ""
) -> None:
    """Print a title, rows under columns, and the legend of the columns."""
    print_legend(console, print_rows(console, columns, rows, title))


def print_legend(console: Console, notes: Sequence[str]) -> None:
    """Print the legend of one table, or of several; what they have in common is printed once."""
    for note in dict.fromkeys(notes):
        console.print(Text(f"{note}.", style="dim"), highlight=False)


def print_rows(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], title: str = ""
) -> list[str]:
    """Print a table without its legend, as :func:`print_table` does; return the notes of the legend."""
    if title:
        console.print(Text(title, style="italic"), highlight=False)
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    longest = [max((len(row[at]) for row in cells), default=0) for at in range(len(columns))]
    wrapped = max(range(len(columns)), key=lambda at: (columns[at].words, longest[at]))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    width = _BETWEEN_COLUMNS * (len(columns) - 1)
    for at, column in enumerate(columns):
        word = _longest_word(column.heading)
        wraps = at == wrapped and column.words
        table.add_column(
            Text(textwrap.fill(column.heading, max(word, longest[at]))),
            justify="left" if column.words else "right",
            no_wrap=not wraps,
        )
        width += max(
            word, max((_longest_word(row[at].plain) for row in cells), default=0) if wraps else longest[at]
        )
    for row in cells:
        table.add_row(*row)
    if width <= console.width:
        console.print(table)
    else:
        for row in cells:
            console.print(_list_cells(columns, row))
    console.print()
    return [f"{column.heading}: {column.legend}" for column in columns if column.legend]


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _list_cells(columns: Sequence[Column], row: Sequence[Text]) -> Table:
    """One row as a table with a line for each heading and its cell."""
    lines = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_header=False)
    lines.add_column(style="dim", overflow="fold")
    lines.add_column(overflow="fold")
    for column, cell in zip(columns, row, strict=True):
        lines.add_row(Text(column.heading), cell)
    return lines
