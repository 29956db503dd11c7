"""Models that tasks have by name: functions that make a torch module.

A function is called with those of the following that it has a parameter for: the ``shape`` of one input, the
number of ``classes`` that labels have, and the options of the task, such as ``task.hidden=128``. Weights are
drawn from torch's global generator, which is seeded before.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

from fl_privquant import _validation
from fl_privquant.errors import MISSING, InvalidSpecError

__all__ = ["cnn", "deep_cnn", "gru", "mlp", "softmax", "tanh_cnn"]


def softmax(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression, which starts at zero."""
    layer = nn.Linear(math.prod(shape), classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(shape: tuple[int, ...], classes: int, hidden: int = 64, layers: int = 1) -> nn.Module:
    """Hidden layers of one width; 269 322 parameters for images of 28 x 28 with two layers of 256.

    Parameters
    ----------
    shape, classes
        Shape of an input, and number of labels.
    hidden
        Width of a hidden layer.
    layers
        Number of hidden layers.
    """
    _validation.check_integer("task.hidden", hidden, 1)
    widths = [math.prod(shape), *[hidden] * _validation.check_integer("task.layers", layers, 1)]
    steps: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        steps += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*steps, nn.Linear(hidden, classes))


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One layer of 8 filters of 3 x 3, and a linear one."""
    images = shape if len(shape) == 3 else (1, 1, math.prod(shape))
    pooled = min(images[1:]) > 1
    reduced = (images[1] // 2) * (images[2] // 2) if pooled else images[1] * images[2]
    return nn.Sequential(
        nn.Unflatten(1, images) if len(shape) != 3 else nn.Identity(),
        nn.Conv2d(images[0], 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=False) if pooled else nn.Identity(),
        nn.Flatten(),
        nn.Linear(8 * reduced, classes),
    )


def tanh_cnn(classes: int) -> nn.Module:
    """The network in which DP-SGD is usually tried on MNIST; 26 010 parameters for ten labels.

    It takes images of 28 x 28 with one channel, and has tanh for rectifiers, which keep gradients short
    (Papernot, Thakurta, Song, Chien, Erlingsson, "Tempered Sigmoid Activations for Deep Learning with
    Differential Privacy", 2021).
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )


def deep_cnn(shape: tuple[int, ...], classes: int, filters: int = 16, hidden: int = 128) -> nn.Module:
    """Two layers of filters of 3 x 3, each pooled, and a hidden layer.

    It has 206 922 parameters for images of 28 x 28 and ten labels; 824 458 with twice the filters and width.

    Parameters
    ----------
    shape, classes
        Shape of an input, an image (channels, height, width) of at least 4 x 4, and number of labels.
    filters
        Filters of the first layer; the second has twice as many.
    hidden
        Width of the hidden layer.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InvalidSpecError(
            "task.model",
            MISSING,
            f"deep_cnn takes images of at least 4 x 4, but inputs have shape {shape}",
            "use mlp",
        )
    _validation.check_integer("task.filters", filters, 1)
    _validation.check_integer("task.hidden", hidden, 1)
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, filters, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(filters, 2 * filters, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * filters * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def gru(classes: int, hidden: int = 128, embedding: int = 8) -> nn.Module:
    """A gated recurrent network that reads whole numbers below ``classes``, and predicts the next one.

    Parameters
    ----------
    classes
        The number of different characters.
    hidden
        Width of its state.
    embedding
        Number of coordinates that represent a character.
    """
    return NextCharacter(
        classes,
        _validation.check_integer("task.hidden", hidden, 1),
        _validation.check_integer("task.embedding", embedding, 1),
    )


class NextCharacter(nn.Module):
    """Reads a text, character by character, and gives a score to each character that may come next.

    Parameters
    ----------
    classes
        The number of different characters.
    hidden
        Width of its state.
    embedding
        Number of coordinates that represent a character.
    """

    def __init__(self, classes: int, hidden: int, embedding: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.states = nn.GRU(embedding, hidden, batch_first=True)
        self.scores = nn.Linear(hidden, classes)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        """The scores after the last character of each text."""
        letters = self.embedding(texts)
        # A first state that is made from the input lets torch.func take gradients of single records.
        states, _ = self.states(letters, letters.new_zeros(1, len(letters), self.states.hidden_size))
        scores: torch.Tensor = self.scores(states[:, -1])
        return scores
