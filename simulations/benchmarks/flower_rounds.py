"""Rounds of Flower that run whole in this process: client apps, strategies, and one round at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy

import fl_privquant as pq
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy, SumOfCodes
from fl_privquant.flower.engines import Federation
from fl_privquant.flower.engines.inline import InlineGrid
from fl_privquant.flower.engines.internals import server_identity

CLIP = 0.05
SMALL_SHAPES = ((64, 10), (10,))
"""Shapes of a small model's arrays: 650 parameters."""

Shapes = tuple[tuple[int, ...], ...]


def plain_strategy(**options: Any) -> FedAvg:
    """FedAvg that does not evaluate."""
    return FedAvg(fraction_evaluate=0.0, **options)


def private_strategy(inner: Strategy | None = None, clip: float = CLIP, **options: Any) -> PrivQuantStrategy:
    """PrivQuant at 2 bits around a strategy; codes are summed."""
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    return PrivQuantStrategy(
        inner or plain_strategy(), mechanism, clip, **{"aggregation": SumOfCodes(), **options}
    )


def private_mod(**options: Any) -> PrivQuantMod:
    """The mod of clients that accept the mechanism of :func:`private_strategy`."""
    return PrivQuantMod(max_epsilon=1.0, **options)


def client_of(train: Callable[[ArrayRecord, Context], ArrayRecord], mods: list[Any]) -> ClientApp:
    """The client app whose training is a function of the received model."""
    app = ClientApp()

    @app.train(mods=mods)
    def answer(message: Message, context: Context) -> Message:
        arrays = train(message.content.array_records["arrays"], context)
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def zeros_of(shapes: Shapes) -> ArrayRecord:
    """A model of zeros."""
    return ArrayRecord(
        {f"layer-{i}": Array(np.zeros(shape, dtype=np.float32)) for i, shape in enumerate(shapes)}
    )


def trained_client(shapes: Shapes, mods: list[Any]) -> ClientApp:
    """An ordinary client, except for the training: what it returns was trained before."""
    generator = np.random.default_rng(0)
    trained = [generator.normal(0.0, CLIP / 3, shape).astype(np.float32) for shape in shapes]

    def train(received: ArrayRecord, context: Context) -> ArrayRecord:
        names, _ = list(received), received.to_numpy_ndarrays()
        return ArrayRecord({name: Array(array) for name, array in zip(names, trained, strict=True)})

    return client_of(train, mods)


def run_round(strategy: Strategy, arrays: ArrayRecord, grid: InlineGrid) -> ArrayRecord:
    """The model after one round: what Strategy.start does between two models."""
    with server_identity(1):
        messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
        aggregated, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
    if aggregated is None:
        raise RuntimeError("no client could be aggregated")
    return aggregated


class TorchRounds:
    """Rounds of a PyTorch app, one by one, whose time is measured without that of local training."""

    def __init__(self, strategy: Strategy, mods: list[Any], num_clients: int) -> None:
        import torch

        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(0)
        self._images = torch.randn((16, 784), generator=generator)
        self._labels = torch.randint(0, 10, (16,), generator=generator)
        self._training_seconds = 0.0
        self._strategy = strategy
        self._arrays = ArrayRecord(self._make_model().state_dict())
        self._grid = InlineGrid(client_of(self._trained, mods), Federation(num_clients))
        self.num_parameters = sum(parameter.numel() for parameter in self._make_model().parameters())

    def run_one(self) -> float:
        """Processor seconds of one round, without those that clients spent on training."""
        self._training_seconds = 0.0
        start = time.process_time()
        run_round(self._strategy, self._arrays, self._grid)
        return time.process_time() - start - self._training_seconds

    def _make_model(self) -> Any:
        from torch import nn

        layers = [nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 45), nn.ReLU(), nn.Linear(45, 10)]
        return nn.Sequential(*layers)

    def _trained(self, received: ArrayRecord, context: Context) -> ArrayRecord:
        import torch

        model = self._make_model()
        model.load_state_dict(received.to_torch_state_dict())
        start = time.process_time()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.nn.functional.cross_entropy(model(self._images), self._labels).backward()
        optimizer.step()
        self._training_seconds += time.process_time() - start
        return ArrayRecord(model.state_dict())
