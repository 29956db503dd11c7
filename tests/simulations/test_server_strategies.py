"""The server's strategies: those that have a name, and any other of Flower's by its import path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_privquant.errors import InvalidSpecError
from simulations.run import execute
from tests.simulations.test_run import config_of, model_of, rows_of


@pytest.mark.parametrize("strategy", ["fedavgm", "fedadam", "fedprox", "fedmedian"])
def test_server_strategies(strategy: str, tmp_path: Path) -> None:
    federation = {
        "num_clients": 4,
        "rounds": 2,
        "strategy": strategy,
        "server_learning_rate": 0.1,
        "proximal": 0.01,
    }
    config = config_of(tmp_path, federation=federation)
    execute(config)
    plain = config_of(tmp_path, federation={**federation, "strategy": "fedavg"})
    execute(plain)
    assert rows_of(config)["round"].tolist() == [0, 1, 2]
    assert np.isfinite(rows_of(config)["loss"]).all()
    # Each aggregates, or has clients train, in its own way.
    assert model_of(config) != model_of(plain)


@pytest.mark.parametrize(
    "options",
    [
        {"_target_": "flwr.serverapp.strategy.FedYogi", "eta": 0.1},
        {"_target_": "flwr.serverapp.strategy.FedTrimmedAvg", "beta": 0.3},
        {"_target_": "flwr.serverapp.strategy.FedAdam", "eta": 0.1, "beta_1": 0.5, "beta_2": 0.9},
    ],
    ids=lambda options: options["_target_"].rpartition(".")[2],
)
def test_any_strategy_of_flower_by_its_import_path(options: dict[str, object], tmp_path: Path) -> None:
    small = {"num_clients": 4, "rounds": 2}
    named = {"strategy": "fedadam", "server_learning_rate": 0.1}
    configs = [
        config_of(tmp_path, federation=small | federation)
        for federation in ({"server_strategy": options}, {}, named)
    ]
    for config in configs:
        execute(config)
    assert rows_of(configs[0])["round"].tolist() == [0, 1, 2]
    assert len({model_of(config) for config in configs}) == 3


def test_the_momentum_of_the_server_is_the_first_beta_of_fedadam(tmp_path: Path) -> None:
    small = {"num_clients": 4, "rounds": 2}
    adam = {"_target_": "flwr.serverapp.strategy.FedAdam", "eta": 0.1, "beta_1": 0.5}
    named = {"strategy": "fedadam", "server_learning_rate": 0.1, "server_momentum": 0.5}
    both = ({"server_strategy": adam}, named)
    configs = [config_of(tmp_path, federation=small | federation) for federation in both]
    for config in configs:
        execute(config)
    assert model_of(configs[0]) == model_of(configs[1])


@pytest.mark.parametrize(
    ("federation", "said"),
    [
        ({"server_strategy": {"_target_": "flwr.serverapp.strategy.FedNone"}}, "has no attribute 'FedNone'"),
        (
            {"server_strategy": {"_target_": "flwr.serverapp.strategy.FedAdam", "beta": 0.5}},
            "federation.server_strategy.beta: unknown key; parameters of FedAdam: .*beta_1",
        ),
        (
            {"server_strategy": {"_target_": "flwr.serverapp.strategy.FedAdam", "fraction_train": 0.5}},
            "federation.server_strategy.fraction_train: unknown key",
        ),
        (
            {"server_strategy": {"_target_": "flwr.serverapp.strategy.FedAdam"}, "server_momentum": 0.5},
            "federation.server_momentum: 0.5, but FedAdam takes its options",
        ),
    ],
)
def test_strategies_that_are_not_there_are_refused(
    federation: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSpecError, match=said):
        config_of(tmp_path, federation=federation)
