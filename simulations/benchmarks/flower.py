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
import time
from collections.abc import Iterable
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from fl_privquant.flower import PerClient
from fl_privquant.flower.engines import Federation, InlineEngine, RayEngine
from fl_privquant.flower.engines.inline import InlineGrid
from fl_privquant.flower.engines.internals import dump_records, server_identity
from simulations.benchmarks.flower_rounds import (
    SMALL_SHAPES,
    TorchRounds,
    plain_strategy,
    private_mod,
    private_strategy,
    run_round,
    trained_client,
    zeros_of,
)
from simulations.benchmarks.measure import Row, at_most, in_turns, seconds_of

CLIENTS = 100
TURNS = 40
MANY_CLIENTS = 1000
INLINE_ROUNDS = 6
RAY_ROUNDS = 3
THREAD_TURNS = 7
IMAGES = 600


def run() -> list[Row]:
    """Every measurement beside its target."""
    return [_round_time(), _reply_bytes(), _inline_against_ray(), _two_threads()]


def _round_time() -> Row:
    plain = TorchRounds(plain_strategy(), [], CLIENTS)
    private = TorchRounds(private_strategy(), [private_mod()], CLIENTS)
    # The first turn compiles and warms up.
    seconds = in_turns([plain.run_one, private.run_one], TURNS + 1)[1:]
    least = seconds.min(axis=0)
    name = f"{CLIENTS} clients, {plain.num_parameters:.1e} parameters, without training"
    text = f"{name}: round of PrivQuant ({least[1]:.3f} s) against plain FedAvg ({least[0]:.3f} s)"
    return at_most(text, float(np.median(seconds[:, 1] / seconds[:, 0])), 1.2)


def _reply_bytes() -> Row:
    shapes = ((1000, 1000),)
    client = trained_client(shapes, [private_mod(metrics=("loss",))])
    grid = _ListeningGrid(client, Federation(2))
    run_round(private_strategy(rotate=True, aggregation=PerClient()), zeros_of(shapes), grid)
    largest = max(grid.reply_bytes)
    name = f"10^6 parameters: bytes of a reply ({largest}) against float32's"
    return at_most(name, largest / 4e6, 1 / 15)


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
    federation = Federation(MANY_CLIENTS)
    client = trained_client(SMALL_SHAPES, [private_mod()])
    seconds = []
    for engine, rounds in ((InlineEngine(), INLINE_ROUNDS), (RayEngine(), RAY_ROUNDS)):
        times: list[float] = []
        strategy = private_strategy(plain_strategy(min_train_nodes=MANY_CLIENTS))
        engine.run(_timed_server(strategy, rounds, times), client, federation)
        # Between the ends of rounds: the engine's start does not count.
        seconds.append(float(min(np.diff(times))))
    inline, ray = seconds
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

    def seconds(grid: InlineGrid) -> float:
        messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
        return seconds_of(lambda: grid.send_and_receive(messages), time.perf_counter)

    grids = [InlineGrid(client, Federation(8), threads) for threads in (1, 2)]
    with server_identity(1):
        # The first turn warms up; each turn by itself, as others who use the machine slow down both.
        one, two = in_turns([partial(seconds, grid) for grid in grids], THREAD_TURNS + 1)[1:].T
    name = "CNN on 28 x 28 images, 8 clients inline: two threads against one"
    return Row(name, float(np.median(one / two)), 1.5)


def _timed_server(strategy: Strategy, rounds: int, times: list[float]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def note(server_round: int, arrays: ArrayRecord) -> None:
            times.append(time.perf_counter())

        strategy.start(grid, zeros_of(SMALL_SHAPES), num_rounds=rounds, evaluate_fn=note)

    return app
