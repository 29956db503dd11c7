"""The task group of a run's configuration, as the files of ``conf/task`` give it."""

from __future__ import annotations

from typing import Any

__all__ = ["mean_of", "torch_task"]


def torch_task(data: str = "digits", **options: Any) -> dict[str, Any]:
    """A torch model trained on one of our data sets."""
    return {"_target_": "simulations.tasks.task.TorchTask", "name": data, "data": data, **options}


def mean_of(dimension: int) -> dict[str, Any]:
    """The mean of vectors."""
    return {"_target_": "simulations.tasks.task.MeanEstimation", "name": "mean", "dimension": dimension}
