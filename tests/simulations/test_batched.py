"""Tasks that train many clients at once make the models that they make one by one.

All mechanisms are compared in :mod:`tests.flower.test_cohorts`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulations.run import execute
from simulations.runner.config import RunConfig, compose_run
from simulations.runner.results import RunDirectory
from simulations.tasks.data import Examples
from simulations.tasks.task import get_task
from tests.simulations.test_same_results import outcome
from tests.task_values import torch_task

TASKS: dict[str, dict[str, Any]] = {
    "softmax": torch_task(model="softmax"),
    "mlp": torch_task(model="mlp", hidden=33, layers=2),
    "cnn": torch_task(model="cnn"),
    "gru": torch_task(data=f"{__name__}.texts", model="gru"),
    "cancer": torch_task(data="cancer"),
    "mean": {"_target_": "simulations.tasks.task.MeanEstimation", "name": "mean"},
}
MECHANISMS: dict[str, dict[str, Any]] = {
    "optm": {"mechanism": {"name": "optm", "epsilon": 4.0, "bits": 3}, "encoding": {"clip": 0.1}},
    "secure": {
        "mechanism": {"name": "rounded_gaussian"},
        "privacy": {"epsilon": 30.0},
        "secagg": {"enabled": True},
        "encoding": {"l2_clip": 1.0},
    },
    "none": {"mechanism": {"name": "none"}},
}


def texts() -> Examples:
    """Random characters, and which one comes next."""
    x, y = np.random.default_rng(0).integers(0, 20, (120, 8)), np.arange(120) % 20
    return Examples(x, y, x, y)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("task", TASKS)
def test_runs_are_the_same(task: str, mechanism: str, tmp_path: Path) -> None:
    found = []
    for batch in (1, 5, 256):
        config = RunConfig.from_mapping(
            {
                "task": TASKS[task],
                "federation": {"num_clients": 12, "rounds": 2, "local_epochs": 2, "batch_size": 16},
                "partition": {"name": "size_skew"} if task != "mean" else {},
                "output": str(tmp_path / str(batch)),
                "engine": {"name": "inline", "batch": batch},
                **MECHANISMS[mechanism],
            }
        )
        execute(config)
        found.append(outcome(RunDirectory.of(config).path))
    for digest, rows in found[1:]:
        assert digest == found[0][0]
        pd.testing.assert_frame_equal(rows, found[0][1])


@pytest.mark.parametrize(
    "overrides",
    [
        "mechanism=pbm secagg=simulated",
        "mechanism=optm encoding=quantile federation.fraction=0.6",
        "mechanism=optm sampling=poisson federation.fraction=0.6 federation.server_learning_rate=0.5",
        "mechanism=optm sampling=cohorts sampling.rounds_apart=2 encoding=kept encoding.keep=0.5",
        "mechanism=rounded_gaussian secagg=on sampling=cohorts sampling.rounds_apart=2 "
        "privacy.epsilon=8 privacy.correlation=0.5 federation.num_clients=24",
        "mechanism=rounded_gaussian secagg=simulated secagg.dropout_fraction=0 privacy.unit=record "
        "privacy.records=1437 privacy.sampling_rate=0.2 privacy.epsilon=8",
        "mechanism=central_gaussian privacy.epsilon=8",
    ],
)
def test_kinds_of_runs_are_the_same(overrides: str, tmp_path: Path) -> None:
    found = []
    for batch in (1, 5, 256):
        run = ["federation.num_clients=12", "federation.rounds=3", *overrides.split()]
        config = compose_run("task=digits", *run, f"engine.batch={batch}", f"output={tmp_path / str(batch)}")
        execute(config)
        found.append(outcome(RunDirectory.of(config).path))
    for digest, rows in found[1:]:
        assert digest == found[0][0]
        pd.testing.assert_frame_equal(rows, found[0][1])


@pytest.mark.parametrize("model", ["softmax", "mlp"])
@pytest.mark.parametrize(
    "federation",
    [
        {"momentum": 0.9, "local_epochs": 3, "batch_size": 4},
        {"proximal": 0.3, "local_epochs": 2, "batch_size": 7},
        {"local_steps": 5, "batch_size": 3},
    ],
)
def test_steps_are_those_of_each_client_alone(model: str, federation: dict[str, Any]) -> None:
    """Clients with 1 to 70 examples, from a model that is not at its start."""
    config = RunConfig.from_mapping(
        {
            "mechanism": {"name": "none"},
            "task": torch_task(model=model),
            "partition": {"name": "size_skew"},
            "federation": {"num_clients": 50, **federation},
        }
    )
    task: Any = get_task(config)
    noise = np.random.default_rng(0)
    arrays = {
        name: array + 0.1 * noise.standard_normal(array.shape).astype(np.float32)
        for name, array in task.initial_arrays().items()
    }
    clients = [0, 49, 3, 27, 28, 5, 0]
    together = task.train_batch(arrays, clients, 4)
    for place, client in enumerate(clients):
        for name, array in task.train(arrays, client, 4).items():
            np.testing.assert_array_equal(together[name][place], array, err_msg=f"client {client}: {name}")
    assert not np.array_equal(together["1.weight"][0], together["1.weight"][1])
