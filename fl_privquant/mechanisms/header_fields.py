"""How the fields of a mechanism are written in the header of its bytes, and read from a header that came."""

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


def written_fields(mechanism: object) -> dict[str, Any]:
    """The fields of a mechanism as JSON holds them, floats without loss."""
    cls: Any = type(mechanism)
    kinds = _field_kinds(cls)
    return {_key(name): _WRITE[kind](getattr(mechanism, name)) for name, kind in kinds.items()}


def read_fields(cls: Any, header: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a mechanism of that class, from the header that somebody sent."""
    return {name: _READ[kind](header[_key(name)]) for name, kind in _field_kinds(cls).items()}


@cache
def _field_kinds(cls: Any) -> dict[str, Any]:
    """The type of each field of a mechanism: str, int, float or Mapping."""
    hints = typing.get_type_hints(cls)
    return {
        parameter.name: typing.get_origin(hints[parameter.name]) or hints[parameter.name]
        for parameter in fields(cls)
    }


def _key(name: str) -> str:
    """A field's key in headers: what is claimed there is checked anyway."""
    return name.removeprefix("claimed_")
