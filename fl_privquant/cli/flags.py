"""Errors of the package in the words of the command line: a parameter of Python becomes an option.

Every command is a :class:`FlagCommand`, so that its errors name what was typed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import click
from typer.core import TyperCommand

from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError, PrivQuantError

# Options whose names are not those of the parameters that they set, by the parameter.
_OPTIONS = {
    "num_clients": "clients",
    "max_bits": "bits",
    "max_error": "error",
    "max_kilobytes": "kilobytes",
    "run_epsilon": "epsilon",
    "run_delta": "delta",
    "num_draws": "draws",
    # The view follows from the clients, and a mechanism may be the argument of a command.
    "view": "clients",
    "mechanism": "name",
}


class FlagCommand(TyperCommand):
    """A command whose errors name its options."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors about parameters are raised again in the words of the command line."""
        try:
            return super().invoke(ctx)
        except (InvalidSpecError, InfeasibleDesignError) as error:
            raise translate_error(error) from error


def translate_error(error: PrivQuantError) -> PrivQuantError:
    """The error with the options of the running command for parameters of Python.

    Parameters of designs that the command has no option for are given by ``--set``, of the command ``design``
    if not of the running one. Outside a command the error stays as it is.
    """
    if not isinstance(error, InvalidSpecError):
        return type(error)(name_options(str(error)))
    flags = _flags_of_running_command()
    typed = ", ".join(flags.get(name, name) for name in error.parameter.split(", "))
    return InvalidSpecError(typed, error.value, name_options(error.problem), name_options(error.remedy))


def name_options(text: str) -> str:
    """The text with options for those names of parameters that cannot be words of a sentence."""
    flags = _flags_of_running_command()
    return " ".join(
        word.replace(name, flags[name])
        if "_" in (name := word.strip("().,:;'").partition("=")[0]) and name in flags
        else word
        for word in text.split(" ")
    )


def _flags_of_running_command() -> dict[str, str]:
    context = click.get_current_context(silent=True)
    return {} if context is None else _flags_by_parameter(context.command)


@cache
def _flags_by_parameter(command: click.Command) -> dict[str, str]:
    """What is typed for each parameter of Python in a command."""
    from fl_privquant.mechanisms.registry import available_mechanisms, get_entry

    own = {
        str(parameter.name): option if isinstance(parameter, click.Option) else option.upper()
        for parameter in command.params
        for option in parameter.opts[:1]
    }
    others = {python: own[name] for python, name in _OPTIONS.items() if name in own}
    designs = {
        parameter for name in available_mechanisms() for parameter in get_entry(name).spec.parameter_names()
    }
    setting = "--set" if "settings" in own else "design --set"
    return {parameter: f"{setting} {parameter}" for parameter in designs} | others | own
