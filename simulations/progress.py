"""Progress of a run: a live bar in a terminal, a line now and then elsewhere, nothing in parallel sweeps."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fl_privquant.accounting import PrivacyStatement
from simulations.config import RunConfig

SWEEP_POSITION = "FL_PRIVQUANT_SWEEP_POSITION"
"""Environment variable with "number/total" of the run in its sweep, or "quiet" in a parallel one."""

_LINES = 4


class _Bars(Progress):
    """Progress bars, with a line about the run below them: 80 columns have no room for it beside them."""

    note = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.note:
            yield Text(self.note)


class Rounds:
    """Shows the rounds of one run; a context manager."""

    def __init__(self, config: RunConfig, console: Console, position: str) -> None:
        self._total = config.federation.rounds
        self._quiet = position == "quiet"
        self._name = config.run_name if self._quiet else f"{position} {config.run_name}".strip()
        self._console = console
        # Terminals that cannot move the cursor, such as those of editors, get lines like a pipe.
        self._live = console.is_terminal and not console.is_dumb_terminal
        self._progress = _Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=self._quiet or not self._live,
        )
        self._bars = []
        if "/" in position:
            number, total = position.split("/")
            self._bars.append(self._progress.add_task("sweep", total=int(total), completed=int(number) - 1))
        self._bars.append(self._progress.add_task(config.run_name, total=self._total or None))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def resumes(self, finished: int) -> None:
        """Say that an interrupted run goes on, and after which round."""
        total = f" of {self._total}" if self._total else ""
        self._console.print(
            f"{self._name}: was interrupted, and goes on after round {finished}{total}",
            soft_wrap=not self._live,
            highlight=False,
        )

    def update(self, row: dict[str, Any], spent: PrivacyStatement | None) -> None:
        """Show a round that is done, and a quick upper bound of what a client has spent by then, if any.

        The end of the run counts in full, and comes to a little less.
        """
        # Not every task has an accuracy, and an app may evaluate nothing.
        qualities = {"accuracy": f"{row['accuracy']:.3f}", "loss": f"{row['loss']:.4g}"}
        notes = [f"{name} {value}" for name, value in qualities.items() if value != "nan"]
        if spent is not None:
            private = math.isfinite(spent.epsilon)
            notes.append(f"spent at most {spent.brief}, by a quick bound" if private else spent.brief)
        text = ", ".join(notes)
        self._progress.note = text
        self._progress.update(self._bars[-1], completed=row["round"])
        if self._quiet or self._live or row["round"] == 0:
            return
        if row["round"] == self._total or row["round"] % max(1, self._total // _LINES) == 0:
            total = f"/{self._total}" if self._total else ""
            self._console.print(f"{self._name}: round {row['round']}{total}, {text}", soft_wrap=True)


def rounds(config: RunConfig) -> Rounds:
    """The display of a run's rounds."""
    return Rounds(config, Console(file=sys.stderr), os.environ.get(SWEEP_POSITION, ""))
