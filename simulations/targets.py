"""Functions and classes that a configuration names, by the short name of ours or by any import path."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError, one_line

TARGET = "_target_"
"""The key that holds the import path of a class, as in Hydra's own instantiation."""

_MOST_CHARACTERS = 200


def located(key: str, name: str, home: str | None = None) -> Callable[..., Any]:
    """The function or class of that name: an import path, or a word for one of the module ``home``.

    >>> located("task.model", "mlp", "simulations.models").__name__
    'mlp'
    """
    path = name if home is None or "." in name else f"{home}.{name}"
    module_name, _, attribute = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module of the user's may fail in any way
        reason = one_line(f"{type(error).__name__}: {error}", _MOST_CHARACTERS)
        raise InvalidSpecError(f"{key}: {path} cannot be imported ({reason})") from error
    if not callable(value := getattr(module, attribute, None)):
        words = list(getattr(module, "__all__", ()))
        advice = f", which has {', '.join(words)}{checks.nearest(attribute, words)}" if words else ""
        raise InvalidSpecError(f"{key}: there is no {attribute!r} in {module_name}{advice}")
    return typing.cast(Callable[..., Any], value)


def checked(
    group: str, values: Mapping[str, Any], given: Sequence[str] = (), common: Sequence[str] = ()
) -> dict[str, Any]:
    """The arguments of a group's ``_target_``, without those that are null, if it takes them.

    Parameters
    ----------
    group
        The name of the group, with which keys begin in error messages.
    values
        The group, with its ``_target_``.
    given
        Parameters of the target that the run sets, and a configuration must not.
    common
        Keys that all files of the group have: they are left out if the target does not take them.
    """
    if not isinstance(values.get(TARGET), str):
        raise InvalidSpecError(f"{group}.{TARGET}: missing; choose a file with {group}=NAME, or give a class")
    target = located(f"{group}.{TARGET}", values[TARGET])
    takes = [*options_of(target), TARGET]
    kept = {
        key: _plain(value)
        for key, value in sorted(values.items())
        if value is not None and (key in takes or key not in common or _takes_any(target))
    }
    options = {key: value for key, value in kept.items() if key != TARGET}
    refuse_unknown(group, options, [target], given)
    hints = _types(target)
    for name, parameter in options_of(target).items():
        if name in options:
            checks.typed(f"{group}.{name}", options[name], hints.get(name, Any))
        elif parameter.default is parameter.empty and name not in given:
            raise InvalidSpecError(f"{group}.{name}: missing; {values[TARGET]} needs it")
    check = getattr(target, "check", None)
    if check is not None:
        check(**options)
    return kept


def options_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function or class by name, without those that take any number of arguments."""
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = _parameters(target)
    return {name: parameter for name, parameter in parameters.items() if parameter.kind not in starred}


def refuse_unknown(
    group: str, options: Iterable[str], targets: Iterable[Callable[..., Any]], given: Iterable[str] = ()
) -> None:
    """Refuse an option that none of the functions takes, or that is ``given`` by the run itself."""
    targets = list(targets)
    open_ended = any(_takes_any(target) for target in targets)
    accepted = {name for target in targets for name in options_of(target)} - set(given)
    for key in options:
        if key not in accepted and (key in given or not open_ended):
            names = " and ".join(target.__name__ for target in targets)
            raise InvalidSpecError(
                f"{group}.{key}: unknown key; parameters of {names}: {', '.join(sorted(accepted)) or 'none'}"
                f"{checks.nearest(key, accepted)}"
            )


def _takes_any(target: Callable[..., Any]) -> bool:
    """Whether a function or class takes arguments of any name."""
    parameters = _parameters(target).values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    # Read once for all runs of a sweep; objects that are called need not have a hash.
    signature = _signature(target) if isinstance(target, type) else inspect.signature(target)
    return signature.parameters


@lru_cache(maxsize=64)
def _signature(target: type) -> inspect.Signature:
    return inspect.signature(target)


def _types(target: Callable[..., Any]) -> dict[str, Any]:
    """The declared types of its parameters; empty if one of them names something that is not imported."""
    return _types_of_class(target) if isinstance(target, type) else _declared(target)


@lru_cache(maxsize=64)
def _types_of_class(target: type) -> dict[str, Any]:
    return _declared(target.__init__)  # type: ignore[misc]


def _declared(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError:
        return {}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
