"""``python -m simulations.federated``: all studies, or those that are named; tables, figures and the page.

Resumable: a run that is finished is not run again, one that was interrupted goes on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fl_privquant.errors import PrivQuantError
from simulations.federated.collect import TABLES, collect, write_table
from simulations.federated.figures import DRAWN, FIGURES, draw
from simulations.federated.page import PAGE, page
from simulations.federated.studies import STUDIES, Study, study
from simulations.progress import SWEEP_POSITION
from simulations.run import execute

__all__ = ["main", "run_study"]


def run_study(chosen: Study, overrides: list[str], tables: Path = TABLES) -> Path:
    """Run what is missing of a study, and write its table; the table's path."""
    configs = chosen.runs(overrides)
    for number, config in enumerate(configs, start=1):
        os.environ[SWEEP_POSITION] = f"{number}/{len(configs)}"
        execute(config)
    return write_table(chosen.name, collect(configs), tables)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Studies; all of them unless told.")] = None,
    mnist: Annotated[Path | None, typer.Option(help="Folder of MNIST's IDX files; else a download.")] = None,
    output: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("outputs"),
    only_page: Annotated[
        bool, typer.Option("--page", help="Only draw and write, from the tables that are there.")
    ] = False,
) -> None:
    """Run the studies, and write their tables, figures and page."""
    console = Console(stderr=True)
    try:
        for chosen in [study(name) for name in names] if names else STUDIES:
            if only_page:
                break
            overrides = [f"output={output}"]
            if chosen.on_mnist and mnist is not None:
                overrides.append(f"task.data_root={mnist}")
            print(f"{chosen.name}: {chosen.question}")
            print(run_study(chosen, overrides))
        for name, (_, needed) in DRAWN.items():
            if all((TABLES / f"{each}.csv").exists() for each in needed):
                print(f"{name}: {draw(name, FIGURES)}")
        PAGE.write_text(page())
        print(PAGE)
    except PrivQuantError as error:
        console.print(f"[bold red]error:[/] {error}", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    typer.run(main)
