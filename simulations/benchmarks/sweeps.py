"""What a sweep of small runs costs beside the training that it does."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from unittest import mock

from simulations import run
from simulations.benchmarks.harness import Ratio, seconds_of
from simulations.runner.config import CENTRAL, CONF, compose_run
from simulations.tasks.task import get_task


def sweep(
    mechanisms: int | None = None, seeds: int = 3, num_clients: int = 20, rounds: int = 5
) -> list[Ratio]:
    """A sweep over the mechanisms on digits, with its report; once, as a user would run it."""
    names = sorted(path.stem for path in (CONF / "mechanism").glob("*.yaml") if path.stem != CENTRAL)
    names = names[:mechanisms]
    chosen = ["task=digits", f"federation.num_clients={num_clients}", f"federation.rounds={rounds}"]
    tasks = [get_task(compose_run(*chosen, f"seed={seed}")) for seed in range(seeds)]

    def train() -> None:
        for task in tasks * len(names):
            for number in range(1, rounds + 1):
                for client in range(num_clients):
                    task.train(task.initial_arrays(), client, number)

    bare = seconds_of(train)
    swept = [f"mechanism={','.join(names)}", f"seed={','.join(map(str, range(seeds)))}"]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        command = ["simulations.run", "-m", *swept, *chosen, f"output={folder}"]
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stderr(io.StringIO()):
            seconds = seconds_of(run.main)
    what = f"sweep of {len(names) * seeds} runs, with its report"
    return [Ratio(what, "the bare training of their clients, one by one", seconds / bare)]
