"""Local training by hand is what torch does."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fl_privquant.errors import InvalidSpecError
from simulations.runner.config import FederationConfig
from simulations.tasks import models
from simulations.tasks.data import Examples, digits
from simulations.tasks.learning import LocalTraining, build_model, model_arrays, select_device


@pytest.mark.parametrize("model", ["softmax", "mlp", "cnn"])
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
    LocalTraining(ours, config).run(x, y, seed=7)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.3, momentum=momentum)
    start = [each.detach().clone() for each in theirs.parameters()]
    generator = torch.Generator().manual_seed(7)
    for _ in range(2):
        for batch in torch.randperm(50, generator=generator).split(16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(theirs(torch.from_numpy(x)[batch]), torch.from_numpy(y)[batch])
            for parameter, first in zip(theirs.parameters(), start, strict=True):
                loss = loss + 0.5 * proximal * (parameter - first).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach(), other.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("proximal", [0.0, 0.3])
def test_sgd_of_torch_takes_the_steps_of_our_own(proximal: float) -> None:
    examples = digits()
    trained = []
    for optimizer in ({}, {"_target_": "torch.optim.SGD"}):
        model = build_model(models.mlp, examples, seed=1, options={"layers": 2})
        config = FederationConfig(momentum=0.9, learning_rate=0.1, proximal=proximal, optimizer=optimizer)
        LocalTraining(model, config).run(examples.train_x[:70], examples.train_y[:70], seed=7)
        trained.append(model_arrays(model))
    for name, value in trained[0].items():
        np.testing.assert_allclose(value, trained[1][name], rtol=1e-4, atol=1e-6)


def test_adam_is_torchs_own_and_takes_its_options() -> None:
    examples = digits()
    model = build_model(models.softmax, examples, seed=1)
    theirs = copy.deepcopy(model)
    optimizer = {"_target_": "torch.optim.Adam", "betas": [0.5, 0.9]}
    config = FederationConfig(learning_rate=0.1, batch_size=50, optimizer=optimizer)
    x, y = examples.train_x[:50], examples.train_y[:50]
    LocalTraining(model, config).run(x, y, seed=7)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.1, betas=(0.5, 0.9))
    # Adam divides by gradients that are nearly zero: the order of a sum matters.
    order = torch.randperm(50, generator=torch.Generator().manual_seed(7))
    scores = theirs(torch.from_numpy(x)[order])
    nn.functional.cross_entropy(scores, torch.from_numpy(y)[order]).backward()  # type: ignore[no-untyped-call]
    adam.step()
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach(), other.detach())


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ({"_target_": "torch.optim.Adm"}, "did you mean 'Adam'"),
        ({"_target_": "torch.optim.Adam", "beta": 1}, "federation.optimizer.beta: unknown key"),
        ({"weight_decay": 0.1}, "federation.optimizer._target_: missing"),
    ],
)
def test_optimizers_that_are_not_there_are_refused(optimizer: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidSpecError, match=said):
        FederationConfig(optimizer=optimizer)
    with pytest.raises(InvalidSpecError, match="has no momentum"):
        FederationConfig(optimizer={"_target_": "torch.optim.Adam"}, momentum=0.9)


def test_devices_are_there_or_refused() -> None:
    assert select_device("cpu").type == "cpu"
    assert select_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(InvalidSpecError, match="did you mean 'cuda'"):
        select_device("cudaa")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidSpecError, match="finds no cuda device here"):
            select_device("cuda")


def test_a_device_is_where_the_model_and_its_batches_are() -> None:
    """The device ``meta`` is on every machine, and refuses whatever is not moved to it."""
    examples = digits()
    model = build_model(models.mlp, examples, seed=1).to("meta")
    seen = []
    model.register_forward_hook(lambda _, given, __: seen.append(given[0].device.type))
    LocalTraining(model, FederationConfig()).run(examples.train_x[:8], examples.train_y[:8], seed=1)
    assert seen == ["meta"]


@pytest.mark.parametrize(
    ("model", "options", "count"),
    [
        ("deep_cnn", {}, 206_922),
        ("deep_cnn", {"filters": 32, "hidden": 256}, 824_458),
        ("mlp", {"hidden": 256, "layers": 2}, 269_322),
        ("gru", {"hidden": 256}, 206_938),
    ],
)
def test_larger_models_have_the_size_that_is_said_of_them(
    model: str, options: dict[str, int], count: int
) -> None:
    x, y = np.zeros((10, 1, 28, 28)), np.arange(10)
    examples = Examples(x, y, x, y)
    built = build_model(getattr(models, model), examples, seed=0, options=options)
    assert sum(parameter.numel() for parameter in built.parameters()) == count
    if model != "gru":
        assert built(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_a_deep_cnn_takes_images() -> None:
    with pytest.raises(InvalidSpecError, match=r"at least 4 x 4, but inputs have shape \(30,\); use mlp"):
        models.deep_cnn((30,), 2)
