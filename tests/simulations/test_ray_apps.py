"""Flower apps of others on Ray, with clients that fail, reply nonsense, or take their process with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fl_privquant.accounting.ledgers.server_ledger import FederationLedger
from simulations.run import execute
from simulations.runner.config import RunConfig
from simulations.runner.results import RunDirectory
from tests.finished_runs import rows_of
from tests.ray_cluster import WARNINGS, RayCluster
from tests.simulations.flower_apps import CUSTOM, write_app

pytestmark = WARNINGS

CLIENTS = 6
# Client 1 always fails and client 2 replies with other shapes; client 3 ends its worker in the first round.
ATTACKS = """    import os

    attack = context.node_config["partition-id"]
    if attack == 1:
        raise ValueError("this client is broken")
    if attack == 3 and msg.content["told"]["round"] == 1:
        os._exit(9)
    weights = msg.content["model"]["weights"].numpy()[: 5 if attack == 2 else None]
"""


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def attacked() -> dict[str, str]:
    """The app with such clients, and with a server that takes the replies that there are."""
    client = replaced(
        CUSTOM["client_app"].partition("@app.evaluate()")[0],
        ('    assert context.state["seen"]["rounds"] == msg.content["told"]["round"]\n', ""),
        ('    weights = msg.content["model"]["weights"].numpy()\n', ATTACKS),
        ('(context.node_config["partition-id"]) - w', "(attack)[: len(weights)] - w"),
    )
    pushed = CUSTOM["server_app"].partition("        ids =")[2].partition("    context")[0]
    server = replaced(
        CUSTOM["server_app"],
        ("for reply in replies]", "for reply in replies if reply.has_content()]"),
        (f"        ids ={pushed}", ""),
    )
    return CUSTOM | {"client_app": client, "server_app": server}


@pytest.mark.slow
def test_masked_rounds_survive_attacked_clients(tmp_path: Path, ray_cluster: RayCluster) -> None:
    run = RunConfig.from_mapping(
        {
            "app": str(write_app(tmp_path / "app", attacked())),
            "federation": {"num_clients": CLIENTS, "rounds": 0},
            "output": str(tmp_path / "outputs"),
            "mechanism": {"name": "optm", "epsilon": 4.0, "bits": 2},
            "encoding": {"clip": 0.1},
            "secagg": {"enabled": True, "dropout_fraction": 0.2},
            "engine": {"name": "ray", "address": ray_cluster.address},
        }
    )
    summary = execute(run)
    rows = rows_of(run)
    # Failing apps release zeros; only the client whose worker ended is missing, and only in that round.
    assert rows["num_replies"].tolist() == [0, CLIENTS - 1, CLIENTS]
    assert summary["epsilon_client_total"] == pytest.approx(2 * 12 * 4.0)
    content = json.loads((RunDirectory.of(run).path / "ledger.json").read_text())
    content["mechanisms"] = {name: bytes.fromhex(blob) for name, blob in content["mechanisms"].items()}
    ledger = FederationLedger.from_dict(content)
    nodes = [int(node) for _, _, names in content["nodes"] for node in names]
    assert [ledger.participation(node) for node in nodes] == [(2, 2)] * CLIENTS
