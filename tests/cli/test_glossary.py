"""The page of concepts speaks of what commands print in the same words, and its glossary has all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fl_privquant.accounting import Unit
from fl_privquant.cli.main import app
from fl_privquant.privacy_loss.composition.compose import Composition
from simulations.report.study import Study
from simulations.report.tables import privacy_table, results_table
from tests.simulations.synthetic import write_study

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pages" / "concepts.md").read_text()


def table_rows(text: str) -> list[list[str]]:
    """The cells of the rows of Markdown's tables, headings included."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


GLOSSARY = {
    word.strip()
    for row in table_rows((ROOT / "docs" / "pages" / "glossary.md").read_text())[1:]
    for word in (row[0], *row[0].split(", "))
}


def in_glossary(heading: str) -> bool:
    """Whether the glossary has a heading, or all the parts that commas divide it into."""
    parts = [re.sub(r" of (?:n|\d+)$", "", part) for part in heading.split(", ") if part != "%"]
    return heading in GLOSSARY or all(
        part in GLOSSARY or part.removesuffix("s") in GLOSSARY for part in parts
    )


def parsed(*folders: str) -> Iterator[ast.AST]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from ast.walk(ast.parse(path.read_text()))


def texts(node: ast.AST) -> list[str]:
    """The constant texts in an expression, such as both of a choice."""
    return [
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def methods() -> set[str]:
    """The names of bounds and of ways to add them up, of which "counted by" is made."""
    names = {*Composition, "sampling"}
    for node in parsed("fl_privquant"):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            if node.func.id == "NamedLoss":
                names.update(texts(node.args[1]))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(re.findall(r"^l[12] (?:gaussian|renyi|metric).*", node.value))
    return names - {""}


def headings() -> set[str]:
    """The headings of the tables of commands."""
    calls = [
        node
        for node in parsed("fl_privquant/cli")
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Column", "_column_of_mechanism")
    ]
    return {text for call in calls for text in texts(call.args[0])}


def test_the_glossary_has_every_method_that_statements_name() -> None:
    named = methods()
    assert {
        "pure",
        "pld",
        "rdp",
        "exact",
        "l2 renyi",
        "blanket",
        "poisson binomial",
        "worst distribution",
    } <= named
    assert sorted(name for name in named if name not in GLOSSARY) == []


def test_the_glossary_has_every_heading_of_the_commands() -> None:
    named = headings()
    assert {"counted by", "adversary sees", "error ÷ central", "max code", "ε"} <= named
    assert sorted(heading for heading in named if not in_glossary(heading)) == []


def test_the_glossary_has_units_views_and_targets() -> None:
    words = {*map(str, Unit), "local view", "aggregate view", "models view", "target", "energy", "N/A"}
    assert sorted(words - GLOSSARY) == []


def test_the_glossary_has_every_heading_of_a_report(tmp_path: Path) -> None:
    settings = ({"secagg": {"enabled": True, "corrupt_fraction": 0.1, "dropout_fraction": 0.1}},)
    write_study(tmp_path / "study", labels=("optm", "one_bit"), seeds=(0, 1), rounds=2, settings=settings)
    write_study(tmp_path / "study", labels=("optm",), seeds=(0, 1), rounds=2)
    study = Study.load(tmp_path / "study")
    named = {*privacy_table(study).columns}
    for setting in study.settings:
        named |= {*results_table(study, setting).columns}
    assert {"counted by", "squared error", "kB"} <= named
    assert sorted(heading for heading in named if not in_glossary(heading)) == []


def test_words_that_are_not_there_are_noticed() -> None:
    """Negative control."""
    assert not in_glossary("l2 unknown")
    assert not in_glossary("ε, client total, sideways view")


def test_the_table_of_the_page_is_what_the_command_prints() -> None:
    start = PAGE.index("`fl-privquant statement")
    command = PAGE[start:].split("`")[1].split()[1:]
    shown = CliRunner().invoke(app, command, env={"COLUMNS": "160"}, catch_exceptions=False)
    assert shown.exit_code == 0
    printed = [re.split(r" {2,}", line.strip()) for line in shown.output.splitlines()]
    on_page = table_rows(PAGE[start : PAGE.index("The last two protect nobody.")])
    # Numbers are set to the right, so that fewer spaces may stand before them than between words.
    flat = ["|".join(" ".join(row).split()) for row in printed]
    assert len(on_page) == 6
    for row in on_page:
        assert "|".join(" ".join(row).split()) in flat, row


@pytest.mark.parametrize("columns", [80, 120])
def test_statements_print_the_words_of_the_page_at_every_width(columns: int) -> None:
    arguments = ["statement", "--mechanism", "one_bit", "--clients", "20"]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)}, catch_exceptions=False)
    for unit in (Unit.COORDINATE, Unit.ROUND, Unit.TOTAL):
        assert set(str(unit).split()) <= set(shown.output.split())
        assert unit in GLOSSARY
