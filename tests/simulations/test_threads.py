"""The same seed gives the same model to the last bit: any number of threads, any engine, any model."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_limits

from simulations.run import execute
from simulations.runner.config import FederationConfig, RunConfig
from simulations.runner.results import RunDirectory
from simulations.tasks import learning, models
from simulations.tasks.data import Examples
from simulations.tasks.task import get_task
from tests.ray_cluster import WARNINGS, RayCluster
from tests.task_values import torch_task

FEDERATION = {"num_clients": 7, "rounds": 2, "local_epochs": 2}


def config_of(output: Path, model: str, **changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "mechanism": {"name": "optm", "epsilon": 4.0, "bits": 3},
        "task": torch_task(model=model, hidden=33 if model == "mlp" else None),
        "federation": FEDERATION,
        "output": str(output),
        **changes,
    }
    return RunConfig.from_mapping(values)


def outcome(folder: Path) -> tuple[str, pd.DataFrame]:
    """The hash of the final model, and all of its rows but for the clock's."""
    rows = pd.read_parquet(folder / "rounds.parquet")
    timeless = [name for name in rows if not name.startswith("seconds") and name not in ("run", "label")]
    return json.loads((folder / "provenance.json").read_text())["model_sha256"], rows[timeless]


@pytest.mark.parametrize("model", ["softmax", "mlp", "cnn"])
def test_the_number_of_threads_changes_nothing(model: str, tmp_path: Path) -> None:
    found = []
    for threads in (1, 2, 3, 4, 2):
        config = config_of(tmp_path / str(len(found)), model, engine={"name": "inline", "threads": threads})
        execute(config)
        found.append(outcome(RunDirectory.of(config).path))
    for digest, rows in found[1:]:
        assert digest == found[0][0]
        pd.testing.assert_frame_equal(rows, found[0][1])


@pytest.mark.slow
@pytest.mark.parametrize("model", [pytest.param("mlp", marks=WARNINGS)])
def test_threads_and_ray_give_the_same_model(model: str, tmp_path: Path, ray_cluster: RayCluster) -> None:
    found = []
    inline: dict[str, Any] = {"name": "inline", "threads": 3}
    # A client takes the whole cluster: one worker is started, not two.
    on_ray = {"name": "ray", "address": ray_cluster.address, "client_cpus": ray_cluster.CPUS}
    for engine in (inline, on_ray):
        config = config_of(tmp_path / engine["name"], model, engine=engine)
        execute(config)
        found.append(outcome(RunDirectory.of(config).path))
    assert found[0][0] == found[1][0]
    pd.testing.assert_frame_equal(found[0][1], found[1][1])


def test_clients_that_train_at_once_have_models_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three have loaded their model before any of them trains: a shared one would be mixed up."""
    task = get_task(config_of(tmp_path, "cnn"))
    initial = task.initial_arrays()
    alone = [task.train(initial, client, 1) for client in range(3)]
    meeting, run = threading.Barrier(3), learning.LocalTraining.run

    def run_together(*arguments: Any) -> Any:
        meeting.wait(20)
        losses = run(*arguments)
        meeting.wait(20)
        return losses

    monkeypatch.setattr(learning.LocalTraining, "run", run_together)
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda client: task.train(initial, client, 1), range(3)))
    for one, other in zip(alone, together, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name])


def test_a_client_that_fails_leaves_its_model_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = get_task(config_of(tmp_path, "cnn", seed=5))
    initial = task.initial_arrays()
    before = task.train(initial, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(learning.LocalTraining, "run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            task.train(initial, 1, 1)
    after = task.train(initial, 0, 1)
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("model", ["softmax", "cnn"])
def test_the_threads_of_libraries_change_nothing(model: str) -> None:
    """Products as large as these are shared among threads, and then add up in another order."""
    rng = np.random.default_rng(0)
    x = rng.random((1200, 1, 28, 28), dtype=np.float32)
    y = rng.integers(0, 10, 1200)
    examples = Examples(x, y, x[:700], y[:700])
    config = FederationConfig(batch_size=600, learning_rate=0.1)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            trained = learning.build_model(getattr(models, model), examples, seed=1)
            learning.LocalTraining(trained, config).run(x, y, seed=3)
            measured = learning.evaluate(trained, examples)
        found.append((measured, learning.model_arrays(trained)))
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        np.testing.assert_array_equal(value, found[1][1][name])
