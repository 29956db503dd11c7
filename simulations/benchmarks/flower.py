"""What PrivQuant costs beside plain FedAvg, and what the inline engine gains over Flower's Ray engine.

* The time of a round without local training, 100 clients and 10^5 parameters: the same PyTorch app, one
  with PrivQuant at 2 bits and one with plain FedAvg, in turns, on the inline engine. The time of the
  training itself is measured in the clients and taken off; making, loading and returning the model is
  what any app does around it, and stays in.
* The bytes of a client's reply at 10^6 parameters, in Flower's wire format with everything around.
* Rounds a second at 1000 clients and a small model, inline and Ray, the same PrivQuant app.
* Rounds of the simulations' CNN on 28 x 28 images, inline on two threads against one: wall time, in turns.
"""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

import fl_privquant as pq
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy, SumOfCodes
from fl_privquant.flower.engines import Federation, InlineEngine, RayEngine
from fl_privquant.flower.engines.inline import InlineGrid
from fl_privquant.flower.engines.internals import dump_records, server_identity
from simulations.benchmarks.measure import Row, print_rows

CLIENTS = 100
TURNS = 40
MANY_CLIENTS = 1000
SMALL_SHAPES = ((64, 10), (10,))
INLINE_ROUNDS = 6
RAY_ROUNDS = 3
CLIP = 0.05
THREAD_TURNS = 7
IMAGES = 600

Shapes = tuple[tuple[int, ...], ...]


def run() -> list[Row]:
    """Every measurement beside its target, printed as a table."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rows = [*_round_time(), _reply_bytes(), _inline_against_ray(), _two_threads()]
    print_rows("flower: PrivQuant at 2 bits against plain FedAvg, inline against Ray", rows)
    return rows


def _model(shapes: Shapes) -> ArrayRecord:
    return ArrayRecord(
        {f"layer-{i}": Array(np.zeros(shape, dtype=np.float32)) for i, shape in enumerate(shapes)}
    )


def _client(shapes: Shapes, mods: list[Any]) -> ClientApp:
    """An ordinary client, except for the training: what it returns was trained before."""
    generator = np.random.default_rng(0)
    trained = [generator.normal(0.0, CLIP / 3, shape).astype(np.float32) for shape in shapes]
    app = ClientApp()

    @app.train(mods=mods)
    def train(message: Message, context: Context) -> Message:
        received = message.content["arrays"]
        if not isinstance(received, ArrayRecord):
            raise TypeError("no arrays")
        names, _ = list(received), received.to_numpy_ndarrays()
        arrays = ArrayRecord({name: Array(array) for name, array in zip(names, trained, strict=True)})
        return Message(
            RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 10})}), reply_to=message
        )

    return app


def _round_time() -> list[Row]:
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    plain = Rounds(FedAvg(fraction_evaluate=0.0), [])
    private = Rounds(
        PrivQuantStrategy(FedAvg(fraction_evaluate=0.0), mechanism, CLIP, aggregation=SumOfCodes()),
        [PrivQuantMod(max_epsilon=1.0)],
    )
    # In turns and in processor time: others who use the machine slow down both.
    turns = [(plain.run_one(), private.run_one()) for _ in range(TURNS + 1)]
    # The first turn compiles and warms up.
    ratio = float(np.median([after / before for before, after in turns[1:]]))
    seconds = np.min(turns[1:], axis=0)
    name = f"{CLIENTS} clients, {plain.num_parameters:.1e} parameters, without training"
    text = f"{name}: round of PrivQuant ({seconds[1]:.3f} s) against plain FedAvg ({seconds[0]:.3f} s)"
    return [Row(text, ratio, 1.2, at_least=False)]


class Rounds:
    """Rounds of a PyTorch app, one by one: what Strategy.start does between two models."""

    def __init__(self, strategy: Strategy, mods: list[Any]) -> None:
        import torch

        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(0)
        self._images = torch.randn((16, 784), generator=generator)
        self._labels = torch.randint(0, 10, (16,), generator=generator)
        self._training_seconds = 0.0
        self._strategy = strategy
        self._arrays = ArrayRecord(self._make_model().state_dict())
        self._grid = InlineGrid(self._client(mods), Federation(CLIENTS))
        self.num_parameters = sum(parameter.numel() for parameter in self._make_model().parameters())

    def run_one(self) -> float:
        """Processor seconds of one round, without those that clients spent on training."""
        self._training_seconds = 0.0
        start = time.process_time()
        with server_identity(1):
            messages = self._strategy.configure_train(1, self._arrays, ConfigRecord(), self._grid)
            self._strategy.aggregate_train(1, self._grid.send_and_receive(messages))
        return time.process_time() - start - self._training_seconds

    def _make_model(self) -> Any:
        from torch import nn

        layers = [nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 45), nn.ReLU(), nn.Linear(45, 10)]
        return nn.Sequential(*layers)

    def _client(self, mods: list[Any]) -> ClientApp:
        app = ClientApp()

        @app.train(mods=mods)
        def train(message: Message, context: Context) -> Message:
            model = self._make_model()
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
            start = time.process_time()
            self._train(model)
            self._training_seconds += time.process_time() - start
            arrays, metrics = (
                ArrayRecord(model.state_dict()),
                MetricRecord({"num-examples": len(self._labels)}),
            )
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        return app

    def _train(self, model: Any) -> None:
        import torch

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.nn.functional.cross_entropy(model(self._images), self._labels).backward()
        optimizer.step()


def _reply_bytes() -> Row:
    shapes = ((1000, 1000),)
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    strategy = PrivQuantStrategy(FedAvg(fraction_evaluate=0.0), mechanism, CLIP, rotate=True)
    grid = _ListeningGrid(_client(shapes, [PrivQuantMod(max_epsilon=1.0, metrics=("loss",))]), Federation(2))
    with server_identity(1):
        replies = grid.send_and_receive(strategy.configure_train(1, _model(shapes), ConfigRecord(), grid))
        strategy.aggregate_train(1, replies)
    largest = max(grid.reply_bytes)
    share = largest / (4 * _size(shapes))
    return Row(
        f"10^6 parameters: bytes of a reply ({largest}) against float32's", share, 1 / 15, at_least=False
    )


class _ListeningGrid(InlineGrid):
    """Notes the size of every reply on the wire, metadata included."""

    def __init__(self, client_app: ClientApp, federation: Federation) -> None:
        super().__init__(client_app, federation)
        self.reply_bytes: list[int] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            content = len(dump_records(reply.content))
            objects = sum(len(part) for part in _deflated(reply))
            self.reply_bytes.append(max(content, objects))
        return replies


def _deflated(message: Message) -> list[bytes]:
    """The objects that a SuperNode pushes for a message."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return [part.deflate() for part in get_all_nested_objects(message).values()]


def _inline_against_ray() -> Row:
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    federation = Federation(MANY_CLIENTS)
    client = _client(SMALL_SHAPES, [PrivQuantMod(max_epsilon=1.0)])
    seconds = {}
    for engine, rounds in ((InlineEngine(), INLINE_ROUNDS), (RayEngine(), RAY_ROUNDS)):
        times: list[float] = []
        inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=MANY_CLIENTS)
        strategy = PrivQuantStrategy(inner, mechanism, CLIP, aggregation=SumOfCodes())
        engine.run(_timed_server(strategy, rounds, times), client, federation)
        # Between the ends of rounds: the engine's start does not count.
        seconds[type(engine).__name__] = min(np.diff(times))
    inline, ray = seconds["InlineEngine"], seconds["RayEngine"]
    rates = f"inline ({1 / inline:.2f}) against Ray ({1 / ray:.3f})"
    return Row(f"{MANY_CLIENTS} clients, small model: rounds a second, {rates}", ray / inline, 8.0)


def _two_threads() -> Row:
    """Eight clients that train the CNN, at once and one after another; the model is the same."""
    from simulations import learning
    from simulations.config import FederationConfig
    from simulations.data import Examples
    from simulations.models import cnn

    generator = np.random.default_rng(0)
    x, y = generator.random((IMAGES, 1, 28, 28), dtype=np.float32), generator.integers(0, 10, IMAGES)
    template = learning.build_model(cnn, Examples(x, y, x[:10], y[:10]), seed=0)
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        model = copy.deepcopy(template)
        learning.train(model, x, y, FederationConfig(batch_size=32), seed=int(context.node_id))
        return Message(RecordDict(), reply_to=message)

    grids = [InlineGrid(client, Federation(8), threads) for threads in (1, 2)]
    times: list[list[float]] = []
    with server_identity(1):
        for _ in range(THREAD_TURNS + 1):
            turn = []
            for grid in grids:
                messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
                start = time.perf_counter()
                grid.send_and_receive(messages)
                turn.append(time.perf_counter() - start)
            times.append(turn)
    # The first turn warms up; each turn by itself, as others who use the machine slow down both.
    ratio = float(np.median([one / two for one, two in times[1:]]))
    return Row("CNN on 28 x 28 images, 8 clients inline: two threads against one", ratio, 1.5)


def _timed_server(strategy: Strategy, rounds: int, times: list[float]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def note(server_round: int, arrays: ArrayRecord) -> None:
            times.append(time.perf_counter())

        strategy.start(grid, _model(SMALL_SHAPES), num_rounds=rounds, evaluate_fn=note)

    return app


def _size(shapes: Shapes) -> int:
    return int(sum(np.prod(shape) for shape in shapes))
