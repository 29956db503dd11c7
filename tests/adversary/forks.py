"""Forks of this process: they know what it knew, and it does not remember what they have done."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["end_fork", "in_two_processes", "start_fork"]


def start_fork(action: Callable[[int], object]) -> tuple[int, int]:
    """Begin an action, which may write to a pipe, in a fork; the fork's id, and the pipe's other end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing of pytest runs from here on, whatever happens.
        try:
            action(writing)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    os.close(writing)
    return child, reading


def end_fork(child: int, reading: int) -> tuple[int, bytes]:
    """Wait for the end of a fork; its exit code, and what it has written."""
    with os.fdopen(reading, "rb") as pipe:
        written = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), written


def in_two_processes(function: Callable[..., int], *arguments: Any) -> list[int]:
    """What a function returns in two forks at once: a number each."""

    def write_result(pipe: int) -> None:
        os.write(pipe, str(function(*arguments)).encode())

    started = [start_fork(write_result) for _ in range(2)]
    return [int(end_fork(*each)[1]) for each in started]
