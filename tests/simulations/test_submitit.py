"""A sweep by submitit, which starts the jobs of Slurm clusters; here its local executor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_sweep_by_submitit_ends_with_a_report_of_its_runs(tmp_path: Path) -> None:
    settings = ["task=mean", "task.dimension=20", "federation.num_clients=3", "federation.rounds=1"]
    places = [f"output={tmp_path}", "study=jobs", f"hydra.launcher.submitit_folder={tmp_path / 'submitit'}"]
    command = [sys.executable, "-m", "simulations.run", "-m", "hydra/launcher=submitit_local"]
    done = subprocess.run(
        [*command, *settings, *places, "mechanism=one_bit", "seed=0,1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "jobs" / "report.html").exists()
    assert sorted(pd.read_parquet(tmp_path / "jobs" / "summary.parquet")["seed"]) == [0, 1]
    assert any((tmp_path / "submitit").iterdir())
