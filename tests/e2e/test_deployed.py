"""Apps on one deployment with TLS: the same codes as inline, and signed secure sums.

One app attacks: its server asks a client for a second signature after the client's state was not saved.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from flwr.common.serde import recorddict_from_proto
from flwr.proto.recorddict_pb2 import RecordDict

from fl_privquant.flower.client.mod import NODE_SIMULATED
from fl_privquant.flower.simulation import Federation, InlineEngine
from tests.deployment import Superlink
from tests.e2e.secure_app import CLIENTS
from tests.e2e.test_engines_agree import APP, federation, run
from tests.e2e.test_secure_engines import DEPLOYED, app_of, check, make_known_clients, node_config_of
from tests.ray_cluster import WARNINGS

pytestmark = [pytest.mark.slow, *WARNINGS]

LOST_SAVES = "tests.adversary.lost_saves_app"
# The server adds codes up as integers: their sum does not depend on the order in which they come. Every
# message starts a process.
SEEDED = {"clients": CLIENTS, "aggregation": "sum", "rounds": 1}


def run_all(folder):
    """Three apps at once on a SuperLink with four SuperNodes, over TLS; each node has a key of its own.

    Flower asks for messages now and then. Each app would wait for that alone, and longer than it runs.
    """
    known_clients = make_known_clients(folder)
    # Codes are compared with those of other engines, so that their noise has a seed, which a node must allow.
    node_config = {**node_config_of(known_clients), NODE_SIMULATED: True}
    nodes = Federation(CLIENTS, node_config=node_config)
    apps = {
        "seeded": (f"{APP}:server_app", f"{APP}:client_app", federation(**SEEDED)),
        "secure": app_of(DEPLOYED, known_clients=known_clients),
        "lost saves": (
            f"{LOST_SAVES}:server_app",
            f"{LOST_SAVES}:client_app",
            app_of("-", known_clients=known_clients)[2],
        ),
    }
    with Superlink(folder / "superlink", nodes) as superlink, ThreadPoolExecutor() as threads:
        ended = [threads.submit(superlink.run, *app, folder / name) for name, app in apps.items()]
        for each in ended:
            each.result()


@pytest.fixture(scope="session")
def deployed(make_once):
    """The folder with what the apps have left."""
    return make_once("deployed", run_all)


def state_of(path):
    return recorddict_from_proto(RecordDict.FromString(path.read_bytes()))


def test_a_deployment_with_tls_gives_the_same_codes(deployed):
    state = state_of(deployed / "seeded")
    inline = run(InlineEngine(), **SEEDED).state
    assert dict(state["codes"]) == dict(inline["codes"])
    assert state["arrays"] == inline["arrays"]


def test_signed_secure_sums(deployed):
    check(state_of(deployed / "secure"), DEPLOYED)


def test_a_client_whose_state_was_not_saved_signs_no_second_list(deployed):
    """Flower ends a process that takes long to save its state: the next one begins with the state before."""
    lists = state_of(deployed / "lost saves")["lists"]
    assert lists["signatures"] == 1
    assert lists["refusal"]
