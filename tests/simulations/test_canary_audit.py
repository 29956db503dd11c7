"""Audits of simulations: what an attack on each adversary's view finds is beside what is stated."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_privquant.codec.update as update_module
from fl_privquant.codec.record_sampling import RecordSampling
from fl_privquant.errors import PrivQuantError
from simulations.report.build import build_report
from simulations.run import execute
from simulations.runner.config import compose_run
from simulations.runner.results import RunDirectory

_TASK = "audit=canaries task=mean task.dimension=300 federation.num_clients=200 federation.rounds=2"
_GAUSSIAN = f"{_TASK} mechanism=rounded_gaussian privacy.epsilon=4 secagg=simulated"
_HONEST = "secagg.corrupt_fraction=0 secagg.dropout_fraction=0"
_COHORTS = f"{_HONEST} sampling=cohorts sampling.rounds_apart=4 federation.rounds=8"
_CORRELATED = f"{_GAUSSIAN} {_COHORTS} privacy.correlation=auto"
_RECORDS = (
    "audit=canaries audit.canaries=500 task=digits mechanism=rounded_gaussian secagg=simulated "
    "secagg.dropout_fraction=0 privacy.unit=record privacy.records=1437 privacy.sampling_rate=0.2 "
    "privacy.epsilon=4 federation.strategy=fedavgm federation.num_clients=3 federation.rounds=12"
)


def _audited(output: Path, run: str = _GAUSSIAN) -> tuple[Path, list[dict[str, Any]]]:
    overrides = dict(each.split("=", 1) for each in run.split())
    config = compose_run(*(f"{key}={value}" for key, value in overrides.items()), f"output={output}")
    execute(config)
    folder = RunDirectory.of(config).path
    return folder, json.loads((folder / "audit.json").read_text())["bounds"]


def _find(bounds: list[dict[str, Any]], unit: str, view: str, relation: str) -> dict[str, Any]:
    stated = (each["stated"] for each in bounds)
    places = [(each["unit"], each["view"].split()[0], each["relation"]) for each in stated]
    return bounds[places.index((unit, view, relation))]


def test_an_honest_run_is_not_refuted(tmp_path):
    """Noise of 160 of 200 clients is counted: a bound is too large in 1 of 50 runs, not with this seed."""
    folder, bounds = _audited(tmp_path)
    bound = _find(bounds, "client total", "aggregate", "replace-one")
    assert not any(each["refuted"] for each in bounds)
    assert 1.0 < bound["lower"] < bound["estimate"] < bound["upper"]
    assert bound["canaries"] == 200
    assert (folder / "audit.png").stat().st_size > 1000
    provenance = json.loads((folder / "provenance.json").read_text())
    assert f"attacked: {bound['text']}" in provenance["statement"]
    page = build_report(folder.parent).read_text()
    assert "attacked: ε &gt;= " in page
    assert f"The stated ε of {folder.name} beside what an attack found" in page


# The run; a statement of it that is attacked; and the least lower bound with this seed.
_RUNS = {
    "table": (f"{_TASK} mechanism=optm", ("client total", "local", "replace-one"), 100.0),
    "one coordinate": (f"{_TASK} mechanism=optm", ("coordinate release", "local", "replace-one"), 0.95),
    "whole updates": (f"{_TASK} mechanism=privunit", ("client total", "local", "replace-one"), 1.0),
    "whole updates, small epsilon": (
        f"{_TASK} mechanism=privunit mechanism.epsilon=2",
        ("client total", "local", "replace-one"),
        0.5,
    ),
    "whole updates, normal scores": (
        f"{_TASK} mechanism=cldp_l2",
        ("client total", "local", "replace-one"),
        1.0,
    ),
    "few bits": (
        f"{_TASK} mechanism=one_bit task.dimension=4",
        ("client total", "local", "replace-one"),
        1.0,
    ),
    "bits": (f"{_GAUSSIAN} mechanism=pbm", ("client total", "aggregate", "replace-one"), 0.5),
    "zero-out": (f"{_GAUSSIAN} privacy.relation=zero-out", ("client total", "aggregate", "zero-out"), 1.5),
    "correlated": (_CORRELATED, ("client total", "aggregate", "replace-one"), 2.0),
    "models": (_CORRELATED, ("client total", "models", "replace-one"), 1.0),
    "records": (_RECORDS, ("record total", "aggregate", "add-remove"), 0.5),
    "replaced records": (_RECORDS, ("record total", "aggregate", "replace-one"), 0.5),
    "records of a silo": (_RECORDS, ("record total", "local", "add-remove"), 0.5),
}


@pytest.mark.parametrize("name", _RUNS)
def test_a_bound_is_beside_every_stated_epsilon(name, tmp_path):
    run, place, least = _RUNS[name]
    folder, bounds = _audited(tmp_path, run)
    statements = json.loads((folder / "provenance.json").read_text())["statements"]
    finite = [each for each in statements if math.isfinite(each["epsilon"])]
    assert [each["stated"]["epsilon"] for each in bounds] == [each["epsilon"] for each in finite]
    for bound in bounds:
        assert not bound["refuted"], bound["text"]
        assert bound["lower"] <= bound["estimate"]
    assert _find(bounds, *place)["lower"] >= least


@pytest.mark.parametrize("run", [_GAUSSIAN, _CORRELATED], ids=["fresh", "correlated"])
def test_a_run_that_does_not_clip_is_refuted(run, tmp_path, monkeypatch):
    """The control: canaries are twice as long as the clip."""
    monkeypatch.setattr(update_module, "clip_l2", lambda vector, bound: 1.0)
    _, bounds = _audited(tmp_path, run)
    assert _find(bounds, "client total", "aggregate", "replace-one")["refuted"]


def test_silos_that_use_every_record_in_every_round_are_refuted(tmp_path, monkeypatch):
    """The control for records: they are said to be drawn with probability 0.2."""
    monkeypatch.setattr(RecordSampling, "draw", lambda self, number, rng=None: np.arange(number))
    _, bounds = _audited(tmp_path, _RECORDS)
    assert _find(bounds, "record total", "aggregate", "add-remove")["refuted"]


def test_clients_that_are_no_canaries_train(tmp_path):
    _, bounds = _audited(tmp_path, f"{_GAUSSIAN} audit.canaries=100")
    assert _find(bounds, "client total", "aggregate", "replace-one")["canaries"] == 100


def test_canaries_that_are_asked_too_rarely_give_no_bound(tmp_path):
    """Of 24 clients a quarter is asked in each round, so that fewer than 20 were asked most often."""
    run = f"{_TASK} mechanism=optm federation.num_clients=24 federation.fraction=0.25"
    _, bounds = _audited(tmp_path, run)
    assert "canaries were asked as often" in _find(bounds, "client total", "local", "replace-one")["text"]


def test_more_canaries_than_clients_are_refused(tmp_path):
    with pytest.raises(PrivQuantError, match=r"audit\.canaries"):
        _audited(tmp_path, f"{_GAUSSIAN} audit.canaries=201")


def test_a_run_without_canaries_has_the_name_that_it_always_had():
    plain, audited = (compose_run(*_GAUSSIAN.split(), f"audit={name}") for name in ("none", "canaries"))
    assert plain.run_name != audited.run_name
    assert plain.to_mapping()["audit"] == {"canaries": 0}
