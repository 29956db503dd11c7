"""``python -m simulations.studies NAME``: a study or one of its parts, its figures and its page.

Finished runs and parts are skipped, so that an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fl_privquant import checks
from fl_privquant.cli import program
from fl_privquant.cli.layout import Column, output_console, print_table
from fl_privquant.errors import InvalidSpecError, PrivQuantError
from simulations.studies.catalogue import STUDIES
from simulations.studies.page import write_page
from simulations.studies.study import DATA_VARIABLES, QUICK, Outcome, Part, Scale, Store, Study, Tell

_LONGEST_PRINTED = 100
_HELP = (
    "Compute what is missing of studies or of their parts, and write tables, figures and page.\n\n"
    + "\n\n".join(f"{study.name}: {', '.join(part.name for part in study.parts)}" for study in STUDIES)
)

app = typer.Typer(pretty_exceptions_enable=False, no_args_is_help=True, add_completion=False)


def chosen_parts(names: list[str]) -> dict[Study, list[Part]]:
    """The studies that are named, with all of their parts, or with those that are named."""
    studies = {study.name: study for study in STUDIES}
    owners = {part.name: study for study in STUDIES for part in study.parts}
    chosen: dict[Study, list[Part]] = {}
    for name in names:
        if name in studies:
            chosen[studies[name]] = list(studies[name].parts)
        elif name in owners:
            chosen.setdefault(owners[name], []).append(owners[name].part(name))
        else:
            raise InvalidSpecError(
                f"study: {name!r} is neither one of {', '.join(studies)} nor one of their parts; see --help"
                f"{checks.nearest(name, [*studies, *owners])}"
            )
    return chosen


@app.command(help=_HELP)
def main(
    names: Annotated[list[str], typer.Argument(help="Studies, or parts of them.")],
    mnist: Annotated[
        Path | None, typer.Option(help=f"Directory of MNIST's IDX files; or set {DATA_VARIABLES['mnist']}.")
    ] = None,
    fashion_mnist: Annotated[
        Path | None,
        typer.Option(help=f"The same of Fashion-MNIST; or set {DATA_VARIABLES['fashion_mnist']}."),
    ] = None,
    shakespeare: Annotated[
        Path | None,
        typer.Option(help=f"Directory of roles.jsonl.gz; or set {DATA_VARIABLES['shakespeare']}."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Where runs and finished parts are kept.")] = Path("outputs"),
    quick: Annotated[bool, typer.Option("--quick", help="A small version, written to OUTPUT/quick.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute parts anew that are kept.")] = False,
    only_page: Annotated[
        bool, typer.Option("--page", help="Only draw and write, from the tables that are there.")
    ] = False,
) -> None:
    """Compute what is missing, print its tables, and write tables, figures and page."""
    scale = dataclasses.replace(
        QUICK if quick else Scale(),
        mnist=mnist,
        fashion_mnist=fashion_mnist,
        shakespeare=shakespeare,
        output=output,
    )
    for study, parts in chosen_parts(names).items():
        # A small version must never take the place of the tables that the page is about.
        store = Store(output / "quick" / study.name if quick else study.home, output / "parts")
        refuted = [] if only_page else _compute(store, parts, scale, fresh)
        for path in (*store.draw(study), write_page(study, store)):
            print(path)
        if refuted:
            raise PrivQuantError(f"{', '.join(refuted)}: a check did not confirm; see the page")


def _compute(store: Store, parts: list[Part], scale: Scale, fresh: bool) -> list[str]:
    """Compute parts and write their tables; the names of those with a check that did not confirm."""
    display, line = _progress(len(parts))
    outcomes: dict[Part, Outcome] = {}
    skipped = []
    with display:
        for part in parts:
            try:
                _ = scale.data_root(part.needs) if part.needs else None
            except InvalidSpecError as error:
                if len(parts) == 1:
                    raise
                skipped.append(f"{part.name}: skipped ({error}); tables written before are kept")
                continue
            outcomes[part] = store.fetch(part, scale, line(part.name), fresh)
            store.write(part, outcomes[part])
    for part, outcome in outcomes.items():
        _print(part, outcome)
    print("\n".join(skipped))
    return [
        part.name
        for part, outcome in outcomes.items()
        for frame in outcome.tables.values()
        if "confirmed" in frame and not frame["confirmed"].all()
    ]


def _print(part: Part, outcome: Outcome) -> None:
    frame = outcome.tables[part.tables[0]]
    if len(frame) <= _LONGEST_PRINTED:
        print_frame(frame[list(part.shown)] if part.shown else frame, f"{part.title}\n{part.note}".strip())
    when = "kept from before; --fresh computes it anew" if outcome.kept else "computed now"
    print(f"{part.name}: {outcome.seconds:.1f} s of one core, {when}")


def print_frame(frame: pd.DataFrame, title: str) -> None:
    """Print a table, with a rule where its first column changes."""
    columns = [
        Column(name.replace("_", " "), words=not pd.api.types.is_numeric_dtype(frame[name]))
        for name in frame.columns
    ]
    first = [row[0] for row in frame.itertuples(index=False)]
    changes = [at for at in range(1, len(first)) if first[at] != first[at - 1]]
    rows = [[_cell(value) for value in row] for row in frame.itertuples(index=False)]
    print_table(output_console(), columns, rows, title, changes)


def _cell(value: object) -> str:
    """A value as text: nothing for what is missing, ∞ for what is not private."""
    if isinstance(value, float):
        return "" if math.isnan(value) else "∞" if math.isinf(value) else f"{value:.5g}"
    return "" if value is None or value is pd.NA else str(value)


def _progress(total: int) -> tuple[Progress, Callable[[str], Tell]]:
    """A display that is silent where there is no terminal, and what gives a part its line there."""
    console = Console(file=sys.stderr)
    display = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    parts = display.add_task("parts", total=total, doing="", visible=total > 1)
    started = itertools.count()

    def line(name: str) -> Tell:
        task = display.add_task(name, total=1.0, doing="")
        display.update(parts, completed=next(started))

        def tell(share: float, doing: str) -> None:
            display.update(task, completed=share, doing=doing)

        return tell

    return display, line


if __name__ == "__main__":
    program.run(app)
