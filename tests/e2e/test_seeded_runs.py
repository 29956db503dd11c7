"""Seeded runs give the models and statements that are written down, whatever the code looks like."""

import json
import subprocess
import sys

import pytest

from tests.e2e.seeded_runs import ROOT, TABLE, outcome, runs

_EXPECTED = json.loads(TABLE.read_text())
_ON_RAY = [run for run in runs() if "engine=ray" in run]


def test_the_table_has_every_run():
    assert set(_EXPECTED) == set(runs())
    assert all(_EXPECTED[run] == _EXPECTED[run.replace(" engine=ray", "")] for run in _ON_RAY)


@pytest.mark.parametrize("run", [run for run in runs() if run not in _ON_RAY])
def test_a_seeded_run_gives_what_is_written_down(run):
    assert outcome(run) == _EXPECTED[run]


def test_seeded_runs_on_ray_give_what_is_written_down():
    # In a process of their own, as Ray's threads and children outlive a run.
    command = [sys.executable, "-m", "tests.e2e.seeded_runs", *_ON_RAY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600)
    assert json.loads(done.stdout[done.stdout.index("{") :]) == {run: _EXPECTED[run] for run in _ON_RAY}
