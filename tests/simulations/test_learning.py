"""Local training by hand is what torch does."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from simulations import models
from simulations.config import FederationConfig
from simulations.data import digits
from simulations.learning import build_model, train


@pytest.mark.parametrize("model", ["softmax", "cnn"])
@pytest.mark.parametrize(("momentum", "proximal"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.3)])
def test_steps_are_those_of_torch(model: str, momentum: float, proximal: float) -> None:
    examples = digits()
    ours = build_model(getattr(models, model), examples, seed=1)
    with torch.no_grad():
        for each in ours.parameters():
            each += 0.1 * torch.randn(each.shape, generator=torch.Generator().manual_seed(3))
    theirs = copy.deepcopy(ours)
    config = FederationConfig(
        learning_rate=0.3, momentum=momentum, proximal=proximal, batch_size=16, local_epochs=2
    )
    x, y = examples.train_x[:50], examples.train_y[:50]
    train(ours, x, y, config, seed=7)
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.3, momentum=momentum)
    start = [each.detach().clone() for each in theirs.parameters()]
    generator = torch.Generator().manual_seed(7)
    for _ in range(2):
        for batch in torch.randperm(50, generator=generator).split(16):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(theirs(torch.from_numpy(x)[batch]), torch.from_numpy(y)[batch])
            for parameter, first in zip(theirs.parameters(), start, strict=True):
                loss = loss + 0.5 * proximal * (parameter - first).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach(), other.detach(), rtol=1e-4, atol=1e-5)
