"""From composed values to frozen dataclasses: unknown keys and wrong types are refused by name.

OmegaConf's structured configs do this for mutable dataclasses only: nested frozen ones become read-only,
tuples become lists, and the word "yes" becomes true.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from fl_privquant.checks import nearest, types_of
from fl_privquant.errors import InvalidSpecError
from simulations.keys.encodings import renamed_key


def build(kind: type, values: Mapping[str, Any], path: str = "") -> Any:
    """The dataclass with these values; ``path`` is what its keys begin with in error messages."""
    hints = types_of(kind)
    names = {declared.name for declared in dataclasses.fields(kind)}
    for key in values:
        if key not in names:
            renamed = renamed_key(f"{path}{key}")
            hint = nearest(str(key), names) if renamed is None else f"; it is {renamed} now"
            raise InvalidSpecError(f"{path}{key}: unknown key{hint}")
    arguments = {key: _convert(hints[key], value, f"{path}{key}") for key, value in values.items()}
    return kind(**arguments)


def _convert(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise InvalidSpecError(f"{path}: {value!r}, expected a group such as {path}=NAME")
        return build(typing.cast(type, hint), value, f"{path}.")
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    if isinstance(value, Mapping):
        return value
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_convert(typing.get_args(hint)[0], item, path) for item in value)
    for kind in (option for option in options if option is not type(None)):
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind in (int, str, bool) and type(value) is kind:
            return value
    names = " or ".join(
        "null" if option is type(None) else getattr(option, "__name__", "") for option in options
    )
    raise InvalidSpecError(f"{path}: {value!r} is not {names}")
