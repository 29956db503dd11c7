"""The command line: ``fl-privquant design | audit | compare | statement | plan | identity``."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import fl_privquant as pq
from fl_privquant.accounting import (
    Norms,
    PrivacyStatement,
    Release,
    Unit,
    View,
    Wish,
    empirical_bound,
    statement_levels,
)
from fl_privquant.cli.certified import certified_cell, certified_heading
from fl_privquant.cli.comparison import (
    CURVE_EPSILONS,
    CURVE_LEVELS,
    Compared,
    Curves,
    compare,
    split_among_coordinates,
    stuck_by,
)
from fl_privquant.cli.identity_commands import identity_app
from fl_privquant.cli.plan_output import plan_with_progress, print_plan
from fl_privquant.design.spread import usual_norm_ratio
from fl_privquant.errors import CertificationError, InvalidSpecError, PrivQuantError, one_line
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import planned_for, planned_mechanisms

__all__ = ["app", "main"]

app = typer.Typer(
    help="Private quantization for federated learning: design, audit and compare mechanisms.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(identity_app, name="identity")

_MOST_OF_A_MESSAGE = 2000
_DEFAULT_MECHANISM = planned_mechanisms(in_sum=False)[0]
# Of the largest norm that clipped coordinates have: below the first hardly any output value is ever used.
_LEAST_NORM, _MOST_NORM = 1e-6, 1.001

Epsilon = Annotated[float, typer.Option(help="Privacy loss of one coordinate, one release, local view.")]
Bits = Annotated[int | None, typer.Option(help="2^bits output values.")]
Levels = Annotated[int | None, typer.Option(help="Number of output values, where it is no power of two.")]
Objective = Annotated[str, typer.Option(help="mse (governs averages over clients) or mae (the paper's).")]
Plot = Annotated[Path | None, typer.Option(help="Write a picture: PNG or PDF.")]
Clients = Annotated[int, typer.Option(min=1, help="Clients whose updates are added up in a round.")]
Dimension = Annotated[int, typer.Option(min=1, help="Coordinates of an update.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds that a client takes part in.")]
Delta = Annotated[float, typer.Option(help="The δ at which ε is stated.")]
Corrupt = Annotated[int, typer.Option(min=0, help="Clients that collude with whoever sees the sums.")]
Dropped = Annotated[int, typer.Option(min=0, help="Clients that drop out of a round.")]
L2Norm = Annotated[
    float | None, typer.Option(help="L2 norm that updates are clipped to, in units of the coordinate clip.")
]


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
    empirical: Annotated[
        bool, typer.Option("--empirical", help="Attack the encoder too: a lower bound on what it loses.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Outputs that the attack draws for each input.")] = 400_000,
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
    if empirical:
        bound = empirical_bound(mechanism, draws)
        _console().print(f"attack: {bound}", soft_wrap=True, highlight=False)
        if bound.refuted:
            raise CertificationError(f"{file}: the attack refutes what is claimed")


@app.command()
def statement(
    mechanism: Annotated[str, typer.Option(help="A registered mechanism.")] = _DEFAULT_MECHANISM,
    epsilon: Epsilon = 1.0,
    bits: Bits = None,
    file: Annotated[
        Path | None, typer.Option(help="A mechanism that `design --output` wrote, instead.")
    ] = None,
    dimension: Dimension = 650,
    clients: Clients = 20,
    rounds: Rounds = 30,
    delta: Delta = 1e-5,
    corrupt: Corrupt = 0,
    dropped: Dropped = 0,
    l2_norm: L2Norm = None,
) -> None:
    """Say what a mechanism costs a client: in a coordinate, a round, a whole run; locally and in the sum."""
    if file is not None:
        found = Mechanism.from_bytes(file.read_bytes())
    else:
        found = pq.design(mechanism, epsilon=epsilon, bits=bits)
    release = Release(
        found.for_dimension(dimension),
        dimension,
        View.aggregate(clients, corrupt, dropped),
        norms=_norms(l2_norm, dimension),
    )
    levels = statement_levels(release, rounds, delta)
    console = _console()
    table = Table(title=f"{found.name}: what its ε means", box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("what is protected", "who looks on", "ε", "δ", "counted by"):
        table.add_column(heading, justify="right" if heading in "εδ" else "left")
    for level in levels:
        table.add_row(*_statement_cells(level))
    console.print(table)
    console.print(f"For {levels[-1].neighbours}. Assumes:", highlight=False)
    for assumption in dict.fromkeys(each for level in levels for each in level.assumptions):
        console.print(f"- {assumption}", soft_wrap=True, highlight=False)


@app.command("plan")
def plan_command(
    epsilon: Annotated[float, typer.Option(help="Target: the ε of the unit and view below.")],
    clients: Clients,
    dimension: Dimension,
    rounds: Rounds = 1,
    delta: Delta = 1e-5,
    bits: Annotated[
        int,
        typer.Option(
            min=1, max=16, help="Bits of a code before masking; integer noise takes more where it must."
        ),
    ] = 2,
    unit: Annotated[Unit, typer.Option(help="What the target is for.")] = Unit.TOTAL,
    local: Annotated[
        bool, typer.Option("--local", help="Target for the local view; else for secure sums.")
    ] = False,
    corrupt: Corrupt = 0,
    dropped: Dropped = 0,
    l2_norm: Annotated[
        float | None,
        typer.Option(
            help="L2 norm that updates are clipped to, in units of the coordinate clip; by default, for "
            "secure sums, each mechanism's best."
        ),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(help="Look only at these (repeat the option); default: all that suit the view."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw errors against ε: PNG or PDF.")] = None,
) -> None:
    """List designs that meet a privacy target for a whole run, the least error first.

    For secure sums updates are clipped to an L2 norm and rotated; then coordinates are clipped and encoded.
    """
    wish = Wish(
        num_clients=clients,
        dimension=dimension,
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        in_sum=not local,
        bits=bits,
        corrupt=corrupt,
        dropped=dropped,
        norms=_norms(l2_norm, dimension),
        own_clips=l2_norm is None and not local and unit is not Unit.COORDINATE,
    )
    console = _console()
    found = plan_with_progress(wish, tuple(mechanism or ()) or planned_for(wish), plot is not None)
    print_plan(console, found)
    if plot is not None and found.curves:
        from fl_privquant.cli.plots import plot_plan

        plot_plan(found, plot)
        console.print(f"drawn to {plot}")


@app.command("compare")
def compare_command(
    epsilon: Epsilon = 1.0,
    bits: Bits = None,
    levels: Levels = None,
    objective: Objective = "mse",
    mechanism: Annotated[
        list[str] | None, typer.Option(help="Compare only these (repeat the option); default: all.")
    ] = None,
    dimension: Annotated[
        int, typer.Option(min=1, help="Coordinates of an update, for mechanisms that encode whole ones.")
    ] = 10,
    fresh: Annotated[bool, typer.Option(help="Design anew instead of reading the design cache.")] = False,
    plot: Plot = None,
    curve: Annotated[
        Path | None,
        typer.Option(help="Write a picture of errors against epsilon for 4, 8 and 16 levels: PNG or PDF."),
    ] = None,
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
        names = tuple(mechanism or ()) or None
        for row in compare(epsilon, count, objective, names, cache=not fresh, dimension=dimension):
            rows.append(row)
            status.update(f"designed {row.label}")
    title = f"{_asked(epsilon)}; {count} levels; designed for {objective}"
    _print_coordinates(console, title, [row for row in rows if not row.encodes_whole_updates])
    if whole := [row for row in rows if row.encodes_whole_updates]:
        title = (
            f"{PrivacyStatement(epsilon, 0.0, Unit.ROUND).brief}, a whole update of {dimension} coordinates"
        )
        _print_whole_updates(console, title, [*whole, split_among_coordinates(epsilon, dimension)], dimension)
    if (stuck := stuck_by(rows)) is not None:
        console.print(
            f"{stuck.label} is in a local minimum: MSE {stuck.mean_squared_error:.4f}, where "
            f"{stuck.container}, which contains it, reaches {stuck.least_error:.4f} with {count} levels.",
            soft_wrap=True,
            highlight=False,
        )
    console.print(
        "MAE and MSE are exact, for inputs uniform on [-1, 1]; multiply by clip and clip². Designs made "
        "before come from the cache (--fresh designs anew).",
        soft_wrap=True,
    )
    if plot is not None:
        from fl_privquant.cli.plots import plot_errors

        drawn = {row.label: found for row in rows if (found := row.mechanism) and found.law}
        plot_errors(drawn, plot, f"{_asked(epsilon)}, {count} levels")
        console.print(f"drawn to {plot}")
    if curve is not None:
        _plot_curves(console, objective, names, not fresh, curve)


def _print_coordinates(console: Console, title: str, rows: list[Compared]) -> None:
    # Most mechanisms are unbiased: a column of zeros would only be in the way.
    any_bias = any(row.mechanism is not None and row.mechanism.max_bias for row in rows)
    bias = ("max bias",) if any_bias else ()
    ranked = _ranked(rows)
    headings = ("mechanism", certified_heading(), "δ", "MAE", "MSE", *bias, "bits", "max code", "s")
    _print_table(console, title, headings, [_cells(row, any_bias) for row in ranked])
    for row in ranked:
        if row.mechanism is None:
            console.print(f"{row.label}: N/A: {row.reason}", soft_wrap=True)


def _print_whole_updates(console: Console, title: str, rows: list[Compared], dimension: int) -> None:
    certified = PrivacyStatement.heading(Unit.ROUND, "local", "certified ε").replace(", ", ",\n")
    headings = ("mechanism", certified, "inputs in", "MSE,\na coordinate", "bits,\na coordinate", "s")
    cells = []
    for row in _ranked(rows):
        found = row.mechanism
        if found is None:
            continue
        # What is split over coordinates adds up: the same unit for all.
        of_round = PrivacyStatement(found.epsilon * found.releases(dimension), 0.0, Unit.ROUND)
        figures = [of_round.epsilon_cell, f"the {found.norm} ball", f"{found.mse():.4f}"]
        cells.append([row.label, *figures, f"{found.bits_per_coordinate:.3g}", f"{row.design_seconds:.2f}"])
    _print_table(console, title, headings, cells)
    console.print(
        "Inputs uniform in the unit ball of the norm: MSE of different balls do not compare. ε split: each "
        "coordinate gets its share, by basic composition.",
        soft_wrap=True,
    )


def _ranked(rows: list[Compared]) -> list[Compared]:
    return sorted(rows, key=lambda row: row.mechanism.mse() if row.mechanism else float("inf"))


def _print_table(console: Console, title: str, headings: tuple[str, ...], cells: list[list[str]]) -> None:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title_justify="left")
    for heading in headings:
        left = heading in ("mechanism", "inputs in")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for each in cells:
        table.add_row(*each)
    console.print(table)


def _statement_cells(level: PrivacyStatement) -> list[str]:
    scope = f" ({level.scope})" if level.scope else ""
    seen = level.view if level.view == "local" else f"the sum only, {level.view}"
    return [f"{level.unit}{scope}", seen, level.epsilon_cell, level.delta_cell, level.method]


def _asked(epsilon: float) -> str:
    return PrivacyStatement(epsilon, 0.0, Unit.COORDINATE).brief


def main() -> None:
    """Run the command line; an error of ours is a message and exit code 2, never a traceback."""
    try:
        app()
    except (PrivQuantError, OSError) as error:
        # Of our own texts none is that long; what they quote may be anybody's, and is no markup.
        message = Text.assemble(("error: ", "bold red"), one_line(error, _MOST_OF_A_MESSAGE))
        Console(stderr=True).print(message, soft_wrap=True, highlight=False)
        sys.exit(2)


def _console() -> Console:
    console = Console()
    # Into a file or a pipe nothing has to fit a screen.
    return console if console.is_terminal else Console(width=120)


def _norms(l2: float | None, dimension: int) -> Norms:
    """The norms of updates, if an L2 norm of that many clipped coordinates can be meant."""
    largest = math.sqrt(dimension)
    if l2 is not None and not _LEAST_NORM * largest <= l2 <= _MOST_NORM * largest:
        raise InvalidSpecError(
            f"--l2-norm: {l2:g} coordinate clips is outside {_LEAST_NORM * largest:.3g}..{largest:.5g}: "
            f"{dimension} clipped coordinates have no larger norm than that; "
            f"{usual_norm_ratio(dimension):.3g} suits rotated updates"
        )
    return Norms(l2=l2)


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


def _plot_curves(
    console: Console, objective: str, names: tuple[str, ...] | None, cache: bool, path: Path
) -> None:
    """Design everything along epsilon, draw it, and say where something is missing, and why."""
    from fl_privquant.cli.plots import plot_curves

    curves = Curves()
    with console.status("designing") as status:
        for count in CURVE_LEVELS:
            for epsilon in CURVE_EPSILONS:
                status.update(f"designing for {_asked(epsilon)}, {count} levels")
                curves.add(epsilon, count, list(compare(epsilon, count, objective, names, cache=cache)))
    plot_curves(curves, path, f"designed for {objective}; inputs uniform on [-1, 1]")
    console.print(f"drawn to {path}")
    for (label, reason), places in curves.missing().items():
        where = ", ".join(f"{_asked(epsilon)} with {count} levels" for count, epsilon in places)
        console.print(f"{label}: N/A for {where}: {reason}", soft_wrap=True)


def _cells(row: Compared, any_bias: bool) -> list[str]:
    mechanism = row.mechanism
    if mechanism is None:
        return [row.label, "N/A", *[""] * (6 if any_bias else 5), f"{row.design_seconds:.2f}"]
    return [
        row.label,
        certified_cell(mechanism),
        mechanism.statement.delta_cell,
        f"{mechanism.mae():.4f}",
        f"{mechanism.mse():.4f}",
        *([f"{mechanism.max_bias:.3f}" if mechanism.max_bias else "0"] if any_bias else []),
        f"{mechanism.bits_per_coordinate:g}",
        "-" if row.largest_code is None else str(row.largest_code),
        f"{row.design_seconds:.2f}",
    ]


def _describe(mechanism: Mechanism) -> None:
    table = Table(title=mechanism.name, show_header=False)
    table.add_row("certified", mechanism.statement.brief)
    table.add_row("exact MAE, MSE", f"{mechanism.mae():.6g}, {mechanism.mse():.6g} (uniform on [-1, 1])")
    table.add_row("bits a coordinate", f"{mechanism.bits_per_coordinate:g}")
    for heading, text in mechanism.details().items():
        table.add_row(heading, text)
    for key, value in mechanism.parameters.items():
        table.add_row(Text(one_line(key)), Text(one_line(value)))
    _console().print(table)


def _plot_law(mechanism: Mechanism, path: Path) -> None:
    from fl_privquant.cli.plots import plot_law

    plot_law(mechanism, path)
    _console().print(f"drawn to {path}")


if __name__ == "__main__":
    main()
