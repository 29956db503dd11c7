"""No epsilon stands on a page, in the tutorial or in a figure without its neighboring relation close by.

Close by means: in the same section of a page, or in the same label of a figure. What commands print and log
is made of statements, which name their relation (:mod:`fl_privquant.statement`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for folder in ("docs/pages", "simulations")
    for path in (ROOT / folder).rglob("*.md")
    if "outputs" not in path.parts
)
PAGES += [ROOT / "README.md"]
# A number, or a column that has "ε" in its heading.
SHOWN = re.compile(
    r"ε\s*(?:=|>=|<=|≥|≤|of|near|about|above|below)\s*[\d.]|^\|[^\n]*ε[^\n]*\|\n\|[ :-]*-", re.M
)
RELATION = re.compile(r"replace-one|zero-out|add-remove|(?:same|one|its) (?:neighboring )?relation")
LABELS = {"set_xlabel", "set_ylabel", "set_title", "xlabel", "ylabel", "title"}


def sections(text: str) -> Iterator[str]:
    """The parts of a page from one heading to the next, without blocks of code."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    yield from re.split(r"^(?=#{1,6} )", prose, flags=re.M)


def bare_epsilons(text: str) -> list[str]:
    """The sections of a page that show an epsilon and name no relation."""
    return [
        section.splitlines()[0]
        for section in sections(text)
        if SHOWN.search(section) and not RELATION.search(section)
    ]


def bare_labels(source: str) -> Iterator[str]:
    """Labels and titles of figures with an epsilon whose text has no relation in it."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        texts = node.args[:1] if method in LABELS else []
        texts += [keyword.value for keyword in node.keywords if keyword.arg in LABELS]
        for text in map(ast.unparse, texts):
            if "ε" in text and not RELATION.search(text) and "relation" not in text:
                yield text


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_section_with_an_epsilon_names_its_relation(page: Path) -> None:
    assert bare_epsilons(page.read_text(encoding="utf-8")) == []


def test_the_tutorial_prints_no_epsilon_without_its_relation() -> None:
    cells = json.loads((ROOT / "simulations/tutorial.ipynb").read_text(encoding="utf-8"))["cells"]
    printed = ["".join(output.get("text", [])) for cell in cells for output in cell.get("outputs", [])]
    shown = [text for text in printed if SHOWN.search(text)]
    assert len(shown) > 3
    assert [text for text in shown if not RELATION.search(text)] == []


def test_axes_and_titles_of_figures_name_the_relation() -> None:
    sources = {str(path): path.read_text(encoding="utf-8") for path in (ROOT / "simulations").rglob("*.py")}
    bare = {path: list(bare_labels(source)) for path, source in sources.items()}
    assert {path: labels for path, labels in bare.items() if labels} == {}


def test_what_has_no_relation_is_noticed() -> None:
    assert bare_epsilons("# One\nzero-out\n## Two\nAt ε = 4 it errs.\n") == ["## Two"]
    assert bare_epsilons("## Table\n| ε | error |\n|---|---|\n| 4 | 1 |\n") == ["## Table"]
    assert bare_epsilons("## Two\nAt ε = 4 (zero-out) it errs.\n```\nε = 4\n```\n") == []
    assert list(bare_labels("axis.set_xlabel('ε of a run')\naxis.set(xlabel='ε, zero-out')")) == [
        "'ε of a run'"
    ]
