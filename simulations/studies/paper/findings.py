"""What a check of the paper's text is, and what it finds; the words are in ``checks.yaml``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Finding:
    """Whether a check confirms the correction of the text, and the figures behind that."""

    confirmed: bool
    measured: Mapping[str, float]


Run: TypeAlias = Callable[[int], Finding]

RUNS: dict[str, Run] = {}
"""The functions of all checks by name: each takes the number of random cases that it looks at."""


def check(name: str) -> Callable[[Run], Run]:
    """Enter a function as the check of that name."""

    def entered(run: Run) -> Run:
        RUNS[name] = run
        return run

    return entered
