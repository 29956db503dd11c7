"""A Flower app on Flower's own simulation, and by ``app=``: the same model to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulations.run import execute
from simulations.runner.apps.user_app import call_in_own_process, user_app
from simulations.runner.config import RunConfig
from tests.ray_cluster import WARNINGS, RayCluster
from tests.simulations.flower_apps import TORCH, write_app

pytestmark = [pytest.mark.slow, *WARNINGS]

# Flower adds replies up in the order in which they come: with two, every order gives the same sum.
CLIENTS = 2


def test_without_a_mechanism_it_is_flowers_own_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_cluster: RayCluster
) -> None:
    folder = write_app(tmp_path / "app", TORCH)
    plain, inline, ray = (tmp_path / f"{name}.npz" for name in ("plain", "inline", "ray"))
    # Flower's simulation has no way to set a run config.
    server_app = folder / "quickstart" / "server_app.py"
    text = server_app.read_text()
    server_app.write_text(
        text.replace('context.run_config["num-server-rounds"]', "2")
        .replace('context.run_config["learning-rate"]', "0.1")
        .replace('context.run_config["saved"]', repr(str(plain)))
    )
    # Ray's workers look for modules where this says, and grow it.
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[2]}")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    call_in_own_process(simulate_plainly, folder, ray_cluster.address, ray_cluster.CPUS)
    server_app.write_text(text)
    on_ray = {"name": "ray", "address": ray_cluster.address, "client_cpus": ray_cluster.CPUS}
    for path, engine in ((inline, {"name": "inline"}), (ray, on_ray)):
        run = {
            "mechanism": {"name": "none"},
            "app": str(folder),
            "app_config": {"saved": str(path)},
            "federation": {"num_clients": CLIENTS, "rounds": 0},
            "engine": engine,
            "output": str(tmp_path),
        }
        execute(RunConfig.from_mapping(run))
    expected = np.load(plain)
    for path in (inline, ray):
        model = np.load(path)
        assert model.files == expected.files
        for name in expected.files:
            assert model[name].dtype == expected[name].dtype
            assert model[name].tobytes() == expected[name].tobytes(), name


def simulate_plainly(folder: Path, address: str, cpus: int) -> None:
    from flwr.simulation import run_simulation

    app = user_app(str(folder))
    # A client takes the whole cluster: each run starts one worker, not two.
    run_simulation(
        server_app=app.server(),
        client_app=app.client(),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": cpus}, "init_args": {"address": address}},
    )
