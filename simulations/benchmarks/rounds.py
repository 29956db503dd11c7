"""Whole rounds in Flower: privacy against plain FedAvg, secure sums, and engines against each other.

Clients return a model that was trained before, so that what is measured is everything but the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray

import fl_privquant as pq
from fl_privquant.accounting import PerClient, SecureSum, SumOfCodes
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy, RoundRecord
from fl_privquant.flower.simulation import Engine, Federation, InlineEngine, RayEngine
from simulations.benchmarks.flower_secagg import flower_seconds
from simulations.benchmarks.harness import Ratio, peak_bytes

_CLIP = 0.05


def flower_round(num_clients: int = 100, coordinates: int = 10**5, rounds: int = 20) -> list[Ratio]:
    """A private round with 2 bits against a round of plain FedAvg: time, memory and bytes of a reply."""
    plain, private = trained_client(coordinates), trained_client(coordinates, PrivQuantMod(max_epsilon=1.0))
    records: list[RoundRecord] = []
    own = min(
        round_seconds(private_strategy(PerClient(), records), private, num_clients, rounds, coordinates)
    )
    summed = min(round_seconds(private_strategy(SumOfCodes()), private, num_clients, rounds, coordinates))
    baseline = min(round_seconds(plain_strategy(num_clients), plain, num_clients, rounds, coordinates))
    few = min(10, num_clients)
    memory = peak_bytes(
        lambda: round_seconds(private_strategy(SumOfCodes()), private, few, 2, coordinates)
    ) / (4 * coordinates)
    what = f"a round of {num_clients} clients with {coordinates:.0e} parameters"
    fedavg = "plain FedAvg"
    sent = records[-1].bytes_up / (4 * coordinates * num_clients)
    return [
        Ratio(f"{what}, updates decoded one by one", fedavg, own / baseline),
        Ratio(f"{what}, codes summed", fedavg, summed / baseline),
        Ratio(f"{what}: updates", "float32", sent, "bytes"),
        Ratio(f"a round of {few} clients with {coordinates:.0e} parameters", "the model", memory, "memory"),
    ]


def secure_sum(
    num_clients: tuple[int, ...] = (10, 100), coordinates: tuple[int, ...] = (10**4, 10**6), rounds: int = 3
) -> list[Ratio]:
    """A round of secure aggregation against a plain sum of the same codes, and against Flower's SecAgg+."""
    ratios = []
    for clients in num_clients:
        for dimension in coordinates:
            records: list[RoundRecord] = []
            private = trained_client(dimension, PrivQuantMod(max_epsilon=1.0))
            masked = trained_client(dimension, PrivQuantMod(max_epsilon=1.0, secure_aggregation=True))
            plain = min(
                round_seconds(private_strategy(SumOfCodes()), private, clients, rounds + 1, dimension)
            )
            own = min(
                round_seconds(private_strategy(SecureSum(), records), masked, clients, rounds + 1, dimension)
            )
            theirs = flower_seconds(clients, dimension)
            what = f"a secure sum of {clients} clients with {dimension:.0e} parameters"
            last = records[-1]
            total = (last.bytes_up + last.bytes_handshake) / (4 * dimension * last.survivors)
            ratios += [
                Ratio(what, "a plain sum of the codes", own / plain),
                Ratio(what, "Flower's SecAgg+", own / theirs),
                Ratio(f"{what}: updates and handshake", "float32", total, "bytes"),
            ]
    return ratios


def handshake(num_clients: tuple[int, ...] = (100, 500), coordinates: int = 4000) -> list[Ratio]:
    """What a client of a secure sum sends and receives besides its codes, against its codes."""
    masked = trained_client(coordinates, PrivQuantMod(max_epsilon=1.0, secure_aggregation=True))
    ratios = []
    for clients in num_clients:
        records: list[RoundRecord] = []
        round_seconds(private_strategy(SecureSum(), records), masked, clients, 2, coordinates)
        size = records[-1].bytes_handshake / clients
        what = f"handshake of one client among {clients} ({size:.0f} bytes)"
        codes = records[-1].bytes_up / clients
        ratios.append(Ratio(what, f"its {coordinates} codes ({codes:.0f} bytes)", size / codes, "bytes"))
    return ratios


def engines(num_clients: int = 1000, coordinates: int = 650, rounds: int = 4) -> list[Ratio]:
    """The inline engine against Ray, by wall time: the same private app on both."""
    private = trained_client(coordinates, PrivQuantMod(max_epsilon=1.0))
    inline, ray = (
        min(
            round_seconds(
                private_strategy(SumOfCodes()),
                private,
                num_clients,
                rounds,
                coordinates,
                engine=engine,
                clock=time.perf_counter,
            )
        )
        for engine in (InlineEngine(), RayEngine())
    )
    what = f"a round of {num_clients} clients with a small model, inline"
    return [Ratio(what, "the same on Ray", inline / ray)]


def plain_strategy(num_clients: int = 2) -> FedAvg:
    """FedAvg that does not evaluate, and trains on all clients."""
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=num_clients, min_available_nodes=num_clients)


def private_strategy(
    aggregation: PerClient | SumOfCodes | SecureSum, records: list[RoundRecord] | None = None
) -> PrivQuantStrategy:
    """PrivQuant at 2 bits around FedAvg; ``records`` collects what each round did."""
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    on_round = None if records is None else records.append
    encoding = pq.Encoding(mechanism, _CLIP)
    return PrivQuantStrategy(plain_strategy(), encoding, aggregation=aggregation, on_round=on_round)


def trained_client(coordinates: int, *mods: Any) -> ClientApp:
    """An ordinary client, except that the model it returns was trained before."""
    app = ClientApp()
    trained = np.random.default_rng(0).normal(0.0, _CLIP / 3, coordinates).astype(np.float32)

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({"model": Array(trained)})
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def round_seconds(
    strategy: Strategy,
    client: ClientApp,
    num_clients: int,
    rounds: int,
    coordinates: int = 0,
    initial: Mapping[str, NDArray[Any]] | None = None,
    engine: Engine | None = None,
    clock: Callable[[], float] = time.process_time,
) -> Sequence[float]:
    """Seconds of each round of a run but the first, which warms up."""
    times: list[float] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def note_time(server_round: int, arrays: ArrayRecord) -> None:
            times.append(clock())

        arrays = {"model": np.zeros(coordinates, dtype=np.float32)} if initial is None else initial
        model = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        strategy.start(grid, model, num_rounds=rounds, evaluate_fn=note_time)

    (engine or InlineEngine()).run(app, client, Federation(num_clients))
    # The first time is that before training, the second that after the first round.
    return [float(seconds) for seconds in np.diff(times)[1:]]
