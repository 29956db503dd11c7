"""The plain fields of a mechanism in the header of its bytes: how they are written, and read again.

Plain fields are texts, numbers and mappings. The class of a mechanism handles others, such as a table.
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
    """The plain fields of a mechanism of that class, from a header that was received."""
    return {name: _READ[kind](header[_key(name)]) for name, kind in _plain_fields(cls).items()}


@cache
def _plain_fields(cls: Any) -> dict[str, Any]:
    """The type of each plain field: str, int, float or Mapping."""
    hints = typing.get_type_hints(cls)
    kinds = {field.name: typing.get_origin(hints[field.name]) or hints[field.name] for field in fields(cls)}
    return {name: kind for name, kind in kinds.items() if kind in _WRITE}


def _key(name: str) -> str:
    """A field's key in headers, without the word "claimed": whatever a header says is a claim."""
    return name.removeprefix("claimed_")
