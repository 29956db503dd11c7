"""Small Flower apps for the tests: clients whose update is known, servers that keep what they got."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fl_privquant.accounting import SecureSum
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.protocol import message_digest
from fl_privquant.flower.client.ledger import ClientLedger
from fl_privquant.flower.server.strategy_wrapper import strategy_stack
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.sampling.stream import RandomStream
from fl_privquant.secagg import ClientPolicy

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


class Killed(KeyboardInterrupt):
    """The end of a program: an error that nothing handles."""


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


def query_app(answer):
    """A client that answers queries by a function of the message and its context."""
    app = ClientApp()

    @app.query()
    def query(message, context):
        return answer(message, context)

    return app


def moving_client(move, mods, **options):
    """A client whose training adds ``move`` to every array of floats; all clients weigh the same."""

    def train_with(arrays, partition, server_round):
        return {name: each + move if each.dtype.kind == "f" else each for name, each in arrays.items()}

    return client_app(mods, train_with, num_examples=lambda partition: 1, **options)


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


def mod_for(aggregation=None, max_epsilon=math.inf, max_delta=1e-3, **options):
    """A seeded mod that allows everything; for a secure sum it masks, and assumes what the sum assumes."""
    masks = isinstance(aggregation, SecureSum) and ClientPolicy(
        corrupt_fraction=aggregation.corrupt_fraction, dropout_fraction=aggregation.dropout_fraction
    )
    return PrivQuantMod(
        max_epsilon, max_delta=max_delta, secure_aggregation=masks, **{"seed": SEED} | options
    )


@dataclass
class Simulated:
    """A run in this process that has ended."""

    strategy: Any
    result: Any
    """What ``strategy.start`` has returned."""
    model: dict[str, np.ndarray]
    records: list[Any]
    """What each round did."""
    grid: Any

    @property
    def private(self):
        """The strategy that encodes, whatever wraps it."""
        return next(each for each in strategy_stack(self.strategy) if isinstance(each, PrivQuantStrategy))

    @property
    def ledger(self):
        return self.private.ledger

    @property
    def vector(self):
        """The model, end to end."""
        return np.concatenate([each.ravel() for each in self.model.values()])

    @property
    def metrics(self):
        """The metrics of training in the last round."""
        return dict(list(self.result.train_metrics_clientapp.values())[-1])

    @property
    def ledgers(self):
        """The ledger of each client, as its state has it."""
        return {node: ClientLedger(context) for node, context in self.grid.contexts.items()}


def simulate(
    strategy,
    client=None,
    num_clients=4,
    num_rounds=1,
    initial=None,
    *,
    engine=None,
    seed=None,
    node_config=None,
    wrap_grid=lambda grid: grid,
    **options,
):
    """Run a strategy with clients in this process; further options are those of its ``start``."""
    grids, records = [], []
    for private in strategy_stack(strategy):
        if isinstance(private, PrivQuantStrategy):
            private.on_round = _both(private.on_round, records.append)
    server = server_app(
        lambda: strategy,
        num_rounds,
        initial,
        wrap_grid=lambda grid: grids.append(wrap_grid(grid)) or grids[0],
        **options,
    )
    federation = Federation(num_clients, node_config=node_config or {}, seed=seed)
    ended = (engine or InlineEngine()).run(server, client or client_app(), federation)
    return Simulated(strategy, server.result, as_arrays(ended.arrays), records, grids[0])


def _both(first, second):
    return second if first is None else lambda record: (first(record), second(record))


def fedavg(cls=FedAvg, **options):
    return cls(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, **options)


def strategy_for(mechanism, clip=CLIP, inner=None, **options):
    """A strategy around FedAvg, for updates that a mechanism encodes."""
    return PrivQuantStrategy(inner or fedavg(), Encoding(mechanism, clip), **options)


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
