"""The models of the study, and one step of many clients at once, each on all of its own examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

CLASSES, SIDE = 10, 28

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Arrays = dict[str, Floats]


class Model(ABC):
    """A model for images of 28 x 28, given as rows of 785 numbers of which the last is 1."""

    learning_rate: float
    """Of a client's step, which is clipped."""
    unclipped_rate: float
    """The same without privacy, where nothing is clipped."""

    @abstractmethod
    def initialize(self, seed: int) -> Arrays:
        """The weights that a run starts with."""

    @abstractmethod
    def slopes(self, weights: Arrays, inputs: Floats, labels: Labels) -> Arrays:
        """The gradients of the sums of clients' losses, stacked; inputs are (clients, examples, 785)."""

    @abstractmethod
    def scores(self, weights: Arrays, inputs: Floats) -> Floats:
        """(examples, classes) the larger, the likelier."""

    def train(self, weights: Arrays, inputs: Floats, labels: Labels, rate: float) -> Arrays:
        """The weights of clients after one step, stacked."""
        factor = np.float32(rate / labels.shape[1])
        slopes = self.slopes(weights, inputs, labels)
        return {name: weights[name] - factor * slope for name, slope in slopes.items()}

    def accuracy(self, weights: Arrays, inputs: Floats, labels: Labels) -> float:
        """The share of examples whose label has the largest score."""
        return float(np.mean(np.argmax(self.scores(weights, inputs), axis=1) == labels))


class Softmax(Model):
    """Softmax regression: 7850 weights, which are zero at first.

    A client's step is the same to the last bit, whether it is taken alone or with others.
    """

    learning_rate = unclipped_rate = 2.0

    def initialize(self, seed: int) -> Arrays:
        return {"x": np.zeros((SIDE * SIDE + 1, CLASSES), np.float32)}

    def slopes(self, weights: Arrays, inputs: Floats, labels: Labels) -> Arrays:
        scores = inputs @ weights["x"]
        shares = np.exp(scores - scores.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        errors = shares - np.eye(CLASSES, dtype=np.float32)[labels]
        return {"x": inputs.transpose(0, 2, 1) @ errors}

    def scores(self, weights: Arrays, inputs: Floats) -> Floats:
        return np.asarray(inputs @ weights["x"])


class SmallCNN(Model):
    """Twelve filters with steps of three, the largest of four each, and a linear layer: 2530 weights.

    Steps that are taken with others differ from those alone by rounding.
    """

    learning_rate, unclipped_rate = 2.0, 0.5

    def initialize(self, seed: int) -> Arrays:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return {name: weight.detach().numpy() for name, weight in make_network().named_parameters()}

    def slopes(self, weights: Arrays, inputs: Floats, labels: Labels) -> Arrays:
        gradients = _gradients(_as_tensors(weights), torch.from_numpy(inputs), torch.from_numpy(labels))
        return {name: gradient.numpy() for name, gradient in gradients.items()}

    def scores(self, weights: Arrays, inputs: Floats) -> Floats:
        with torch.no_grad():
            scores = functional_call(_NETWORK, _as_tensors(weights), (torch.tensor(inputs),))
        return np.asarray(scores.numpy())


class _Images(nn.Module):
    """Rows of 785 numbers as images, without the last number."""

    def forward(self, rows: Any) -> Any:
        return rows[..., :-1].reshape(-1, 1, SIDE, SIDE)


def make_network() -> nn.Module:
    """The network of :class:`SmallCNN`."""
    return nn.Sequential(
        _Images(),
        nn.Conv2d(1, 12, 7, stride=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(192, CLASSES),
    )


# Its own weights are never used: every call gives others.
with torch.device("meta"):
    _NETWORK = make_network()


def _as_tensors(weights: Arrays) -> dict[str, Any]:
    return {name: torch.tensor(weight) for name, weight in weights.items()}


def _loss(weights: dict[str, Any], inputs: Any, labels: Any) -> Any:
    scores = functional_call(_NETWORK, weights, (inputs,))
    return nn.functional.cross_entropy(scores, labels, reduction="sum")


_gradients = vmap(grad(_loss), in_dims=(None, 0, 0))

MODELS: dict[str, Model] = {"softmax": Softmax(), "cnn": SmallCNN()}
"""By the names that tables have."""
