"""``python -m simulations.report outputs/<study>``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fl_privquant.cli import program
from simulations.report.build import show_report

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def report(study: Annotated[Path, typer.Argument(help="The directory of a study: outputs/<study>.")]) -> None:
    """Collect the runs of a STUDY, the directory outputs/<study>, into tables, figures and one HTML page."""
    show_report(study)


def main() -> None:
    """Run the command; an error of ours is a message and exit code 2, never a traceback."""
    program.run(app)


if __name__ == "__main__":
    main()
