"""The command line ``fl-privquant``, with its commands design, audit, compare, plan and others.

Commands import what they need when they run, so that help and version are printed at once.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fl_privquant as pq
from fl_privquant import _validation
from fl_privquant.cli import options, program
from fl_privquant.cli._identity_commands import identity_app
from fl_privquant.cli.program import FlagCommand
from fl_privquant.errors import MISSING, CertificationError, InvalidSpecError, pluralize
from fl_privquant.statement import PrivacyStatement, Relation, Unit

if TYPE_CHECKING:
    from rich.console import Console

    from fl_privquant.accounting import UpdateNorms
    from fl_privquant.mechanisms.base import Mechanism

app = typer.Typer(
    help="Private quantization for federated learning: plan runs, check what they cost, design mechanisms.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # click makes the same suggestions.
    suggest_commands=False,
)
app.add_typer(identity_app, name="identity")

# Defaults of plans and statements: a small federation that learns scikit-learn's digits.
_CLIENTS, _DIMENSION, _ROUNDS = 100, 650, 30
# Corrupt and lost clients, each as a share of a round's: the defaults of pq.SecureSum and of conf/secagg.
_FRACTION = 0.1
# Default bits of a code: the most that a plan may choose, and those of designs that are listed.
_CHOSEN_BITS, _LISTED_BITS = 4, 2
# Bounds of --l2-norm as shares of the largest norm of clipped coordinates; below, codes would hardly differ.
_MIN_NORM, _MAX_NORM = 1e-6, 1.001


def main() -> None:
    """Run the command line; an error of ours is a message and exit code 2, never a traceback."""
    program.run(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fl-privquant {pq.__version__}")
        raise typer.Exit


@app.callback()
def root_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Private quantization for federated learning: design, audit and compare mechanisms."""


@app.command("design", cls=FlagCommand)
def design_command(
    name: Annotated[str, typer.Argument(help="A registered mechanism, such as optm.")],
    epsilon: options.Epsilon = None,
    bits: options.Bits = None,
    levels: options.Levels = None,
    objective: options.Objective = None,
    settings: options.Settings = None,
    relation: options.StatedRelation = Relation.REPLACE_ONE,
    output: options.Output = None,
    plot: options.Plot = None,
) -> None:
    """Design the mechanism NAME, such as optm, certify it, and print its figures; compare lists all names."""
    from fl_privquant.cli import _printing, layout
    from fl_privquant.planning.run_limits import check_target_relation

    relation = check_target_relation(relation)
    given = options.collect_parameters(
        settings, epsilon=epsilon, bits=bits, levels=levels, objective=objective
    )
    mechanism = pq.design(name, **given)
    console = layout.output_console()
    _printing.print_mechanism(console, mechanism, relation)
    if output is not None:
        output.write_bytes(mechanism.to_bytes())
        layout.print_sentence(console, f"written to {output}")
    if plot is not None:
        _plot_distribution(console, mechanism, plot)


@app.command(cls=FlagCommand)
def audit(
    file: Annotated[Path, typer.Argument(help="A mechanism that `design --output` wrote.")],
    relation: options.StatedRelation = Relation.REPLACE_ONE,
    plot: options.Plot = None,
    empirical: Annotated[
        bool,
        typer.Option("--empirical", help="Attack the encoder too, for a lower bound on its loss."),
    ] = False,
    draws: Annotated[int, typer.Option(help="Outputs that the attack draws for each input.")] = 400_000,
) -> None:
    """Certify a mechanism FILE that design --output wrote, and print its exact figures."""
    from fl_privquant.accounting import empirical_bound
    from fl_privquant.cli import _printing, layout
    from fl_privquant.planning.run_limits import check_target_relation

    relation, mechanism = check_target_relation(relation), _read_mechanism(file)
    console = layout.output_console()
    _printing.print_mechanism(console, mechanism, relation)
    if plot is not None:
        _plot_distribution(console, mechanism, plot)
    if empirical:
        bound = empirical_bound(mechanism, draws)
        layout.print_sentence(console, f"attack: {bound}")
        if bound.refuted:
            raise CertificationError(f"{file}: the attack refutes what is claimed")


@app.command(cls=FlagCommand)
def check(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run of simulations.run.")],
) -> None:
    """Derive the privacy of a finished RUN again, by independent code, and compare it with what is stated.

    RUN is a folder that simulations.run wrote.

    Exit codes: 0 if all is confirmed; 1 if a line disagrees or RUN cannot be read; 3 if some statements
    cannot be checked, and nothing disagrees.
    """
    from fl_privquant.check import DisagreementError
    from fl_privquant.check import check as check_run

    try:
        not_checked = check_run(run)
    except DisagreementError as disagreement:
        unreadable = disagreement.__cause__ is not None
        typer.echo(f"{disagreement}" if unreadable else f"disagrees: {disagreement}")
        raise typer.Exit(1) from None
    for line in not_checked:
        typer.echo(f"cannot check {line}")
    if not_checked:
        raise typer.Exit(3)
    typer.echo("confirmed")


@app.command(cls=FlagCommand)
def statement(
    mechanism: options.Mechanisms = None,
    epsilon: options.Epsilon = None,
    bits: options.Bits = None,
    levels: options.Levels = None,
    objective: options.Objective = None,
    settings: options.Settings = None,
    file: options.File = None,
    dimension: options.Dimension = _DIMENSION,
    clients: options.Clients = _CLIENTS,
    rounds: options.Rounds = _ROUNDS,
    delta: options.Delta = 1e-5,
    relation: options.StatedRelation = Relation.REPLACE_ONE,
    corrupt_fraction: options.CorruptFraction = _FRACTION,
    dropout_fraction: options.DropoutFraction = _FRACTION,
    l2_norm: options.L2Norm = None,
) -> None:
    """State what a mechanism (--file, or one of ε = 1) costs: a coordinate, a round, a run; in each view."""
    from fl_privquant.accounting import LOCAL, Release, SecureSum, statement_levels
    from fl_privquant.cli import _printing, layout
    from fl_privquant.mechanisms.registry import default_mechanisms
    from fl_privquant.planning.run_limits import check_run_delta, check_target_relation

    given = options.collect_parameters(
        settings, epsilon=epsilon, bits=bits, levels=levels, objective=objective
    )
    if file is not None:
        if named := [*given, *(["mechanism"] if mechanism else [])]:
            raise InvalidSpecError(
                ", ".join(named), MISSING, f"the mechanism in --file {file} sets it", "leave it out"
            )
        stated = [_read_mechanism(file)]
    else:
        given = {"epsilon": 1.0} | given
        stated = [pq.design(name, **given) for name in mechanism or default_mechanisms(in_sum=False)[:1]]
    check_run_delta(delta, clients)
    relation = check_target_relation(relation)
    summed = SecureSum(corrupt_fraction, dropout_fraction)
    few = _printing.explain_too_few_honest(summed, clients)
    view, norms = LOCAL if few else summed.view(clients), _make_norms(l2_norm, dimension)
    for encoder in stated:
        release = Release(encoder.for_dimension(dimension), dimension, view, norms, relation)
        statements = statement_levels(release, rounds, delta)
        beside = statement_levels(release.with_relation(relation.beside), rounds, delta)
        _printing.print_statements(layout.output_console(), encoder.name, statements, beside, few)


_PLAN_HELP = (
    "Plan a whole run that meets a privacy target, and say how to run it.\n\n"
    "For secure sums, updates are clipped to an L2 norm and rotated, and a random part of the coordinates is "
    "clipped and encoded. Bits and kept coordinates are chosen together. With --compare, --mechanism or "
    "--l2-norm, the command lists designs that send all coordinates, the least error first."
)


@app.command("plan", cls=FlagCommand, help=_PLAN_HELP)
def plan_command(
    epsilon: options.TargetEpsilon = 8.0,
    clients: options.Clients = _CLIENTS,
    dimension: options.Dimension = _DIMENSION,
    rounds: options.Rounds = _ROUNDS,
    participations: options.Participations = None,
    delta: options.Delta = 1e-5,
    relation: options.StatedRelation = Relation.REPLACE_ONE,
    bits: options.MaxBits = None,
    corrupt_fraction: options.CorruptFraction = _FRACTION,
    dropout_fraction: options.DropoutFraction = _FRACTION,
    error: options.Error = None,
    kilobytes: options.Kilobytes = None,
    compare: options.Compare = False,
    l2_norm: options.L2Norm = None,
    mechanism: options.Mechanisms = None,
    force: options.Force = False,
) -> None:
    """Plan a whole run by its error or size, or list designs for its target (the help is above)."""
    from fl_privquant.accounting import RunRequirements, SecureSum
    from fl_privquant.cli import _plan_printing, _printing, layout
    from fl_privquant.mechanisms.registry import default_mechanisms_for
    from fl_privquant.planning.run_limits import check_participations, check_run_delta, check_target_relation

    listed = compare or l2_norm is not None
    chosen_by = _chooses_one_plan(error, kilobytes, listed)
    joint = chosen_by or not (listed or mechanism or delta == 0.0)
    summed = SecureSum(corrupt_fraction, dropout_fraction)
    if few := _printing.explain_too_few_honest(summed, clients):
        raise InvalidSpecError("--clients", clients, f"clients: {few}")
    requirements = RunRequirements(
        num_clients=clients,
        dimension=dimension,
        rounds=check_participations(participations, rounds),
        epsilon=epsilon,
        delta=check_run_delta(delta, clients),
        relation=check_target_relation(relation),
        in_sum=True,
        bits=bits or (_CHOSEN_BITS if joint else _LISTED_BITS),
        corrupt=summed.num_corrupt(clients),
        dropped=summed.num_lost(clients),
        norms=_make_norms(l2_norm, dimension),
        own_clips=l2_norm is None,
    )
    console, names = layout.output_console(), tuple(mechanism or ()) or default_mechanisms_for(requirements)
    settings = summed, rounds, error, kilobytes, names[0], force
    if joint and _plan_printing.plan_and_print(console, requirements, *settings):
        return
    names = names[:1] if joint else names
    _printing.plan_and_print_designs(console, requirements, names)


def _chooses_one_plan(error: float | None, kilobytes: float | None, listed: bool) -> bool:
    """Whether a plan is chosen by its error or its size; refused together with a list of designs."""
    chosen = error is not None or kilobytes is not None
    if listed and chosen:
        raise InvalidSpecError(
            "--error, --kilobytes",
            MISSING,
            "they choose a plan, and no list of designs",
            "leave them out, or leave out --compare and --l2-norm",
        )
    return chosen


@app.command(
    cls=FlagCommand,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def supernode(context: typer.Context) -> None:
    """Start a Flower SuperNode that sends encoded updates only; takes the options of flower-supernode."""
    from fl_privquant.flower.client.node_gate import start_supernode

    start_supernode(context.args)


@app.command("compare", cls=FlagCommand)
def compare_command(
    epsilon: options.RequiredEpsilon = 1.0,
    bits: options.Bits = None,
    levels: options.Levels = None,
    objective: options.Objective = "mse",
    mechanism: options.Mechanisms = None,
    dimension: options.Dimension = 10,
    relation: options.StatedRelation = Relation.REPLACE_ONE,
    fresh: Annotated[bool, typer.Option(help="Design anew instead of reading the design cache.")] = False,
    plot: options.Plot = None,
) -> None:
    """Compare all mechanisms at one epsilon and number of levels; whole updates at one dimension."""
    from fl_privquant.cli import _printing, comparison, layout
    from fl_privquant.mechanisms.registry import get_entry
    from fl_privquant.mechanisms.spec import check_epsilon, check_levels
    from fl_privquant.planning.run_limits import check_target_relation

    relation = check_target_relation(relation)
    if bits is not None and levels is not None:
        raise InvalidSpecError("--bits, --levels", (bits, levels), "are both given", "give one of the two")
    count = check_levels(levels if levels is not None else 2 ** (bits or 2))
    check_epsilon(epsilon)
    error = _validation.check_choice("--objective", objective, ("mse", "mae"))
    # A wrong name is refused here, rather than as the reason of a row in the table.
    names = tuple(get_entry(name).name for name in mechanism or ()) or None
    console = layout.output_console()
    rows: list[comparison.ComparisonRow] = []
    with console.status("designing") as status:
        for row in comparison.compare(epsilon, count, error, names, cache=not fresh, dimension=dimension):
            rows.append(row)
            status.update(f"designed {row.label}")
    title = f"{_printing.format_epsilon(epsilon)}; {count} levels; designed for {error}"
    coordinates = [row for row in rows if not row.encodes_whole_updates]
    _printing.print_coordinates(console, title, coordinates, relation)
    if whole := [row for row in rows if row.encodes_whole_updates]:
        of_round = PrivacyStatement(epsilon, 0.0, Unit.ROUND)
        title = f"{of_round.brief}, a whole update of {pluralize(dimension, 'coordinate')}"
        _printing.print_whole_updates(console, title, whole, dimension, relation)
    layout.print_sentence(
        console,
        "MAE and MSE are exact, for inputs uniform on [-1, 1]; multiply by clip and clip². Designs made "
        "before come from the cache (--fresh designs anew).",
    )
    if plot is not None:
        from fl_privquant.plotting import plot_errors

        drawn = {row.label: designed for row in rows if (designed := row.mechanism) and designed.distribution}
        plot_errors(drawn, plot, f"{_printing.format_epsilon(epsilon)}, {count} levels")
        layout.print_sentence(console, f"drawn to {plot}")


@app.command("clip", cls=FlagCommand)
def clip_command(
    folder: Annotated[
        Path, typer.Argument(metavar="APP", help="Folder of a Flower app: that of its pyproject.toml.")
    ],
    clients: Annotated[int, typer.Option(min=1, max=10_000, help="Clients that are simulated.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds that are trained.")] = 2,
    run_config: Annotated[
        str, typer.Option(help="Values for keys of the app's own config, as for flwr run.")
    ] = "",
    node_config: Annotated[
        str, typer.Option(help="The config of every node, such as where its data are.")
    ] = "",
) -> None:
    """Measure the norms of a Flower app's updates, for the L2 clip of a plan; trains WITHOUT PROTECTION."""
    from fl_privquant.cli import _clip_pilot

    _clip_pilot.measure_and_print(folder, clients, rounds, run_config, node_config)


@app.command("lint", cls=FlagCommand)
def lint_command(
    folder: Annotated[
        Path, typer.Argument(metavar="APP", help="Folder of a Flower app: that of its pyproject.toml.")
    ],
    run_config: Annotated[
        str, typer.Option(help="Values for keys of the app's own config, as for flwr run.")
    ] = "",
    relation: Annotated[
        Relation,
        typer.Option(
            help="Neighboring relation to state first. add-remove is for apps whose server is trusted: "
            "others show who takes part."
        ),
    ] = Relation.REPLACE_ONE,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which an app that starts no strategy is given up.")
    ] = 300.0,
) -> None:
    """Say what the privacy of a Flower app really is, without training.

    The app's modules are imported, and its server runs until it starts its strategy.

    Exit codes: 0 if nothing is wrong; 1 if the app does not have the privacy that it claims; 2 if it cannot
    be read.
    """
    from fl_privquant.cli import _app_lint

    raise typer.Exit(_app_lint.lint_and_print(folder, run_config, relation, timeout))


def _plot_distribution(console: Console, mechanism: Mechanism, path: Path) -> None:
    from fl_privquant.cli import layout
    from fl_privquant.plotting import plot_distribution

    plot_distribution(mechanism, path)
    layout.print_sentence(console, f"drawn to {path}")


def _read_mechanism(file: Path) -> Mechanism:
    """The mechanism in a file, certified anew."""
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise InvalidSpecError(
            "file", file, what, "give a file that 'fl-privquant design NAME --output FILE' wrote"
        )
    try:
        return pq.Mechanism.from_bytes(file.read_bytes())
    except CertificationError as error:
        raise CertificationError(
            f"{file}: {error}; give a file that 'fl-privquant design NAME --output FILE' wrote"
        ) from error


def _make_norms(l2: float | None, dimension: int) -> UpdateNorms:
    """The norms of updates; an L2 norm that clipped coordinates cannot have is refused."""
    from fl_privquant.accounting import UpdateNorms
    from fl_privquant.optimize.sums.coordinate_clip import usual_norm_ratio

    largest = math.sqrt(dimension)
    if l2 is not None and not _MIN_NORM * largest <= l2 <= _MAX_NORM * largest:
        raise InvalidSpecError(
            "--l2-norm",
            l2,
            f"coordinate clips is outside {_MIN_NORM * largest:.3g}..{largest:.5g}: {dimension} "
            "clipped coordinates have no larger norm than that",
            f"{usual_norm_ratio(dimension):.3g} suits rotated updates",
        )
    return UpdateNorms(l2=l2)


if __name__ == "__main__":
    main()
