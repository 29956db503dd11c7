"""SuperNodes that encode updates themselves: a plain app gets refusals, a private one runs."""

import textwrap

import pytest

from fl_privquant.accounting import SpendingLedger
from fl_privquant.flower.simulation import Federation
from tests.deployment import Superlink

pytestmark = pytest.mark.slow

CLIENTS = 4
REFUSED = "this node sends only updates that fl_privquant encodes"
NOT_EVALUATED = "this node sends encoded updates only, and does not reply to evaluate messages"

PROJECT = """
    [project]
    name = "quickstart"
    version = "1.0.0"
    license = "Apache-2.0"
    dependencies = []

    [tool.flwr.app]
    publisher = "someone"

    [tool.flwr.app.components]
    serverapp = "quickstart.server:app"
    clientapp = "quickstart.client:app"

    [tool.flwr.app.config]
    private = false
"""

# A client that knows nothing of fl_privquant, and whose every reply would tell the number 0.123.
CLIENT = """
    import numpy as np
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()
    METRICS = {"num-examples": 7, "secret": 0.123}


    @app.train()
    def train(message, context):
        received = message.content["arrays"]
        arrays = {name: Array(each.numpy() + np.float32(0.05)) for name, each in received.items()}
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(METRICS)}
        return Message(RecordDict(content), reply_to=message)


    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord(METRICS)}), reply_to=message)
"""

# A client with mods of its own, which would refuse; it lies in its metadata, and about the node's limits.
HOSTILE_CLIENT = """
    from flwr.app import Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from fl_privquant.flower import PrivQuantMod

    app = ClientApp(mods=[PrivQuantMod(max_epsilon=1e-9, secure_aggregation=True)])


    @app.train()
    def train(message, context):
        context.node_config["privquant-max-epsilon"] = 1e9
        content = {"arrays": message.content["arrays"], "0.123": MetricRecord({"secret": 0.123})}
        reply = Message(RecordDict(content), reply_to=message)
        reply.metadata.__dict__["_group_id"] = "0.123"
        return reply
"""

SERVER = """
    import numpy as np
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    app = ServerApp()


    @app.main()
    def main(grid, context):
        strategy = FedAvg(min_available_nodes=4, min_train_nodes=4, min_evaluate_nodes=4)
        if context.run_config["private"]:
            import fl_privquant as pq
            from fl_privquant.flower import PrivQuantStrategy

            sums = pq.SecureSum(corrupt_fraction=0.0, dropout_fraction=0.25)
            mechanism = pq.design("optm", epsilon=1.0, bits=2)
            strategy = PrivQuantStrategy(strategy, pq.Encoding(mechanism, 0.1), aggregation=sums)
        strategy.start(grid, ArrayRecord({"w": Array(np.zeros(6, np.float32))}), num_rounds=1, timeout=300)
"""


def write_app(folder, client=CLIENT):
    package = folder / "quickstart"
    package.mkdir(parents=True)
    files = {folder / "pyproject.toml": PROJECT, package / "__init__.py": ""}
    files |= {package / "client.py": client, package / "server.py": SERVER}
    for path, text in files.items():
        path.write_text(textwrap.dedent(text))
    return folder


def test_only_private_updates_leave_nodes_whose_owners_say_so(tmp_path):
    app, hostile = write_app(tmp_path / "app"), write_app(tmp_path / "hostile", HOSTILE_CLIENT)
    ledger = tmp_path / "ledger-{partition-id}.jsonl"
    config = {"privquant-max-epsilon": 2.0, "privquant-ledger-file": str(ledger)}
    nodes = Federation(CLIENTS, node_config=config)
    with Superlink(tmp_path / "superlink", nodes, ("fl-privquant", "supernode")) as superlink:
        plain = superlink.submit(app)
        private = superlink.submit(app, {"private": True})
        attacked = superlink.submit(hostile, {"private": True})
    assert plain.count(REFUSED) == CLIENTS
    assert plain.count(NOT_EVALUATED) == CLIENTS
    assert "Secure aggregation: round 1, sum of 4 clients" in private
    assert "PrivQuant: round 1, 4 usable updates, 0 failed" in private
    assert "PrivQuant: round 1, 4 usable updates, 0 failed" in attacked
    assert "0.123" not in plain + private + attacked
    # What the app hands to the node is not said to be sent; one refusal is of training, one of evaluation.
    node_log = (tmp_path / "superlink" / "supernode-0.log").read_text()
    assert "Sent successfully" not in node_log
    sent = [node_log.count(f"sent to the server: {what}") for what in ("a refusal", "an encoded update")]
    assert sent == [2, 2]
    spent = [SpendingLedger(tmp_path / f"ledger-{node}.jsonl").statement(0.0) for node in range(CLIENTS)]
    assert [each.epsilon for each in spent] == pytest.approx([2 * 6.0] * CLIENTS, rel=1e-6)
