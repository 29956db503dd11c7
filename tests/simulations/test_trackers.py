"""TensorBoard, MLflow and Weights & Biases have the numbers of the rounds, read back by their own means."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulations.run import execute
from simulations.runner.config import RunConfig
from simulations.runner.results import RunDirectory
from tests.task_values import mean_of

ROUNDS = 3


def run(output: Path, tracker: dict[str, Any]) -> tuple[Path, pd.DataFrame]:
    """A small run with a tracker: its folder, and its rows."""
    config = RunConfig.from_mapping(
        {
            "mechanism": {"name": "one_bit", "epsilon": 1.0},
            "task": mean_of(9),
            "federation": {"num_clients": 3, "rounds": ROUNDS},
            "tracker": tracker,
            "output": str(output),
        }
    )
    execute(config)
    folder = RunDirectory.of(config).path
    return folder, pd.read_parquet(folder / "rounds.parquet")


def check(logged: dict[str, dict[int, float]], rows: pd.DataFrame) -> None:
    """All finite numbers of all rows, and nothing else, have been logged at their rounds."""
    numbers = rows.select_dtypes("number").drop(columns=["round", "seed"])
    expected = {
        name: {
            int(at): float(value)
            for at, value in zip(rows["round"], numbers[name], strict=True)
            if math.isfinite(value)
        }
        for name in numbers
    }
    expected = {name: values for name, values in expected.items() if values}
    assert {"loss", "epsilon_client_total"} <= set(expected)
    assert set(logged) == set(expected)
    for name, values in expected.items():
        assert logged[name] == pytest.approx(values), name


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, rows = run(tmp_path, {"name": "tensorboard"})
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    scalars = {
        name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]
    }
    check(scalars, rows)


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    folder, rows = run(tmp_path, {"name": "mlflow"})
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("default")
    (tracked,) = client.search_runs([experiment.experiment_id])
    assert tracked.info.run_name == folder.name
    assert tracked.info.status == "FINISHED"
    assert "one_bit" in tracked.data.params["mechanism"]
    metrics = {
        name: {metric.step: metric.value for metric in client.get_metric_history(tracked.info.run_id, name)}
        for name in tracked.data.metrics
    }
    check(metrics, rows)


@pytest.mark.filterwarnings("ignore")  # those of Weights & Biases
def test_wandb_writes_a_folder_without_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "offline")
    folder, rows = run(tmp_path, {"name": "wandb"})
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    logged: dict[str, dict[int, float]] = {}
    while data := store.scan_data():
        record = Record()
        record.ParseFromString(data)
        for item in record.history.item:
            name = item.key or item.nested_key[0]
            if not name.startswith("_"):
                logged.setdefault(name, {})[record.history.step.num] = json.loads(item.value_json)
    check(logged, rows)
