"""Experiment trackers: TensorBoard and MLflow, which are optional dependencies."""

from __future__ import annotations

import math
from typing import Any

from fl_privquant.errors import PrivQuantError
from simulations.config import RunConfig
from simulations.results import RunDirectory


class Tracker:
    """The tracker of a run that has none: it ignores what it is told."""

    def log(self, row: dict[str, Any]) -> None:
        """Take the row of a round."""

    def close(self) -> None:
        """End the tracking."""


class TensorBoardTracker(Tracker):
    """Writes scalars for TensorBoard into the run's directory."""

    def __init__(self, directory: RunDirectory) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise PrivQuantError(
                "tracker=tensorboard needs TensorBoard: pip install 'fl-privquant[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(directory.path / "tensorboard"))

    def log(self, row: dict[str, Any]) -> None:
        for name, value in _numbers(row).items():
            self._writer.add_scalar(name, value, row["round"])

    def close(self) -> None:
        self._writer.close()


class MlflowTracker(Tracker):
    """Logs the config and metrics to MLflow."""

    def __init__(self, config: RunConfig, directory: RunDirectory) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise PrivQuantError("tracker=mlflow needs MLflow: pip install 'fl-privquant[mlflow]'") from error
        self._mlflow = mlflow
        mlflow.set_tracking_uri(config.tracker.uri or f"sqlite:///{(directory.path / 'mlflow.db').resolve()}")
        mlflow.set_experiment(config.study)
        mlflow.start_run(run_name=config.run_name)
        for group, values in config.to_mapping().items():
            mlflow.log_param(group, str(values))

    def log(self, row: dict[str, Any]) -> None:
        self._mlflow.log_metrics(_numbers(row), step=row["round"])

    def close(self) -> None:
        self._mlflow.end_run()


def tracker(config: RunConfig, directory: RunDirectory) -> Tracker:
    """The tracker that the config names."""
    if config.tracker.name == "tensorboard":
        return TensorBoardTracker(directory)
    if config.tracker.name == "mlflow":
        return MlflowTracker(config, directory)
    return Tracker()


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if name not in ("round", "seed") and isinstance(value, int | float) and math.isfinite(value)
    }
