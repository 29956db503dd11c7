"""A network whose body was trained on public images, and a head that clients train on theirs."""

from __future__ import annotations

from functools import lru_cache

import torch
from sklearn.datasets import load_digits
from torch import nn

__all__ = ["accuracy", "load_data", "make_model", "train_head"]

# Of five images one is for testing, one is public, and the others are dealt to clients.
_SHARES = 5
_TEST, _PUBLIC = 0, 1
_PUBLIC_STEPS = 200


class Network(nn.Module):
    """A body that is frozen, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A score for each digit."""
        scores: torch.Tensor = self.head(self.body(images))
        return scores


def make_model() -> Network:
    """The network with the public body, and a head that knows nothing yet."""
    model = Network()
    model.body.load_state_dict(_public_body())
    model.body.requires_grad_(False)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model


def load_data(partition: int, num_partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of one client."""
    images, labels = _images()
    own = (torch.arange(len(labels)) % _SHARES > _PUBLIC).nonzero()[partition::num_partitions, 0]
    return images[own], labels[own]


def train_head(model: Network, images: torch.Tensor, labels: torch.Tensor, epochs: int, rate: float) -> None:
    """Train in place what is not frozen."""
    _fit(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        model,
        images,
        labels,
        epochs,
        rate,
    )


def accuracy(model: nn.Module) -> float:
    """Share of the test images that the model names correctly."""
    images, labels = _images()
    with torch.no_grad():
        right = model(images[_TEST::_SHARES]).argmax(dim=1) == labels[_TEST::_SHARES]
    return float(right.float().mean())


@lru_cache(maxsize=1)
def _public_body() -> dict[str, torch.Tensor]:
    """The body after training on public images; in practice a file that somebody published."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Network()
    images, labels = _images()
    own = slice(_PUBLIC, None, _SHARES)
    _fit(list(model.parameters()), model, images[own], labels[own], _PUBLIC_STEPS, 0.5)
    return model.body.state_dict()


def _fit(
    parameters: list[nn.Parameter],
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    steps: int,
    rate: float,
) -> None:
    optimizer = torch.optim.SGD(parameters, lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def _images() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)
