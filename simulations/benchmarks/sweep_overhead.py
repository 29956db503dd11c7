"""How fast a sweep of small runs is: inline, in parallel, against one after another on Flower's Ray engine.

Both are started from the command line, as a user would: what a process, Ray or Hydra costs to start counts.
"""

from __future__ import annotations

import tempfile
import time

from simulations.benchmarks.measure import Row, output_of, seconds_of

RUNS = 48
RAY_RUNS = 3
TARGET = 20.0
SMALL = ("federation.num_clients=10", "federation.rounds=10", "study=sweep")


def run() -> list[Row]:
    """The speed of a sweep beside its target."""
    with tempfile.TemporaryDirectory() as folder:
        seeds = ",".join(str(seed) for seed in range(RUNS))
        parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
        inline = _seconds("-m", f"seed={seeds}", *parallel, *SMALL, f"output={folder}/inline")
        ray = sum(
            _seconds(f"seed={seed}", "engine=ray", *SMALL, f"output={folder}/ray") for seed in range(RAY_RUNS)
        )
    name = f"{RUNS} runs inline, 2 at once, against one after another on Ray (from {RAY_RUNS} of these)"
    return [Row(name, ray / RAY_RUNS * RUNS / inline, TARGET)]


def _seconds(*arguments: str) -> float:
    return seconds_of(lambda: output_of("-m", "simulations.run", *arguments), time.perf_counter)
