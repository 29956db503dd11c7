"""kill -9 at every operation on a file, and full disks: the same model and rows, no epsilon less."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fl_privquant import _files
from fl_privquant.errors import PrivQuantError
from simulations.run import execute
from simulations.runner.config import RunConfig
from simulations.runner.results import RunDirectory
from tests.task_values import mean_of, torch_task

ROOT = Path(__file__).parents[2]
MEAN = {
    "mechanism": {"name": "one_bit", "epsilon": 1.0},
    "task": mean_of(21),
    "federation": {"num_clients": 5, "rounds": 2},
    "checkpoint_seconds": 0.0,
}
DIGITS = {
    "mechanism": {"name": "one_bit", "epsilon": 1.0},
    "task": torch_task(model="mlp", hidden=7),
    "federation": {"num_clients": 25, "rounds": 6, "fraction": 0.6, "strategy": "fedavgm"},
    "encoding": {"clip_policy": {"name": "quantile"}},
    "checkpoint_seconds": 0.0,
}


@dataclass(frozen=True)
class Outcome:
    """What a run has left behind."""

    model: str
    rows: pd.DataFrame
    spent: pd.DataFrame
    stated: list[float]
    summary: dict[str, Any]

    @classmethod
    def of(cls, directory: Path) -> Outcome:
        (path,) = directory.glob("default/*")
        rows = pd.read_parquet(path / "rounds.parquet")
        spent = [name for name in rows if name.startswith("epsilon_client")]
        timed = [name for name in rows if name.startswith("seconds")]
        provenance = json.loads((path / "provenance.json").read_text())
        # Nothing of the killed process lies about, but for a lock that nobody holds.
        expected = {
            "config.json",
            "ledger.json",
            "mechanism.pqm",
            "provenance.json",
            "rounds.csv",
            "rounds.parquet",
        }
        found = {each.name for each in path.iterdir()} - {"run.lock"}
        assert found == expected | {"summary.json"}
        assert len(pd.read_csv(path / "rounds.csv")) == len(rows)
        return cls(
            provenance["model_sha256"],
            # How a bound was found may differ where more releases are counted.
            rows.drop(columns=[*spent, *timed, "composition_method", "composition_method_sum"]),
            rows[spent],
            [each["epsilon"] for each in provenance["statements"]],
            json.loads((path / "summary.json").read_text()),
        )

    def follows(self, whole: Outcome, exactly: bool = False) -> None:
        """Check that this is what the whole run has left, but for releases that were counted twice."""
        assert self.model == whole.model
        pd.testing.assert_frame_equal(self.rows, whole.rows)
        if exactly:
            pd.testing.assert_frame_equal(self.spent, whole.spent)
            assert self.stated == whole.stated
        filled = np.nan_to_num(self.spent.to_numpy()) - np.nan_to_num(whole.spent.to_numpy())
        assert filled.min() >= -1e-9
        assert len(self.stated) == len(whole.stated)
        assert all(mine >= other - 1e-9 for mine, other in zip(self.stated, whole.stated, strict=True))
        for column in whole.spent:
            last = self.spent[column].iloc[-1]
            assert np.isnan(last) or self.summary[column] == last > 0.0


def kill_runs(output: Path, config: dict[str, Any], **asked: int) -> None:
    # Its children are killed, the process that starts them is not.
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.adversary.killed_runs",
            json.dumps({"output": str(output), "config": config, **asked}),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "rounds", "stride"),
    # With secure aggregation the same files are written, and with a policy and a server's momentum, too.
    [(MEAN, 2, 1), ({**MEAN, "secagg": {"enabled": True}}, 2, 3), (DIGITS, 6, 11)],
    ids=["mean", "secure", "digits"],
)
def test_killed_at_every_operation(config: dict[str, Any], rounds: int, stride: int, tmp_path: Path) -> None:
    kill_runs(tmp_path, config, stride=stride)
    operations = json.loads((tmp_path / "operations.json").read_text())
    whole = Outcome.of(tmp_path / "whole")
    # The last one is the checkpoint of a finished run that is deleted.
    saved = [at for at, each in enumerate(operations, 1) if each == ["os.rename", "run.checkpoint"]]
    assert len(saved) == 2 * rounds
    assert len(operations) - saved[-1] > 10
    killed = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("operation-*"))
    assert len(killed) >= len(operations) / stride
    twice = 0
    for number in killed:
        # A kill after the last checkpoint, or before a first, asks no client twice.
        between = saved[0] < number <= saved[-1]
        outcome = Outcome.of(tmp_path / f"operation-{number}")
        outcome.follows(whole, exactly=not between)
        twice += outcome.stated[-1] > whole.stated[-1]
    # Some were killed in a round, which was then asked for again, and counted again.
    assert twice


def run_with(
    output: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[[int, Path], bool]
) -> PrivQuantError | None:
    """A run on a disk that fills up at some writes; the error that it ends with."""
    config = RunConfig.from_mapping({**MEAN, "output": str(output)})
    count = 0
    replace_file = _files.replace_file

    def full(path: Path, write: Callable[[Path], Any], durable: bool = True) -> None:
        nonlocal count
        count += 1

        def half(temporary: Path) -> None:
            write(temporary)
            if fails(count, path):
                with temporary.open("r+b") as file:
                    file.truncate(temporary.stat().st_size // 2)
                raise OSError(errno.ENOSPC, "No space left on device")

        replace_file(path, half, durable)

    with monkeypatch.context() as patch:
        patch.setattr("simulations.runner.results.replace_file", full)
        patch.setattr("fl_privquant.flower.server.checkpoint.replace_file", full)
        try:
            execute(config)
        except PrivQuantError as error:
            assert not list(RunDirectory.of(config).path.glob(".*"))
            return error
    return None


def test_a_disk_that_fills_up_at_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time a clear error, and a run that goes on when there is room again."""
    writes: list[Path] = []

    def note(count: int, path: Path) -> bool:
        writes.append(path)
        return False

    assert run_with(tmp_path / "whole", monkeypatch, note) is None
    whole = Outcome.of(tmp_path / "whole")
    for number in range(1, len(writes) + 1):
        error = run_with(tmp_path / f"{number}", monkeypatch, lambda count, _, at=number: count == at)  # type: ignore[misc]
        assert "No space left on device" in str(error), number
        assert "free some space" in str(error)
        assert "start" in str(error)
        assert run_with(tmp_path / f"{number}", monkeypatch, lambda *_: False) is None
        Outcome.of(tmp_path / f"{number}").follows(whole)


def test_a_budget_holds_whatever_is_killed(tmp_path: Path) -> None:
    """Two rounds of 21 coordinates at epsilon 1 are allowed: killed runs may end earlier, never above.

    A run that is killed twice in its first round has spent its budget before any round was finished.
    """
    budget = 40.5
    config = {
        **MEAN,
        "federation": {"num_clients": 5, "rounds": 3},
        "privacy": {"budget": budget},
        "secagg": {"enabled": False},
    }
    kill_runs(tmp_path, config, stride=2, kills=2)
    runs = [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "warm"]
    rounds = set()
    for run in runs:
        (path,) = run.glob("default/*/summary.json")
        summary = json.loads(path.read_text())
        assert summary["finished"]
        assert summary["stopped"].startswith("budget exhausted after")
        assert 0.0 < summary["epsilon_client_total"] <= budget
        rounds.add(summary["round"])
    assert len(runs) > 8
    assert rounds == {0, 1, 2}
