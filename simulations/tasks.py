"""Tasks: the initial model, the local training of a client, and the evaluation of a model.

A run's task is any class with the methods of :class:`Task`, named by its import path::

    python -m simulations.run task=digits task._target_=my_package.MyTask

It is called with the run's configuration and the other keys of ``task`` as arguments. For torch models there
is :class:`TorchTask`, which needs only a function for the model, one for the data, and a loss.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError
from simulations.config import PartitionConfig, RunConfig
from simulations.data import Examples
from simulations.partition import deal, plot_partition
from simulations.targets import TARGET, located, options_of, refuse_unknown

Arrays = dict[str, NDArray[Any]]

_DATA, _MODELS, _LOSSES = "simulations.data", "simulations.models", "torch.nn.functional"
# Arguments of a model's function besides the options of the task.
_KNOWN_TO_MODELS = ("shape", "classes")
_COUNTS = ("max_examples", "max_test_examples", "validation_examples")
_MOST_LABELS_DRAWN = 100

# A data function, its options as JSON, and how many training, test and validation examples are used.
_Source = tuple[str, str, int | None, int | None, int | None]


@runtime_checkable
class Task(Protocol):
    """The task of a federation: data, model and training."""

    def initial_arrays(self) -> Arrays:
        """The model before the first round, by the names of its arrays."""
        ...

    def train(self, arrays: Arrays, client: int, server_round: int) -> Arrays:
        """The model after the client's local training; clients may train in several threads at once."""
        ...

    def evaluate(self, arrays: Arrays) -> tuple[float, float]:
        """Accuracy (NaN where there is none) and loss of a model, on data that no client has."""
        ...

    def num_examples(self, client: int) -> int:
        """How many examples the client holds."""
        ...

    def plot_partition(self, path: Path) -> None:
        """Draw how examples are divided among clients, if there is something to draw."""
        ...


class TorchTask:
    """A torch model that clients train on the examples that are dealt to them, by SGD or another optimizer.

    Functions are given by the short name of one of ours, or by an import path such as ``my_package.model``.

    Parameters
    ----------
    run
        The run's configuration: clients, local training, partition, seed.
    data
        Function that gives :class:`~simulations.data.Examples`: one of :mod:`simulations.data`, or a path.
    model
        Function that makes the torch module: one of :mod:`simulations.models`, or a path.
    loss
        Function of outputs and labels that gives the mean loss: one of ``torch.nn.functional``, or a path.
    name
        What tables call the task.
    max_examples, max_test_examples
        The most training and test examples that are used; null for all.
    validation_examples
        For tuning: the last so many training examples are held back from the clients and evaluated in place
        of the test examples, which are not used at all; null evaluates the test examples.
    device
        Where models are trained and evaluated: ``cpu``, ``cuda``, ``mps``, or ``auto`` for a GPU where there
        is one. Only the CPU gives the same bits everywhere.
    **options
        Arguments of the functions for data and model, by name.

    Attributes
    ----------
    examples
        What the data's function gave.
    parts
        For each client the indices of its training examples.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        data: str,
        model: str = "softmax",
        loss: str = "cross_entropy",
        name: str = "",
        max_examples: int | None = None,
        max_test_examples: int | None = None,
        validation_examples: int | None = None,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        from simulations import learning

        if run.engine.processes > 1 and learning.device_of(device).type != "cpu":
            raise InvalidSpecError(
                f"task.device: {device}, but engine.processes is {run.engine.processes}, whose workers are "
                "forked and cannot use a GPU; use task.device=cpu, engine.processes=1 or engine=ray"
            )
        if device == "cuda" and run.engine.name == "ray" and run.engine.client_gpus == 0.0:
            raise InvalidSpecError(
                "task.device: cuda, but engine.client_gpus is 0, so that Ray shows its clients no GPU; set "
                "it, for example to 0.5 for two clients on one GPU"
            )

        self._learning = learning
        self._run = run
        self._loss = located("task.loss", loss, _LOSSES)
        chosen = {key: value for key, value in options.items() if key in options_of(_data(data))}
        self._dealing = (
            (data, json.dumps(chosen, sort_keys=True), max_examples, max_test_examples, validation_examples),
            run.federation.num_clients,
            run.partition,
            run.seed,
        )
        self.examples = _examples(*self._dealing[0])
        self.parts = _dealt(*self._dealing)
        self._template = learning.build_model(_model(model), self.examples, run.seed, options, device)
        self._initial = learning.arrays_of(self._template)
        self._free: list[Any] = []

    @staticmethod
    def check(data: str, model: str = "softmax", **options: Any) -> None:
        """Refuse functions that are not there, and options that none of them takes."""
        functions = [_data(data), _model(model)]
        own = ("name", "loss", "device", *_COUNTS)
        of_functions = {key: value for key, value in options.items() if key not in own}
        refuse_unknown("task", of_functions, functions, _KNOWN_TO_MODELS)
        for function, given in zip(functions, ((), _KNOWN_TO_MODELS), strict=True):
            for name, parameter in options_of(function).items():
                if parameter.default is parameter.empty and name not in (*of_functions, *given):
                    raise InvalidSpecError(f"task.{name}: missing; {function.__name__} needs it")
        for count in _COUNTS:
            if options.get(count) is not None:
                checks.whole(f"task.{count}", options[count], 1)

    @staticmethod
    def num_users(
        *,
        data: str,
        max_examples: int | None = None,
        validation_examples: int | None = None,
        **options: Any,
    ) -> int:
        """How many users the data have; the data must say which user each example belongs to."""
        chosen = {key: value for key, value in options.items() if key in options_of(_data(data))}
        source = data, json.dumps(chosen, sort_keys=True), max_examples, None, validation_examples
        users = _examples(*source).users
        if users is None:
            raise InvalidSpecError(
                f"federation.num_clients: null stands for all users, but data {data!r} do not say which user "
                "an example belongs to; give a number"
            )
        return len(np.unique(users))

    def initial_arrays(self) -> Arrays:
        return {name: value.copy() for name, value in self._initial.items()}

    def train(self, arrays: Arrays, client: int, server_round: int) -> Arrays:
        part = self.parts[client]
        seed = int(np.random.SeedSequence([self._run.seed, 2, server_round, client]).generate_state(1)[0])
        x, y = self.examples.train_x[part], self.examples.train_y[part]
        with self._model(arrays) as space:
            space.training.run(x, y, seed)
            trained: Arrays = space.arrays()
            return trained

    def evaluate(self, arrays: Arrays) -> tuple[float, float]:
        with self._model(arrays) as space:
            return self._learning.evaluate(space.model, self.examples, self._loss)

    @contextlib.contextmanager
    def _model(self, arrays: Arrays) -> Iterator[Any]:
        """A model with these arrays that nobody else uses meanwhile: clients may train in many threads."""
        try:
            # pop and append of a list are atomic, so that threads need no lock.
            space = self._free.pop()
        except IndexError:
            model = copy.deepcopy(self._template)
            space = self._learning.Workspace(model, self._run.federation, self._loss)
        space.load(arrays)
        yield space
        # After an error the model is not used again, because its state is unknown.
        self._free.append(space)

    def num_examples(self, client: int) -> int:
        return int(self.parts[client].size)

    def plot_partition(self, path: Path) -> None:
        if self.examples.labelled and self.examples.num_classes <= _MOST_LABELS_DRAWN:
            path.write_bytes(_picture(*self._dealing))


def _data(name: str) -> Callable[..., Any]:
    return located("task.data", name, _DATA)


def _model(name: str) -> Callable[..., Any]:
    return located("task.model", name, _MODELS)


# Cached for the runs of a sweep: they do not depend on the mechanism.
@lru_cache(maxsize=4)
def _examples(
    data: str, options: str, max_examples: int | None, max_tests: int | None, num_validation: int | None
) -> Examples:
    examples = _data(data)(**json.loads(options))
    if not isinstance(examples, Examples):
        raise InvalidSpecError(
            f"task.data: {data} gives {type(examples).__name__}, expected simulations.data.Examples"
        )
    if num_validation is not None:
        examples = examples.with_validation(num_validation)
    return examples.first(max_examples, max_tests)


@lru_cache(maxsize=32)
def _dealt(
    source: _Source, num_clients: int, partition: PartitionConfig, seed: int
) -> list[NDArray[np.int64]]:
    return deal(_examples(*source), num_clients, partition, seed)


@lru_cache(maxsize=32)
def _picture(source: _Source, num_clients: int, partition: PartitionConfig, seed: int) -> bytes:
    parts = _dealt(source, num_clients, partition, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = plot_partition(parts, _examples(*source).train_y, Path(folder) / "partition.png")
        return path.read_bytes()


class MeanEstimation:
    """Every client holds a vector with coordinates in [-clip, clip]; the model is to become their mean.

    The truth is known: the loss is the squared distance to it, for each coordinate.

    Parameters
    ----------
    run
        The run's configuration: clients, clip, seed.
    dimension
        Length of the vectors.
    name
        What tables call the task.
    """

    def __init__(self, run: RunConfig, *, dimension: int = 1000, name: str = "mean") -> None:
        shape = run.federation.num_clients, dimension
        centre = np.random.default_rng([run.seed, 3]).uniform(-0.5, 0.5, dimension)
        spread = np.random.default_rng([run.seed, 4]).uniform(-0.5, 0.5, shape)
        # Where a target decides on the clip, vectors have about the L2 norm that it clips to.
        bound = run.encoding.clip or (run.l2_clip or 1.0) / math.sqrt(dimension)
        self._vectors = (bound * (centre + spread)).astype(np.float32)
        self._truth = self._vectors.astype(np.float64).mean(axis=0)

    @staticmethod
    def check(dimension: int = 1000, name: str = "mean") -> None:
        """Refuse vectors without coordinates."""
        checks.whole("task.dimension", dimension, 1)

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
    """The task of a run; for the same config it is built once per process."""
    # One thread at a time builds a task, because initial weights are drawn from torch's global generator.
    with _BUILDING:
        return _build(json.dumps(config.to_mapping(), sort_keys=True))


_BUILDING = threading.Lock()


@lru_cache(maxsize=2)
def _build(config_json: str) -> Task:
    config = RunConfig.from_mapping(json.loads(config_json))
    options = {key: value for key, value in config.task.items() if key != TARGET}
    task = located(f"task.{TARGET}", config.task[TARGET])(config, **options)
    if isinstance(task, Task):
        return task
    missing = [name for name in vars(Task) if not name.startswith("_") and not hasattr(task, name)]
    raise InvalidSpecError(
        f"task.{TARGET}: {config.task[TARGET]} has no {missing[0]}(); simulations.tasks.Task says what a "
        "task does"
    )


def described(values: Mapping[str, Any]) -> list[Callable[..., Any]]:
    """The objects whose docstrings document the keys of a task: its class and the functions that it names."""
    homes = {"data": _DATA, "model": _MODELS}
    functions = [located(f"task.{key}", values[key], home) for key, home in homes.items() if values.get(key)]
    return [located(f"task.{TARGET}", values[TARGET]), *functions]
