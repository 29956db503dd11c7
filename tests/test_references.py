"""What docstrings refer to exists: names that are changed are changed there too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fl_privquant

PACKAGE = Path(fl_privquant.__file__).parent
REFERENCE = re.compile(r":(?:meth|func|class|attr|mod|data|exc):`~?([\w.]+)`")


def defined_names(tree: ast.Module) -> Iterator[str]:
    """The functions, classes, fields, attributes and constants that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def broken_references(text: str, known: set[str]) -> list[str]:
    """References that have a part which is no name of the package."""
    return [name for name in REFERENCE.findall(text) if not set(name.split(".")) <= known]


def test_docstrings_refer_to_what_exists() -> None:
    texts = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    known = {name for text in texts.values() for name in defined_names(ast.parse(text))}
    known |= {part for path in texts for part in path.relative_to(PACKAGE.parent).with_suffix("").parts}
    broken = {str(path): names for path, text in texts.items() if (names := broken_references(text, known))}
    assert broken == {}


def test_a_changed_name_is_noticed() -> None:
    """Negative control."""
    text = "See :meth:`gone`, :func:`here` and :mod:`fl_privquant.nowhere`."
    assert broken_references(text, {"here", "fl_privquant"}) == ["gone", "fl_privquant.nowhere"]
