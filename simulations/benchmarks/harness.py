"""What all benchmarks share: ratios, fair timing, the table on the terminal, and the file of results."""

from __future__ import annotations

import json
import os
import platform
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from simulations.runner.results import installed_version

Call = Callable[[], object]

_PACKAGES = ("numpy", "numba", "scipy", "pulp", "highspy", "flwr", "ray", "torch", "cryptography")


@dataclass(frozen=True)
class Ratio:
    """The cost of one thing divided by the cost of its baseline.

    Parameters
    ----------
    what
        What was measured.
    baseline
        What it is compared with.
    ratio
        Cost divided by the cost of the baseline: below 1 it is cheaper than the baseline.
    quantity
        The cost: ``time``, ``bytes`` (on the wire) or ``memory``.
    """

    what: str
    baseline: str
    ratio: float
    quantity: str = "time"


def seconds_of(call: Call) -> float:
    """The processor time of a call, which other programs on the machine hardly change."""
    start = time.process_time()
    call()
    return time.process_time() - start


def median_seconds(calls: Sequence[Call], turns: int) -> list[float]:
    """The median processor time of each call; the calls take turns, so that all meet the same machine."""
    # The first turn compiles and warms up, and is not counted.
    seconds = np.array([[seconds_of(call) for call in calls] for _ in range(turns + 1)])[1:]
    return [float(median) for median in np.median(seconds, axis=0)]


def peak_bytes(call: Call) -> int:
    """The largest memory that Python and numpy hold at once during a call, beyond what they hold before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def print_ratios(name: str, ratios: Sequence[Ratio]) -> None:
    """Print the ratios of one benchmark as a table."""
    table = Table("what", "against", "ratio", "of", title=name, box=box.SIMPLE_HEAD, title_justify="left")
    for ratio in ratios:
        table.add_row(ratio.what, ratio.baseline, f"{ratio.ratio:.3g}", ratio.quantity)
    Console().print(table)


def write_results(results: Mapping[str, Sequence[Ratio]], folder: Path) -> None:
    """Write ``benchmarks.json``: all ratios, and a description of the machine that does not name it."""
    rows = [{"benchmark": name, **asdict(ratio)} for name, ratios in results.items() for ratio in ratios]
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: installed_version(name) for name in _PACKAGES},
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine, "ratios": rows}, indent=2, ensure_ascii=False)
    (folder / "benchmarks.json").write_text(text + "\n", encoding="utf-8")
