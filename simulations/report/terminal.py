"""The summary of a study on the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from simulations.report.marks import mark_of
from simulations.report.study import Study
from simulations.report.tables import summary_table

__all__ = ["print_summary"]


def print_summary(study: Study, console: Console | None = None) -> None:
    """Print the table of results, and what is wrong with the runs that are not in it."""
    if console is None:
        console = Console()
        # Into a file or a pipe nothing has to fit a screen.
        console = console if console.is_terminal else Console(width=130)
    table = summary_table(study)
    longest = max(map(len, table.series), default=0) + 2
    for setting, rows in table.by_setting():
        shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title_justify="left")
        shown.title = escape(setting) or None
        for heading in table.headings:
            if heading != "setting":
                words = table.is_words(heading)
                width = longest if heading == "mechanism" else None
                # Headings that say what an epsilon covers are long: a line for each part.
                lines = heading.replace(", ", ",\n") if "ε" in heading else heading
                shown.add_column(lines, justify="left" if words else "right", no_wrap=True, min_width=width)
        for series, row in rows:
            cells = [escape(cell) for _, cell in row]
            # The colour that is readable on dark: terminals are that more often than not.
            cells[0] = f"[{mark_of(series).dark}]●[/] {cells[0]}"
            shown.add_row(*cells)
        console.print(shown)
    if table.rows:
        console.print(escape(table.caption), style="dim", highlight=False)
    for problem in study.problems:
        console.print(f"{problem.kind}: {problem.run}: {problem.message}", markup=False, soft_wrap=True)
