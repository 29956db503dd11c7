"""What benchmarks share: a row beside its target, fair timing, and the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["Call", "Row", "best_seconds", "print_rows"]

Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One measurement beside its target."""

    name: str
    measured: float
    target: float
    at_least: bool = True

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return self.measured >= self.target if self.at_least else self.measured <= self.target


def best_seconds(calls: Sequence[Call], rounds: int) -> list[float]:
    """The shortest time of each call, taking turns so that all meet the same machine."""
    best = [float("inf")] * len(calls)
    for turn in range(rounds + 1):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            # The first turn compiles and warms up.
            if turn:
                best[i] = min(best[i], time.perf_counter() - start)
    return best


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """Print rows as a table."""
    view = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("what", "measured", "target", ""):
        view.add_column(column, justify="left" if column == "what" else "right")
    for row in rows:
        bound = f"{'>=' if row.at_least else '<='} {row.target:.3g}"
        view.add_row(row.name, f"{row.measured:.3g}", bound, "holds" if row.holds else "[red]missed[/red]")
    Console(width=110).print(view)
