"""The house stays as it was built: short functions, names that say something, separate rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("fl_privquant", "simulations", "tests", "docs")
MAX_LINES_OF_A_FUNCTION = 60


def long_functions(source: str) -> Iterator[str]:
    """Functions and methods with more lines than a screen holds, without their docstrings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = (node.end_lineno or first) - first + 1 - (ast.get_docstring(node) or "").count("\n")
            if lines > MAX_LINES_OF_A_FUNCTION:
                yield f"{node.name}: {lines} lines"


@pytest.mark.parametrize("room", ROOMS)
def test_functions_are_short(room: str) -> None:
    sources = {str(path): path.read_text() for path in sorted((ROOT / room).rglob("*.py"))}
    long = {path: list(long_functions(source)) for path, source in sources.items()}
    assert {path: functions for path, functions in long.items() if functions} == {}


SAYS_NOTHING = {"found", "each", "thing"}


def names_that_say_nothing(source: str) -> list[str]:
    """Variables whose names do not say what they hold."""
    nodes = ast.walk(ast.parse(source))
    stored = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [f"{node.id}, line {node.lineno}" for node in stored if node.id in SAYS_NOTHING]


@pytest.mark.parametrize("room", ["fl_privquant", "simulations"])
def test_names_say_what_they_hold(room: str) -> None:
    unnamed = {str(path): names_that_say_nothing(path.read_text()) for path in (ROOT / room).rglob("*.py")}
    assert {path: names for path, names in unnamed.items() if names} == {}
    assert names_that_say_nothing("for each in replies: pass") == ["each, line 1"]


ROOMS_OF_TESTS = {
    *(path.name for path in (ROOT / "fl_privquant").iterdir() if path.is_dir()),
    *("simulations", "contract", "adversary", "controls", "e2e"),
}


def test_tests_mirror_the_rooms() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if (path / "__init__.py").exists()}
    assert folders == ROOMS_OF_TESTS - {"__pycache__"}


def is_checked(function: ast.AST, checking: set[str]) -> bool:
    """Whether a function asserts, expects an error, or calls a function that does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in checking or name.startswith("assert_") or name in ("raises", "warns", "check"):
                return True
    return False


def silent_tests(source: str) -> list[str]:
    """Tests that pass whatever happens, unless something raises."""
    nodes = ast.walk(ast.parse(source))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    checking: set[str] = set()
    while more := {
        node.name for node in functions if node.name not in checking and is_checked(node, checking)
    }:
        checking |= more
    return [node.name for node in functions if node.name.startswith("test_") and node.name not in checking]


def test_every_test_asserts_something() -> None:
    silent = [
        name
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in silent_tests(path.read_text())
    ]
    assert silent == []
    assert silent_tests("def test_nothing():\n    run()") == ["test_nothing"]


def test_a_long_function_is_noticed() -> None:
    body = "\n".join("    total += 1" for _ in range(MAX_LINES_OF_A_FUNCTION))
    assert list(long_functions(f"def short(total):\n{body[:-15]}")) == []
    assert list(long_functions(f"class Room:\n  @staticmethod\n  def long(total):\n{body}")) == [
        "long: 62 lines"
    ]
