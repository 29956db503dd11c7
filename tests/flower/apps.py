"""Small Flower apps for the tests: clients whose update is known, servers that keep what they got."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.flower import PrivQuantMod
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.protocol import message_digest
from fl_privquant.sampling.stream import RandomStream

SEED = 11
CLIP = 0.2


def initial_arrays(dtype=np.float32):
    generator = np.random.default_rng(5)
    return {
        "weight": generator.normal(0, 0.1, (6, 4)).astype(dtype),
        "steps": np.array(3),
        "scale": np.array(0.5, dtype=dtype),
    }


def as_record(arrays):
    return ArrayRecord({name: Array(np.asarray(each)) for name, each in arrays.items()})


def as_arrays(record):
    return {name: each.numpy() for name, each in record.items()}


def trained(arrays, partition, server_round):
    """What client ``partition`` makes of the model: a step that depends on it and on the round."""
    steps = {
        name: np.random.default_rng([partition, server_round, each.size]).normal(0, 0.05, each.shape)
        for name, each in arrays.items()
    }
    return {
        name: each + steps[name].astype(each.dtype) if each.dtype.kind == "f" else each + 1
        for name, each in arrays.items()
    }


class LostWhen:
    """A mod before all others: the client is gone when it should train, as if its machine had failed.

    An app that raises is another thing: PrivQuantMod hides it from the server.
    """

    def __init__(self, lost):
        self.lost = lost

    def __call__(self, message, context, call_next):
        number = message.content.get("config", {}).get("server-round")
        if number is not None and self.lost(context.node_config["partition-id"], number):
            raise ConnectionError("gone")
        return call_next(message, context)


def client_app(
    mods=None, train_with=trained, num_examples=lambda partition: 10 * (partition + 1), lost_when=None
):
    """A client that trains, with the given mods; by default a seeded PrivQuantMod."""
    app = ClientApp()
    mods = [PrivQuantMod(max_epsilon=10.0, seed=SEED)] if mods is None else mods

    @app.train(mods=mods if lost_when is None else [LostWhen(lost_when), *mods])
    def train(message, context):
        partition = context.node_config["partition-id"]
        arrays = as_arrays(message.content["arrays"])
        new = train_with(arrays, partition, message.content["config"]["server-round"])
        metrics = MetricRecord(
            {"num-examples": num_examples(partition), "loss": 0.5 + partition, "secret": 1.0}
        )
        return Message(RecordDict({"arrays": as_record(new), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": 1, "accuracy": 0.5})}), reply_to=message
        )

    return app


def moving_client(move, mods):
    """A client whose training adds ``move`` to every array of floats; all clients weigh the same."""

    def train_with(arrays, partition, server_round):
        return {name: each + move if each.dtype.kind == "f" else each for name, each in arrays.items()}

    return client_app(mods, train_with, num_examples=lambda partition: 1)


def server_app(make_strategy, num_rounds=1, initial=None, wrap_grid=lambda grid: grid, **options):
    """A server that runs a strategy and keeps the model in its state and the result on the app."""
    app = ServerApp()

    @app.main()
    def main(grid, context):
        app.strategy = make_strategy()
        record = as_record(initial_arrays() if initial is None else initial)
        app.result = app.strategy.start(wrap_grid(grid), record, num_rounds=num_rounds, **options)
        context.state["arrays"] = app.result.arrays

    return app


def fedavg(cls=FedAvg, **options):
    return cls(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, **options)


def expected_model(mechanism, partitions, server_round=1, arrays=None, clip=CLIP, rotation_seed=0, **options):
    """The mean model of seeded clients, computed without Flower."""
    arrays = initial_arrays() if arrays is None else arrays
    codec = UpdateCodec(Layout.of(arrays), Encoding(mechanism, clip, **options), rotation_seed)
    means = {name: np.zeros_like(arrays[name]) for name in codec.layout.names}
    for partition in partitions:
        stream = RandomStream.seeded(SEED, round=server_round, client=partition)
        update = codec.encode_difference(trained(arrays, partition, server_round), arrays, stream)
        for name, each in codec.apply(update.pack(), arrays).items():
            means[name] += each * (1.0 / len(partitions))
    return {**arrays, **means}


def assert_same_arrays(found, expected):
    assert list(found) == list(expected)
    for name, each in expected.items():
        assert found[name].dtype == each.dtype, name
        np.testing.assert_array_equal(found[name], each, err_msg=name)


def digest_of(request):
    """What masks are derived from, for clients that are sent this request."""
    config = ConfigRecord()
    request.write(config)
    with use_server_identity(1):
        return message_digest(Message(RecordDict({"config": config}), 1, "train"))
