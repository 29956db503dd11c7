"""Many clients that are trained together: against the same clients alone, against pfl, and a million."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

import fl_privquant as pq
from fl_privquant.accounting import SumOfCodes
from fl_privquant.flower import PrivQuantStrategy
from fl_privquant.flower._messages.arrays import read_arrays
from fl_privquant.flower.client import CohortApp, CohortMod
from fl_privquant.flower.simulation import BATCH, Engine, InlineEngine, RayEngine
from simulations.benchmarks.harness import Ratio
from simulations.benchmarks.rounds import plain_strategy, round_seconds
from simulations.runner.config import FederationConfig, RunConfig
from simulations.tasks.batched import train_perceptrons
from simulations.tasks.task import get_task

PFL_PYTHON = "PFL_PYTHON"
"""Environment variable: the Python of an environment that has pfl 0.6 and torch."""

_HIDDEN = {"softmax": 0, "mlp": 64}


def cohorts(num_clients: int = 1000, rounds: int = 8) -> list[Ratio]:
    """Clients with the digits, trained together, against the same clients one by one."""
    ratios = []
    for model in _HIDDEN:
        task = digits_task(model, num_clients)
        seconds: dict[int, list[float]] = {BATCH: [], 1: []}
        for batch in 2 * (BATCH, 1):
            seconds[batch] += _seconds(
                task, pq.design("optm", epsilon=1.0, bits=2), rounds, InlineEngine(batch=batch)
            )
        what = f"a round of {num_clients} clients that train {model} on the digits, together"
        ratios.append(Ratio(what, "one by one", np.median(seconds[BATCH]) / np.median(seconds[1])))
    return ratios


def pfl(num_clients: int = 1000, rounds: int = 12) -> list[Ratio]:
    """The same clients against pfl's, which a process of its own trains in turns with ours."""
    ratios = []
    for model, hidden in _HIDDEN.items():
        task = digits_task(model, num_clients)
        for mechanism in (
            pq.design("optm", epsilon=1.0, bits=2),
            pq.design("rounded_gaussian", epsilon=2.0, delta=1e-5, num_clients=num_clients),
        ):
            theirs: list[float] = []
            with pfl_rounds(task, hidden) as train_round:

                def clock(train_round: Callable[[], float] = train_round, to: list[float] = theirs) -> float:
                    to.append(train_round())
                    return time.process_time()

                ours = _seconds(task, mechanism, rounds, clock=clock)
            ratio = float(np.median(ours)) / float(np.median(theirs[2:]))
            what = f"a round of {num_clients} clients that train {model} on the digits, {mechanism.name}"
            ratios.append(Ratio(what, "pfl 0.6, central Gaussian noise", ratio))
    return ratios


def training(num_clients: int = 10, examples: int = 600, rounds: int = 5) -> list[Ratio]:
    """A private round of a convolutional network against a bare loop over the same clients in torch."""
    task = _network_task(num_clients, examples)
    ours, bare = [], []
    for _ in range(rounds):
        bare.append(_bare_round_seconds(task))
        ours += _seconds(task, pq.design("optm", epsilon=1.0, bits=2), 2)
    what = f"a private round of {num_clients} clients that train a network on {examples} images each"
    return [Ratio(what, "a bare loop in torch", float(np.median(ours) / np.median(bare)))]


def ray_workers(num_clients: int = 24, examples: int = 600, rounds: int = 4) -> list[Ratio]:
    """Two workers of Ray against one, by wall time, with clients that train a convolutional network."""
    task, cores = _network_task(num_clients, examples), os.cpu_count() or 1
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    seconds: dict[int, list[float]] = {2: [], 1: []}
    for workers in 2 * (2, 1):
        engine = RayEngine(client_cpus=cores / workers)
        seconds[workers] += _seconds(task, mechanism, rounds, engine, time.perf_counter)
    what = f"a round of {num_clients} clients that train a network on {examples} images each, two workers"
    return [Ratio(what, "one worker", min(seconds[2]) / min(seconds[1]))]


def million(num_clients: int = 10**6) -> list[Ratio]:
    """One round of clients with 10 examples and 7850 coordinates, of which a tenth is sent."""
    rng = np.random.default_rng(0)
    x, y = rng.random((60_000, 784), dtype=np.float32), rng.integers(0, 10, 60_000)
    config = FederationConfig(num_clients=num_clients, batch_size=10, learning_rate=0.1)

    def train(arrays: dict[str, Any], clients: list[int]) -> dict[str, Any]:
        parts = [np.arange(10 * client, 10 * client + 10) % len(y) for client in clients]
        trained = train_perceptrons([*arrays.values()], x, y, parts, clients.__getitem__, config)
        return dict(zip(arrays, trained, strict=True))

    encoding = pq.Encoding(pq.design("optm", epsilon=1.0, bits=2), 0.05, l2_clip=1.0, rotate=True, keep=785)
    strategy = PrivQuantStrategy(plain_strategy(), encoding, aggregation=SumOfCodes(), simulated=True)
    initial = {"weight": np.zeros((10, 784), np.float32), "bias": np.zeros(10, np.float32)}
    start = time.process_time()
    round_seconds(strategy, cohort_app(train), num_clients, 1, initial=initial)
    seconds = time.process_time() - start
    memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    what = f"a round of {num_clients:.0e} clients with 7850 coordinates"
    return [
        Ratio(what, "120 s of one core", seconds / 120.0),
        Ratio(what, "4 GB", memory / 4e9, "memory"),
    ]


def digits_task(model: str, num_clients: int) -> Any:
    """The task of clients that share the digits."""
    return _task({"data": "digits", "model": model}, num_clients)


def random_images(count: int = 6000) -> Any:
    """Random examples of MNIST's shape: how long training takes does not depend on what they show."""
    from simulations.tasks.data import Examples

    rng = np.random.default_rng(0)
    x, y = rng.random((count + 10, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, count + 10)
    return Examples(x[:count], y[:count], x[count:], y[count:])


def _network_task(num_clients: int, examples: int) -> Any:
    images = {"data": f"{__name__}.random_images", "model": "cnn", "count": num_clients * examples}
    return _task(images, num_clients, batch_size=32, learning_rate=0.1)


def _task(task: dict[str, Any], num_clients: int, **federation: Any) -> Any:
    values = {
        "task": {"_target_": "simulations.tasks.task.TorchTask", "name": "benchmark", **task},
        "mechanism": {"name": "none"},
        "federation": {"num_clients": num_clients, **federation},
    }
    return get_task(RunConfig.from_mapping(values))


def cohort_app(train_clients: Callable[[dict[str, Any], list[int]], dict[str, Any] | None]) -> CohortApp:
    """An app whose clients are trained by a function of the model and their numbers, together or alone."""

    def train_cohort(message: Message, contexts: Sequence[Context]) -> dict[str, Any] | None:
        arrays = read_arrays(cast(ArrayRecord, message.content["arrays"]))
        return train_clients(arrays, [int(context.node_config["partition-id"]) for context in contexts])

    def train(message: Message, context: Context) -> Message:
        trained = train_cohort(message, [context]) or {}
        arrays = ArrayRecord({name: Array(array[0]) for name, array in trained.items()})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    return CohortApp(CohortMod(max_epsilon=10.0, max_delta=1e-3, seed=0), train, train_cohort)


def _seconds(
    task: Any,
    mechanism: Any,
    rounds: int,
    engine: Engine | None = None,
    clock: Callable[[], float] = time.process_time,
) -> list[float]:
    """Seconds of each private round of a task but the first."""

    def train(arrays: dict[str, Any], clients: list[int]) -> dict[str, Any] | None:
        if len(clients) > 1:
            trained: dict[str, Any] | None = task.train_batch(arrays, clients, 1)
            return trained
        return {name: array[None] for name, array in task.train(arrays, clients[0], 1).items()}

    strategy = PrivQuantStrategy(
        plain_strategy(), pq.Encoding(mechanism, 0.05), aggregation=SumOfCodes(), simulated=True
    )
    return [
        *round_seconds(
            strategy,
            cohort_app(train),
            len(task.parts),
            rounds,
            initial=task.initial_arrays(),
            engine=engine,
            clock=clock,
        )
    ]


def _bare_round_seconds(task: Any) -> float:
    """Processor time of training all clients of a task one after the other, without anything around it."""
    torch.set_num_threads(1)
    x, y = torch.from_numpy(task.examples.train_x), torch.from_numpy(task.examples.train_y)
    config, model = task._run.federation, task._template
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    start = time.process_time()
    for part in map(torch.from_numpy, task.parts):
        model.load_state_dict(initial)
        optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
        for batch in torch.split(part[torch.randperm(len(part))], config.batch_size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return time.process_time() - start


@contextmanager
def pfl_rounds(task: Any, hidden: int) -> Iterator[Callable[[], float]]:
    """A function that has pfl train all clients of a task once, and gives the processor time it took."""
    python = os.environ.get(PFL_PYTHON)
    if python is None:
        raise OSError(f"set {PFL_PYTHON} to the Python of an environment with pfl 0.6 and torch")
    config = task._run.federation
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clients.npz"
        sizes = [part.size for part in task.parts]
        order = np.concatenate(task.parts)
        np.savez(path, x=task.examples.train_x, y=task.examples.train_y, order=order, sizes=sizes)
        values = [hidden, config.batch_size, config.local_epochs, config.learning_rate]
        script = str(Path(__file__).with_name("pfl_rounds.py"))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with subprocess.Popen(
            [python, script, str(path), *map(str, values)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"OMP_NUM_THREADS": "1"},
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            stdin, stdout = process.stdin, process.stdout

            def train_round() -> float:
                stdin.write("\n")
                stdin.flush()
                for line in stdout:
                    if line.startswith("seconds"):
                        return float(line.split()[1])
                raise OSError("pfl has ended")

            yield train_round
            stdin.close()
            for _ in stdout:
                pass
