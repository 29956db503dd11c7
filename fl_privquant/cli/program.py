"""How a command-line program ends: a user's mistake is one line and an exit code, never a traceback."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, NoReturn

import typer
from click.exceptions import Abort, ClickException, NoArgsIsHelpError, UsageError

from fl_privquant.errors import PrivQuantError, one_line

__all__ = ["EXIT_ERROR", "EXIT_INTERRUPTED", "exit_interrupted", "fail", "print_error", "run"]

EXIT_ERROR = 2
"""The exit code after an error."""

EXIT_INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

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
