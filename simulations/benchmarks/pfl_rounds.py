"""Rounds of pfl, Apple's simulator, on the clients of a task, in an environment that has pfl 0.6 and torch.

It reads the examples from a file, trains a round for each line of its input, and writes how long that took.
It imports nothing of this package, which is not installed there.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism


def main(path: str, hidden: int, batch_size: int, epochs: int, rate: float) -> None:
    """Train rounds of all clients in the file, with the central Gaussian mechanism of pfl."""
    torch.set_num_threads(1)
    saved = np.load(path)
    x, y = torch.from_numpy(saved["x"]), torch.from_numpy(saved["y"])
    parts = np.split(saved["order"], np.cumsum(saved["sizes"])[:-1])
    users = [PyTorchTensorDataset((x[part], y[part]), user_id=str(user)) for user, part in enumerate(parts)]
    places = iter(int(place) for _ in iter(int, 1) for place in torch.randperm(len(users)))
    clients = FederatedDataset(users.__getitem__, places.__next__)
    module = make_module(x[0].numel(), hidden, int(y.max()) + 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    private = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1.0))
    rounds = FederatedAveraging()
    rounds.run(
        NNAlgorithmParams(10**9, 10**9, len(users), None),
        SimulatedBackend(clients, clients, [private]),
        PyTorchModel(module, torch.optim.SGD, optimizer),
        NNTrainHyperParams(batch_size, epochs, rate),
        callbacks=[Clock()],
    )


def make_module(inputs: int, hidden: int, classes: int) -> Any:
    """Softmax regression, or with hidden units a perceptron; with the functions that pfl calls."""
    layers = [torch.nn.Linear(inputs, hidden), torch.nn.ReLU()] if hidden else []
    module: Any = torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(hidden or inputs, classes))
    module.loss = lambda features, labels: torch.nn.functional.cross_entropy(module(features), labels)
    # Only the first round measures anything.
    module.metrics = lambda features, labels: {"loss": Weighted(float(module.loss(features, labels)), 1)}
    return module


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Writes the processor time of each round, and waits until another one is asked for."""

    def __init__(self) -> None:
        self._start = time.process_time()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        print("seconds", time.process_time() - self._start, flush=True)
        ended = not sys.stdin.readline()
        self._start = time.process_time()
        return ended, Metrics()


if __name__ == "__main__":
    hidden, batch_size, epochs = map(int, sys.argv[2:5])
    main(sys.argv[1], hidden, batch_size, epochs, float(sys.argv[5]))
