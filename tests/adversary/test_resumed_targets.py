"""Planned runs that lose clients, are killed, and go on with another target or number of rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam

import fl_privquant as pq
from fl_privquant.accounting import PrivacyStatement, Unit, ViewKind
from fl_privquant.flower import (
    CheckpointStrategy,
    PrivQuantMod,
    PrivQuantStrategy,
    StoppedResult,
)
from tests.flower.apps import Killed, client_app, fedavg, simulate, trained

CLIENTS, DIMENSION, ROUNDS = 25, 60, 3
LOST = {2: 2, 3: 1}


def run(
    path: Path, epsilon: float, rounds: int, planned_rounds: int, killed_in: int = 0
) -> tuple[Any, PrivQuantStrategy]:
    """The result and the strategy of a run, from the checkpoint if there is one."""

    def train(arrays: dict[str, Any], partition: int, server_round: int) -> dict[str, Any]:
        # The server dies when it has the replies of some clients.
        if server_round == killed_in and partition > 9:
            raise Killed
        return trained(arrays, partition, server_round)

    plan = pq.Target(epsilon, rounds=planned_rounds, num_clients=CLIENTS).plan(DIMENSION)
    private = PrivQuantStrategy(fedavg(FedAdam), plan)
    mods = [PrivQuantMod(max_epsilon=float("inf"), max_delta=1e-3, secure_aggregation=True)]
    done = simulate(
        CheckpointStrategy(private, path),
        client_app(mods, train, lost_when=lambda partition, number: partition < LOST.get(number, 0)),
        CLIENTS,
        rounds,
        {"model": np.zeros(DIMENSION, np.float32)},
    )
    return done.result, private


def total(strategy: PrivQuantStrategy) -> PrivacyStatement:
    """What the last line of a run says: all rounds, through secure aggregation."""
    last = strategy.statements()[-1]
    assert last.unit == Unit.TOTAL
    assert last.view.kind is ViewKind.AGGREGATE
    assert str(last) in strategy.privacy_statement()
    return last


@pytest.mark.parametrize("killed_in", [1, 3])
def test_a_target_holds_however_a_run_was_killed_and_gone_on_with(killed_in: int, tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    with pytest.raises(Killed):
        run(path, 6.0, ROUNDS, ROUNDS, killed_in)
    # The killed round is asked for again, and counted again, so that one round is missing at the end.
    result, resumed = run(path, 6.0, ROUNDS, ROUNDS)
    assert isinstance(result, StoppedResult)
    assert "\n" not in result.reason
    assert result.reason.startswith("budget exhausted after 2 of 3 rounds: round 3")
    assert 0.0 < total(resumed).epsilon <= 6.0
    again, finished = run(path, 6.0, 2, ROUNDS)
    assert not isinstance(again, StoppedResult)
    assert total(finished) == total(resumed)
    # A larger target allows more rounds, and counts those of the smaller one.
    longer, larger = run(path, 12.0, 5, 6)
    assert not isinstance(longer, StoppedResult)
    assert total(resumed).epsilon < total(larger).epsilon <= 12.0
    # A smaller target cannot undo what was spent: not a round is begun, and the truth is stated.
    ended, smaller = run(path, 2.0, 8, 6)
    assert isinstance(ended, StoppedResult)
    assert ended.rounds == 5
    assert total(smaller) == total(larger)
    assert len(smaller.ledger) == len(larger.ledger) == 6
