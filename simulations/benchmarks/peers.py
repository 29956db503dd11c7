"""Simulated clients a second, beside Apple's simulator ``pfl`` and beside a bare loop over the same clients.

* Digits, 1000 clients a round, one process, softmax regression and a hidden layer of 64: rounds of our runs
  and of pfl's, in turns; the first round of each does not count. Ours also evaluate the model, measure the
  error of the mean and save a checkpoint each round; pfl's do nothing of that. ``pfl`` (0.6) is not a
  dependency: without it these rows are left out.
* A CNN on images of 28 x 28, 100 clients with 600 images each (as of MNIST) and with 100: a round of ours
  against a loop that trains the same clients and averages what they trained, without Flower and privacy.
* Set-up of 1000 clients, after imports: seconds from a configuration to a task.
* The same digits in two worker processes (``engine.processes=2``), against one process of ours and against
  one of pfl's, in turns. The models are the same to the last bit as those of one process.

All times are processor time, except those of two processes, which are wall time and mean something only on a
machine with two cores that do nothing else.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from simulations.benchmarks.measure import Row, at_most, in_turns, seconds_of
from simulations.config import RunConfig
from simulations.data import Examples

MECHANISMS = ("none", "optm")
DIGITS = {"data": "digits"}
CLIENTS = 1000
ROUNDS = 3
TURNS = 3
IMAGE_CLIENTS = 100
IMAGES_OF_CLIENT = (600, 100)


def run() -> list[Row]:
    """Every measurement beside its target."""
    has_pfl = importlib.util.find_spec("pfl") is not None
    if not has_pfl:
        print("pfl is not installed, and is not compared with: pip install pfl==0.6")
    rows = [_setup(), *map(_bare_loop, IMAGES_OF_CLIENT)]
    for model in ("softmax", "mlp"):
        for mechanism in MECHANISMS:
            rows += _digits(model, mechanism, has_pfl)
    return rows


def images(of_client: int) -> Examples:
    """Noise of the size of MNIST's images: what training costs does not depend on what they show."""
    rng = np.random.default_rng(0)
    count = IMAGE_CLIENTS * of_client
    x, y = rng.random((count, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, count)
    return Examples(x, y, x[:100], y[:100])


def _config(
    model: str, mechanism: str, num_clients: int, data: Mapping[str, Any] = DIGITS, **more: Any
) -> RunConfig:
    parameters = {} if mechanism == "none" else {"epsilon": 1.0, "bits": 2}
    return RunConfig.from_mapping(
        {
            "mechanism": {"name": mechanism, **parameters},
            "task": {"_target_": "simulations.tasks.TorchTask", "model": model, **data},
            "federation": {"num_clients": num_clients, "rounds": ROUNDS + 1},
            **more,
        }
    )


def _setup() -> Row:
    """Seconds from a configuration to a task; a first one, not counted, imports the modules."""
    from simulations.tasks import task_of

    task_of(_config("softmax", "optm", 10))
    config = _config("softmax", "optm", CLIENTS, seed=1)
    name = f"digits: seconds of set-up for {CLIENTS} clients, after imports"
    return at_most(name, seconds_of(partial(task_of, config)), 2.0)


def _own_rounds(config: RunConfig, clock: Callable[[], float] = time.process_time) -> list[float]:
    """Seconds of each round of a run but the first."""
    from simulations.recording import RecordingStrategy
    from simulations.run import execute

    times: list[float] = []
    add = RecordingStrategy.on_round

    def noted(self: Any, record: Any) -> None:
        add(self, record)
        times.append(clock())

    RecordingStrategy.on_round = noted  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            execute(RunConfig.from_mapping({**config.to_mapping(), "output": folder}))
    finally:
        RecordingStrategy.on_round = add  # type: ignore[method-assign]
    return _between(times)


def _bare_loop(images_of_client: int) -> Row:
    from simulations.tasks import task_of

    data = {"data": f"{__name__}.images", "of_client": images_of_client}
    config = _config("cnn", "optm", IMAGE_CLIENTS, data)
    task = task_of(config)

    def bare() -> list[float]:
        arrays, times = task.initial_arrays(), []
        for number in range(1, ROUNDS + 2):
            trained = [task.train(arrays, client, number) for client in range(IMAGE_CLIENTS)]
            arrays = {name: np.mean([own[name] for own in trained], axis=0) for name in arrays}
            task.evaluate(arrays)
            times.append(time.process_time())
        return _between(times)

    where = f"CNN, {IMAGE_CLIENTS} clients with {images_of_client} images of 28 x 28, optm"
    ratio = 1.0 / _speed(partial(_own_rounds, config), bare)
    return at_most(f"{where}: a round against a bare loop", ratio, 1.1)


def _digits(model: str, mechanism: str, has_pfl: bool) -> Iterator[Row]:
    """One process of ours against one of pfl's, and two of ours against one of pfl's and one of ours."""
    config = _config(model, mechanism, CLIENTS)
    in_two = _config(model, mechanism, CLIENTS, engine={"name": "inline", "processes": 2})
    two_processes = partial(_own_rounds, in_two, time.perf_counter)
    name = f"digits, {model}, {CLIENTS} clients, {mechanism}"
    if has_pfl:
        speed = _speed(partial(_own_rounds, config), partial(_pfl_rounds, config))
        yield Row(f"{name}: clients a second against pfl", speed, 1.0)
        speed = _speed(two_processes, partial(_pfl_rounds, config, time.perf_counter))
        yield Row(f"{name}: two processes against one of pfl, wall time", speed, 1.6)
    speed = _speed(two_processes, partial(_own_rounds, config, time.perf_counter))
    yield Row(f"{name}: two processes against one, wall time", speed, 1.6)


def _speed(ours: Callable[[], list[float]], theirs: Callable[[], list[float]]) -> float:
    """The median over turns of their seconds over ours, each the least of its rounds."""
    own, other = in_turns([lambda: min(ours()), lambda: min(theirs())], TURNS).T
    return float(1.0 / np.median(own / other))


def _between(times: list[float]) -> list[float]:
    """Seconds of each round but the first, by the times at which rounds ended."""
    return [float(seconds) for seconds in np.diff(times)]


def _pfl_rounds(config: RunConfig, clock: Callable[[], float] = time.process_time) -> list[float]:
    """Seconds of each round of pfl's but the first, with the same clients, model and local training."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    from simulations import learning, models
    from simulations.tasks import task_of

    torch.set_num_threads(1)
    task: Any = task_of(config)
    module = learning.build_model(getattr(models, str(config.task["model"])), task.examples, config.seed)
    cross_entropy = torch.nn.functional.cross_entropy

    def loss(x: Any, y: Any, *_: Any, **__: Any) -> Any:
        return cross_entropy(module(x), y.long())

    def metrics(x: Any, y: Any, *_: Any, **__: Any) -> Any:
        return {"loss": Weighted(float(loss(x, y)), len(y))}

    module.loss, module.metrics = loss, metrics  # type: ignore[assignment]
    x, y = task.examples.train_x, task.examples.train_y
    users = {client: [x[part], y[part]] for client, part in enumerate(task.parts)}
    dataset = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
    times: list[float] = []

    class Noted(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            times.append(clock())
            return False, Metrics()

    wrapped = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    rate = config.federation.learning_rate
    train = NNTrainHyperParams(
        local_batch_size=config.federation.batch_size, local_num_epochs=1, local_learning_rate=rate
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS + 1,
            evaluation_frequency=10**6,
            train_cohort_size=len(users),
            val_cohort_size=0,
        ),
        SimulatedBackend(dataset, dataset),
        wrapped,
        train,
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Noted()],
        send_metrics_to_platform=False,
    )
    return _between(times)
