"""Apps on one deployment with TLS: the same codes as inline, the example as it is, and signed secure sums."""

from pathlib import Path

import pytest

from fl_privquant.flower.engines import Federation, InlineEngine
from tests.deployment import Superlink
from tests.e2e.secure_app import CLIENTS
from tests.e2e.test_engines_agree import APP, federation, model, run
from tests.e2e.test_secure_engines import DEPLOYED, check, make_known_clients, node_config_of
from tests.ray_cluster import WARNINGS

pytestmark = [pytest.mark.slow, *WARNINGS]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def known_clients(tmp_path_factory):
    return make_known_clients(tmp_path_factory.mktemp("identities"))


@pytest.fixture(scope="module")
def superlink(tmp_path_factory, known_clients):
    """A SuperLink with four SuperNodes, over TLS; each has a key of its own."""
    nodes = Federation(CLIENTS, node_config=node_config_of(known_clients))
    with Superlink(tmp_path_factory.mktemp("superlink"), nodes) as started:
        yield started


def test_a_deployment_with_tls_gives_the_same_codes(superlink):
    # The server adds codes up as integers: their sum does not depend on the order in which they come.
    settings = {"clients": CLIENTS, "aggregation": "sum"}
    deployed = superlink.run(f"{APP}:server_app", f"{APP}:client_app", federation(**settings))
    inline = run(InlineEngine(), **settings)
    assert dict(deployed.state["codes"]) == dict(inline.state["codes"])
    assert model(deployed) == model(inline)


def test_flwr_run_works_from_the_root_of_the_repository(superlink):
    printed = superlink.submit(ROOT, {"num-rounds": 1}, timeout=400)
    logs = superlink.logs()
    assert f"PrivQuant: round 1, {CLIENTS} usable updates, 0 failed" in printed + logs
    assert "Strategy execution finished" in printed + logs


def test_signed_secure_sums(superlink, known_clients):
    check(superlink, DEPLOYED, known_clients)
