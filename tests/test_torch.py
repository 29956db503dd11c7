"""Updates of PyTorch models from single records: the sum of clipped gradients, one by one or together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import nn

from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.protocol import Request
from fl_privquant.flower.client.record_update import UnfitForRecordsError
from fl_privquant.planning import Target
from fl_privquant.sampling.stream import RandomStream
from fl_privquant.torch import record_update

RATE, RECORDS, SILOS, CLIP = 0.5, 120, 3, 0.2
LOSS = nn.functional.cross_entropy


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 36, 5)
    )


def make_message(model: nn.Module, clip: float = CLIP, rate: float = RATE) -> Message:
    """A train message of a run that protects records, with the model's arrays."""
    dimension = sum(each.numel() for each in model.parameters())
    target = Target(8.0, rounds=2, num_clients=SILOS, unit="record", records=RECORDS, sampling_rate=rate)
    config = ConfigRecord({"server-round": 1})
    Request(1, target.plan(dimension, clip).encoding).write(config)
    arrays = {name: Array(each.numpy()) for name, each in model.state_dict().items()}
    with use_server_identity(1):
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "config": config}), 1, "train")


def data(number: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    images = torch.randn(number, 1, 8, 8, generator=generator)
    return images, torch.arange(number) % 5


def stream() -> RandomStream:
    return RandomStream.seeded(7)


def sums_of(message: Message, model: nn.Module, images: Any, labels: Any, **settings: Any) -> dict[str, Any]:
    """The sums of clipped gradients in the update that the helper makes."""
    made = record_update(message, model, LOSS, images, labels, rng=stream(), **settings)
    divisor = RATE * RECORDS / SILOS
    return {name: -divisor * array for name, array in made.record_sum.arrays.items()}


def gradients_of_drawn(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[Any]:
    """The gradient of each drawn record by itself, as PyTorch's ordinary backward pass gives it."""
    drawn = np.flatnonzero((stream().words(len(labels)) >> np.uint64(11)) < int(RATE * 2**53))
    found = []
    for index in drawn:
        model.zero_grad()
        LOSS(model(images[index : index + 1]), labels[index : index + 1]).backward()
        found.append({name: each.grad.double().numpy().copy() for name, each in model.named_parameters()})
    return found


def norm(gradient: dict[str, Any]) -> float:
    return math.sqrt(sum(float((part**2).sum()) for part in gradient.values()))


@pytest.mark.parametrize("microbatch", [None, 1, 7])
def test_the_update_is_the_sum_of_clipped_gradients_of_the_drawn_records(microbatch: int | None) -> None:
    model = make_model()
    sums = sums_of(make_message(model), model, *data(), microbatch=microbatch)
    found = gradients_of_drawn(model, *data())
    assert 5 < len(found) < 35
    assert max(map(norm, found)) > 2.0 * CLIP  # so that clipping matters
    for name, total in sums.items():
        expected = sum(each[name] * min(1.0, CLIP / norm(each)) for each in found)
        np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-6)


def test_no_record_moves_the_update_by_more_than_the_clip() -> None:
    model = make_model()
    images, labels = data()
    message = make_message(model)
    everything = sums_of(message, model, images, labels)
    for index in range(3):
        changed = images.clone()
        changed[index] *= 1e6
        other = sums_of(message, model, changed, labels)
        moved = norm({name: everything[name] - other[name] for name in other})
        assert moved <= 2.0 * CLIP
    # The last record comes last in the draw, so that leaving it out changes no other.
    shorter = sums_of(message, model, images[:-1], labels[:-1])
    moved = norm({name: everything[name] - shorter[name] for name in shorter})
    assert moved <= CLIP * (1.0 + 1e-6)


def test_layers_can_be_clipped_by_themselves() -> None:
    model = make_model()
    message = make_message(model)
    sums = sums_of(message, model, *data(), per_layer=True)
    found = gradients_of_drawn(model, *data())
    layers = {"0": ("0.weight", "0.bias"), "1": ("1.weight", "1.bias"), "4": ("4.weight", "4.bias")}
    for names in layers.values():
        share = CLIP / math.sqrt(len(layers))
        for name in names:
            norms = [norm({other: each[other] for other in names}) for each in found]
            factors = [min(1.0, share / length) for length in norms]
            expected = sum(each[name] * factor for each, factor in zip(found, factors, strict=True))
            np.testing.assert_allclose(sums[name], expected, rtol=1e-4, atol=1e-6)


def test_frozen_parameters_buffers_and_empty_silos_have_no_step() -> None:
    model = make_model()
    model[0].weight.requires_grad_(False)
    message = make_message(model)
    sums = sums_of(message, model, *data())
    assert not sums["0.weight"].any()
    assert sums["0.bias"].any()
    images, labels = data()
    assert not any(each.any() for each in sums_of(message, model, images[:0], labels[:0]).values())


def test_a_record_that_is_not_finite_counts_as_nothing() -> None:
    model = make_model()
    message = make_message(model)
    images, labels = data()
    without = sums_of(message, model, images, labels)
    spoiled = torch.cat([images, torch.full((3, 1, 8, 8), math.nan)])
    sums = sums_of(message, model, spoiled, torch.cat([labels, labels[:3]]))
    for name, total in sums.items():
        np.testing.assert_allclose(total, without[name], rtol=1e-4, atol=1e-6)


def test_an_enormous_gradient_counts_as_the_clip() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    message = make_message(model, clip=1e-3)
    images, labels = data()
    without = sums_of(message, model, images[:-1], labels[:-1])
    for size in (1e20, 1e36):
        spoiled = torch.cat([images[:-1], torch.full((1, 1, 8, 8), size)])
        sums = sums_of(message, model, spoiled, labels)
        moved = norm({name: sums[name] - without[name] for name in sums})
        assert moved == pytest.approx(1e-3, rel=1e-4)


def test_memory_is_bounded_whatever_the_batch() -> None:
    """Gradients are computed in microbatches, so that a large batch takes more time and no more memory."""
    model = make_model()
    sizes: list[int] = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return LOSS(outputs, targets)

    model[0].register_forward_hook(lambda layer, inputs, outputs: sizes.append(1))
    record_update(make_message(model), model, loss, *data(1000), microbatch=50, rng=stream())
    # A microbatch is one call: about half of 1000 records are drawn.
    assert len(sizes) >= 9


def test_memory_is_bounded_where_layers_give_more_than_the_model_has() -> None:
    """Few parameters, and large images: 96 MB hold the gradients of thousands of records."""
    model = nn.Sequential(nn.Conv2d(1, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5))
    message = make_message(model)
    sizes: list[int] = []
    model[0].register_forward_hook(lambda layer, inputs, outputs: sizes.append(1))
    record_update(message, model, LOSS, torch.zeros(80, 1, 64, 64), torch.arange(80) % 5, rng=stream())
    # Two trials with one record, and about 40 that are drawn, of a megabyte and its copies each.
    assert len(sizes) >= 2 + 2


def test_a_layer_that_mixes_records_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 5))
    with pytest.raises(InvalidSpecError, match=r"layer '1' \(BatchNorm2d\) mixes the records"):
        record_update(make_message(model), model, LOSS, *data())


class Branch(nn.Module):
    """A layer for which torch has no gradients of single records: it asks for the sign of a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores = self.layer(images.flatten(1))
        return scores if scores.sum().item() > 0.0 else -scores


@pytest.mark.parametrize("rate", [RATE, 1e-12])
def test_a_layer_without_gradients_of_single_records_is_named_whatever_is_drawn(rate: float) -> None:
    """If silos that drew no record replied all the same, the server would know them."""
    model = nn.Sequential(nn.Identity(), Branch())
    message = make_message(model, rate=rate)
    with pytest.raises(UnfitForRecordsError, match=r"no gradients of single records for layer '1' .Branch."):
        record_update(message, model, LOSS, *data())


def test_another_model_than_was_received_is_refused() -> None:
    wider = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
    message = make_message(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)))
    with pytest.raises(
        InvalidSpecError, match=r"(?s)not the one that was received.*size mismatch.*same model"
    ):
        record_update(message, wider, LOSS, *data())


def test_inputs_and_targets_that_do_not_belong_together_are_refused() -> None:
    model = make_model()
    images, labels = data()
    with pytest.raises(InvalidSpecError, match="inputs, targets: are 40 and 39 rows"):
        record_update(make_message(model), model, LOSS, images, labels[:-1])
