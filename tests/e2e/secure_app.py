"""One app for all engines in which clients are lost at given stages of given rounds, with or without masks.

The run's config holds a schedule, a round after the other: ``"unmask:1,2; -"`` loses clients 1 and 2 in
the first round when they are asked to unmask, and nobody in the second. Without secure aggregation, those
are lost whose update is in no sum: the models of both must be the same to the last bit.
"""

import math
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant.accounting import SecureSum, SumOfCodes
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.secagg import ClientPolicy
from fl_privquant.secagg.signed.identities import read_known_clients

CLIENTS = 4
THRESHOLD = 3
"""Clients that must stay: one of four may be lost."""


def schedule(text):
    """For each round the stage at which clients are lost, and which."""
    parts = [each.strip().partition(":") for each in text.split(";")]
    return [(stage, {int(each) for each in clients.split(",") if each}) for stage, _, clients in parts]


def without_masks(text):
    """The schedule of a run without secure aggregation that must end with the same models."""
    rounds = []
    for stage, lost in schedule(text):
        if stage != "-" and CLIENTS - len(lost) < THRESHOLD:
            lost = set(range(CLIENTS))
        elif stage in ("-", "unmask"):
            lost = set()
        rounds.append(f"train:{','.join(map(str, sorted(lost)))}" if lost else "-")
    return "; ".join(rounds)


def leaves(message, context, call_next):
    """The outermost mod: raises where the schedule says that this client is lost."""
    record = message.content.get("secagg")
    stage = record["secagg-stage"] if isinstance(record, ConfigRecord) else "train"
    number = int(message.metadata.group_id or message.content["config"]["server-round"])
    at, lost = schedule(str(context.run_config["schedule"]))[number - 1]
    if stage == at and int(context.node_config["partition-id"]) in lost:
        raise ConnectionError("gone")
    return call_next(message, context)


def train(message, context):
    generator = np.random.default_rng(int(context.node_config["partition-id"]))
    trained = {
        name: Array(np.asarray(each.numpy() + generator.normal(0, 0.05, each.shape).astype(np.float32)))
        for name, each in message.content["arrays"].items()
    }
    content = {"arrays": ArrayRecord(trained), "metrics": MetricRecord({"num-examples": 3})}
    return Message(RecordDict(content), reply_to=message)


client_app = ClientApp()
# One may be lost, even before there is a roster, since none is taken to be corrupt.
POLICY = ClientPolicy(corrupt_fraction=0.0, dropout_fraction=0.25)
LIMITS = {"max_epsilon": math.inf, "max_delta": 1e-3, "seed": 5}
client_app.train(mods=[leaves, PrivQuantMod(**LIMITS, secure_aggregation=POLICY)])(train)
plain_client_app = ClientApp()
plain_client_app.train(mods=[leaves, PrivQuantMod(**LIMITS)])(train)


def run(grid, context, secure):
    rounds = len(schedule(str(context.run_config["schedule"])))
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    mechanism = pq.design("optm", epsilon=2.0, bits=2)
    fractions = {"corrupt_fraction": POLICY.corrupt_fraction, "dropout_fraction": POLICY.dropout_fraction}
    file = context.run_config.get("known-clients")
    known = None if file is None else read_known_clients(Path(str(file)))
    aggregation = SecureSum(identities=known, **fractions) if secure else SumOfCodes()
    strategy = PrivQuantStrategy(
        inner, pq.Encoding(mechanism, clip=0.1), aggregation=aggregation, max_failed_rounds=1
    )
    models = {}

    def keep(server_round, arrays):
        models[str(server_round)] = b"".join(each.numpy().tobytes() for each in arrays.values())

    initial = {"weight": np.zeros((4, 3), np.float32), "bias": np.zeros((), np.float32)}
    record = ArrayRecord({name: Array(np.asarray(each)) for name, each in initial.items()})
    strategy.start(grid, record, num_rounds=rounds, timeout=300, evaluate_fn=keep)
    context.state["models"] = ConfigRecord(models)
    context.state["survivors"] = ConfigRecord({str(key): each for key, each in strategy.survivors.items()})


server_app = ServerApp()
plain_server_app = ServerApp()


@server_app.main()
def main(grid, context):
    run(grid, context, secure=True)


@plain_server_app.main()
def plain_main(grid, context):
    run(grid, context, secure=False)
