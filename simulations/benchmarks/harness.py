"""What all benchmarks share: ratios, fair timing, the table on the terminal, and the files of results."""

from __future__ import annotations

import json
import os
import platform
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
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


@dataclass(frozen=True)
class Benchmark:
    """A function that measures, and arguments for a quick trial of it."""

    run: Callable[..., list[Ratio]]
    quick: Mapping[str, object]


def seconds_of(call: Call) -> float:
    """The processor time of a call, which other programs on the machine hardly change."""
    start = time.process_time()
    call()
    return time.process_time() - start


def median_seconds(calls: Sequence[Call], turns: int) -> list[float]:
    """The median processor time of each call; the calls take turns, so that all meet the same machine."""
    timed = [partial(seconds_of, call) for call in calls]
    # The first turn compiles and warms up, and is not counted.
    seconds = np.array([[measure() for measure in timed] for _ in range(turns + 1)])[1:]
    return [float(median) for median in np.median(seconds, axis=0)]


def peak_bytes(call: Call) -> int:
    """The largest memory that Python and numpy hold at once during a call, beyond what they hold before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def print_ratios(name: str, ratios: Sequence[Ratio], console: Console | None = None) -> None:
    """Print the ratios of one benchmark as a table."""
    table = Table(title=name, box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("what", "against", "quantity"):
        table.add_column(heading)
    table.add_column("ratio", justify="right")
    for ratio in ratios:
        table.add_row(ratio.what, ratio.baseline, ratio.quantity, f"{ratio.ratio:.3g}")
    (console or Console()).print(table)


def write_results(results: Mapping[str, Sequence[Ratio]], folder: Path) -> None:
    """Write ``benchmarks.csv``, and ``benchmarks.json`` with a description of the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"benchmark": name, **asdict(ratio)} for name, ratios in results.items() for ratio in ratios]
    pd.DataFrame(rows).to_csv(folder / "benchmarks.csv", index=False, float_format="%.4g")
    content = {"machine": describe_machine(), "ratios": rows}
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (folder / "benchmarks.json").write_text(text + "\n", encoding="utf-8")


def describe_machine() -> dict[str, str]:
    """Processor, cores, and versions: enough to judge a ratio, nothing that names the machine."""
    description = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
    }
    return description | {name: installed_version(name) for name in _PACKAGES}


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
