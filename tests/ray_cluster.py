"""One Ray cluster for a whole run of the tests: its first user starts it, and its last one stops it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from tests.preloaded import Preloaded

__all__ = ["WARNINGS", "RayCluster"]

ROOT = Path(__file__).parents[1]
# Ray starts its workers by what it takes for its own Python.
_RAY = """
import sys
sys.executable = sys.argv.pop(1)
from ray.scripts.scripts import main
main()
"""
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
# Held until the process ends: what is thrown away while it runs is warned of.
_HEADS: list[subprocess.Popen[bytes]] = []

WARNINGS = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    # Third parties': Ray and Flower warn of their own futures, and leave sockets to the garbage collector.
    for kind in (
        "FutureWarning",
        "DeprecationWarning",
        "ResourceWarning",
        "pytest.PytestUnraisableExceptionWarning",
    )
]
"""Marks of a test that runs an app on Ray or deployed."""


@dataclass(frozen=True)
class RayCluster:
    """A head that is a process of its own, shared by all processes that name the same folder.

    Parameters
    ----------
    pid
        The head's process id, which is also that of its session.
    port
        Where it listens on this machine.
    directory
        Where it keeps its own files.
    """

    CPUS: ClassVar[int] = 2

    pid: int
    port: int
    directory: str

    @property
    def address(self) -> str:
        """What :class:`fl_privquant.flower.engines.RayEngine` takes."""
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether the head answers."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    @classmethod
    @contextlib.contextmanager
    def shared(cls, folder: Path, programs: Preloaded) -> Iterator[RayCluster]:
        """The cluster of a folder: started by its first user, stopped by the last one."""
        note = folder / "ray.json"
        with _locked(folder / "ray.lock"):
            users, *known = json.loads(note.read_text()) if note.exists() else [0]
            cluster = cls(*known) if users else cls._started(folder / "ray.log", programs)
            note.write_text(json.dumps([users + 1, *vars(cluster).values()]))
        try:
            yield cluster
        finally:
            with _locked(folder / "ray.lock"):
                users = json.loads(note.read_text())[0] - 1
                note.write_text(json.dumps([users, *vars(cluster).values()]))
                if users == 0:
                    cluster._stop()

    @staticmethod
    def alone(folder: Path) -> contextlib.AbstractContextManager[None]:
        """Wait until no other process uses the cluster of a folder, which has processors for one app."""
        return _locked(folder / "ray_turn.lock")

    @classmethod
    def _started(cls, log: Path, programs: Preloaded) -> RayCluster:
        with socket.socket() as probe, socket.socket() as other:
            probe.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            port, client_port = (int(each.getsockname()[1]) for each in (probe, other))
        # Short, as the names of sockets must be; and not Ray's own, where every later run would look.
        directory = tempfile.mkdtemp(prefix="ray")
        command = [sys.executable, "-c", _RAY, programs.python, "start", "--head", "--block"]
        # The port that Ray would choose for clients is taken where another such cluster runs.
        command += [f"--port={port}", f"--ray-client-server-port={client_port}", f"--num-cpus={cls.CPUS}"]
        command += ["--include-dashboard=false", f"--temp-dir={directory}"]
        # Of no use here: what adds machines to the cluster, and what sends the logs of workers on.
        command += ["--no-monitor", "--include-log-monitor=false"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_worker_niceness": "0",
            # Workers that it starts before they are asked for know nothing of the job, and are never used.
            "RAY_prestart_worker_first_driver": "0",
        }
        with log.open("wb") as output:
            head = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        _HEADS.append(head)
        cluster = cls(head.pid, port, directory)
        deadline = time.monotonic() + _START_SECONDS
        # Ray says so when the head takes work, which is later than when its port is open.
        while b"Ray runtime started" not in log.read_bytes():
            if head.poll() is not None or time.monotonic() > deadline:
                cluster._stop()
                raise AssertionError(log.read_text())
            time.sleep(0.1)
        return cluster

    def _stop(self) -> None:
        """End the head, which ends what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while not self._ended and time.monotonic() < deadline:
            time.sleep(0.2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _ended(self) -> bool:
        """Whether the head is gone, or waits for whoever started it to take note of that."""
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(self.pid)], capture_output=True, text=True)
        return not state.stdout.strip() or state.stdout.startswith("Z")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
