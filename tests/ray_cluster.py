"""A Ray cluster on this machine, for the tests that run an app on Ray."""

from __future__ import annotations

import contextlib
import os
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

from tests.ports import find_free_ports

__all__ = ["WARNINGS", "RayCluster"]

ROOT = Path(__file__).parents[1]
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0

WARNINGS = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    # Ray and Flower raise these warnings about their own code, and leave sockets to the garbage collector.
    for kind in (
        "FutureWarning",
        "DeprecationWarning",
        "ResourceWarning",
        "pytest.PytestUnraisableExceptionWarning",
    )
]
"""Marks of a test that runs an app on Ray or on a deployment."""


@dataclass(frozen=True)
class RayCluster:
    """A cluster whose head is a process of its own.

    Parameters
    ----------
    port
        Where the head listens on this machine.
    """

    CPUS: ClassVar[int] = 2

    port: int

    @property
    def address(self) -> str:
        """What :class:`fl_privquant.flower.simulation.RayEngine` takes."""
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
    def start(cls, log: Path) -> Iterator[RayCluster]:
        """Start a cluster, and stop it at the end of the ``with`` block.

        Parameters
        ----------
        log
            Where the head writes what it prints.
        """
        port, client_port = find_free_ports(2)
        # Its path is short because sockets are made in it, and it is not Ray's default folder, because later
        # runs of Ray would look for a cluster there.
        with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as directory:
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
            command += [f"--port={port}", f"--ray-client-server-port={client_port}"]
            command += [f"--num-cpus={cls.CPUS}", "--include-dashboard=false", f"--temp-dir={directory}"]
            with log.open("wb") as output:
                head = subprocess.Popen(command, stdout=output, stderr=output, env=_head_environment())
            try:
                _wait_until_started(head, log)
                yield cls(port)
            finally:
                # The head stops the processes that it has started before it ends.
                head.terminate()
                head.wait(_STOP_SECONDS)


def _head_environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray gives its workers the lowest priority unless told otherwise.
        "RAY_worker_niceness": "0",
    }


def _wait_until_started(head: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the head accepts work, which is later than when its port is open."""
    deadline = time.monotonic() + _START_SECONDS
    while b"Ray runtime started" not in log.read_bytes():
        if head.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Ray did not start:\n{log.read_text()}")
        time.sleep(0.1)
