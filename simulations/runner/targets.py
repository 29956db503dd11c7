"""Functions and classes that a configuration names, by the short name of ours or by any import path."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fl_privquant._validation import suggest_nearest
from fl_privquant.errors import MISSING, InvalidSpecError, one_line

TARGET = "_target_"
"""The key that holds the import path of a class, as in Hydra's own instantiation."""

_MAX_CHARACTERS = 200


def load_object(key: str, name: str, home: str | None = None) -> Callable[..., Any]:
    """Import a function or a class.

    >>> load_object("task.model", "mlp", "simulations.tasks.models").__name__
    'mlp'

    Parameters
    ----------
    key
        The key that names it, for error messages.
    name
        An import path, or a word for an object in the module ``home``.
    home
        The module of our own objects.

    Raises
    ------
    InvalidSpecError
        It cannot be imported, or is nothing that can be called.
    """
    path = name if home is None or "." in name else f"{home}.{name}"
    try:
        loaded = pkgutil.resolve_name(path)
    except Exception as error:  # a module of the user's may fail in any way
        reason = one_line(f"{type(error).__name__}: {error}", _MAX_CHARACTERS)
        module, _, attribute = path.rpartition(".")
        words = list(getattr(sys.modules.get(module), "__all__", ()))
        advice = f"; {module} has {', '.join(words)}{suggest_nearest(attribute, words)}" if words else ""
        raise InvalidSpecError(key, MISSING, f"{path} cannot be imported ({reason}){advice}") from error
    if not callable(loaded):
        raise InvalidSpecError(key, MISSING, f"{path} is {type(loaded).__name__}, not a function or class")
    return loaded  # type: ignore[no-any-return]


def options_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function or class by name, without those that take any number of arguments."""
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(target).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind not in starred}


def takes_any(target: Callable[..., Any]) -> bool:
    """Whether a function or class takes arguments of any name."""
    parameters = inspect.signature(target).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def check_options(
    group: str, options: Mapping[str, Any], targets: Iterable[Callable[..., Any]], given: Iterable[str] = ()
) -> None:
    """Refuse an option that none of the functions takes, and one that is missing.

    Parameters
    ----------
    group
        The group of the options, with which keys begin in error messages.
    options
        The options, without the ``_target_``.
    targets
        The functions or classes that are called with those options that they take.
    given
        Parameters that the run sets, and a configuration must not.
    """
    targets, given = list(targets), set(given)
    open_ended = any(map(takes_any, targets))
    accepted = {name for target in targets for name in options_of(target)} - given
    for key in options:
        if key not in accepted and (key in given or not open_ended):
            names = " and ".join(target.__name__ for target in targets)
            raise InvalidSpecError(
                f"{group}.{key}",
                MISSING,
                problem=f"unknown key; parameters of {names}: {', '.join(sorted(accepted)) or 'none'}"
                f"{suggest_nearest(key, accepted)}",
            )
    for target in targets:
        for name, parameter in options_of(target).items():
            if parameter.default is parameter.empty and name not in options and name not in given:
                raise InvalidSpecError(f"{group}.{name}", MISSING, f"missing; {target.__name__} needs it")
