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
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, Message
from hydra.utils import instantiate
from numpy.typing import NDArray

from fl_privquant import _validation
from fl_privquant.errors import InvalidSpecError
from fl_privquant.sampling.stream import RandomStream
from simulations.runner.config import PartitionConfig, RunConfig
from simulations.runner.targets import TARGET, check_options, load_object, options_of
from simulations.tasks.data import Examples
from simulations.tasks.partition import partition_examples

if TYPE_CHECKING:
    from simulations.tasks.learning import LocalTraining

Arrays = dict[str, NDArray[Any]]

_DATA, _MODELS, _LOSSES = "simulations.tasks.data", "simulations.tasks.models", "torch.nn.functional"
# Arguments of a model's function besides the options of the task.
_KNOWN_TO_MODELS = ("shape", "classes")
_COUNTS = ("max_examples", "max_test_examples", "validation_examples")

# A data function, its options as JSON, and how many training, test and validation examples are used.
_Source = tuple[str, str, int | None, int | None, int | None]


@runtime_checkable
class Task(Protocol):
    """The task of a federation: data, model and training."""

    def initial_arrays(self) -> Arrays:
        """The model before the first round, by the names of its arrays."""
        ...

    def train(self, arrays: Arrays, client: int, server_round: int) -> Arrays:
        """The model after the client's local training."""
        ...

    def evaluate(self, arrays: Arrays) -> tuple[float, float]:
        """Accuracy (NaN where there is none) and loss of a model, on data that no client has."""
        ...

    def num_examples(self, client: int) -> int:
        """How many examples the client holds."""
        ...


class TorchTask:
    """A torch model that clients train on the examples that are dealt to them, by SGD or another optimizer.

    Functions are given by the short name of one of ours, or by an import path such as ``my_package.model``.

    Parameters
    ----------
    run
        The run's configuration: clients, local training, partition, seed.
    data
        Function that gives :class:`~simulations.tasks.data.Examples`: one of :mod:`simulations.tasks.data`,
        or a path.
    model
        Function that makes the torch module: one of :mod:`simulations.tasks.models`, or a path.
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
        from simulations.tasks import learning

        if device == "cuda" and run.engine.name == "ray" and run.engine.client_gpus == 0.0:
            raise InvalidSpecError(
                "task.device",
                "cuda",
                ", but engine.client_gpus is 0, so that Ray shows its clients no GPU",
                "set it, for example to 0.5 for two clients on one GPU",
            )

        self._learning = learning
        self._run = run
        self._loss = load_object("task.loss", loss, _LOSSES)
        chosen = {key: value for key, value in options.items() if key in options_of(_find_data(data))}
        source = (
            data,
            json.dumps(chosen, sort_keys=True),
            max_examples,
            max_test_examples,
            validation_examples,
        )
        self.examples = _load_examples(*source)
        self.parts = _partition(source, run.federation.num_clients, run.partition, run.seed)
        self._template = learning.build_model(_find_model(model), self.examples, run.seed, options, device)
        self._initial = learning.model_arrays(self._template)
        self._free = [self._make_training()]
        self._together = self._free[0].by_formula

    @staticmethod
    def check(data: str, model: str = "softmax", **options: Any) -> None:
        """Refuse functions that are not there, and options that none of them takes."""
        own = ("name", "loss", "device", *_COUNTS)
        of_functions = {key: value for key, value in options.items() if key not in own}
        check_options("task", of_functions, [_find_data(data), _find_model(model)], _KNOWN_TO_MODELS)
        for count in _COUNTS:
            if options.get(count) is not None:
                _validation.check_integer(f"task.{count}", options[count], 1)

    @staticmethod
    def num_users(
        *,
        data: str,
        max_examples: int | None = None,
        validation_examples: int | None = None,
        **options: Any,
    ) -> int:
        """How many users the data have; the data must say which user each example belongs to."""
        chosen = {key: value for key, value in options.items() if key in options_of(_find_data(data))}
        source = data, json.dumps(chosen, sort_keys=True), max_examples, None, validation_examples
        users = _load_examples(*source).users
        if users is None:
            raise InvalidSpecError(
                "federation.num_clients",
                0,
                f"stands for all users, but data {data!r} do not say which user an example belongs to",
                "give a number",
            )
        return len(np.unique(users))

    def initial_arrays(self) -> Arrays:
        return {name: value.copy() for name, value in self._initial.items()}

    def train(self, arrays: Arrays, client: int, server_round: int) -> Arrays:
        trained = self.train_batch(arrays, [client], server_round)
        if trained is not None:
            return {name: array[0] for name, array in trained.items()}
        part, seed = self.parts[client], self._training_seed(client, server_round)
        with self._training(arrays) as training:
            training.run(self.examples.train_x[part], self.examples.train_y[part], seed)
            return self._learning.model_arrays(training.model)

    def train_batch(self, arrays: Arrays, clients: Sequence[int], server_round: int) -> Arrays | None:
        """The models of many clients, each array with the clients as first axis; None if trained one by one.

        Only perceptrons on the CPU, trained by plain SGD, are trained together.
        """
        from simulations.tasks.batched import train_perceptrons

        if not self._together or list(arrays) != list(self._initial):
            return None
        self._learning.use_one_thread()
        trained = train_perceptrons(
            list(arrays.values()),
            self.examples.train_x,
            self.examples.train_y,
            [self.parts[client] for client in clients],
            lambda place: self._training_seed(clients[place], server_round),
            self._run.federation,
        )
        return dict(zip(arrays, trained, strict=True))

    def train_on_records(self, message: Message, client: int, rng: RandomStream | None) -> ArrayRecord:
        """The update of a client for a plan that protects each of its examples."""
        from torch import from_numpy

        from fl_privquant.torch import record_update

        part, examples = self.parts[client], self.examples
        x, y = from_numpy(examples.train_x[part]), from_numpy(examples.train_y[part])
        with self._training(self._initial) as training:
            training.model.train()
            return record_update(message, training.model, self._loss, x, y, rng=rng)

    def _training_seed(self, client: int, server_round: int) -> int:
        words = np.random.SeedSequence([self._run.seed, 2, server_round, client]).generate_state(1)
        return int(words[0])

    def evaluate(self, arrays: Arrays) -> tuple[float, float]:
        with self._training(arrays) as training:
            return self._learning.evaluate(training.model, self.examples, self._loss)

    @contextlib.contextmanager
    def _training(self, arrays: Arrays) -> Iterator[LocalTraining]:
        """A model with these arrays that nobody else uses meanwhile."""
        try:
            training = self._free.pop()
        except IndexError:
            training = self._make_training()
        self._learning.load_arrays(training.model, arrays)
        yield training
        # After an error the model is not used again, because its state is unknown.
        self._free.append(training)

    def _make_training(self) -> LocalTraining:
        return self._learning.LocalTraining(copy.deepcopy(self._template), self._run.federation, self._loss)

    def num_examples(self, client: int) -> int:
        return int(self.parts[client].size)


def _find_data(name: str) -> Callable[..., Any]:
    return load_object("task.data", name, _DATA)


def _find_model(name: str) -> Callable[..., Any]:
    return load_object("task.model", name, _MODELS)


# Cached for the runs of a sweep: they do not depend on the mechanism.
@lru_cache(maxsize=4)
def _load_examples(
    data: str, options: str, max_examples: int | None, max_tests: int | None, num_validation: int | None
) -> Examples:
    examples = _find_data(data)(**json.loads(options))
    if not isinstance(examples, Examples):
        raise InvalidSpecError(
            "task.data", data, f"gives {type(examples).__name__}, expected simulations.tasks.data.Examples"
        )
    if num_validation is not None:
        examples = examples.with_validation(num_validation)
    return examples.first(max_examples, max_tests)


@lru_cache(maxsize=32)
def _partition(
    source: _Source, num_clients: int, partition: PartitionConfig, seed: int
) -> list[NDArray[np.int64]]:
    return partition_examples(_load_examples(*source), num_clients, partition, seed)


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
        center = np.random.default_rng([run.seed, 3]).uniform(-0.5, 0.5, dimension)
        spread = np.random.default_rng([run.seed, 4]).uniform(-0.5, 0.5, shape)
        # Where a target decides on the clip, vectors have about the L2 norm that it clips to.
        bound = run.encoding.clip or (run.l2_clip or 1.0) / math.sqrt(dimension)
        self._vectors = (bound * (center + spread)).astype(np.float32)
        self._truth = self._vectors.astype(np.float64).mean(axis=0)

    @staticmethod
    def check(dimension: int = 1000, name: str = "mean") -> None:
        """Refuse vectors without coordinates."""
        _validation.check_integer("task.dimension", dimension, 1)

    def initial_arrays(self) -> Arrays:
        return {"mean": np.zeros(self._truth.size, np.float32)}

    def train(self, arrays: Arrays, client: int, server_round: int) -> Arrays:
        # A step of 1 / round towards the client's vector: the model is the average over rounds.
        step = (self._vectors[client] - arrays["mean"]) / server_round
        return {"mean": (arrays["mean"] + step).astype(np.float32)}

    def train_batch(self, arrays: Arrays, clients: Sequence[int], server_round: int) -> Arrays | None:
        """The models of many clients, with the clients as first axis."""
        steps = (self._vectors[list(clients)] - arrays["mean"]) / server_round
        return {"mean": (arrays["mean"] + steps).astype(np.float32)}

    def evaluate(self, arrays: Arrays) -> tuple[float, float]:
        return math.nan, float(np.mean((arrays["mean"] - self._truth) ** 2))

    def num_examples(self, client: int) -> int:
        return 1


def get_task(config: RunConfig) -> Task:
    """The task of a run; for the same config it is built once per process."""
    # One thread at a time builds a task, because initial weights are drawn from torch's global generator.
    with _BUILD_LOCK:
        return _build(config.to_json())


_BUILD_LOCK = threading.Lock()


@lru_cache(maxsize=2)
def _build(config_json: str) -> Task:
    config = RunConfig.from_json(config_json)
    # The run is an argument of the call, as Hydra would make a mapping of one among the keys.
    task = instantiate(config.task, _partial_=True, _convert_="all")(config)
    if isinstance(task, Task):
        return task
    missing = [name for name in vars(Task) if not name.startswith("_") and not hasattr(task, name)]
    raise InvalidSpecError(
        f"task.{TARGET}",
        config.task[TARGET],
        f"has no {missing[0]}()",
        "simulations.tasks.task.Task says what a task does",
    )
