"""``python -m simulations.paper`` with ``table1``, ``table2`` or a ``figure-...``; ``--help`` lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulations.paper import scalar, vector

FIGURES = Path(__file__).parent / "figures"

app = typer.Typer(help="The experiments of the paper, one command each.", no_args_is_help=True)


@app.command()
def table1() -> None:
    """Mean absolute error of scalar inputs, uniform."""
    scalar.print_rows(
        scalar.table1(), "Table 1: x uniform on [-1, 1], 4 levels; ε per coordinate, one release, local view"
    )


@app.command()
def table2() -> None:
    """Mean absolute error of scalar inputs from N(0.5, σ)."""
    scalar.print_rows(
        scalar.table2(), "Table 2: x from N(0.5, σ), 4 levels, ε = 1 per coordinate, one release, local view"
    )


@app.command("figure-scalar-error")
def figure_scalar_error(
    output: Annotated[Path, typer.Option(help="PNG or PDF file.")] = FIGURES / "scalar-error.png",
) -> None:
    """Absolute error against the input at three epsilons."""
    print(f"drawn to {scalar.figure_scalar_error(output)}")


@app.command("figure-vector-linf")
def figure_vector_linf(
    output: Annotated[Path, typer.Option(help="PNG or PDF file.")] = FIGURES / "vector-linf.png",
    trials: Annotated[int, typer.Option(help="Vectors for each mechanism and epsilon.")] = vector.TRIALS,
) -> None:
    """Euclidean error of vectors with 10 coordinates in [-1, 1]."""
    _vector(vector.LINF, output, trials)


@app.command("figure-vector-l2")
def figure_vector_l2(
    output: Annotated[Path, typer.Option(help="PNG or PDF file.")] = FIGURES / "vector-l2.png",
    trials: Annotated[int, typer.Option(help="Vectors for each mechanism and epsilon.")] = vector.TRIALS,
) -> None:
    """Euclidean error of vectors with 100 coordinates in the unit ball."""
    _vector(vector.L2, output, trials)


def _vector(setting: vector.Setting, output: Path, trials: int) -> None:
    found = vector.rows(setting, trials, min(trials, vector.VECTOR_TRIALS))
    vector.print_rows(found, setting)
    print(f"drawn to {vector.figure(found, setting, output)}")


if __name__ == "__main__":
    app()
