"""Losses to the central Gaussian, paired by seed: what tables and page say of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from simulations.run import execute
from simulations.studies.catalogue import study_of
from simulations.studies.equal_budget.numbers import Numbers, holm, pooled, with_losses
from simulations.studies.study import Scale, Store
from simulations.studies.sweep import PairedSweep

STUDY = study_of("equal_budget")
STORE = Store(STUDY.home)


def test_a_paired_sweep_has_the_losses_of_its_runs_through_flower(tmp_path: Path) -> None:
    part = STUDY.part("training-digits")
    assert isinstance(part, PairedSweep)
    sweep = dataclasses.replace(part, variants=(("mechanism=pbm", "mechanism.bits=1"),))
    small = ("federation.num_clients=12", "federation.rounds=2", "seed=3,4", "privacy.epsilon=20,40")
    scale = Scale(overrides=small, output=tmp_path)
    tables = sweep.compute(scale, lambda share, text: None)
    assert tuple(tables) == sweep.tables
    means, by_seed = tables.values()
    assert list(means["mechanism"]) == 2 * ["central_gaussian", "rounded_gaussian", "pbm"]
    # One bit adds more error to the central Gaussian's than coarse Gaussian codes.
    assert list(means["ratio_to_central"].rank())[::3] == [1.5, 1.5]
    assert list(means["ratio_to_central"].rank())[2::3] == [5, 6]
    accuracies = {
        (config.privacy.epsilon, config.label, config.seed): execute(config)["accuracy"]
        for config in sweep.runs(scale)
    }
    assert len(by_seed) == len(accuracies) == 12
    for row in by_seed.itertuples():
        assert row.accuracy == accuracies[row.run_epsilon, row.mechanism, row.seed]
        assert row.accuracy_lost == accuracies[row.run_epsilon, "central_gaussian", row.seed] - row.accuracy


def test_runs_that_send_a_share_are_told_apart_with_their_size(tmp_path: Path) -> None:
    part = STUDY.part("training-digits")
    assert isinstance(part, PairedSweep)
    kept = dataclasses.replace(part, variants=(("mechanism=rounded_gaussian", "encoding.keep=0.1"),))
    small = ("federation.num_clients=12", "federation.rounds=1", "seed=3", "privacy.epsilon=20")
    means, by_seed = kept.compute(Scale(overrides=small, output=tmp_path), lambda share, text: None).values()
    assert list(means["kept"]) == list(by_seed["kept"]) == [650, 650, 65]
    central, every, share = means["kilobytes"]
    assert central == 2.6
    assert share < every < central
    assert by_seed["accuracy_lost"].iloc[0] == 0.0


def test_holm_names_what_is_shown_and_no_more() -> None:
    lost = [0.005, -0.2, 0.01, 0.03, 0.0]
    table = pd.DataFrame({"accuracy_lost": lost, "accuracy_lost_error": [*[0.01] * 4, 0.0], "seeds": 5})
    cells = with_losses(table)
    # Student t with 4 degrees of freedom: 20 errors have p = 3.7e-5, times 5; 3 have 0.04, times 4.
    assert holm(cells["p_value"]) == pytest.approx([1.0, 1.844e-4, 1.0, 0.1598, 1.0], rel=2e-3)
    assert list(cells["within"]) == [True, False, True, False, True]
    assert list(cells["worse"]) == [False, False, False, True, False]
    assert list(cells["clear"]) == [False, True, False, True, False]
    assert cells["half_interval"][0] == pytest.approx(2.776, abs=1e-3)


def test_the_pooled_loss_is_that_of_seeds() -> None:
    trained = Numbers(STORE.read).trained
    tables = [STORE.read(f"{name}-by-seed") for name in trained]
    lost = pd.concat(tables)
    lost = lost[lost["mechanism"] != "central_gaussian"]
    mean_loss = pooled(STORE.read)
    assert mean_loss["cells"] == len(lost) / lost["seed"].nunique()
    assert mean_loss["mean"] == pytest.approx(100.0 * lost["accuracy_lost"].mean(), rel=1e-6)
    assert mean_loss["half_interval"] > 0.0
    # The means of both tables are of the same runs.
    for name, table in zip(trained, tables, strict=True):
        means = (
            table.fillna({"bits": 0}).groupby(["run_epsilon", "mechanism", "bits"])["accuracy_lost"].mean()
        )
        for row in STORE.read(name).fillna({"bits": 0}).itertuples():
            assert means[row.run_epsilon, row.mechanism, row.bits] == pytest.approx(
                row.accuracy_lost, abs=1e-6
            )
