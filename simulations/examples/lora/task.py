"""A small transformer that was trained on public images, and LoRA matrices that clients train on theirs.

The public images are upright digits. Those of the clients are upside down, so that the public model fails on
them at first. Nothing is downloaded: the public model is trained here, in a few seconds.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

from simulations.examples.pytorch.task import digits, train_model

__all__ = ["accuracy", "load_data", "make_model", "train_model"]

# Of five images the first is for testing, the second is public, and the others are dealt to clients.
_NUM_SPLITS = 5
_PUBLIC = 1
_PUBLIC_STEPS = 300
_SIDE, _WIDTH, _RANK = 8, 32, 4


class LoraLinear(nn.Module):
    """A linear layer that is frozen, plus a product of two small matrices that is trained.

    The second matrix is zero at first, so that the layer begins as the frozen one.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs)
        self.lora_in = nn.Parameter(torch.randn(_RANK, inputs) / inputs**0.5)
        self.lora_out = nn.Parameter(torch.zeros(outputs, _RANK))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The frozen layer's output, plus that of the small matrices."""
        output: torch.Tensor = self.frozen(values) + values @ self.lora_in.T @ self.lora_out.T
        return output


class Transformer(nn.Module):
    """One block of attention over the rows of an image, and a linear layer that names the digit."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = LoraLinear(_SIDE, _WIDTH)
        self.position = nn.Parameter(torch.randn(_SIDE, _WIDTH) / _WIDTH**0.5)
        self.query_key_value = LoraLinear(_WIDTH, 3 * _WIDTH)
        self.mix = nn.Sequential(LoraLinear(_WIDTH, 2 * _WIDTH), nn.GELU(), LoraLinear(2 * _WIDTH, _WIDTH))
        self.name_digit = LoraLinear(_SIDE * _WIDTH, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A score for each digit."""
        rows = self.embed(images.view(-1, _SIDE, _SIDE)) + self.position
        query, key, value = self.query_key_value(rows).chunk(3, dim=-1)
        rows = rows + nn.functional.scaled_dot_product_attention(query, key, value)
        rows = rows + self.mix(rows)
        scores: torch.Tensor = self.name_digit(rows.flatten(1))
        return scores


def make_model() -> Transformer:
    """The public transformer, of which only the LoRA matrices can be trained."""
    model = Transformer()
    model.load_state_dict(_train_public_model())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora" in name)
    return model


def load_data(partition: int, num_partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of one client, which are upside down, and their labels."""
    images, labels = digits()
    own = (torch.arange(len(labels)) % _NUM_SPLITS > _PUBLIC).nonzero()[partition::num_partitions, 0]
    return images[own].flip(1), labels[own]


def accuracy(model: nn.Module) -> float:
    """Share of the test images, upside down, that the model names correctly."""
    images, labels = digits()
    with torch.no_grad():
        right = model(images[::_NUM_SPLITS].flip(1)).argmax(dim=1) == labels[::_NUM_SPLITS]
    return float(right.float().mean())


@lru_cache(maxsize=1)
def _train_public_model() -> dict[str, torch.Tensor]:
    """The model after training on public images; in practice a file that somebody published."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora" not in name)
    images, labels = digits()
    public = slice(_PUBLIC, None, _NUM_SPLITS)
    train_model(model, images[public], labels[public], _PUBLIC_STEPS, 0.3)
    return model.state_dict()
