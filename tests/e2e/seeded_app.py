"""One app for all engines: seeded codes, which are kept in the server's state; three rounds unless told."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant.accounting import SumOfCodes
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy

SHAPES = {"weight": (40, 12), "bias": (12,), "scale": ()}


def train(message, context):
    partition = int(context.node_config["partition-id"])
    server_round = int(message.content["config"]["server-round"])
    generator = np.random.default_rng([partition, server_round])
    arrays = {
        name: each.numpy() + generator.normal(0, 0.05, each.shape).astype(np.float32)
        for name, each in message.content["arrays"].items()
    }
    return reply(message, arrays)


def reply(message, arrays):
    record = ArrayRecord({name: Array(np.asarray(each)) for name, each in arrays.items()})
    return Message(
        RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 7})}), reply_to=message
    )


client_app = ClientApp()
client_app.train(
    mods=[PrivQuantMod(max_epsilon=float("inf"), seed=lambda context: context.run_config.get("codes-seed"))]
)(train)


def initial():
    generator = np.random.default_rng(0)
    return ArrayRecord(
        {
            name: Array(np.asarray(generator.normal(0, 0.1, shape), np.float32))
            for name, shape in SHAPES.items()
        }
    )


class Recording(PrivQuantStrategy):
    """Keeps the payloads of all usable replies, in the order of their bytes."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.payloads = {}

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        payloads = [
            each.content["privquant-update"]["payload"].data for each in replies if each.has_content()
        ]
        self.payloads[str(server_round)] = sorted(payloads)
        return super().aggregate_train(server_round, replies)


server_app = ServerApp()


@server_app.main()
def main(grid, context):
    config = context.run_config
    clients, fraction = int(config["clients"]), float(config.get("fraction", 1.0))
    inner = FedAvg(
        fraction_train=fraction,
        fraction_evaluate=0.0,
        # Flower takes the fraction of the nodes that are connected before it waits for all of them.
        min_train_nodes=int(fraction * clients),
        min_available_nodes=clients,
    )
    encoding = pq.Encoding(pq.design("optm", epsilon=2.0, bits=2), clip=0.1, rotate=True)
    options = {"aggregation": SumOfCodes()} if config.get("aggregation") == "sum" else {}
    strategy = Recording(inner, encoding, **options)
    result = strategy.start(grid, initial(), num_rounds=int(config.get("rounds", 3)), timeout=300)
    context.state["arrays"] = result.arrays
    context.state["codes"] = ConfigRecord(strategy.payloads)
