"""The model and the data: texts of one role each, from a folder that the run's configuration names."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from torch import nn

from simulations.runner.config import FederationConfig
from simulations.tasks import learning
from simulations.tasks.data import Examples, shakespeare
from simulations.tasks.models import gru

_LENGTH, _STRIDE, _HIDDEN = 20, 10, 32


@lru_cache(maxsize=1)
def _load_texts(folder: str) -> Examples:
    return shakespeare(folder, _LENGTH, _STRIDE)


def make_model(folder: str) -> nn.Module:
    """A GRU for the characters of these texts, with the same weights for everybody."""
    return learning.build_model(gru, _load_texts(folder), seed=0, options={"hidden": _HIDDEN})


def train_model(model: nn.Module, folder: str, client: int, server_round: int, rate: float) -> int:
    """Train in place on the texts of one role; how many there are."""
    texts = _load_texts(folder)
    assert texts.users is not None
    own = np.flatnonzero(texts.users == np.unique(texts.users)[client])
    config = FederationConfig(learning_rate=rate, batch_size=16)
    learning.train(model, texts.train_x[own], texts.train_y[own], config, seed=1000 * server_round + client)
    return len(own)


def accuracy(model: nn.Module, folder: str) -> float:
    """Share of the test texts whose next character the model guesses."""
    return learning.evaluate(model, _load_texts(folder))[0]
