"""How the plain fields of a mechanism are written in the header of its bytes, and read from one that came.

Plain fields are texts, numbers and mappings. Others, such as a table, are left to the mechanism's own class.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

_WRITE: dict[Any, Callable[[Any], Any]] = {
    float: lambda value: float(value).hex(),
    int: int,
    str: str,
    Mapping: dict,
}
_READ: dict[Any, Callable[[Any], Any]] = {float: float.fromhex, int: int, str: str, Mapping: dict}


def written_fields(mechanism: Any) -> dict[str, Any]:
    """The plain fields of a mechanism as JSON holds them, floats without loss."""
    cls: Any = type(mechanism)
    return {_key(name): _WRITE[kind](getattr(mechanism, name)) for name, kind in _plain_fields(cls).items()}


def read_fields(cls: Any, header: Mapping[str, Any]) -> dict[str, Any]:
    """The plain fields of a mechanism of that class, from the header that somebody sent."""
    return {name: _READ[kind](header[_key(name)]) for name, kind in _plain_fields(cls).items()}


@cache
def _plain_fields(cls: Any) -> dict[str, Any]:
    """The type of each plain field: str, int, float or Mapping."""
    hints = typing.get_type_hints(cls)
    kinds = {field.name: typing.get_origin(hints[field.name]) or hints[field.name] for field in fields(cls)}
    return {name: kind for name, kind in kinds.items() if kind in _WRITE}


def _key(name: str) -> str:
    """A field's key in headers: all that a header says is a claim."""
    return name.removeprefix("claimed_")
