"""Seeded runs give the models and statements that are written down, whatever the code looks like."""

import json

import pytest

from tests.e2e.seeded_runs import TABLE, outcome, runs, same
from tests.ray_cluster import WARNINGS

_EXPECTED = json.loads(TABLE.read_text())
# Models of floating-point noise, whose last digits differ from processor to processor.
_FLOATS = ("=central_gaussian", "=gaussian", "=laplace")
# What the independent check has no bound for: L2 norms of codes from tables, and sums of many rows.
_NOT_DERIVED = (
    "pbm encoding=rotated",
    "=skellam encoding",
    "bits=1 privacy",
    "=optm privacy.epsilon=400",
    "=imvu secagg",
)
_ON_RAY = [run for run in runs() if "engine=ray" in run]


def test_the_table_has_every_run():
    assert set(_EXPECTED) == set(runs())
    assert all(_EXPECTED[run] == _EXPECTED[run.replace(" engine=ray", "")] for run in _ON_RAY)


@pytest.mark.parametrize("run", [run for run in runs() if run not in _ON_RAY])
def test_a_seeded_run_gives_what_is_written_down(run):
    found = outcome(run)
    not_derived = found.pop("not_derived")
    assert same(found, _EXPECTED[run], models=not any(part in run for part in _FLOATS)), found
    assert bool(not_derived) == any(part in run for part in _NOT_DERIVED), not_derived


_SOME = ("=pbm secagg=on", "=skellam encoding", "=rounded_gaussian privacy", "=central", "=qsgd")
_IN_WORKERS = [run for run in runs() if run not in _ON_RAY and any(part in run for part in _SOME)]


@pytest.mark.parametrize("run", _IN_WORKERS)
def test_seeded_runs_in_worker_processes_give_what_is_written_down(run):
    """With secure aggregation too, whose clients keep their state from one message of a round to the next."""
    expected = outcome(run) if any(part in run for part in _FLOATS) else _EXPECTED[run]
    found = outcome(run, "engine.processes=2")
    assert same(found, expected), found


@pytest.mark.parametrize("run", [pytest.param(run, marks=WARNINGS) for run in _ON_RAY])
def test_seeded_runs_on_ray_give_what_is_written_down(run, ray_cluster):
    """With one worker, which takes seconds to start; in :mod:`tests.e2e.test_engines_agree` there are two."""
    on_one_worker = (f"engine.address='{ray_cluster.address}'", f"engine.client_cpus={ray_cluster.CPUS}")
    found = outcome(run, *on_one_worker)
    assert same(found, _EXPECTED[run]), found
