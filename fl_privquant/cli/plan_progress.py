"""The bar that the command ``plan`` shows while it looks at mechanisms."""

from __future__ import annotations

import itertools

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fl_privquant.accounting import PlannedDesigns, Wish, plan


def plan_with_progress(wish: Wish, names: tuple[str, ...], curve: bool) -> PlannedDesigns:
    """The plan; a bar tells what is looked at, on the other stream and on a terminal only."""
    shown = Console(stderr=True)
    with Progress(
        TextColumn("planning {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=shown,
        transient=True,
        disable=not shown.is_terminal,
    ) as display:
        task = display.add_task("", total=len(names))
        started = itertools.count()
        return plan(
            wish,
            names,
            curve,
            lambda name: display.update(task, description=name, completed=next(started)),
        )
