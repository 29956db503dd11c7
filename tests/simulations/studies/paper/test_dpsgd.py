"""The DP-SGD studies: reference values, what their epsilon protects, and what is committed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fl_privquant.accounting import Release, round_statement
from fl_privquant.errors import InvalidSpecError
from simulations.studies._pages import DATA_VARIABLES, Tables
from simulations.studies.paper import dpsgd
from simulations.studies.paper.dpsgd_training import train
from tests.simulations.studies.paper.committed import READ
from tests.simulations.test_run import write_idx

REFERENCE_ERRORS = {"dpsgd-cancer": 0.008, "dpsgd-mnist": 0.005 / math.sqrt(5)}


def committed(name: str) -> Tables:
    return {table: READ(table) for table in (name, f"{name}-curves")}


@pytest.mark.parametrize("study", dpsgd.PARTS)
def test_reference_values_are_met(study: str) -> None:
    """Within 4 standard errors of both: odds of a false alarm below 1e-3 for the lot."""
    frame = committed(study)[study]
    assert len(frame) == 13
    rows = frame.dropna(subset="reference")
    assert set(rows["mechanism"]) == {"OPTM", "RQM", "one bit", "clip only"}
    for row in rows.itertuples():
        error = math.hypot(row.standard_error, REFERENCE_ERRORS[study])
        assert abs(row.mean - row.reference) < 4.0 * error, row.mechanism


@pytest.mark.parametrize("study", dpsgd.PARTS)
def test_what_epsilon_protects_is_said(study: str) -> None:
    frame = committed(study)[study]
    private = frame[frame["mechanism"] != "clip only"]
    assert np.isinf(frame.loc[frame["mechanism"] == "clip only", "epsilon_coordinate"]).all()
    at_logits = private[private["procedure"] == "logits"]
    assert np.isinf(at_logits["epsilon_example"]).all()
    assert (at_logits["epsilon_coordinate"] <= 1.0).all()
    whole = private[private["procedure"] == "whole"]
    assert (whole["epsilon_example"] > 40.0).all()
    assert (whole["epsilon_example_in_sum"] < whole["epsilon_example"]).all()
    budget = private[private["procedure"] == "budget"].iloc[0]
    assert 7.9 < budget["epsilon_example"] <= dpsgd.BUDGET
    assert budget["mean"] < whole["mean"].min()


def test_the_committed_run_of_clipping_is_what_the_command_gives() -> None:
    """Without noise the first 30 of 1000 runs are the same as 30 runs."""
    frame = committed("dpsgd-cancer")["dpsgd-cancer"]
    problem = dpsgd.cancer_problem(30)
    for procedure in ("logits", "whole"):
        rows = frame[(frame["procedure"] == procedure) & (frame["mechanism"] == "clip only")]
        found = train(problem, None, procedure, 0).final
        assert found.mean() == pytest.approx(rows["paper_runs_mean"].iloc[0], abs=2e-4)


def test_a_budget_is_met_and_used_up() -> None:
    mechanism = dpsgd.design_within_budget(40, 3.0, 1e-6)
    assert 2.98 < round_statement(Release(mechanism, 40), 1e-6).epsilon <= 3.0


def test_a_small_version_has_every_row_and_curve() -> None:
    tables = dpsgd.compute_results("dpsgd-cancer", dpsgd.cancer_problem(4))
    summary, curves = tables["dpsgd-cancer"], tables["dpsgd-cancer-curves"]
    assert summary["procedure"].value_counts().to_dict() == {"logits": 6, "whole": 6, "budget": 1}
    assert len(curves) == 13 * 50
    last = curves[curves["batches"] == 50]["mean"].to_numpy()
    assert last == pytest.approx(summary["mean"].to_numpy())


def test_mnist_is_read_from_idx_files(tmp_path: Path) -> None:
    write_idx(tmp_path)
    problem = dpsgd.mnist_problem(2, str(tmp_path), max_examples=320)
    assert (problem.dimension, problem.order.shape, problem.held_out.shape) == (7850, (2, 320), (2, 80))
    assert sorted(problem.order[0]) == list(range(320))
    assert problem.order[0].tolist() != problem.order[1].tolist()
    mechanism = dpsgd.mechanisms("dpsgd-mnist")["OPTM free (ours)"]
    for procedure in ("logits", "whole"):
        found = train(problem, mechanism, procedure, 0)
        assert found.accuracy.shape == (2, 10)
        assert ((found.held_out >= 0.0) & (found.held_out <= 1.0)).all()


def test_a_folder_without_mnist_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DATA_VARIABLES["mnist"], str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSpecError, match="holds no train-images"):
        dpsgd.PARTS["dpsgd-mnist"]()
