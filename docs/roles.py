"""Docstrings as Markdown: roles become links, doctests and drawings code, and statements paragraphs.

A role that names nothing is left to mkdocs, which fails a strict build for a link without a target.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([\w.]+)`")
_STATEMENT = re.compile(r"^(Guarantee|Assumes|References?):", re.MULTILINE)
# From a prompt to the next empty line; otherwise Markdown takes prompts for quotations.
_DOCTEST = re.compile(r"^>>> (?:.+\n?)+", re.MULTILINE)
_HEADING = re.compile(r"^(\w+)\n-{3,}$", re.MULTILINE)


class Roles(griffe.Extension):
    """Rewrites every docstring of a package once it is loaded, when names can be looked up."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for each in _objects(pkg):
            if each.docstring is not None:
                text = _ROLE.sub(lambda role, at=each: _link(at, role[1], pkg), each.docstring.value)
                text = _STATEMENT.sub(r"\n**\1:**", text)
                each.docstring.value = _DOCTEST.sub(_fenced, text).replace(" ::\n", "\n")


def _fenced(doctest: re.Match[str]) -> str:
    """A doctest as a block of code; under a heading of its own where it follows a list of parameters."""
    headings = _HEADING.findall(doctest.string, 0, doctest.start())
    heading = "" if not headings or headings[-1] in ("Examples", "Notes") else "Examples\n--------\n"
    return f"{heading}```pycon\n{doctest[0].rstrip()}\n```\n"


def _objects(parent: griffe.Object) -> Iterator[griffe.Object]:
    yield parent
    for member in parent.members.values():
        if not member.is_alias:
            yield from _objects(member)  # type: ignore[arg-type]


def _link(at: griffe.Object, name: str, package: griffe.Module) -> str:
    target = _target(at, name, package)
    if target is None:
        return f"[`{name}`][{name}]"
    if any(part.startswith("_") for part in target.path.split(".")):
        return f"`{name}`"
    # What has no text of its own is described with the class that it belongs to.
    return f"[`{name}`][{target.path if _is_described(target) else target.parent.path}]"


def _target(at: griffe.Object, name: str, package: griffe.Module) -> Any:
    """What a name means where it is used: a full path, a member of the class, or one of the module."""
    first, _, rest = name.partition(".")
    if first == package.name:
        return _member(package, rest)
    scope: Any = at
    while not scope.is_module:
        if scope.is_class and first in scope.all_members:
            return _member(scope, name)
        scope = scope.parent
    return _member(scope, name)


def _member(scope: Any, name: str) -> Any:
    try:
        for part in name.split(".") if name else ():
            scope = scope.all_members[part]
        return scope.final_target if scope.is_alias else scope
    except (KeyError, griffe.AliasResolutionError):
        return None


def _is_described(target: Any) -> bool:
    owners = [target.parent, *target.parent.mro()] if target.parent and target.parent.is_class else []
    same = [owner.members.get(target.name) for owner in owners]
    return any(each is not None and each.docstring is not None for each in [target, *same])
