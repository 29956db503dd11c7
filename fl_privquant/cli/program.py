"""How a command-line program ends: a user's mistake is one line and an exit code, never a traceback.

Errors are in the words of the command line: a parameter of Python becomes an option, if the command is a
:class:`FlagCommand`.
"""

from __future__ import annotations

import re
import sys
from functools import cache, lru_cache
from typing import Any, NoReturn

import click
import typer
from click.exceptions import Abort, ClickException, NoArgsIsHelpError, UsageError
from typer.core import TyperCommand

from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError, PrivQuantError, one_line

EXIT_ERROR = 2
"""The exit code after an error."""

EXIT_INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

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


_RUN_AGAIN = "the same command can be run again"
# None of our own messages is that long; what they quote may be anybody's.
_MAX_CHARACTERS = 2000


def run(app: typer.Typer) -> None:
    """Run the program, and end the process with its exit code."""
    try:
        code = _click_command(app)(standalone_mode=False) or 0
    except NoArgsIsHelpError as error:
        typer.echo(error.format_message())
        sys.exit(EXIT_ERROR)
    except (Abort, KeyboardInterrupt):
        exit_interrupted(_RUN_AGAIN)
    except ClickException as error:
        context = error.ctx if isinstance(error, UsageError) else None
        told = error.format_message().rstrip(".")
        advice = "" if context is None else f"see {context.command_path} --help"
        fail("; ".join(filter(None, [told, advice])).replace("?; see", "? See"))
    except BrokenPipeError:
        # The reader of the output has closed it, as head does. What is left in the buffer is dropped.
        sys.stdout = None
        sys.exit(EXIT_ERROR)
    except OverflowError as error:
        fail(f"a number is too large to compute with ({error}); give a smaller one")
    except (PrivQuantError, OSError) as error:
        fail(error)
    if code == EXIT_INTERRUPTED:  # typer turns Ctrl-C into this code
        exit_interrupted(_RUN_AGAIN)
    sys.exit(code)


@lru_cache
def _click_command(app: typer.Typer) -> Any:
    """What click runs. It is made once for a process, as the types of all options have to be read for it."""
    return typer.main.get_command(app)


def fail(error: object) -> NoReturn:
    """Print an error as one line, and end the process."""
    print_error(error)
    sys.exit(EXIT_ERROR)


def exit_interrupted(state: str) -> NoReturn:
    """Print one line that says what an interrupted program leaves behind, and end the process."""
    _print_line("interrupted: ", state)
    sys.exit(EXIT_INTERRUPTED)


def print_error(error: object) -> None:
    """Print an error as one line; texts of others in it are no markup, and cannot forge other lines."""
    _print_line("error: ", error)


def _print_line(opening: str, content: object) -> None:
    from rich.console import Console
    from rich.text import Text

    message = Text.assemble((opening, "bold red"), one_line(content, _MAX_CHARACTERS))
    console = Console(stderr=True)
    # One line in a pipe or a log; a terminal wraps it between words.
    console.print(message, soft_wrap=not console.is_terminal, highlight=False)


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
    return re.sub(r"(?<![\w'-])[a-z]\w*_\w+", lambda name: flags.get(name[0], name[0]), text)


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
