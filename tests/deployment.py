"""A deployment for tests: a SuperLink and SuperNodes as processes of their own, over TLS on loopback.

What a real deployment spreads over machines, on one: each client is a SuperNode that knows nothing
but its own configuration, every message crosses HTTPS, and server and client apps run in fresh processes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import trustme

from fl_privquant.errors import PrivQuantError
from fl_privquant.flower.simulation.engine import Federation
from tests.ports import find_free_ports

_IMPATIENT = Path(__file__).parent / "impatient"
_HOST = "127.0.0.1"
_CONNECTION = "loopback"
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_RUN_SECONDS = 600.0
_LOG_LINES = 40


class DeploymentError(PrivQuantError):
    """A process of the deployment failed; the message ends with the last lines of its log."""


class Superlink:
    """A SuperLink with its SuperNodes on loopback, TLS on, as long as the ``with`` block lasts.

    Parameters
    ----------
    directory
        Holds certificates, logs and Flower's home; temporary.
    federation
        How many SuperNodes, and their configuration.
    node_program
        The command that starts a SuperNode.
    """

    def __init__(
        self,
        directory: Path,
        federation: Federation,
        node_program: tuple[str, ...] = ("flower-supernode",),
    ) -> None:
        self.directory = directory
        self.federation = federation
        self._node_program = node_program
        self.home = directory / "home"
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            # Processes of Flower look for one another's programs there.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join([str(_IMPATIENT), *filter(None, sys.path)]),
        }
        self._lasting: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = itertools.count(1)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Superlink:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        self.home.mkdir(parents=True)
        authority, certificate, key = _make_certificates(self.directory)
        port, *node_ports = find_free_ports(1 + self.federation.num_clients)
        tls = [f"--ssl-certfile={certificate}", f"--ssl-keyfile={key}", f"--ssl-ca-certfile={authority}"]
        connection = {"address": f"{_HOST}:{port}", "root-certificates": str(authority)}
        lines = [
            f"[superlink.{_CONNECTION}]",
            *(f"{key} = {json.dumps(value)}" for key, value in connection.items()),
        ]
        (self.home / "config.toml").write_text("\n".join(lines) + "\n")
        self._lasting["superlink"] = self._launch(
            "superlink", ["flower-superlink", *tls, "--port", str(port)]
        )
        self._wait_for(port, "superlink")
        for partition, node_port in enumerate(node_ports):
            config = self.federation.context(run_id=0, node_id=0, partition=partition).node_config
            command = [*self._node_program, *tls, f"--root-certificates={authority}"]
            command += ["--superlink", f"{_HOST}:{port}", "--port", str(node_port)]
            command += ["--node-config", _flower_config(config)]
            self._lasting[f"supernode-{partition}"] = self._launch(f"supernode-{partition}", command)

    def run(self, server_app: str, client_app: str, federation: Federation, result: Path) -> None:
        """Run an app, given by names, to its end, and leave its server's state in a file.

        Several threads may run apps at the same time.
        """
        with tempfile.TemporaryDirectory(dir=self.directory) as name:
            self.submit(_write_app(Path(name) / "app", server_app, client_app, federation, result))
        if not result.exists():
            raise DeploymentError(f"the server app left no result\n{self.logs()}")

    def submit(self, app: Path, run_config: Mapping[str, object] | None = None) -> str:
        """Run the app in a directory, wait for its end, and return what ``flwr run`` printed."""
        command = ["flwr", "run", str(app), _CONNECTION, "--stream"]
        if run_config:
            command += ["-c", _flower_config(run_config)]
        name = f"run-{next(self._numbers)}"
        process = self._launch(name, command)
        deadline = time.monotonic() + _RUN_SECONDS
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise DeploymentError(f"{name} did not end in {_RUN_SECONDS:g} s\n{self.logs()}")
            for lasting, other in self._lasting.items():
                if other.poll() is not None:
                    raise DeploymentError(f"{lasting} ended with status {other.returncode}\n{self.logs()}")
            time.sleep(0.2)
        if process.returncode:
            raise DeploymentError(f"flwr run ended with status {process.returncode}\n{self.logs()}")
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        """The last lines of every process's log."""
        parts = []
        for path in sorted(self.directory.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            parts.append("\n".join([f"--- {path.stem}", *lines]))
        return "\n".join(parts)

    def _launch(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        program = shutil.which(command[0], path=self.environment["PATH"])
        if program is None:
            raise DeploymentError(f"{command[0]}: not found; install flwr")
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [program, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.directory,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _wait_for(self, port: int, name: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            if self._lasting[name].poll() is not None:
                raise DeploymentError(f"{name} did not start\n{self.logs()}")
            with contextlib.suppress(OSError), socket.create_connection((_HOST, port), timeout=1.0):
                return
            if time.monotonic() > deadline:
                raise DeploymentError(f"{name} did not listen within {_START_SECONDS:g} s\n{self.logs()}")
            time.sleep(0.1)

    def _stop(self) -> None:
        """End all processes, and those that they have started."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _make_certificates(directory: Path) -> tuple[Path, Path, Path]:
    """Files of a certificate authority, of a certificate that it signed for loopback, and of its key."""
    names = ("ca.crt", "server.pem", "server.key")
    authority_file, certificate_file, key_file = (directory / name for name in names)
    authority = trustme.CA()
    certificate = authority.issue_cert(_HOST, "localhost")
    authority.cert_pem.write_to_path(authority_file)
    certificate.cert_chain_pems[0].write_to_path(certificate_file)
    certificate.private_key_pem.write_to_path(key_file)
    return authority_file, certificate_file, key_file


def _write_app(
    directory: Path, server_app: str, client_app: str, federation: Federation, result: Path
) -> Path:
    """A Flower app that runs the given apps, and writes the server's state to a file."""
    directory.mkdir(parents=True)
    reserved = {"privquant-server-app": server_app, "privquant-client-app": client_app}
    reserved["privquant-result"] = str(result)
    if federation.seed is not None:
        reserved["privquant-sampling-seed"] = str(federation.seed)
    config = {**federation.run_config, **reserved}
    lines = [
        "[project]",
        'name = "fl-privquant-deployment"',
        'version = "1.0.0"',
        'license = "Apache-2.0"',
        "dependencies = []",
        "[tool.flwr.app]",
        'publisher = "fl-privquant"',
        "[tool.flwr.app.components]",
        'serverapp = "tests.deployed:server_app"',
        'clientapp = "tests.deployed:client_app"',
        "[tool.flwr.app.config]",
        *(f"{json.dumps(key)} = {_toml(value)}" for key, value in config.items()),
    ]
    (directory / "pyproject.toml").write_text("\n".join(lines) + "\n")
    return directory


def _flower_config(config: Mapping[str, object]) -> str:
    """Key-value pairs as Flower's command line takes them."""
    return " ".join(f"{key}={_toml(value)}" for key, value in config.items())


def _toml(value: object) -> str:
    # JSON writes texts, whole numbers and truth values as TOML does; floats need a point or an exponent.
    return repr(value) if isinstance(value, float) else json.dumps(value)
