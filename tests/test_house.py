"""The house stays as it was built: short functions, short modules, names that no two modules share."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("fl_privquant", "simulations", "tests", "docs")
MODULES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_MODULE = 60, 500


def long_functions(source: str) -> Iterator[str]:
    """Functions and methods with more lines than a screen holds, decorators and docstring included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = (node.end_lineno or first) - first + 1
            if lines > MOST_LINES_OF_A_FUNCTION:
                yield f"{node.name}: {lines} lines"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_and_modules_are_short(path: Path) -> None:
    source = path.read_text()
    assert list(long_functions(source)) == []
    assert source.count("\n") <= MOST_LINES_OF_A_MODULE


def test_no_two_modules_of_the_package_share_a_name() -> None:
    names = Counter(path.stem for path in (ROOT / "fl_privquant").rglob("*.py"))
    assert [name for name, count in names.items() if count > 1 and name != "__init__"] == []


def test_a_long_function_is_noticed() -> None:
    body = "\n".join("    total += 1" for _ in range(MOST_LINES_OF_A_FUNCTION))
    assert list(long_functions(f"def short(total):\n{body[:-15]}")) == []
    assert list(long_functions(f"class Room:\n  @staticmethod\n  def long(total):\n{body}")) == [
        "long: 62 lines"
    ]
