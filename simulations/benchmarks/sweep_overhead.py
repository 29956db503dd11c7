"""How fast a sweep of small runs is: inline, in parallel, against one after another on Flower's Ray engine.

Both are started from the command line, as a user would: what a process, Ray or Hydra costs to start counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from simulations.benchmarks.measure import Row, print_rows

RUNS = 48
RAY_RUNS = 3
TARGET = 20.0
SMALL = ("federation.num_clients=10", "federation.rounds=10", "study=sweep")
ROOT = Path(__file__).parents[2]


def run() -> list[Row]:
    """The speed of a sweep beside its target, printed as a table."""
    with tempfile.TemporaryDirectory() as folder:
        seeds = ",".join(str(seed) for seed in range(RUNS))
        parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
        inline = _seconds("-m", f"seed={seeds}", *parallel, *SMALL, f"output={folder}/inline")
        ray = sum(
            _seconds(f"seed={seed}", "engine=ray", *SMALL, f"output={folder}/ray") for seed in range(RAY_RUNS)
        )
    name = f"{RUNS} runs inline, 2 at once, against one after another on Ray (from {RAY_RUNS} of these)"
    rows = [Row(name, ray / RAY_RUNS * RUNS / inline, TARGET)]
    print_rows("sweep: digits, 10 clients, 10 rounds", rows)
    return rows


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "simulations.run", *arguments], cwd=ROOT, check=True, capture_output=True
    )
    return time.perf_counter() - start
