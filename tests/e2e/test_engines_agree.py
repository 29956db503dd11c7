"""The same app, the same seed, the same codes: inline, on Ray, and deployed with TLS."""

import os
from pathlib import Path

import pytest

from fl_privquant.flower.engines import Federation, InlineEngine, RayEngine
from tests.deployment import Superlink
from tests.ray_cluster import WARNINGS

pytestmark = [pytest.mark.slow, *WARNINGS]

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
    """On a cluster that the engine starts and stops itself."""
    before = os.environ.get("PYTHONPATH")
    ray, inline = run(RayEngine()), run(InlineEngine())
    assert model(ray) == model(inline)
    assert dict(ray.state["codes"]) == dict(inline.state["codes"])
    assert os.environ.get("PYTHONPATH") == before


def test_seeded_sampling_asks_the_same_clients_on_ray(ray_cluster):
    engine = RayEngine(address=ray_cluster.address)
    assert model(run(engine, clients=6, fraction=0.5)) == model(run(InlineEngine(), clients=6, fraction=0.5))
    # An existing cluster is ours to stop, not the engine's.
    assert ray_cluster.runs


def test_with_none_ray_gives_plain_fedavg_bit_for_bit(ray_cluster):
    engine = RayEngine(address=ray_cluster.address)
    private, plain = run(engine, mechanism="none"), run(engine, private=False)
    assert model(private) == model(plain)
    assert model(private) == model(run(InlineEngine(), private=False))


@pytest.fixture(scope="module")
def superlink(tmp_path_factory):
    """A SuperLink with two SuperNodes, over TLS."""
    with Superlink(tmp_path_factory.mktemp("superlink"), federation(clients=2)) as started:
        yield started


def test_a_deployment_with_tls_gives_the_same_codes(superlink):
    apps = f"{APP}:server_app", f"{APP}:client_app"
    deployed, inline = superlink.run(*apps, federation(clients=2)), run(InlineEngine(), clients=2)
    assert dict(deployed.state["codes"]) == dict(inline.state["codes"])
    # Two clients: the sum of two numbers does not depend on their order.
    assert model(deployed) == model(inline)


def test_flwr_run_works_from_the_root_of_the_repository(superlink):
    printed = superlink.submit(ROOT, {"num-rounds": 1}, timeout=400)
    logs = superlink.logs()
    assert "PrivQuant: round 1, 2 usable updates, 0 failed" in printed + logs
    assert "Strategy execution finished" in printed + logs
