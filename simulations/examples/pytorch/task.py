"""The model and the data: nothing here knows of federated learning or privacy."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

_TEST_EVERY = 5


def make_model() -> nn.Module:
    """Softmax regression for images of 8 x 8: 650 parameters."""
    return nn.Linear(64, 10)


def load_data(partition: int, num_partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of one client: every ``num_partitions``-th of those to train with."""
    images, labels = digits()
    chosen = torch.arange(len(labels)) % _TEST_EVERY != 0
    return images[chosen][partition::num_partitions], labels[chosen][partition::num_partitions]


def train_model(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int, learning_rate: float
) -> float:
    """Train in place; returns the last loss."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=learning_rate)
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def accuracy(model: nn.Module) -> float:
    """Share of the test images that the model names correctly."""
    images, labels = digits()
    with torch.no_grad():
        right = model(images[::_TEST_EVERY]).argmax(dim=1) == labels[::_TEST_EVERY]
    return float(right.float().mean())


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All images and their labels."""
    loaded = load_digits()
    return torch.tensor(loaded.data / 16.0, dtype=torch.float32), torch.tensor(loaded.target)
