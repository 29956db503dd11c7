"""The command ``plan``: the bar while it looks at mechanisms, and the table of their designs."""

from __future__ import annotations

import itertools

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fl_privquant.accounting import PlannedDesigns, PrivacyStatement, Wish, plan
from fl_privquant.cli.certified import certified_cell, certified_heading

__all__ = ["plan_with_progress", "print_plan"]

_BYTES_NOTE = "Bytes: what one client sends in a round, without headers."
_ERROR_NOTES = {
    False: "MSE of mean: of one coordinate of the mean update, in clip², inputs uniform.",
    True: "Error over central: squared error of the mean update over that of a Gaussian that a trusted "
    "server adds, for rotated updates at the L2 clip, what clipping coordinates cuts off included. L2/10: "
    "coordinates are clipped at a tenth of the L2 clip.",
}


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


def print_plan(console: Console, found: PlannedDesigns) -> None:
    """Print the designs of a plan, what is missing and why, and what would meet the target."""
    wish = found.wish
    target = PrivacyStatement(wish.epsilon, wish.delta, wish.unit, str(wish.view), method="target")
    title = f"{target.unit}, view: {target.view}; target {target.figures}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    reached = PrivacyStatement.heading(wish.unit, str(wish.view), "ε reached").replace(", ", ",\n")
    by_norm = all(planned.ratio_to_central is not None for planned in found.designs)
    error = "error over\ncentral" if by_norm else "MSE of mean"
    headings = ("mechanism", certified_heading(), "clip", reached, "counted by", error, "bytes")
    for heading in headings:
        left = heading in ("mechanism", "clip", "counted by")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading == "mechanism")
    for each in found.designs:
        table.add_row(
            each.name,
            certified_cell(each.mechanism),
            each.clip if each.norm_ratio is None else f"L2, L2/{each.norm_ratio:.4g}",
            each.statement.epsilon_cell,
            each.statement.method,
            f"{each.ratio_to_central:.4f}" if by_norm else f"{each.mean_squared_error:.4g}",
            str(each.bytes_per_round),
        )
    if found.designs:
        console.print(table)
        console.print(f"{_ERROR_NOTES[by_norm]} {_BYTES_NOTE}", soft_wrap=True, highlight=False)
    for name, reason in found.missing.items():
        console.print(f"{name}: {reason}", soft_wrap=True, highlight=False)
    if found.advice is not None:
        console.print(f"{title}: {found.advice}", soft_wrap=True, highlight=False)
