"""Experiment trackers: TensorBoard, MLflow and Weights & Biases, which are optional dependencies."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from fl_privquant.errors import PrivQuantError
from simulations.runner.config import RunConfig
from simulations.runner.results import RunDirectory


class Tracker:
    """The tracker of a run that has none: it ignores what it is told."""

    def log(self, row: dict[str, Any]) -> None:
        """Take the row of a round."""

    def close(self) -> None:
        """End the tracking."""


class TensorBoardTracker(Tracker):
    """Writes scalars for TensorBoard into the run's directory."""

    def __init__(self, config: RunConfig, directory: RunDirectory) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory.path / "tensorboard"))

    def log(self, row: dict[str, Any]) -> None:
        for name, value in _select_numbers(row).items():
            self._writer.add_scalar(name, value, row["round"])

    def close(self) -> None:
        self._writer.close()


class MlflowTracker(Tracker):
    """Logs the config and metrics to MLflow."""

    def __init__(self, config: RunConfig, directory: RunDirectory) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.set_tracking_uri(config.tracker.uri or f"sqlite:///{(directory.path / 'mlflow.db').resolve()}")
        mlflow.set_experiment(config.study)
        mlflow.start_run(run_name=config.run_name)
        for group, values in config.to_mapping().items():
            mlflow.log_param(group, str(values))

    def log(self, row: dict[str, Any]) -> None:
        self._mlflow.log_metrics(_select_numbers(row), step=row["round"])

    def close(self) -> None:
        self._mlflow.end_run()


class WandbTracker(Tracker):
    """Logs the config and metrics to Weights & Biases.

    Whoever is not logged in, or sets ``WANDB_MODE=offline``, gets a folder in the run's directory, which
    ``wandb sync`` uploads.
    """

    def __init__(self, config: RunConfig, directory: RunDirectory) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE") or (None if wandb.api.api_key else "offline")
        self._run = wandb.init(
            project=config.study,
            name=config.run_name,
            config=config.to_mapping(),
            dir=directory.path,
            mode=mode,
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, row: dict[str, Any]) -> None:
        self._run.log(_select_numbers(row), step=row["round"])

    def close(self) -> None:
        self._run.finish()


_TRACKERS: dict[str, Callable[[RunConfig, RunDirectory], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}


def make_tracker(config: RunConfig, directory: RunDirectory) -> Tracker:
    """The tracker that the config names."""
    name = config.tracker.name
    if name == "none":
        return Tracker()
    try:
        return _TRACKERS[name](config, directory)
    except ImportError as error:
        raise PrivQuantError(f"tracker={name} needs a package: pip install 'fl-privquant[{name}]'") from error


def _select_numbers(row: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if name not in ("round", "seed") and isinstance(value, int | float) and math.isfinite(value)
    }
