"""``python -m simulations.report outputs/<study>``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fl_privquant.cli import program
from simulations.report import show_report

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def report(
    study: Annotated[Path, typer.Argument(help="The folder of a study: outputs/<study>.")],
    style: Annotated[
        str | None, typer.Option(help="A matplotlib style for the figures, by name or as a file.")
    ] = None,
) -> None:
    """Collect the runs of a STUDY into tables, figures and one HTML page."""
    show_report(study, style=style)


def main() -> None:
    """Run the command; an error of ours is a message and exit code 2, never a traceback."""
    program.run(app)


if __name__ == "__main__":
    main()
