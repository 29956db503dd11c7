"""The keys of ``conf/mechanism``: checked against the mechanism's own specification."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.registry import entry

CENTRAL = "central_gaussian"
"""The baseline that trusts the server: no mechanism of clients, so not in the registry."""

# Keys that every mechanism file has, so that one sweep can have mechanisms with and without privacy.
_COMMON_PARAMETERS = ("epsilon", "bits", "levels")


def checked_mechanism(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that the mechanism has, in one order: what it ignores must not change a run's hash."""
    if "name" not in values:
        raise InvalidSpecError("mechanism.name: missing; choose one with mechanism=optm, for example")
    if values["name"] == CENTRAL:
        return {key: values[key] for key in ("name", "epsilon") if values.get(key) is not None}
    registered = entry(str(values["name"]))
    parameters = {parameter.name for parameter in dataclasses.fields(registered.spec)} | {"bits"}
    hints = checks.types_of(registered.spec)
    kept: dict[str, Any] = {"name": registered.name}
    for key in sorted(values):
        if key == "name" or values[key] is None:
            continue
        if key not in parameters:
            if key in _COMMON_PARAMETERS:
                continue
            raise InvalidSpecError(
                f"mechanism.{key}: not a parameter of {registered.name!r}, which takes "
                f"{', '.join(sorted(parameters))}{checks.nearest(key, parameters)}"
            )
        if key == "bits":
            checks.whole("mechanism.bits", values[key], 1, 16)
        else:
            checks.typed(f"mechanism.{key}", values[key], hints[key])
        kept[key] = list(values[key]) if isinstance(values[key], list | tuple) else values[key]
    if not has_levels(registered.name):
        kept.pop("bits", None)
        kept.pop("levels", None)
    return kept


def has_levels(name: str) -> bool:
    """Whether the mechanism's number of levels can be chosen."""
    return name != CENTRAL and "levels" in entry(name).spec.accepted({"levels": 2})


def has_parameter(name: str, parameter: str) -> bool:
    """Whether the mechanism has a parameter of that name."""
    return parameter in {declared.name for declared in dataclasses.fields(entry(name).spec)}
