"""Messages of the package in the words of the command line: parameters of Python become options.

The package's messages name parameters as Python has them, such as ``corrupt_fraction`` or ``max_bits``. Who
has typed a command knows its options instead. :func:`in_flags` translates, for the command that is running,
and every command is a :class:`FlagCommand`, whose errors are translated. Commands need no texts of their own.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import click
from typer.core import TyperCommand

from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError

# Options whose names are not those of the parameters that they set, by the parameter.
_OPTIONS = {
    "num_clients": "clients",
    "max_bits": "bits",
    "most_error": "error",
    "most_kilobytes": "kilobytes",
    "run_epsilon": "epsilon",
    "run_delta": "delta",
    "num_draws": "draws",
    # The view follows from the clients, and a mechanism may be the argument of a command.
    "view": "clients",
    "mechanism": "name",
}
# The command that sets parameters for which others have no option.
_ELSEWHERE = "design "
_VERB = r"(?:raise|lower|give|change|set|use)"
_ITEM = rf"(?!{_VERB}\b)[a-z]\w*(?:=[\w.'-]+)?"
_LIST = rf"{_ITEM}(?:(?:, or |, | or | and ){_ITEM})*"
# Where a word is a parameter, and not one of the sentence: before the first colon, and after these verbs.
_NAMED = re.compile(rf"^{_LIST}(?=: )|\b{_VERB} {_LIST}")
# Elsewhere only a word with an underscore or before an equals sign is one.
_PARAMETER = re.compile(r"(?<![\w'\"./=-])([a-z]\w*)(=[\w.'-]+)?(?![\w(])")


def in_flags(text: str) -> str:
    """The text with the options of the running command for parameters of Python; as it is without one.

    Parameters of designs that the command has no option for are given by ``--set``, of the command ``design``
    if not of the running one.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return text
    flags = _flags(context.command)
    lists = [named.span() for named in _NAMED.finditer(text)]

    def flag(word: re.Match[str]) -> str:
        typed, value = flags.get(word[1]), (word[2] or "")[1:].strip("'")
        listed = any(start <= word.start() < end for start, end in lists)
        if typed is None or not (listed or value or "_" in word[1]):
            return word[0]
        if value and (value != "True" or "--set" in typed):
            typed += f"{'=' if '--set' in typed else ' '}{value}"
        return f"'{typed}'" if typed.startswith(_ELSEWHERE) else typed

    return _PARAMETER.sub(flag, text)


class FlagCommand(TyperCommand):
    """A command whose errors name its options."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors about parameters are raised again in the words of the command line."""
        try:
            return super().invoke(ctx)
        except (InvalidSpecError, InfeasibleDesignError) as error:
            raise type(error)(in_flags(str(error))) from error


@cache
def _flags(command: click.Command) -> dict[str, str]:
    """What is typed for each parameter of Python in a command."""
    from fl_privquant.mechanisms.registry import entry, mechanisms

    own = {
        str(parameter.name): opening if (opening := parameter.opts[0]).startswith("-") else opening.upper()
        for parameter in command.params
    }
    others = {python: own[name] for python, name in _OPTIONS.items() if name in own}
    designs = {parameter for name in mechanisms() for parameter in entry(name).spec.parameter_names()}
    settings = {parameter: f"--set {parameter}" for parameter in designs}
    if "settings" in own:
        return others | settings | own
    return {parameter: f"{_ELSEWHERE}{typed}" for parameter, typed in settings.items()} | others | own
