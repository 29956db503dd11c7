"""``python -m simulations.report outputs/<study>``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fl_privquant.cli import program
from simulations.report import show_report, write_latex
from simulations.report.tables import PIVOT_KEYS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def report(
    study: Annotated[Path, typer.Argument(help="The folder of a study: outputs/<study>.")],
    latex: Annotated[
        bool,
        typer.Option("--latex", help="Write tables/MEASURE.tex too: mechanisms by ε and bits, booktabs."),
    ] = False,
    style: Annotated[
        str | None, typer.Option(help="A matplotlib style for the figures, by name or as a file.")
    ] = None,
    columns: Annotated[
        str, typer.Option(help=f"What goes across the LaTeX tables, of {', '.join(PIVOT_KEYS)}.")
    ] = "epsilon",
) -> None:
    """Collect the runs of a STUDY into tables, figures and one HTML page."""
    show_report(study, style=style)
    for path in write_latex(study, columns.split(",")) if latex else ():
        print(f"LaTeX: {path}")


def main() -> None:
    """Run the command; an error of ours is a message and exit code 2, never a traceback."""
    program.run(app)


if __name__ == "__main__":
    main()
