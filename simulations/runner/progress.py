"""Progress of a run: a live bar in a terminal, a line now and then elsewhere, nothing in parallel sweeps."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fl_privquant.accounting import PrivacyStatement, Unit, ViewKind
from simulations.runner.config import RunConfig

_LINES = 4
# "number/total" of this process's run in its sweep, or "quiet" in a parallel one; see set_position.
_position = ""
_VIEWS = {
    ViewKind.LOCAL: "local",
    ViewKind.AGGREGATE: "sums",
    ViewKind.MODELS: "models",
    ViewKind.CENTRAL: "models",
    ViewKind.LOCAL_OR_AGGREGATE: "local or sums",
}


class _Bars(Progress):
    """Progress bars, with a line about the run below them: 80 columns have no room for it beside them."""

    note = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.note:
            yield Text(self.note)


class RoundsDisplay:
    """Shows the rounds of one run; a context manager."""

    def __init__(self, config: RunConfig, console: Console, position: str) -> None:
        self._total = config.federation.rounds
        self._quiet = position == "quiet"
        run = name_with_seed(config)
        where = "" if self._quiet else position
        self._name = f"{where} {run}".strip()
        # Messages are rare, and name the directory.
        self._directory = f"{where} {config.run_name}, seed {config.seed}".strip()
        self._console = console
        self._explained = "/" in position
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
        self._bars.append(self._progress.add_task(run, total=self._total or None))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def report_resume(self, finished: int) -> None:
        """Say that an interrupted run goes on, and after which round."""
        total = f" of {self._total}" if self._total else ""
        self.print_message(f"was interrupted; resumes after round {finished}{total}")

    def print_message(self, text: str) -> None:
        """Say something about the run."""
        print_line(self._console, f"{self._directory}: {text}")

    def update(self, row: dict[str, Any], spent: PrivacyStatement | None) -> None:
        """Show a round that is done, and an upper bound on what a client has spent by then, if any.

        The bound is computed quickly. The statement at the end of the run takes longer to compute, and is a
        little smaller.
        """
        # Not every task has an accuracy, and an app may evaluate nothing.
        qualities = {"accuracy": f"{row['accuracy']:.3f}", "loss": f"{row['loss']:.4g}"}
        notes = [f"{name} {value}" for name, value in qualities.items() if value != "nan"][:1]
        bounded = spent is not None and math.isfinite(spent.epsilon)
        brief = "" if spent is None else f"spent at most {spent.brief}" if bounded else spent.brief
        self._progress.note = ", ".join([*notes, brief] if brief else notes)
        self._progress.update(self._bars[-1], completed=row["round"])
        if self._quiet or self._live or row["round"] == 0:
            return
        if row["round"] == self._total or row["round"] % max(1, self._total // _LINES) == 0:
            total = f"/{self._total}" if self._total else ""
            if spent is not None:
                self._explain(spent)
                notes.append(format_epsilons([spent]))
            print_line(self._console, ", ".join([f"{self._name}: round {row['round']}{total}", *notes]))

    def _explain(self, spent: PrivacyStatement) -> None:
        """Say once what the epsilon of the lines is; a sweep has said it for all of its runs."""
        if not self._explained and math.isfinite(spent.epsilon):
            print_line(self._console, epsilon_heading(spent))
        self._explained = True


def name_with_seed(config: RunConfig) -> str:
    """A run in the lines of its sweep: its directory without the hash, for 80 columns, and its seed."""
    return f"{config.run_name.rpartition('-')[0]}, seed {config.seed}"


def epsilon_heading(stated: PrivacyStatement, rounds: bool = True) -> str:
    """What the figures of :func:`format_epsilons` are: the heading of the lines that a run or a sweep prints.

    ``stated`` has their unit and δ. Runs of a sweep may differ in their relation, which is in each line. With
    ``rounds`` some of the lines are about rounds of a run that lasts.
    """
    whom = "one record of a client" if stated.unit is Unit.RECORD else "all updates of a client together"
    bound = " Until a run ends, it is an upper bound that is quick to compute." if rounds else ""
    return (
        f"ε is for {whom} ({stated.unit}, δ = {stated.delta_cell}), if "
        f"its codes are seen (local), only sums over clients (sums), or only the models (models).{bound}"
    )


def format_epsilons(statements: Sequence[PrivacyStatement]) -> str:
    """Epsilons of client totals in few words, for lines under :func:`epsilon_heading`.

    >>> from fl_privquant.accounting import View
    >>> in_sum = PrivacyStatement(8.0, 1e-5, Unit.TOTAL, View(54).stated)
    >>> format_epsilons([in_sum, PrivacyStatement(24660.0, 1e-5, Unit.TOTAL)])
    'ε = 8 (sums, replace-one), 24,660 (local, replace-one)'
    """
    if all(math.isinf(statement.epsilon) for statement in statements):
        return "not private"
    figures = [
        f"{statement.epsilon_number} ({_VIEWS[statement.view.kind]}, {statement.relation})"
        for statement in statements
    ]
    return "ε = " + ", ".join(figures)


def print_line(console: Console, line: str) -> None:
    """Print a line, wrapped to the width of a terminal or of COLUMNS; in a pipe without it, as it is."""
    fixed = console.is_terminal or "COLUMNS" in os.environ
    console.print(line, soft_wrap=not fixed, highlight=False)


def make_rounds_display(config: RunConfig) -> RoundsDisplay:
    """The display of a run's rounds."""
    return RoundsDisplay(config, Console(file=sys.stderr), _position)


def set_position(position: str) -> None:
    """Set what precedes the rounds of this process's next runs.

    Parameters
    ----------
    position
        "number/total" of the run in its sweep, "quiet" to show no rounds, or "" for a run of its own.
    """
    global _position
    _position = position


def get_position() -> str:
    """What :func:`set_position` has set in this process."""
    return _position
