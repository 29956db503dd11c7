"""Runs with correlated noise and an average of models, by their keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord, RecordDict

from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower.server.strategy_wrapper import make_mean_reply
from fl_privquant.privacy_loss.correlated_noise import LagNoise, RoundSchedule, error_ratio
from simulations.runner.central import CentralGaussianStrategy, calibrate_sum_noise
from simulations.runner.config import RunConfig
from simulations.runner.planned import plan_run
from tests.flower.apps import as_record, fedavg

KEYS = {
    "federation": {"num_clients": 40, "rounds": 8, "model_average": 0.9},
    "sampling": {"name": "cohorts", "rounds_apart": 4},
    "secagg": {"enabled": True, "masked": False, "corrupt_fraction": 0.0, "dropout_fraction": 0.0},
    "mechanism": {"name": "rounded_gaussian"},
}


def config(correlation: Any) -> RunConfig:
    return RunConfig.from_mapping({**KEYS, "privacy": {"epsilon": 8.0, "correlation": correlation}})


@pytest.mark.parametrize(("given", "expected"), [("auto", None), ("0.75", 0.75), (None, 0.0)])
def test_the_key_gives_the_plan_its_correlation(given: Any, expected: float | None) -> None:
    plan = plan_run(config(given), 500, 1.0)
    assert plan is not None
    assert plan.correlation == expected if expected is not None else plan.correlation > 0.3
    assert plan.target.rounds_apart == (1 if given is None else 4)


def test_a_key_that_is_no_correlation_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match=r"privacy\.correlation"):
        plan_run(config("best"), 500, 1.0)


def test_the_trusted_server_leaves_the_error_that_one_lag_has() -> None:
    """40,000 coordinates in 10 rounds: the mean has a standard error of some 0.6 %; 3 % are five of them."""
    schedule, noise = RoundSchedule(10, 5), LagNoise(0.75)
    cost = noise.participation_cost(schedule)
    scale, fresh = (calibrate_sum_noise(1.0, 2, 1.0, 1e-5, each) for each in (cost, 1.0))
    strategy = CentralGaussianStrategy(fedavg(), scale, 3, 10, correlation=0.75)
    model, squares = np.zeros(40_000), []
    for number in range(1, 11):
        noisy = noise_of_round(strategy, number, model.size)
        model = model + noisy
        squares.append(np.mean(model**2))
    assert np.mean(squares) / (fresh**2 * 5.5) == pytest.approx(error_ratio(schedule, noise), rel=0.03)


def noise_of_round(strategy: CentralGaussianStrategy, number: int, size: int) -> Any:
    """What the strategy makes of one update of zeros."""
    content = RecordDict(
        {"arrays": as_record({"x": np.zeros(size)}), "metrics": MetricRecord({"num-examples": 1})}
    )
    with use_server_identity(1):
        arrays, _ = strategy.aggregate_train(number, [make_mean_reply(number, content)])
    assert isinstance(arrays, ArrayRecord)
    return arrays["x"].numpy()
