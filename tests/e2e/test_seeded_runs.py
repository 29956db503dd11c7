"""Seeded runs give the models and statements that are written down, whatever the code looks like."""

import json

import pytest

from tests.e2e.seeded_runs import TABLE, outcome, runs, same
from tests.ray_cluster import WARNINGS

_EXPECTED = json.loads(TABLE.read_text())
# Models of floating-point noise, whose last digits differ from processor to processor.
_FLOATS = ("=central_gaussian", "=gaussian", "=laplace")
# What the independent check has no bound for: sums of codes other than rounded Gaussians, codes of updates
# with an L2 norm, and these mechanisms.
_SUMS = ("=rounded_gaussian", "=cldp_linf", "=correlated", "=stochastic")
_NOT_CHECKED = ("=laplace", "=discrete_", "=skellam", "=pbm", "=optm privacy.epsilon=400")


def _is_checked(run: str) -> bool:
    in_sums = "secagg=on" in run and not any(name in run for name in _SUMS)
    return not in_sums and not any(part in run for part in _NOT_CHECKED)


_ON_RAY = [run for run in runs() if "engine=ray" in run]


def test_the_table_has_every_run():
    assert set(_EXPECTED) == set(runs())
    assert all(_EXPECTED[run] == _EXPECTED[run.replace(" engine=ray", "")] for run in _ON_RAY)


@pytest.mark.parametrize("run", [run for run in runs() if run not in _ON_RAY])
def test_a_seeded_run_gives_what_is_written_down(run):
    found = outcome(run)
    not_checked = found.pop("not_checked")
    assert same(found, _EXPECTED[run], models=not any(part in run for part in _FLOATS)), found
    assert (not not_checked) == _is_checked(run), not_checked


_SOME = ("=pbm secagg=on", "=skellam encoding", "=rounded_gaussian privacy", "=central", "=qsgd")
_IN_BATCHES = [run for run in runs() if run not in _ON_RAY and any(part in run for part in _SOME)]


@pytest.mark.parametrize("run", _IN_BATCHES)
def test_seeded_runs_in_small_batches_give_what_is_written_down(run):
    """With secure aggregation too, whose clients keep their state from one message of a round to the next."""
    expected = outcome(run) if any(part in run for part in _FLOATS) else _EXPECTED[run]
    found = outcome(run, "engine.batch=3")
    assert same(found, expected), found


@pytest.mark.parametrize("run", [pytest.param(run, marks=WARNINGS) for run in _ON_RAY])
def test_seeded_runs_on_ray_give_what_is_written_down(run, ray_cluster):
    """With one worker, which takes seconds to start; in :mod:`tests.e2e.test_engines_agree` there are two."""
    on_one_worker = (f"engine.address='{ray_cluster.address}'", f"engine.client_cpus={ray_cluster.CPUS}")
    found = outcome(run, *on_one_worker)
    assert same(found, _EXPECTED[run]), found
