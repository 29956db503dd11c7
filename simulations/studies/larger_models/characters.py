"""Characters that come next, at every place of a text: data and model of the study's recurrent network.

Those of :mod:`simulations.tasks.data` and :mod:`simulations.tasks.models` learn what comes after the last
character of a
text. Here clients learn it after each character, which takes the same time and gives as many labels as there
are characters. Tests are the same: the character after the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fl_privquant import _validation
from simulations.tasks import data
from simulations.tasks.recurrent import NextCharacter

__all__ = ["gru", "shakespeare"]


@dataclass(frozen=True)
class _EveryPlace(data.Examples):
    """Texts with a label for each of their places in training, and one label in tests."""

    @property
    def labeled(self) -> bool:
        """Whether there is an accuracy: tests have one label each."""
        return True

    def first(self, count: int | None, num_tests: int | None = None) -> _EveryPlace:
        """The same with at most so many training and test texts."""
        return _EveryPlace(**vars(super().first(count, num_tests)))


def shakespeare(data_root: str | None = None, length: int = 40, stride: int = 10) -> data.Examples:
    """What :func:`simulations.tasks.data.shakespeare` gives, with the next character at every place."""
    texts = data.shakespeare(data_root, length, stride)
    following = np.concatenate([texts.train_x[:, 1:], texts.train_y[:, None]], axis=1)
    return _EveryPlace(texts.train_x, following, texts.test_x, texts.test_y, texts.users)


class _EveryScore(NextCharacter):
    """Gives scores after every character in training, and after the last one in tests."""

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        """The scores, with places last, as torch's cross-entropy takes them."""
        if not self.training:
            return super().forward(texts)
        states, _ = self.states(self.embedding(texts))
        scores: torch.Tensor = self.scores(states)
        return scores.transpose(1, 2)


def gru(classes: int, hidden: int = 128, embedding: int = 8) -> _EveryScore:
    """The network of :func:`simulations.tasks.models.gru`, trained at every place of its texts."""
    return _EveryScore(
        classes,
        _validation.check_integer("task.hidden", hidden, 1),
        _validation.check_integer("task.embedding", embedding, 1),
    )
