"""A process that kills runs: what :mod:`tests.adversary.test_kills` starts.

It loads everything once and forks a child for each run that is killed, so that a kill and the run that goes
on after it take a second and not half a minute. A child is killed by SIGKILL, at its k-th operation on a file
of the run. Nothing ends the run that goes on, which is therefore one of the parent's own: it knows no more of
the killed child than a new process would.

    python -m tests.adversary.killed_runs '{"output": ..., "config": {...}, "stride": 3}'

``whole`` in the output is a run that nothing happened to; beside it is a directory for each kill, with the
run as it was after it had gone on to its end. ``operations.json`` lists the operations of ``whole``.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from simulations.run import execute
from simulations.runner.config import RunConfig
from tests.adversary.forks import end_fork, start_fork

# Each of these operations changes what the next process finds; what happens between two of them does not.
_WATCHED = ("open", "os.rename", "os.remove", "os.rmdir")
# A run that goes on reads its checkpoint in so many operations before the round that it begins with.
_RESUMES = 3


def run(config: RunConfig, log: Path | None = None, kill_at: int | None = None) -> None:
    """Run in this process; kill it at an operation on the run's files, or list them all."""
    operations: list[tuple[str, str]] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _WATCHED or not str(arguments[0]).startswith(config.output):
            return
        target = arguments[1] if event == "os.rename" else arguments[0]
        operations.append((event, Path(target).name))
        if len(operations) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    execute(config)
    if log is not None:
        log.write_text(json.dumps(operations))


def run_in_fork(config: RunConfig, **options: Any) -> int:
    """Run in a child; its exit code, negative if a signal ended it."""
    return end_fork(*start_fork(lambda _: run(config, **options)))[0]


def main(output: Path, config: dict[str, Any], stride: int = 1, kills: int = 1) -> None:
    """Run without a kill; then kill runs at every stride-th operation, and resume each of them.

    With several ``kills`` a run is killed that often, each time at the same place of a round.
    """

    def config_in(name: str) -> RunConfig:
        return RunConfig.from_mapping({**config, "output": str(output / name)})

    # In this process: its children need not load compiled code again.
    run(config_in("warm"))
    # A collection of garbage in a child would touch, and so copy, all that was loaded here.
    gc.collect()
    gc.freeze()
    log = output / "operations.json"
    assert run_in_fork(config_in("whole"), log=log) == 0
    for kill_at in range(1, len(json.loads(log.read_text())) + 1, stride):
        name = f"operation-{kill_at}"
        for again in range(kills):
            ended = run_in_fork(config_in(name), kill_at=kill_at + _RESUMES * again)
            # A run that goes on has fewer rounds left, and may come to its end before.
            assert ended == -signal.SIGKILL or (again and ended == 0)
        execute(config_in(name))


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    main(Path(asked.pop("output")), **asked)
