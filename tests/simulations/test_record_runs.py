"""Runs of tasks that protect records, by their keys."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from fl_privquant.check import check
from fl_privquant.errors import InvalidSpecError
from fl_privquant.statement import PrivacyStatement, Relation, Unit
from simulations.report.runs import load_runs
from simulations.report.study import Study
from simulations.report.verdict import describe
from simulations.run import execute
from simulations.runner.config import RunConfig, compose_run
from simulations.runner.results import RunDirectory

KEYS = ("mechanism=rounded_gaussian", "secagg=simulated", "secagg.dropout_fraction=0")
RECORDS = ("privacy.unit=record", "privacy.records=1437", "privacy.sampling_rate=0.2", "privacy.epsilon=8")
ROUNDS = ("federation.strategy=fedavgm", "federation.num_clients=3", "federation.rounds=12")


def config(folder: Path, *more: str) -> RunConfig:
    return compose_run(*KEYS, *RECORDS, *ROUNDS, f"output={folder}", *more)


@pytest.mark.parametrize("more", [(), ("partition=dirichlet", "secagg.masked=true")])
def test_a_run_of_three_silos_learns_and_states_what_a_record_spends(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    run = config(tmp_path, *more)
    summary = execute(run)
    # Chance is 0.1.
    assert summary["accuracy"] > 0.6
    assert 7.9 < summary["epsilon_record_total_sum"] <= 8.0
    assert math.isinf(summary["epsilon_client_total_sum"])
    (loaded,), problems = load_runs(RunDirectory.of(run).path.parent)
    assert not problems
    assert (loaded.total.unit, loaded.total.relation) == (Unit.RECORD, Relation.ADD_REMOVE)
    origin = json.loads((RunDirectory.of(run).path / "provenance.json").read_text())
    stated = [PrivacyStatement.from_dict(statement) for statement in origin["statements"]]
    assert {each.relation for each in stated if each.unit is Unit.RECORD} >= {*Relation} - {Relation.ZERO_OUT}


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
def test_a_run_spends_its_target_in_the_relation_of_the_target(relation: str, tmp_path: Path) -> None:
    run = config(tmp_path, f"privacy.relation={relation}", "federation.rounds=2")
    summary = execute(run)
    assert 7.9 < summary["epsilon_record_total_sum"] <= 8.0
    (loaded,), problems = load_runs(RunDirectory.of(run).path.parent)
    assert not problems
    assert loaded.total.brief.endswith(f"(record total, aggregate view of 2, {relation})")
    assert 7.9 < loaded.total.epsilon <= 8.0
    assert set(loaded.rounds["relation_record_total"]) == {relation}
    assert not check(RunDirectory.of(run).path)


def test_a_study_compares_a_secure_sum_with_noise_in_each_silo(tmp_path: Path) -> None:
    honest = ("secagg.corrupt_fraction=0", "federation.rounds=3")
    for seed in range(3):
        execute(config(tmp_path, *honest, f"seed={seed}"))
        execute(config(tmp_path, "secagg=none", "federation.rounds=3", f"seed={seed}"))
    study = Study.load(RunDirectory.of(config(tmp_path, *honest)).path.parent)
    assert study.series == ("rounded_gaussian", "rounded_gaussian in each silo")
    (answer,) = describe(study).answers
    meaning = "record total, aggregate view of 3 or local view, add-remove"
    assert answer.startswith(f"At ε = 8, δ = 1e-05 ({meaning}), use rounded_gaussian")
    errors = study.results.groupby("series")["error"].mean()
    # Three silos add up to three times the noise of one.
    ratio = errors["rounded_gaussian in each silo"] / errors["rounded_gaussian"]
    assert ratio == pytest.approx(3.0, rel=0.15)


def test_silos_may_be_the_users_of_the_data(tmp_path: Path) -> None:
    """Natural silos, with a recurrent network: roles of a play, whose records are its letters."""
    with gzip.open(tmp_path / "roles.jsonl.gz", "wt", encoding="utf-8") as file:
        for role in range(4):
            file.write(json.dumps({"role": f"role {role}", "text": "to be or not " * (30 + role)}) + "\n")
    task = ("task=shakespeare", f"task.data_root={tmp_path}", "task.hidden=8", "partition=natural")
    summary = execute(config(tmp_path, *task, "federation.server_learning_rate=4", "privacy.records=1000"))
    # The most frequent of 13 characters, a space, is 4 of them.
    assert summary["accuracy"] > 0.25
    assert 7.9 < summary["epsilon_record_total_sum"] <= 8.0


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("mechanism=optm", "mechanism: 'optm' does not protect records; use mechanism=rounded_gaussian"),
        ("encoding.keep=0.5", "encoding.keep: 0.5, but plans for records have one form"),
        ("privacy.sampling_rate=0", "sampling_rate: 0.0 must be above 0"),
        ("privacy.relation=zero", "'zero' is not a relation of targets; give add-remove or replace-one or"),
        ("task=mean", "has no train_on_records"),
        ("privacy.epsilon=null", "privacy.unit: 'record' is protected by a plan.*set privacy.epsilon too"),
    ],
)
def test_what_does_not_protect_records_is_refused(more: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpecError, match=error):
        execute(config(tmp_path, more))
