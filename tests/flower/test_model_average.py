"""The exponential average of models: its values, its evaluation, and its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord

from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import CheckpointStrategy, ModelAverageStrategy
from tests.flower.apps import client_app, fedavg, simulate


def step(arrays: Any, partition: int, server_round: int) -> Any:
    """A model that is 1, 4, 9, ... in rounds 1, 2, 3, ... of all clients."""
    return {"x": np.full(3, server_round**2, np.float32)}


def run(strategy: Any, rounds: int = 4, averaging: Any = None) -> Any:
    seen: list[dict[str, Any]] = []

    def measure(number: int, arrays: Any) -> MetricRecord:
        return MetricRecord({"first": float(arrays["x"].numpy()[0])})

    def note(number: int, arrays: Any) -> MetricRecord | None:
        metrics = (averaging or strategy).evaluate_both(measure)(number, arrays)
        seen.append(dict(metrics or {}))
        return metrics

    initial = {"x": np.zeros(3, np.float32)}
    done = simulate(strategy, client_app([], train_with=step), 2, rounds, initial, evaluate_fn=note)
    return done.result, seen


def test_the_average_weighs_models_by_age_and_is_evaluated_beside_the_last_one() -> None:
    strategy = ModelAverageStrategy(fedavg(), decay=0.5)
    result, seen = run(strategy)
    weights = np.array([1.0, 2.0, 4.0, 8.0])
    expected = weights @ [1.0, 4.0, 9.0, 16.0] / weights.sum()
    assert strategy.average is not None
    np.testing.assert_allclose(strategy.average["x"].numpy(), expected, rtol=1e-6)
    assert strategy.average["x"].numpy().dtype == np.float32
    # Training goes on from the last model.
    assert result.arrays["x"].numpy()[0] == 16.0
    assert seen[0] == {"first": 0.0}
    assert seen[-1]["first"] == 16.0
    assert seen[-1]["average-first"] == pytest.approx(expected)


def test_the_average_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    whole = ModelAverageStrategy(fedavg(), decay=0.8)
    run(whole)
    for rounds in (2, 4):
        resumed = ModelAverageStrategy(fedavg(), decay=0.8)
        run(CheckpointStrategy(resumed, tmp_path / "run"), rounds, averaging=resumed)
    assert whole.average is not None
    assert resumed.average is not None
    np.testing.assert_array_equal(resumed.average["x"].numpy(), whole.average["x"].numpy())


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(InvalidSpecError, match="decay"):
        ModelAverageStrategy(fedavg(), decay=decay)
