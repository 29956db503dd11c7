"""Clipped gradients of single records: ours against Opacus, the same convolutional network and batch."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fl_privquant import torch as of_records
from fl_privquant.codec.record_sampling import RecordSampling
from simulations.benchmarks.harness import Ratio, median_seconds
from simulations.tasks.models import tanh_cnn


def record_gradients(batch: int = 256, turns: int = 7) -> list[Ratio]:
    """The sum of clipped gradients of a batch; Opacus (``pip install "fl-privquant[opacus]"``) is 1."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.manual_seed(0)
    images, labels = torch.randn(batch, 1, 28, 28), torch.arange(batch) % 10
    loss, model = nn.functional.cross_entropy, tanh_cnn(10)
    sampling = RecordSampling(clip=1.0, rate=1.0, divisor=1.0)

    def ours() -> dict[str, Tensor]:
        return of_records.sum_clipped_gradients(model, loss, images, labels, sampling.clip_factors)

    sampled = GradSampleModule(copy.deepcopy(model))
    optimizer = DPOptimizer(
        torch.optim.SGD(sampled.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=sampling.clip,
        expected_batch_size=batch,
    )

    def opacus() -> None:
        optimizer.zero_grad()
        loss(sampled(images), labels).backward()
        optimizer.clip_and_accumulate()

    of_ours, of_opacus = median_seconds([ours, opacus], turns)
    what = f"clipped gradients of {batch} records, convolutional network"
    return [Ratio(what, "Opacus", of_ours / of_opacus)]
