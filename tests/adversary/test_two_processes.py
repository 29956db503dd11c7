"""Two processes on the same run: the second is refused, and nothing that is released goes uncounted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fl_privquant as pq
from fl_privquant._files import LockedError, file_lock
from fl_privquant.flower import CheckpointStrategy, PrivQuantMod, PrivQuantStrategy
from tests.flower.apps import client_app, fedavg, simulate

ROOT = Path(__file__).parents[2]
SAVED = "checkpoint_seconds=0"
SIZE = "federation.num_clients=5", "federation.rounds=120", "task=mean", "task.dimension=3000"


def simulation(output: Path) -> list[str]:
    return ["simulations.run", SAVED, *SIZE, "mechanism=one_bit", f"output={output}"]


def wait_for(path: Path, pattern: str) -> Path:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if found := list(path.glob(pattern)):
            return found[0]
        time.sleep(0.02)
    raise TimeoutError(pattern)


def test_the_second_process_is_refused_and_a_killed_ones_lock_is_free(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-m", *simulation(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(tmp_path, "default/*/run.checkpoint")
        first.send_signal(signal.SIGSTOP)  # it holds the run, however long the second one takes to start
        second = subprocess.run(
            [sys.executable, "-m", *simulation(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert second.returncode == 2
        assert f"is in use by process {first.pid} on " in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        first.kill()
        first.wait()
    third = subprocess.run(
        [sys.executable, "-m", *simulation(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert third.returncode == 0, third.stderr
    rows = pd.read_parquet(wait_for(tmp_path, "default/*/rounds.parquet"))
    assert rows["round"].tolist() == list(range(121))


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


def test_an_error_frees_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"

    def fail() -> None:
        with file_lock(lock, "it"):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with (
        file_lock(lock, "it"),
        pytest.raises(LockedError, match="it is in use by process"),
        file_lock(lock, "it"),
    ):
        pass
    assert not lock.exists()


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
while done < 60:
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
    """Five processes add to a number that only one may read and write at a time."""
    (tmp_path / "count").write_text("0")
    command: list[Any] = [sys.executable, "-c", _COUNTING, tmp_path]
    workers = [subprocess.Popen(command, cwd=ROOT) for _ in range(5)]
    assert [worker.wait(200) for worker in workers] == [0] * 5
    assert int((tmp_path / "count").read_text()) == 5 * 60
