"""What the commands print: mechanisms, statements, plans and comparisons as tables and sentences."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fl_privquant.accounting import (
    PrivacyStatement,
    Relation,
    RunRequirements,
    SecureSum,
    Unit,
    ViewKind,
    unit_statement,
)
from fl_privquant.cli.comparison import ComparisonRow
from fl_privquant.cli.layout import Column, print_sentence, print_table, progress
from fl_privquant.cli.program import name_options
from fl_privquant.cohort import describe_assumption, min_clients, min_honest_clients
from fl_privquant.errors import one_line
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.planning import PlannedDesigns, plan


def format_epsilon(epsilon: float) -> str:
    """The epsilon of a coordinate that a user asked for, with its unit and view."""
    return PrivacyStatement(epsilon, 0.0, Unit.COORDINATE).brief


def print_mechanism(
    console: Console, mechanism: Mechanism, relation: Relation = Relation.REPLACE_ONE
) -> None:
    """Print what a mechanism is, and its exact figures; its epsilon for that relation comes first."""
    table = Table(title=mechanism.name, show_header=False)
    table.add_row("certified", unit_statement(mechanism, relation).brief)
    if math.isfinite(mechanism.epsilon):
        table.add_row("the same", unit_statement(mechanism, relation.beside).brief)
    table.add_row("exact MAE, MSE", f"{mechanism.mae():.6g}, {mechanism.mse():.6g} (uniform on [-1, 1])")
    table.add_row("bits per coordinate", f"{mechanism.bits_per_coordinate:g}")
    for heading, text in mechanism.details().items():
        table.add_row(heading, text)
    for key, value in mechanism.parameters.items():
        table.add_row(Text(one_line(key)), Text(one_line(value)))
    console.print(table)


def explain_too_few_honest(summed: SecureSum, clients: int) -> str:
    """Why the sum of so few clients hides nobody, and what would help; empty where it hides somebody."""
    fractions = summed.corrupt_fraction, summed.dropout_fraction
    honest = min_honest_clients(clients, *fractions)
    if honest >= 2:
        return ""
    left = "one honest client, which no other client hides in the sum" if honest == 1 else "no honest client"
    required = min_clients(*fractions)
    lower = f"lower --corrupt-fraction ({fractions[0]:g}) or --dropout-fraction ({fractions[1]:g})"
    helps = [*([] if required is None else [f"ask {required} clients or more"]), lower]
    return (
        f"{summed.num_corrupt(clients)} corrupt and {summed.num_lost(clients)} lost leave {left} (each share "
        f"is rounded up to whole clients); {', or '.join(helps)}"
    )


def print_statements(
    console: Console,
    name: str,
    levels: Sequence[PrivacyStatement],
    beside: Sequence[PrivacyStatement],
    too_few: str = "",
) -> None:
    """Print what a mechanism's epsilon means at each level, and what that assumes.

    The same levels for another neighboring relation stand ``beside`` them. If clients are ``too_few`` for an
    aggregate view, it is said why.
    """
    stated, other = levels[-1].relation, beside[-1].relation
    columns = (
        Column("what is protected", lambda pair: _protected(pair[0]), words=True),
        Column("adversary sees", lambda pair: _seen(pair[0]), words=True),
        Column(stated.value, lambda pair: pair[0].epsilon_cell, f"ε, {stated.words}"),
        Column(other.value, lambda pair: pair[1].epsilon_cell, f"ε, {other.words}"),
        Column("δ", lambda pair: pair[0].delta_cell),
        Column("counted by", lambda pair: pair[0].method, words=True),
    )
    print_table(console, columns, zip(levels, beside, strict=True), f"{name}: what its ε means")
    print_sentence(console, "Assumes:")
    for assumed in dict.fromkeys(assumed for level in levels for assumed in level.assumptions):
        print_sentence(console, f"- {assumed}")
    if too_few:
        print_sentence(
            console,
            "The local view is the same for any number of clients. The aggregate view is not stated, as a "
            f"secure sum needs two honest clients: {too_few}.",
        )


def _protected(level: PrivacyStatement) -> str:
    return f"{level.unit} ({level.scope})" if level.scope else str(level.unit)


def _seen(level: PrivacyStatement) -> str:
    return str(level.view) if level.view.kind is ViewKind.LOCAL else f"the sum only, {level.view}"


OVER_CENTRAL = (
    "squared error of the mean update over that of a Gaussian that a trusted server adds, for rotated "
    "updates at the L2 clip, what clipping coordinates cuts off included"
)
"""The legend of the column "error ÷ central"."""
ALL_HONEST = "error ÷ central of a plan for nobody corrupt or lost"
"""The legend of the column "all honest"."""
_CLIP_OF_NORM = "; L2/10: coordinates are clipped at a tenth of the L2 clip"


def plan_and_print_designs(console: Console, requirements: RunRequirements, names: Sequence[str]) -> None:
    """Print the designs that meet a target, why others do not, and what would help."""
    with progress("planning") as status:
        planned = plan(requirements, names, lambda name: status.update(f"planning {name}"))
        names = [design.name for design in planned.designs if design.ratio_to_central is not None]
        honest = {}
        if names and requirements.corrupt + requirements.dropped:
            everybody = dataclasses.replace(requirements, corrupt=0, dropped=0)
            tell = "planning {} for nobody corrupt or lost"
            designs = plan(everybody, names, progress=lambda name: status.update(tell.format(name))).designs
            honest = {design.name: f"{design.ratio_to_central:.4f}" for design in designs}
    _print_designs(console, planned, honest)


def _print_designs(console: Console, planned: PlannedDesigns, honest: Mapping[str, str]) -> None:
    """Print designs; ``honest`` has their errors, by name, if planned for nobody corrupt or lost."""
    requirements = planned.requirements
    target = PrivacyStatement(
        requirements.epsilon,
        requirements.delta,
        requirements.unit,
        requirements.view.stated,
        requirements.relation,
        method="target",
    )
    title = f"{target.unit}, view: {target.view}; target {target.figures}, {target.relation}"
    if planned.designs:
        print_table(console, _design_columns(planned, honest), planned.designs, title)
    for name, reason in planned.missing.items():
        print_sentence(console, f"{name}: {name_options(reason)}")
    if planned.advice is not None:
        print_sentence(console, f"{title}: {planned.advice}")


def _design_columns(planned: PlannedDesigns, honest: Mapping[str, str]) -> list[Column]:
    requirements = planned.requirements
    beside = requirements.relation.beside
    by_norm = all(design.ratio_to_central is not None for design in planned.designs)
    assumed = describe_assumption(requirements.corrupt, requirements.dropped, requirements.num_clients)
    return [
        Column("mechanism", lambda design: design.name, words=True),
        Column(
            "ε",
            lambda design: design.statement.epsilon_cell,
            _describe_reached(requirements, requirements.relation),
        ),
        Column(
            beside.value,
            lambda design: design.statement_for(beside).epsilon_cell,
            _describe_reached(requirements, beside),
        ),
        Column(
            "error ÷ central",
            lambda design: f"{design.ratio_to_central:.4f}",
            f"{OVER_CENTRAL}; {assumed}",
        )
        if by_norm
        else Column(
            "MSE of mean",
            lambda design: f"{design.mean_squared_error:.4g}",
            "of one coordinate of the mean update, in clip², inputs uniform",
        ),
        *([Column("all honest", lambda design: honest.get(design.name, "-"), ALL_HONEST)] if honest else []),
        Column(
            "bytes",
            lambda design: str(design.bytes_per_round),
            "what one client sends in a round, without headers",
        ),
        Column(
            "certified ε",
            lambda design: _certified_cell(design.mechanism),
            f"{_certified_legend()}; a client's max_epsilon must allow it",
        ),
        Column(
            "clip",
            lambda design: design.clip if design.norm_ratio is None else f"L2, L2/{design.norm_ratio:.4g}",
            "what updates are clipped to" + (_CLIP_OF_NORM if by_norm else ""),
            words=True,
        ),
        Column("counted by", lambda design: design.statement.method, words=True),
    ]


def _describe_reached(requirements: RunRequirements, relation: Relation) -> str:
    return PrivacyStatement.heading(requirements.unit, requirements.view.stated, "reached", relation)


def print_coordinates(
    console: Console, title: str, rows: list[ComparisonRow], relation: Relation = Relation.REPLACE_ONE
) -> None:
    """Print mechanisms that encode coordinates, the least error first, and why others have no design."""
    # Most mechanisms are unbiased: a column of zeros would only be in the way.
    any_bias = any(row.mechanism is not None and row.mechanism.max_bias for row in rows)
    ranked = _rank_rows(rows)
    columns = (
        Column("mechanism", lambda row: row.label, words=True),
        Column(
            "ε",
            lambda row: unit_statement(row.mechanism, relation).epsilon_cell if row.mechanism else "N/A",
            _certified_legend(relation),
        ),
        _column_of_mechanism(
            relation.beside.value,
            lambda mechanism: unit_statement(mechanism, relation.beside).epsilon_number,
            _certified_legend(relation.beside),
        ),
        _column_of_mechanism("δ", lambda mechanism: mechanism.statement.delta_cell),
        _column_of_mechanism("MAE", lambda mechanism: f"{mechanism.mae():.4f}"),
        _column_of_mechanism("MSE", lambda mechanism: f"{mechanism.mse():.4f}"),
        *(
            [_column_of_mechanism("max bias", _bias, "largest bias of an estimate, in clips")]
            if any_bias
            else []
        ),
        _column_of_mechanism("bits", lambda mechanism: f"{mechanism.bits_per_coordinate:g}", "of a code"),
        _column_of_mechanism(
            "max code",
            lambda mechanism: "-" if mechanism.max_code is None else str(mechanism.max_code),
            "the largest integer that one client adds to a sum",
        ),
        Column("s", lambda row: f"{row.design_seconds:.2f}", "seconds that the design took"),
    )
    print_table(console, columns, ranked, title)
    for row in ranked:
        if row.mechanism is None:
            print_sentence(console, f"{row.label}: N/A: {name_options(row.reason)}")


def _column_of_mechanism(heading: str, cell: Callable[[Mechanism], str], legend: str = "") -> Column:
    """A column that is empty for those without a design."""
    return Column(heading, lambda row: cell(row.mechanism) if row.mechanism else "", legend)


def _bias(mechanism: Mechanism) -> str:
    return f"{mechanism.max_bias:.3f}" if mechanism.max_bias else "0"


def print_whole_updates(
    console: Console,
    title: str,
    rows: list[ComparisonRow],
    dimension: int,
    relation: Relation = Relation.REPLACE_ONE,
) -> None:
    """Print mechanisms that encode whole updates, and what they can be compared with."""

    def cost(mechanism: Mechanism, shown: Relation) -> PrivacyStatement:
        return PrivacyStatement(
            unit_statement(mechanism, shown, dimension).epsilon, 0.0, Unit.ROUND, relation=shown
        )

    def legend(shown: Relation) -> str:
        return PrivacyStatement.heading(Unit.ROUND, word="certified", relation=shown)

    beside = relation.beside
    columns = (
        Column("mechanism", lambda row: row.label, words=True),
        Column("ε", lambda row: cost(row.mechanism, relation).epsilon_cell, legend(relation)),
        Column(beside.value, lambda row: cost(row.mechanism, beside).epsilon_number, legend(beside)),
        Column("inputs in", lambda row: f"the {row.mechanism.norm} ball", words=True),
        Column("MSE", lambda row: f"{row.mechanism.mse():.4f}", "of a coordinate"),
        Column("bits", lambda row: f"{row.mechanism.bits_per_coordinate:.3g}", "of a coordinate"),
        Column("s", lambda row: f"{row.design_seconds:.2f}", "seconds that the design took"),
    )
    print_table(console, columns, [row for row in _rank_rows(rows) if row.mechanism is not None], title)
    print_sentence(
        console,
        "Inputs uniform in the unit ball of the norm: MSE of different balls do not compare.",
    )


def _rank_rows(rows: list[ComparisonRow]) -> list[ComparisonRow]:
    return sorted(rows, key=lambda row: row.mechanism.mse() if row.mechanism else float("inf"))


def _certified_legend(relation: Relation = Relation.REPLACE_ONE) -> str:
    return PrivacyStatement.heading(Unit.COORDINATE, word="certified", relation=relation)


def _certified_cell(mechanism: Mechanism) -> str:
    """The certified epsilon, with its unit where that is not the one of the legend."""
    stated = mechanism.statement
    alike = stated.unit is Unit.COORDINATE or math.isinf(stated.epsilon)
    return stated.epsilon_cell if alike else f"{stated.epsilon_cell} ({stated.unit})"
