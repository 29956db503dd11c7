"""The same seed gives the same model to the last bit: any engine, any model, any threads of libraries."""

from __future__ import annotations

import json
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


@pytest.mark.slow
@pytest.mark.parametrize("model", [pytest.param("mlp", marks=WARNINGS)])
def test_inline_and_ray_give_the_same_model(model: str, tmp_path: Path, ray_cluster: RayCluster) -> None:
    found = []
    inline: dict[str, Any] = {"name": "inline"}
    # A client takes the whole cluster: one worker is started, not two.
    on_ray = {"name": "ray", "address": ray_cluster.address, "client_cpus": ray_cluster.CPUS}
    for engine in (inline, on_ray):
        config = config_of(tmp_path / engine["name"], model, engine=engine)
        execute(config)
        found.append(outcome(RunDirectory.of(config).path))
    assert found[0][0] == found[1][0]
    pd.testing.assert_frame_equal(found[0][1], found[1][1])


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
