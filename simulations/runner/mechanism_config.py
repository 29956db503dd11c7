"""The group ``mechanism`` of a run: its parameters are those of the mechanism's own specification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_privquant._validation import check_integer, check_type, field_types, suggest_nearest
from fl_privquant.accounting import Unit
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.mechanisms.registry import get_entry, name_of_spec
from simulations.runner.targets import TARGET, load_object

CENTRAL = "central_gaussian"
"""The baseline that trusts the server: no mechanism of clients, so not in the registry."""

# What one sweep sets for mechanisms of which some have no such parameter, such as baselines without privacy.
_COMMON = ("epsilon", "bits", "levels")
# The epsilon of a run that names neither its own nor a target: of a coordinate, or of a whole update.
_DEFAULT_EPSILON = {Unit.COORDINATE: 1.0, Unit.ROUND: 8.0}


def check_mechanism(given: Mapping[str, Any], num_clients: int, has_target: bool) -> dict[str, Any]:
    """The parameters that the mechanism has, in one order: what it ignores must not change a run's hash.

    Parameters
    ----------
    given
        ``name``, or the ``_target_`` of a spec, and parameters. ``epsilon``, ``bits`` and ``levels`` are
        left out if the mechanism does not have them, because a sweep sets them for all of its mechanisms.
    num_clients
        Clients of the run, for mechanisms that are designed for a number of them.
    has_target
        Whether the run has a target, from which epsilon follows.

    Raises
    ------
    InvalidSpecError
        The mechanism is unknown, or does not take a parameter or its type.
    """
    values = {key: value for key, value in given.items() if value is not None}
    if TARGET in values:
        spec = load_object(f"mechanism.{TARGET}", values[TARGET])
        values["name"] = name_of_spec(spec)
    if "name" not in values:
        raise InvalidSpecError(
            "mechanism.name", MISSING, "missing", remedy="choose one with mechanism=optm, for example"
        )
    name = str(values["name"])
    if name == CENTRAL:
        return {key: values[key] for key in ("name", "epsilon") if key in values}
    spec = get_entry(name).spec
    parameters = {*spec.parameter_names(), "bits"}
    if not has_levels(name):
        parameters -= {"bits", "levels"}
    kept: dict[str, Any] = {"name": name, TARGET: values[TARGET]} if TARGET in values else {"name": name}
    for key in sorted(set(values) - set(kept)):
        if key in parameters:
            kept[key] = _check_parameter(f"mechanism.{key}", values[key], field_types(spec).get(key))
        elif key not in _COMMON:
            raise InvalidSpecError(
                f"mechanism.{key}",
                MISSING,
                problem=f"not a parameter of {name!r}, which takes {', '.join(sorted(parameters))}"
                f"{suggest_nearest(key, parameters)}",
            )
    if "levels" in kept:
        kept.pop("bits", None)
    if "num_clients" in parameters:
        kept.setdefault("num_clients", num_clients)
    others = spec.instead_of_epsilon
    defined = has_target or (others and set(others) <= set(kept))
    if has_parameter(name, "epsilon") and "epsilon" not in kept and not defined:
        kept["epsilon"] = _DEFAULT_EPSILON[spec.spends_on]
    return kept


def _check_parameter(key: str, value: Any, kind: Any) -> Any:
    if kind is None:
        return check_integer(key, value, 1, 16)  # bits: 2^bits levels
    checked = check_type(key, value, kind)
    return list(checked) if isinstance(checked, tuple) else checked


def has_levels(name: str) -> bool:
    """Whether the mechanism's number of levels can be chosen."""
    # one_bit has a parameter of that name, which says how many it has.
    return name != CENTRAL and "levels" in get_entry(name).spec.select_parameters({"levels": 2})


def has_parameter(name: str, parameter: str) -> bool:
    """Whether the mechanism has a parameter of that name."""
    return name != CENTRAL and parameter in get_entry(name).spec.parameter_names()
