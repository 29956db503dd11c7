"""Two processes on the same run: the second is refused, and nothing that is released goes uncounted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import fl_privquant as pq
from fl_privquant._files import LockedError, file_lock
from fl_privquant.flower import CheckpointStrategy, PrivQuantMod, PrivQuantStrategy
from simulations.run import execute
from simulations.runner.config import RunConfig
from simulations.runner.results import RunDirectory
from tests.finished_runs import rows_of
from tests.flower.apps import client_app, fedavg, simulate
from tests.task_values import mean_of

ROOT = Path(__file__).parents[2]
_HOLDING = """
import sys
from pathlib import Path
from fl_privquant._files import file_lock
with file_lock(Path(sys.argv[1]) / "run.lock", "it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_process_is_refused_and_a_killed_ones_lock_is_free(tmp_path: Path) -> None:
    federation = {"num_clients": 5, "rounds": 2}
    settings = {
        "task": mean_of(21),
        "federation": federation,
        "mechanism": {"name": "one_bit", "epsilon": 1.0},
    }
    config = RunConfig.from_mapping({**settings, "output": str(tmp_path)})
    command = [sys.executable, "-c", _HOLDING, RunDirectory.of(config).path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=f"is in use by process {first.pid} on "):
            execute(config)
        first.kill()
    execute(config)
    assert rows_of(config)["round"].tolist() == [0, 1, 2]


class Programs:
    """Server programs of a user's on one checkpoint file, as threads; clients count what they release."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.released = 0
        self.under_way, self.go_on = threading.Event(), threading.Event()
        self.errors: list[BaseException] = []

    def run(self, rounds: int, wait: bool = False) -> PrivQuantStrategy:
        def train(arrays: dict[str, Any], partition: int, server_round: int) -> dict[str, Any]:
            self.released += 1
            if wait:
                self.under_way.set()
                assert self.go_on.wait(60)
            return arrays

        encoding = pq.Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1)
        private = PrivQuantStrategy(fedavg(), encoding)
        client = client_app([PrivQuantMod(max_epsilon=1.0)], train)
        simulate(CheckpointStrategy(private, self.path), client, 3, rounds)
        return private


def test_a_checkpoint_is_held_by_one_program(tmp_path: Path) -> None:
    """Sixteen rounds were released and nine counted, when two ran at once."""
    programs = Programs(tmp_path / "app.checkpoint")
    finished: list[PrivQuantStrategy] = []
    first = threading.Thread(target=lambda: finished.append(programs.run(8, wait=True)))
    first.start()
    assert programs.under_way.wait(60)
    with pytest.raises(LockedError, match=rf"app\.checkpoint is in use by process {os.getpid()} on .*since"):
        programs.run(9)
    programs.go_on.set()
    first.join(60)
    # The second asked nobody; it may go on when the first has ended.
    assert programs.released == 3 * len(finished[0].ledger) == 3 * 8
    assert len(programs.run(9).ledger) == 9
    assert programs.released == 3 * 9
    assert [path.name for path in tmp_path.iterdir()] == ["app.checkpoint"]


def test_a_lock_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(LockedError, match=r"it cannot be locked \(.*\).*can be written")
    with refused, file_lock(tmp_path / "file" / "lock", "it"):
        pass
    # A link is not followed: what it leads to stays as it is.
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    with refused, file_lock(tmp_path / "link", "it"):
        pass
    assert (tmp_path / "precious").read_text() == "precious"
    (tmp_path / "damaged").write_text('{"pid": ')
    with file_lock(tmp_path / "damaged", "it"):
        pass


_COUNTING = """
import sys, time
from pathlib import Path
from fl_privquant._files import LockedError, file_lock
folder, done = Path(sys.argv[1]), 0
while done < 40:
    try:
        with file_lock(folder / "lock", "count"):
            count = folder / "count"
            before = int(count.read_text())
            time.sleep(0.0005)
            count.write_text(str(before + 1))
            done += 1
    except LockedError:
        time.sleep(0.0002)
"""


def test_the_lock_holds_although_its_file_comes_and_goes(tmp_path: Path) -> None:
    """Three processes add to a number that only one may read and write at a time."""
    (tmp_path / "count").write_text("0")
    command: list[Any] = [sys.executable, "-c", _COUNTING, tmp_path]
    workers = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [worker.wait(200) for worker in workers] == [0] * 3
    assert int((tmp_path / "count").read_text()) == 3 * 40
