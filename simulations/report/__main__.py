"""``python -m simulations.report outputs/<study>``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fl_privquant.errors import PrivQuantError
from simulations.report.build import show_report

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def report(study: Annotated[Path, typer.Argument(help="The directory of a study: outputs/<study>.")]) -> None:
    """Collect the runs of a study into tables, figures and one HTML page."""
    show_report(study)


def main() -> None:
    """Run the command; an error of ours is a message and exit code 2, never a traceback."""
    try:
        app()
    except (PrivQuantError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", soft_wrap=True, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
