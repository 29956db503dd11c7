"""The same app, the same seed, the same codes: inline and on Ray; :mod:`tests.e2e.test_deployed` has TLS."""

import os

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

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


def test_a_worker_that_ends_costs_its_clients_this_round_and_no_more(ray_cluster):
    """One worker, which serves each of four clients by itself; states stay what they were."""
    client, server = ClientApp(), ServerApp()

    @client.query()
    def query(message, context):
        if context.node_config["partition-id"] == message.content["config"]["ends"]:
            os._exit(1)
        count = context.state.get("count", MetricRecord({"n": 0}))["n"] + 1
        context.state["count"] = MetricRecord({"n": count})
        return Message(RecordDict({"count": context.state["count"]}), reply_to=message)

    @server.main()
    def main(grid, context):
        for number, ends in enumerate((-1, 2, -1)):
            content = RecordDict({"config": ConfigRecord({"ends": ends})})
            replies = grid.send_and_receive([Message(content, node, "query") for node in grid.get_node_ids()])
            counts = [0 if reply.has_error() else reply.content["count"]["n"] for reply in replies]
            context.state[f"round {number}"] = MetricRecord({"counts": counts})

    engine = RayEngine(address=ray_cluster.address, client_cpus=ray_cluster.CPUS)
    state = engine.run(server, client, Federation(4)).state
    found = [state[f"round {number}"]["counts"] for number in range(3)]
    assert found == [[1, 1, 1, 1], [2, 2, 0, 2], [3, 3, 2, 3]]
