"""The parts of the study: two networks, each at three budgets and with six private variants beside none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulations.config import RunConfig
from simulations.studies.study import Scale, Tables, Tell
from simulations.studies.sweep import Sweep
from simulations.tasks import TorchTask, task_of

__all__ = ["BUDGETS", "FASHION", "FEWER", "PARTS", "SHAKESPEARE", "NetworkSweep"]

FASHION, SHAKESPEARE, FEWER = "fashion-cnn", "shakespeare-gru", "shakespeare-gru-61"
"""Parts, which are tables; the last one is the second with half as many clients in a round."""
BUDGETS = (2, 4, 8)
"""ε of a client's whole run."""

# Beside a central Gaussian and Skellam noise: no privacy at all, and ours with and without keep.
_NO_PRIVACY = ("mechanism=none", "privacy.epsilon=null", "secagg=off", "encoding.l2_clip=null")
_OURS = ("mechanism=optm_aggregate", "mechanism.bits=2,1", "encoding.keep=null,0.25")


@dataclass(frozen=True, kw_only=True)
class NetworkSweep(Sweep):
    """A sweep whose table also has the accuracy of guessing, and whose runs are in the order of seeds.

    So a sweep that was interrupted has all mechanisms on the first seeds, not all seeds of some.
    """

    def runs(self, scale: Scale | None = None) -> list[RunConfig]:
        """The config of every run, each once."""
        return sorted(super().runs(scale), key=lambda config: config.seed)

    def compute(self, scale: Scale, tell: Tell) -> Tables:
        """Run what is missing; its table."""
        table = super().compute(scale, tell)[self.name]
        task = task_of(self.runs(scale)[0])
        assert isinstance(task, TorchTask)
        return {self.name: table.assign(guessing=guessing(task.examples.train_y, task.examples.test_y))}


def guessing(train_labels: np.ndarray, test_labels: np.ndarray) -> float:
    """The test accuracy of always saying the label that most training examples have.

    >>> guessing(np.array([2, 2, 1]), np.array([1, 2, 0, 0]))
    0.25
    """
    return float(np.mean(test_labels == np.bincount(train_labels.ravel()).argmax()))


def _sweep(name: str, title: str, needs: str, experiment: str, *overrides: str) -> NetworkSweep:
    return NetworkSweep(
        name=name,
        title=title,
        experiment=f"larger_models/{experiment}",
        overrides=overrides,
        variants=(_NO_PRIVACY, _OURS),
        needs=needs,
        shown=("run_epsilon", "mechanism", "bits", "keep", "accuracy", "mean_squared_error"),
        note="run epsilon: client total, aggregate view of all clients of a round, δ = 1e-5",
    )


_GRU = "A recurrent network on Shakespeare, natural users"

PARTS = (
    _sweep(
        FASHION, "A convolutional network on Fashion-MNIST, Dirichlet 0.1", "fashion_mnist", "fashion_cnn"
    ),
    _sweep(SHAKESPEARE, _GRU, "shakespeare", "shakespeare_gru"),
    _sweep(FEWER, f"{_GRU}, each once", "shakespeare", "shakespeare_gru", "sampling.rounds_apart=12"),
)
