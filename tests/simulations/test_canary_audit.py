"""Audits of simulations: what an attack on the opened sums finds is beside what is stated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fl_privquant.codec.update as update_module
from fl_privquant.errors import PrivQuantError
from simulations.report.build import build_report
from simulations.run import execute
from simulations.runner.config import compose_run
from simulations.runner.results import RunDirectory

_RUN = (
    "audit=canaries task=mean task.dimension=300 mechanism=rounded_gaussian privacy.epsilon=4 "
    "secagg=simulated federation.num_clients=200 federation.rounds=2"
)


def _audited(output: Path, *more: str) -> tuple[Path, dict[str, Any]]:
    config = compose_run(*_RUN.split(), *more, f"output={output}")
    execute(config)
    folder = RunDirectory.of(config).path
    return folder, json.loads((folder / "audit.json").read_text())


def test_an_honest_run_is_not_refuted(tmp_path):
    """Noise of 160 of 200 clients is counted: a bound is too large in 1 of 50 runs, not with this seed."""
    folder, report = _audited(tmp_path)
    assert not report["refuted"]
    assert 1.0 < report["lower"] < report["estimate"] < report["upper"]
    assert report["stated"]["view"].startswith("aggregate")
    assert report["canaries"] == 200
    assert (folder / "audit.png").stat().st_size > 1000
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["statement"][-1] == f"attacked: {report['text']}"
    page = build_report(folder.parent).read_text()
    assert "attacked: ε &gt;= " in page
    assert f"The stated ε of {folder.name} beside what an attack found" in page


def test_a_run_that_does_not_clip_is_refuted(tmp_path, monkeypatch):
    """The control: canaries are twice as long as the clip."""
    monkeypatch.setattr(update_module, "clip_l2", lambda vector, bound: 1.0)
    _, report = _audited(tmp_path)
    assert report["refuted"]


def test_clients_that_are_no_canaries_train(tmp_path):
    _, report = _audited(tmp_path, "audit.canaries=100")
    assert report["canaries"] == 100


@pytest.mark.parametrize("change", ["audit.canaries=201", "secagg=none"])
def test_runs_that_cannot_be_audited_are_refused(tmp_path, change):
    with pytest.raises(PrivQuantError, match=r"audit\.canaries"):
        _audited(tmp_path, change)


def test_a_run_without_canaries_has_the_name_that_it_always_had():
    plain, audited = (compose_run(*_RUN.split(), f"audit={name}") for name in ("none", "canaries"))
    assert plain.run_name != audited.run_name
    assert plain.to_mapping()["audit"] == {"canaries": 0}
