"""Common code of benchmarks: rows with their targets, fair timing, and the table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One measurement beside its target."""

    name: str
    measured: float
    target: float
    at_least: bool = True

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    @property
    def bound(self) -> str:
        """The target in words of its direction, such as ``>= 8``."""
        return f"{'>=' if self.at_least else '<='} {self.target:.3g}"


def at_most(name: str, measured: float, target: float) -> Row:
    """A measurement that must not exceed its target."""
    return Row(name, measured, target, at_least=False)


def in_turns(timed: Sequence[Callable[[], float]], turns: int) -> NDArray[np.float64]:
    """(turns, calls) seconds of calls that time themselves, in turns so that all meet the same machine."""
    return np.array([[call() for call in timed] for _ in range(turns)])


def seconds_of(call: Call, clock: Callable[[], float] = time.process_time) -> float:
    """The time of a call. Processor time is not affected by what else the machine does."""
    start = clock()
    call()
    return clock() - start


def median_seconds(calls: Sequence[Call], rounds: int) -> list[float]:
    """The median processor time of each call, in turns; everything compared uses one thread."""
    times = in_turns([partial(seconds_of, call) for call in calls], rounds + 1)
    # The first turn compiles and warms up.
    return [float(seconds) for seconds in np.median(times[1:], axis=0)]


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """Print rows as a table."""
    view = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("what", "measured", "target", ""):
        view.add_column(column, justify="left" if column == "what" else "right")
    for row in rows:
        view.add_row(
            row.name, f"{row.measured:.3g}", row.bound, "holds" if row.holds else "[red]missed[/red]"
        )
    Console(width=110).print(view)


def output_of(*arguments: str, **environment: str) -> str:
    """What a new Python process with these arguments prints, with further environment variables."""
    done = subprocess.run(
        [sys.executable, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.stdout


def resident_bytes(field: str) -> int:
    """Resident memory of this process, now (VmRSS) or at its peak (VmHWM)."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: on Linux a child's peak starts at that of the process that started it.
        return next(1024 * int(line.split()[1]) for line in status.read_text().splitlines() if field in line)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
