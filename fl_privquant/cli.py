"""The command line: ``fl-privquant design | audit | compare``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import fl_privquant as pq
from fl_privquant.comparison import Compared, compare
from fl_privquant.errors import InvalidSpecError, PrivQuantError
from fl_privquant.mechanisms.base import Mechanism, TableMechanism

__all__ = ["app", "main"]

app = typer.Typer(
    help="Private quantization for federated learning: design, audit and compare mechanisms.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_UNIT = "per coordinate, one release, local view"
_RENYI_ORDERS = (2.0, 4.0, 16.0)

Epsilon = Annotated[float, typer.Option(help="Privacy loss of one coordinate, one release, local view.")]
Bits = Annotated[int | None, typer.Option(help="2^bits output values.")]
Levels = Annotated[int | None, typer.Option(help="Number of output values, where it is no power of two.")]
Objective = Annotated[str, typer.Option(help="mse (governs averages over clients) or mae (the paper's).")]
Plot = Annotated[Path | None, typer.Option(help="Write a picture: PNG or PDF.")]


@app.command("design")
def design_command(
    name: Annotated[str, typer.Argument(help="A registered mechanism, such as optm.")],
    epsilon: Annotated[float | None, typer.Option(help="Privacy loss of one coordinate and release.")] = None,
    bits: Bits = None,
    levels: Levels = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another parameter, as key=value: family=paired, bins=-3,-.5,.5,3 ..."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the certified mechanism to this file.")] = None,
    plot: Plot = None,
) -> None:
    """Design a mechanism, certify it, and say what it does."""
    parameters: dict[str, Any] = dict(_assignment(each) for each in parameter or [])
    if epsilon is not None:
        parameters["epsilon"] = epsilon
    mechanism = pq.design(name, bits=bits, levels=levels, **parameters)
    _describe(mechanism)
    if output is not None:
        output.write_bytes(mechanism.to_bytes())
        _console().print(f"written to {output}")
    if plot is not None:
        _plot_law(mechanism, plot)


@app.command()
def audit(
    file: Annotated[Path, typer.Argument(help="A mechanism that `design --output` wrote.")],
    plot: Plot = None,
) -> None:
    """Certify a mechanism file anew and print its exact figures."""
    if not file.is_file():
        raise InvalidSpecError(
            f"{file}: no such file; write one with 'fl-privquant design ... --output {file}'"
        )
    mechanism = Mechanism.from_bytes(file.read_bytes())
    _describe(mechanism)
    if plot is not None:
        _plot_law(mechanism, plot)


@app.command("compare")
def compare_command(
    epsilon: Epsilon = 1.0,
    bits: Bits = None,
    levels: Levels = None,
    objective: Objective = "mse",
    mechanism: Annotated[
        list[str] | None, typer.Option(help="Compare only these (repeat the option); default: all.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Design anew instead of reading the design cache.")] = False,
    plot: Plot = None,
) -> None:
    """Compare all registered mechanisms at the same epsilon and number of levels."""
    if bits is not None and levels is not None:
        raise InvalidSpecError(f"--bits {bits} and --levels {levels}: give one of the two")
    if bits is not None and not 1 <= bits <= 16:
        raise InvalidSpecError(f"--bits: {bits} is not a whole number from 1 to 16")
    count = levels if levels is not None else 2 ** (bits if bits is not None else 2)
    console = _console()
    rows: list[Compared] = []
    with console.status("designing") as status:
        for row in compare(epsilon, count, objective, tuple(mechanism or ()) or None, cache=not fresh):
            rows.append(row)
            status.update(f"designed {row.label}")
    title = f"ε = {epsilon:g} {_UNIT}; {count} levels; designed for {objective}"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title_justify="left")
    for heading in ("mechanism", "certified ε", "δ", "MAE", "MSE", "bits", "max code", "s"):
        table.add_column(heading, justify="left" if heading == "mechanism" else "right", no_wrap=True)
    ranked = sorted(rows, key=lambda row: row.mechanism.mse() if row.mechanism else float("inf"))
    for row in ranked:
        table.add_row(*_cells(row))
    console.print(table)
    for row in ranked:
        if row.mechanism is None:
            console.print(f"{row.label}: {row.reason}", soft_wrap=True)
    console.print(
        "MAE and MSE are exact, for inputs uniform on [-1, 1]; multiply by clip and clip². Designs made "
        "before come from the cache (--fresh designs anew).",
        soft_wrap=True,
    )
    if plot is not None:
        from fl_privquant.plots import plot_errors

        drawn = {row.label: row.mechanism for row in rows if isinstance(row.mechanism, TableMechanism)}
        plot_errors(drawn, plot, f"ε = {epsilon:g} {_UNIT}, {count} levels")
        console.print(f"drawn to {plot}")


def main() -> None:
    """Run the command line; an error of ours is a message and exit code 2, never a traceback."""
    try:
        app()
    except PrivQuantError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _console() -> Console:
    return Console()


def _assignment(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidSpecError(f"--set {text!r}: expected key=value")
    if "," in value:
        return key, [_scalar(each) for each in value.split(",")]
    return key, _scalar(value)


def _scalar(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _cells(row: Compared) -> list[str]:
    mechanism = row.mechanism
    if mechanism is None:
        return [row.label, "N/A", *[""] * 5, f"{row.design_seconds:.2f}"]
    return [
        row.label,
        f"{mechanism.epsilon:.6g}",
        f"{mechanism.delta:.0e}" if mechanism.delta else "0",
        f"{mechanism.mae():.4f}",
        f"{mechanism.mse():.4f}",
        f"{mechanism.bits_per_coordinate:g}",
        "-" if row.largest_code is None else str(row.largest_code),
        f"{row.design_seconds:.2f}",
    ]


def _describe(mechanism: Mechanism) -> None:
    table = Table(title=mechanism.name, show_header=False)
    table.add_row("certified ε", f"{mechanism.epsilon:.9g} ({_UNIT})")
    if mechanism.delta:
        table.add_row("δ", f"{mechanism.delta:.3g}")
    table.add_row("exact MAE, MSE", f"{mechanism.mae():.6g}, {mechanism.mse():.6g} (uniform on [-1, 1])")
    table.add_row("bits a coordinate", f"{mechanism.bits_per_coordinate:g}")
    if isinstance(mechanism, TableMechanism):
        top, bottom = mechanism.table.worst_ratio
        table.add_row("certificate", f"log({top} / {bottom}), integers of one column of the table")
        table.add_row("largest bias", f"{mechanism.law.max_bias:.2g} of the clip")
        if mechanism.num_levels <= 32:
            table.add_row("values", "  ".join(f"{value:.6g}" for value in mechanism.values))
            table.add_row("codes", "  ".join(str(code) for code in mechanism.codes))
        orders = ", ".join(
            f"{mechanism.law.renyi_divergence(order):.5g} (order {order:g})" for order in _RENYI_ORDERS
        )
        table.add_row("Rényi divergence", orders)
    for key, value in mechanism.parameters.items():
        table.add_row(key, str(value))
    _console().print(table)


def _plot_law(mechanism: Mechanism, path: Path) -> None:
    from fl_privquant.plots import plot_law

    if not isinstance(mechanism, TableMechanism):
        raise InvalidSpecError(f"--plot: {mechanism.name} has no table of output probabilities to draw")
    plot_law(mechanism, path)
    _console().print(f"drawn to {path}")
