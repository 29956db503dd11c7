"""Somebody writes into the user's cache directory: a design may be weaker, but what is stated never is.

One such file succeeded once: a certificate that was read from disk made a stated epsilon 5 % too small.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import fl_privquant as pq
from fl_privquant.accounting import Accountant, PrivacyStatement, Release, accountant
from fl_privquant.privacy_loss.update_bounds import UpdateNorms

TARGET = pq.Target(epsilon=4.0, rounds=5, num_clients=40)
DIMENSION = 300


def make_plan() -> pq.Plan:
    return TARGET.plan(DIMENSION, mechanism="skellam")


def certified(plan: pq.Plan) -> PrivacyStatement:
    """What a process that computes everything anew certifies for the plan's encoding."""
    for known in (accountant._update_losses, accountant._unit_loss):
        known.cache_clear()
    encoding = plan.encoding
    norms = UpdateNorms(l2=(encoding.l2_bound(DIMENSION) or 0.0) / encoding.clip)
    view = plan.aggregation.view(TARGET.num_clients)
    spent = Accountant()
    spent.add(Release(encoding.mechanism, DIMENSION, view, norms=norms), TARGET.rounds)
    return spent.statement(TARGET.delta)


def with_less_noise(design: Any, factor: float) -> Any:
    """The same design with less noise: it claims what that really costs a coordinate, and the same spec."""
    parameters = dict(design.parameters)
    parameters["variance"] = factor * parameters["variance"]
    return dataclasses.replace(pq.design("skellam", **parameters, cache=False), parameters=design.parameters)


@pytest.mark.parametrize("factor", [0.5, 0.97])
def test_no_file_makes_a_stated_figure_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """Every design is forged, and its digest fits: a plan states what a fresh process certifies."""
    monkeypatch.setenv("FL_PRIVQUANT_CACHE", str(tmp_path))
    honest = make_plan()
    forged = 0
    for path in tmp_path.iterdir():
        spec, _, blob = path.read_bytes().partition(b"\n")
        path.write_bytes(spec + b"\n" + with_less_noise(pq.Mechanism.from_bytes(blob), factor).to_bytes())
        forged += 1
    assert forged > 0
    try:
        plan = make_plan()
    except pq.InfeasibleDesignError:
        # A design that a forger made too weak is certified, and found to cost too much.
        weaker = with_less_noise(honest.encoding.mechanism, factor)
        encoding = dataclasses.replace(honest.encoding, mechanism=weaker)
        assert certified(dataclasses.replace(honest, encoding=encoding)).epsilon > TARGET.epsilon
        return
    assert plan.statement.epsilon == certified(plan).epsilon <= TARGET.epsilon
    assert plan.statement.epsilon != honest.statement.epsilon


def test_forged_designs_cost_more_than_the_target() -> None:
    """The negative control: a plan with one of them would have to be refused, or to state another figure."""
    plan = make_plan()
    weaker = with_less_noise(plan.encoding.mechanism, 0.8)
    encoding = dataclasses.replace(plan.encoding, mechanism=weaker)
    assert certified(dataclasses.replace(plan, encoding=encoding)).epsilon > 1.02 * TARGET.epsilon
