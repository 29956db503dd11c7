"""A task: where a model starts, what a client makes of it, and how good it is."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import tempfile
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulations.config import PartitionConfig, RunConfig, TaskConfig
from simulations.data import load_examples
from simulations.partition import deal, plot_partition

__all__ = ["Task", "task_of"]

Arrays = dict[str, NDArray[Any]]


class Task(Protocol):
    """What a federation works on."""

    def initial_arrays(self) -> Arrays:
        """The model before the first round."""
        ...

    def train(self, arrays: Arrays, client: int, server_round: int) -> Arrays:
        """What the client's training makes of the model."""
        ...

    def evaluate(self, arrays: Arrays) -> tuple[float, float]:
        """Accuracy (NaN where there is none) and loss of a model, on data that no client has."""
        ...

    def num_examples(self, client: int) -> int:
        """How many examples the client holds."""
        ...

    def plot_partition(self, path: Path) -> None:
        """Draw who holds what, where there is something to draw."""
        ...


class Classification:
    """Classification of examples that are dealt to clients."""

    def __init__(self, config: RunConfig) -> None:
        from simulations import learning

        self._learning = learning
        self._config = config
        self._examples = load_examples(config.task)
        self._dealing = config.task, config.federation.num_clients, config.partition, config.seed
        self._parts = _dealt(*self._dealing)
        model = learning.build_model(config.task, self._examples, config.seed)
        self._initial = learning.arrays_of(model)
        self._template = model
        self._free: list[Any] = []

    def initial_arrays(self) -> Arrays:
        return {name: value.copy() for name, value in self._initial.items()}

    def train(self, arrays: Arrays, client: int, server_round: int) -> Arrays:
        part = self._parts[client]
        seed = int(np.random.SeedSequence([self._config.seed, 2, server_round, client]).generate_state(1)[0])
        x, y = self._examples.train_x[part], self._examples.train_y[part]
        with self._model(arrays) as model:
            self._learning.train(model, x, y, self._config.federation, seed)
            return self._learning.arrays_of(model)

    def evaluate(self, arrays: Arrays) -> tuple[float, float]:
        with self._model(arrays) as model:
            return self._learning.evaluate(model, self._examples)

    @contextlib.contextmanager
    def _model(self, arrays: Arrays) -> Iterator[Any]:
        """A model with these arrays that nobody else uses meanwhile: clients may train in many threads."""
        try:
            # Taking from a list and adding to it are each one step, which threads cannot divide.
            model = self._free.pop()
        except IndexError:
            model = copy.deepcopy(self._template)
        self._learning.load_arrays(model, arrays)
        yield model
        # Not after an error: its state is then unknown.
        self._free.append(model)

    def num_examples(self, client: int) -> int:
        return int(self._parts[client].size)

    def plot_partition(self, path: Path) -> None:
        path.write_bytes(_picture(*self._dealing))


# The runs of a sweep share these: a mechanism changes neither.
@lru_cache(maxsize=32)
def _dealt(
    task: TaskConfig, num_clients: int, partition: PartitionConfig, seed: int
) -> list[NDArray[np.int64]]:
    return deal(load_examples(task).train_y, num_clients, partition, seed)


@lru_cache(maxsize=32)
def _picture(task: TaskConfig, num_clients: int, partition: PartitionConfig, seed: int) -> bytes:
    parts = _dealt(task, num_clients, partition, seed)
    with tempfile.TemporaryDirectory() as folder:
        return plot_partition(parts, load_examples(task).train_y, Path(folder) / "partition.png").read_bytes()


class MeanEstimation:
    """Every client holds a vector with coordinates in [-clip, clip]; the model is to become their mean.

    The truth is known: the loss is the squared distance to it, for each coordinate.
    """

    def __init__(self, config: RunConfig) -> None:
        shape = config.federation.num_clients, config.task.dimension
        centre = np.random.default_rng([config.seed, 3]).uniform(-0.5, 0.5, config.task.dimension)
        spread = np.random.default_rng([config.seed, 4]).uniform(-0.5, 0.5, shape)
        # Where a target decides on the clip, vectors have about the L2 norm that it clips to.
        bound = config.encoding.clip or (config.l2_clip or 1.0) / math.sqrt(config.task.dimension)
        self._vectors = (bound * (centre + spread)).astype(np.float32)
        self._truth = self._vectors.astype(np.float64).mean(axis=0)

    def initial_arrays(self) -> Arrays:
        return {"mean": np.zeros(self._truth.size, np.float32)}

    def train(self, arrays: Arrays, client: int, server_round: int) -> Arrays:
        # A step of 1 / round towards the client's vector: the model is the average over rounds.
        step = (self._vectors[client] - arrays["mean"]) / server_round
        return {"mean": (arrays["mean"] + step).astype(np.float32)}

    def evaluate(self, arrays: Arrays) -> tuple[float, float]:
        return math.nan, float(np.mean((arrays["mean"] - self._truth) ** 2))

    def num_examples(self, client: int) -> int:
        return 1

    def plot_partition(self, path: Path) -> None:
        """Nothing to draw: each client has one vector."""


def task_of(config: RunConfig) -> Task:
    """The task of a run; built once a process for the same config."""
    # By one thread at a time: initial weights are drawn from torch's global generator.
    with _BUILDING:
        return _build(json.dumps(config.to_mapping(), sort_keys=True))


_BUILDING = threading.Lock()


@lru_cache(maxsize=2)
def _build(config_json: str) -> Task:
    config = RunConfig.from_mapping(json.loads(config_json))
    return MeanEstimation(config) if config.task.name == "mean" else Classification(config)
