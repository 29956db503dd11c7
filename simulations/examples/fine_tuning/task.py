"""A network whose body was trained on public images, and a head that clients train on theirs."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

from simulations.examples.pytorch.task import accuracy, digits, train_model

__all__ = ["accuracy", "load_data", "make_model", "train_model"]

# Of five images the first is for testing, the second is public, and the others are dealt to clients.
_SHARES = 5
_PUBLIC = 1
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
    images, labels = digits()
    own = (torch.arange(len(labels)) % _SHARES > _PUBLIC).nonzero()[partition::num_partitions, 0]
    return images[own], labels[own]


@lru_cache(maxsize=1)
def _public_body() -> dict[str, torch.Tensor]:
    """The body after training on public images; in practice a file that somebody published."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Network()
    images, labels = digits()
    own = slice(_PUBLIC, None, _SHARES)
    train_model(model, images[own], labels[own], _PUBLIC_STEPS, 0.5)
    return model.body.state_dict()
