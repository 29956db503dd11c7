import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedMedian, FedYogi

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Release
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import CheckpointStrategy, PrivQuantStrategy
from fl_privquant.flower.server.checkpoint import CheckpointError
from tests.flower.apps import CLIP, Killed, assert_same_arrays, client_app, fedavg, simulate, trained

ROUNDS = 5
STRATEGIES = {
    "FedAvg": lambda: fedavg(),
    "FedAvgM": lambda: fedavg(FedAvgM, server_momentum=0.9),
    "FedAdam": lambda: fedavg(FedAdam),
    "FedYogi": lambda: fedavg(FedYogi),
    "FedAdagrad": lambda: fedavg(FedAdagrad),
    "FedMedian": lambda: fedavg(FedMedian),
    "half": lambda: FedAvg(
        fraction_train=0.5, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1
    ),
}


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def strategy_of(name, path=None):
    strategy = PrivQuantStrategy(
        STRATEGIES[name](), pq.Encoding(pq.design("optm", epsilon=2.0, bits=2), CLIP)
    )
    return strategy if path is None else CheckpointStrategy(strategy, path)


def run(name, path=None, dies=None, num_rounds=ROUNDS, **options):
    """``dies`` is called while clients train in round 3."""

    def train(arrays, partition, server_round):
        if dies is not None and server_round == 3 and partition >= 2:
            dies()
        return trained(arrays, partition, server_round)

    return simulate(strategy_of(name, path), client_app(train_with=train), 6, num_rounds, seed=3, **options)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_run_that_stopped_goes_on_as_if_it_had_not(name, tmp_path):
    path = tmp_path / "run.checkpoint"
    whole = run(name)

    def die():
        raise Killed

    with pytest.raises(Killed):
        run(name, path, die)
    resumed = run(name, path)
    assert_same_arrays(resumed.model, whole.model)
    ledger = resumed.ledger
    # Round 3 was asked for twice, and clients answered twice: both are counted.
    assert [number for number, _ in ledger.releases] == [1, 2, 3, 3, 4, 5]
    assert ledger.statement(1e-5).epsilon > whole.ledger.statement(1e-5).epsilon
    if name == "half":
        # Names of clients may change with a restart: the most before it and the most after it are added.
        assert 4 * 50.0 - 1e-3 < ledger.statement(0.0).epsilon < 6 * 50.0 + 1e-3
    else:
        again = Accountant([Release(pq.design("optm", epsilon=2.0, bits=2), 25)] * 6)
        assert ledger.statement(1e-5) == again.statement(1e-5)


SCRIPT = """
import sys
from tests.flower.test_checkpoint import kill, run
run(sys.argv[1], sys.argv[2], kill)
"""


@pytest.mark.parametrize("name", ["FedAdam"])
def test_a_process_that_is_killed_leaves_a_whole_checkpoint(name, tmp_path):
    path = tmp_path / "run.checkpoint"
    killed = subprocess.run([sys.executable, "-c", SCRIPT, name, str(path)], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    resumed = run(name, path)
    assert_same_arrays(resumed.model, run(name).model)
    assert [number for number, _ in resumed.ledger.releases] == [1, 2, 3, 3, 4, 5]


def test_settings_that_differ_from_the_checkpoints_are_told(tmp_path, flower_log, monkeypatch):
    path = tmp_path / "run.checkpoint"
    run("half", path, num_rounds=1)
    monkeypatch.setitem(STRATEGIES, "half", STRATEGIES["FedAvg"])
    resumed = run("half", path, num_rounds=2)
    assert resumed.strategy.strategy.strategy.fraction_train == 0.5
    told = [line for line in flower_log.lines if "from the file" in line]
    assert "Checkpoint: FedAvg.fraction_train is 0.5 from the file, not 1.0" in told


def test_metrics_of_before_belong_to_the_result(tmp_path):
    path = tmp_path / "run.checkpoint"
    asked = []

    def evaluate(server_round, arrays):
        from flwr.app import MetricRecord

        asked.append(server_round)
        return MetricRecord({"round": server_round})

    first = run("FedAvg", path, num_rounds=2, evaluate_fn=evaluate)
    assert sorted(first.result.evaluate_metrics_serverapp) == [0, 1, 2]
    second = run("FedAvg", path, num_rounds=4, evaluate_fn=evaluate)
    # Round 2 is evaluated twice: its first evaluation came after the last checkpoint of the first run.
    assert asked == [0, 1, 2, 2, 3, 4]
    assert {
        number: record["round"] for number, record in second.result.evaluate_metrics_serverapp.items()
    } == {number: number for number in range(5)}
    assert sorted(second.result.train_metrics_clientapp) == [1, 2, 3, 4]


def test_a_finished_run_is_not_run_again(tmp_path):
    path = tmp_path / "run.checkpoint"
    first = run("FedAvg", path)
    second = run("FedAvg", path)
    assert_same_arrays(second.model, first.model)
    assert len(second.ledger) == ROUNDS


def test_the_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "run.checkpoint"
    run("FedAvg", path, num_rounds=1)
    before = path.read_bytes()

    def fails(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(CheckpointError, match=r"cannot be written \(no space left\).*start again"):
        run("FedAvg", path, num_rounds=2)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_strategy_with_state_that_cannot_be_kept_is_refused_at_once(tmp_path):
    strategy = fedavg()
    strategy.accountant = object()
    with pytest.raises(InvalidSpecError, match=r"FedAvg\.accountant: an object.*checkpoint_state"):
        CheckpointStrategy(
            PrivQuantStrategy(strategy, pq.Encoding(pq.design("none"), clip=1.0)), tmp_path / "x"
        )


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", b"\x80\x04\x95"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    path = tmp_path / "run.checkpoint"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="delete it to begin anew"):
        run("FedAvg", path)


def test_a_checkpoint_with_pickled_objects_is_refused(tmp_path):
    path = tmp_path / "run.checkpoint"
    with path.open("wb") as file:
        np.savez(file, **{"checkpoint.json": np.array([{"version": 1}], dtype=object)})
    with pytest.raises(CheckpointError):
        run("FedAvg", path)


def test_a_checkpoint_of_other_strategies_is_refused(tmp_path):
    path = tmp_path / "run.checkpoint"
    run("FedAvgM", path, num_rounds=1)
    with pytest.raises(CheckpointError, match="saved by strategies"):
        run("FedAdam", path)


def test_a_round_is_told_once_it_is_saved(tmp_path):
    """Whoever shows a round as done before that would take it back after a kill."""
    path = tmp_path / "x"
    told = []

    def saved(number):
        told.append((number, CheckpointStrategy(fedavg(), path).finished_rounds))
        if number == 2 and len(told) == 2:
            raise Killed

    def go_on():
        simulate(CheckpointStrategy(strategy_of("FedAvg"), path, saved), num_rounds=4)

    with pytest.raises(Killed):
        go_on()
    go_on()
    assert told == [(1, 1), (2, 2), (3, 3), (4, 4)]
