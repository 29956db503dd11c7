"""Statements are the only way in which an epsilon is put before people."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fl_privquant as pq
from fl_privquant.accounting import PrivacyStatement, Unit, View
from tests.typical import typical

ROOT = Path(__file__).parents[1]
# The paper's experiments print the paper's tables, in the paper's words, and say what they are above them.
SOURCES = [
    path
    for room in ("fl_privquant", "simulations")
    for path in sorted((ROOT / room).rglob("*.py"))
    if not {"paper", "benchmarks"} & set(path.parts)
]
# What statements give, and what is written for machines.
ALLOWED = re.compile(
    r"\.(brief|figures|epsilon_cell|epsilon_number|hex)\b|\.above\(|\bformat_epsilon\(|heading\("
)
# An error that quotes the user's own numbers back, before anything has an epsilon.
SPEC_ERRORS = ("InvalidSpecError", "InfeasibleDesignError")
ENDS_WITH_EPSILON = re.compile(r"(ε|\bepsilon)\s*(=|:|of|is|>=|<=)?\s*$")
BARE = re.compile(r"ε\s*(=|>=|<=|of)\s*\d")


def bare_epsilons(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string that shows an epsilon which no statement made."""
    tree = ast.parse(source)
    quoting: set[int] = set()
    documentation: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Raise)
            and node.exc is not None
            and any(name in ast.unparse(node.exc) for name in SPEC_ERRORS)
        ):
            quoting |= {id(each) for each in ast.walk(node)}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documentation.add(id(node.value))
    for node in ast.walk(tree):
        text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if text and id(node) not in documentation and BARE.search(node.value):
            yield node.lineno, node.value
        if not isinstance(node, ast.JoinedStr) or id(node) in quoting:
            continue
        before = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                before = str(part.value)
                continue
            shown = ast.unparse(part.value) if isinstance(part, ast.FormattedValue) else ""
            about = re.search(r"epsilon|ε", shown) or ENDS_WITH_EPSILON.search(before)
            if about and not ALLOWED.search(shown):
                yield node.lineno, ast.unparse(node)
            before = ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_shows_an_epsilon_by_itself(path: Path) -> None:
    if path.parent.name == "fl_privquant" and path.name in ("statement.py", "check.py"):
        return
    assert list(bare_epsilons(path.read_text())) == []


def test_the_independent_check_begins_its_lines_with_a_heading() -> None:
    """It shares no code with the package, so that it makes headings by itself."""
    source = (ROOT / "fl_privquant" / "check.py").read_text()
    assert "name = f\"ε, {line['unit']}, {line['view']}, {line['relation']}\"" in source
    for_machines = "f'{epsilon:.9g}'"
    shown = [text for _, text in bare_epsilons(source) if text != for_machines]
    assert shown
    assert [text for text in shown if not text.startswith("f'{name}: ")] == []


@pytest.mark.parametrize(
    "line",
    [
        'print(f"epsilon {mechanism.epsilon:g}")',
        'log(f"ε = {total:.3g} so far")',
        'title = f"{name}, certified ε {value}"',
        'label = "optm at ε = 8"',
        'print(f"spent {statement.epsilon:.3g}")',
        'raise CertificationError(f"certified {self.epsilon} is above {claim}")',
    ],
)
def test_the_check_can_fail(line: str) -> None:
    assert len(list(bare_epsilons(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        'print(f"certified {mechanism.statement.brief}")',
        'raise InvalidSpecError(f"epsilon: {epsilon} is not above 0")',
        'text = f"{float(self.epsilon).hex()}"',
        '"""At ε = 1 the error is 4."""',
    ],
)
def test_the_check_lets_pass_what_it_should(line: str) -> None:
    assert not list(bare_epsilons(line))


@pytest.mark.parametrize("name", pq.available_mechanisms())
def test_every_mechanism_names_unit_and_view_in_its_repr(name: str) -> None:
    mechanism = typical(name)
    if math.isfinite(mechanism.epsilon):
        assert mechanism.statement.brief in repr(mechanism)
        assert f"({mechanism.unit}, local view, replace-one)" in repr(mechanism)
    else:
        assert "ε = " not in repr(mechanism)


def test_headings_and_cells() -> None:
    assert PrivacyStatement.heading(Unit.ROUND, View(5).stated, "ε spent") == (
        "ε spent, client round, aggregate view of 5, replace-one"
    )
    assert PrivacyStatement(123456.7, 0.0, Unit.ROUND).epsilon_cell == "123,500"
    assert PrivacyStatement(math.inf, 0.0, Unit.ROUND).epsilon_cell == "∞ (not private)"
    found = PrivacyStatement(1.000000001, 0.0, Unit.COORDINATE).above(1.0)
    assert found.startswith(
        "certified ε = 1.000000001, δ = 0 (coordinate release, local view, replace-one) is above"
    )
    assert PrivacyStatement.at_least(0.99999, Unit.COORDINATE).startswith("ε >= 0.9999 (")
    statement = PrivacyStatement(2.0, 1e-6, Unit.TOTAL, View(9).stated, assumptions=("a", "b"), scope="s")
    assert PrivacyStatement.from_dict(statement.to_dict()) == statement
