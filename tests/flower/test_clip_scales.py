"""Clips of groups of arrays: one update, certified as one, each array on its own scale."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fl_privquant as pq
from fl_privquant.accounting import Aggregation
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.array_selection import ArrayChoice
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import CheckpointStrategy, PrivQuantStrategy
from tests.flower.apps import Simulated, client_app, mod_for, simulate, strategy_for

MODEL = {
    "head.weight": np.zeros((3, 4), np.float32),
    "body.weight": np.zeros((20, 10), np.float32),
    "steps": np.array(3),
    "body.bias": np.zeros(7, np.float64),
}
SCALES = {"head.*": 1.0, "*": 2.0**-5}
CHOICE = ArrayChoice(clip_scales=tuple(SCALES.items()))
MECHANISM = pq.design("optm", epsilon=2.0, bits=3)
CLIENTS = 7


def layout(scales: dict[str, float] = SCALES, **choice: Any) -> Layout:
    return ArrayChoice(**choice, clip_scales=tuple(scales.items())).layout(MODEL)


def update(size: float = 0.01) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    floats = {name: array for name, array in MODEL.items() if array.dtype.kind == "f"}
    return {name: rng.normal(0, size, array.shape).astype(array.dtype) for name, array in floats.items()}


def divided(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array / (1.0 if name.startswith("head") else 2.0**-5) for name, array in arrays.items()}


@pytest.mark.parametrize(
    "fields", [{}, {"l2_clip": 0.3}, {"l2_clip": 0.3, "rotate": True, "keep": 50}, {"rotate": True}]
)
def test_it_is_the_codec_of_the_update_over_its_scales(fields: dict[str, Any]) -> None:
    """Powers of two divide exactly: what leaves the client must be the very payload of the scaled update."""
    encoding = Encoding(MECHANISM, clip=0.1, **fields)
    scaled, plain = UpdateCodec(layout(), encoding, 5), UpdateCodec(Layout.of(MODEL), encoding, 5)
    payload = scaled.encode(update(), pq.RandomStream.seeded(1))
    assert payload == plain.encode(divided(update()), pq.RandomStream.seeded(1))
    assert (scaled.dimension, scaled.l2_bound) == (plain.dimension, plain.l2_bound)
    decoded, expected = scaled.decode(payload), plain.decode(payload)
    for name, array in divided(decoded).items():
        np.testing.assert_array_equal(array, expected[name])
    # Decoded on demand, and summed, as well.
    old = {name: array + 1 for name, array in MODEL.items()}
    on_demand = scaled.apply_on_demand(payload, old)
    for name, array in scaled.apply(payload, old).items():
        np.testing.assert_array_equal(on_demand[name](), array)
    total = scaled.codes(payload)
    for name, array in scaled.decode_sum(total, 1).items():
        np.testing.assert_allclose(array, decoded[name], rtol=1e-5)


def test_each_group_is_clipped_at_its_own_clip_and_errs_on_its_own_scale() -> None:
    fine = UpdateCodec(layout(), Encoding(pq.design("none", fixed_point_bits=20), clip=0.1))
    large = {name: array * 1000 for name, array in update().items()}
    decoded = fine.decode(fine.encode(large))
    assert np.abs(decoded["head.weight"]).max() == pytest.approx(0.1, rel=1e-4)
    assert np.abs(decoded["body.weight"]).max() == pytest.approx(0.1 / 32, rel=1e-4)
    codec = UpdateCodec(layout(), Encoding(MECHANISM, clip=0.1))
    zeros = {name: np.zeros_like(array) for name, array in update().items()}
    noise = codec.decode(codec.encode(zeros, pq.RandomStream.seeded(2)))
    spread = {name: float(np.std(array)) for name, array in noise.items()}
    assert spread["head.weight"] / spread["body.weight"] == pytest.approx(32, rel=0.5)


def test_the_norm_that_is_accounted_for_holds_whatever_the_scales() -> None:
    """The L2 clip bounds the vector that is encoded: the root of the sum of squared ratios."""
    encoding = Encoding(pq.design("none"), clip=1.0, l2_clip=0.5, rotate=True)
    for scales in (SCALES, {"head.*": 1e-3, "body.*": 50.0}):
        codec = UpdateCodec(layout(scales), encoding, 3)
        for size in (1e-6, 1.0, 1e4):
            sent = codec.wire.estimate(codec.encode(update(size)))
            assert np.linalg.norm(sent) <= 0.5 * (1 + 1e-5)


def run(
    aggregation: Aggregation, path: Path | None = None, rounds: int = 2, arrays: ArrayChoice = CHOICE
) -> Simulated:
    private = strategy_for(MECHANISM, clip=0.2, arrays=arrays, aggregation=aggregation, rotation_seed=1)
    strategy = private if path is None else CheckpointStrategy(private, path)
    return simulate(strategy, client_app([mod_for(aggregation)]), CLIENTS, rounds, MODEL)


def test_rounds_one_by_one_summed_masked_and_resumed(tmp_path: Path) -> None:
    open_run = run(pq.PerClient())
    single = open_run.model
    summed, masked = (run(each).model for each in (pq.SumOfCodes(), pq.SecureSum()))
    for name in MODEL:
        np.testing.assert_array_equal(summed[name], masked[name])
        np.testing.assert_allclose(single[name], summed[name], atol=1e-6)
    # Clients move every coordinate by about 0.05: far more than the body's clip allows.
    assert np.abs(masked["body.weight"]).max() < np.abs(masked["head.weight"]).max() / 8
    np.testing.assert_array_equal(masked["steps"], MODEL["steps"])
    run(pq.SumOfCodes(), tmp_path / "run.checkpoint", rounds=1)
    resumed = run(pq.SumOfCodes(), tmp_path / "run.checkpoint").model
    for name in MODEL:
        np.testing.assert_array_equal(resumed[name], summed[name])
    # The cost of the update is that of one on one scale.
    unscaled = run(pq.PerClient(), arrays=ArrayChoice())
    assert open_run.ledger.statement(1e-5).epsilon == unscaled.ledger.statement(1e-5).epsilon


def test_the_summary_has_the_scales(caplog: pytest.LogCaptureFixture) -> None:
    strategy = PrivQuantStrategy(FedAvg(), pq.Encoding(MECHANISM, clip=0.1), arrays=CHOICE)
    with caplog.at_level(logging.INFO, "flwr"):
        strategy.summary()
    assert "head.*: times 1; *: times 0.03125" in caplog.text


@pytest.mark.parametrize(
    ("scales", "choice", "reason"),
    [
        ({"head.*": 1.0}, {}, "clip_scales: 'body.weight' matches none of ['head.*']; add a pattern for it"),
        ({"*": 1.0, "head.*": 0.5}, {}, "clip_scales: 'head.*' is the first match of no array that is sent"),
        ({"tail": 1.0, "*": 0.5}, {}, "clip_scales: 'tail' is the first match of no array that is sent"),
        ({"steps": 1.0, "*": 0.5}, {}, "'steps' is the first match of no array that is sent"),
        ({"head.*": 1.0, "*": 0.5}, {"include": ["body.*"]}, "'head.*' is the first match of no array"),
    ],
)
def test_every_array_has_a_group_and_every_group_an_array(
    scales: dict[str, float], choice: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        layout(scales, **choice)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("scales", "reason"),
    [
        ([("*", -1.0)], "clip_scales '*': -1.0 is not a finite number above 0"),
        ([("", 1.0)], "clip_scales: '' is not a text"),
        ([("*", 1.0), ("*", 2.0)], "clip_scales: a pattern is given twice"),
        ([3], "clip_scales: [3], expected pairs of a pattern and a factor"),
        ({"head.*": 1.0}, "clip_scales: {'head.*': 1.0}, expected pairs of a pattern and a factor"),
        (3, "clip_scales: 3, expected Sequence"),
    ],
)
def test_odd_scales_are_refused(scales: Any, reason: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        ArrayChoice(clip_scales=scales)
    assert reason in str(refused.value)


def test_buffers_of_batch_normalization() -> None:
    """Running means are floats and sent unless excluded; the counter is an integer and stays the server's."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    arrays = {name: Array(value.detach().numpy()) for name, value in model.state_dict().items()}
    record = ArrayRecord(arrays)
    read = {name: array.numpy() for name, array in record.items()}
    everything = ArrayChoice().layout(read)
    assert set(read) - set(everything.names) == {"1.num_batches_tracked"}
    assert {"1.running_mean", "1.running_var"} < set(everything.names)
    without = ArrayChoice(exclude=["*.running_*"]).layout(read)
    assert set(everything.names) - set(without.names) == {"1.running_mean", "1.running_var"}
    strategy = strategy_for(MECHANISM, clip=0.2, arrays=pq.ArrayChoice(exclude=["*.running_*"]))
    model = simulate(strategy, num_clients=3, initial=read).model
    for name, before in read.items():
        same = np.array_equal(model[name], before)
        assert same == ("running" in name or "num_batches" in name), name
