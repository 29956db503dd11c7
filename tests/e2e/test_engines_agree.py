"""The same app, the same seed, the same codes: inline and on Ray; :mod:`tests.e2e.test_deployed` has TLS."""

import os

import pytest

from fl_privquant.flower.simulation import Federation, InlineEngine, RayEngine
from tests.ray_cluster import WARNINGS

pytestmark = [pytest.mark.slow, *WARNINGS]

APP = "tests.e2e.seeded_app"


def federation(clients=5, **config):
    return Federation(clients, {"clients": clients, "codes-seed": 17, **config}, seed=5)


def run(engine, clients=5, **config):
    return engine.run(f"{APP}:server_app", f"{APP}:client_app", federation(clients, **config))


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
