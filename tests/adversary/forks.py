"""Forks of this process: they know what it knew, and remember nothing of what the other did since."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

__all__ = ["in_two_processes"]


def in_two_processes(function: Callable[..., int], *arguments: Any) -> list[int]:
    """What a function returns in two forks of this process at once: a number each."""
    started = []
    for _ in range(2):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            # In the child: nothing of pytest runs from here on, whatever happens.
            try:
                os.write(writing, str(function(*arguments)).encode())
            finally:
                os._exit(0)
        os.close(writing)
        started.append((child, reading))
    found = []
    for child, reading in started:
        with os.fdopen(reading) as pipe:
            found.append(int(pipe.read()))
        os.waitpid(child, 0)
    return found
