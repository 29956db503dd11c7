"""The same app, the same seed, the same codes: inline, on Ray, and deployed with TLS."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fl_privquant.flower.engines import Federation, InlineEngine, RayEngine
from tests.deployment import DeploymentEngine, Superlink

# Third parties': Ray and Flower warn of their own futures, and leave sockets to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

APP = "tests.e2e.seeded_app"
ROOT = Path(__file__).parents[2]


def federation(clients=5, **config):
    return Federation(clients, {"clients": clients, "codes-seed": 17, **config}, seed=5)


def run(engine, private=True, clients=5, **config):
    prefix = "" if private else "plain_"
    return engine.run(f"{APP}:{prefix}server_app", f"{APP}:{prefix}client_app", federation(clients, **config))


def model(result):
    return {name: each.numpy().tobytes() for name, each in result.arrays.items()}


@pytest.fixture(scope="module", autouse=True)
def _ray_is_quiet():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("FLWR_TELEMETRY_ENABLED", "0")
        yield


def test_seeded_inline_and_ray_runs_give_the_same_model_and_codes():
    before = os.environ.get("PYTHONPATH")
    ray, inline = run(RayEngine()), run(InlineEngine())
    assert model(ray) == model(inline)
    assert dict(ray.state["codes"]) == dict(inline.state["codes"])
    assert os.environ.get("PYTHONPATH") == before


def test_seeded_sampling_asks_the_same_clients_on_ray():
    assert model(run(RayEngine(), clients=6, fraction=0.5)) == model(
        run(InlineEngine(), clients=6, fraction=0.5)
    )


def test_with_none_ray_gives_plain_fedavg_bit_for_bit():
    private, plain = run(RayEngine(), mechanism="none"), run(RayEngine(), private=False)
    assert model(private) == model(plain)
    assert model(private) == model(run(InlineEngine(), private=False))


def test_an_existing_ray_cluster_is_used(tmp_path):
    port = _free_port()
    directory = tempfile.mkdtemp(prefix="ray")
    ray = Path(sys.executable).parent / "ray"
    command = [
        str(ray),
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--num-cpus=2",
        "--include-dashboard=false",
        # Short, as the names of sockets must be; and not Ray's own, where every later run would look.
        f"--temp-dir={directory}",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    with (tmp_path / "ray.log").open("wb") as log:
        head = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        _wait_for(port, head, tmp_path / "ray.log")
        assert model(run(RayEngine(address=f"127.0.0.1:{port}"))) == model(run(InlineEngine()))
        # Ours to stop, not the engine's.
        assert head.poll() is None
    finally:
        head.terminate()
        try:
            head.wait(30)
        except subprocess.TimeoutExpired:
            head.kill()
            head.wait()
        shutil.rmtree(directory, ignore_errors=True)


def test_a_deployment_with_tls_gives_the_same_codes():
    deployed, inline = run(DeploymentEngine(timeout=400), clients=2), run(InlineEngine(), clients=2)
    assert dict(deployed.state["codes"]) == dict(inline.state["codes"])
    # Two clients: the sum of two numbers does not depend on their order.
    assert model(deployed) == model(inline)


def test_flwr_run_works_from_the_root_of_the_repository(tmp_path):
    with Superlink(tmp_path, Federation(2)) as superlink:
        printed = superlink.submit(ROOT, {"num-rounds": 1}, timeout=400)
        logs = superlink.logs()
    assert "PrivQuant: round 1, 2 usable updates, 0 failed" in printed + logs
    assert "Strategy execution finished" in printed + logs


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(port, process, log):
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(log.read_text())
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                # The head listens before its workers are ready.
                time.sleep(5)
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text())
