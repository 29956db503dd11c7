"""The study of the secure sum: a small one for real, and what its committed tables must show."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulations.aggregate.__main__ import train_missing, training_jobs
from simulations.aggregate.designs import error_rows
from simulations.aggregate.page import PAGE, best_errors, draw, page, read
from simulations.aggregate.settings import PEERS, Settings, Training
from simulations.aggregate.training import deal
from simulations.config import CENTRAL, TaskConfig
from simulations.data import load_examples


def test_the_settings_are_what_the_issue_asks_for() -> None:
    settings = Settings.load()
    assert (settings.rounds, settings.dimension, settings.delta) == (50, 7850, 1e-5)
    assert settings.clients == (100, 1000)
    assert settings.epsilons == (1, 4, 10)
    assert {(each.task, each.clients) for each in settings.training} >= {("digits", 100), ("mnist", 1000)}


def test_a_small_table_of_errors() -> None:
    small = dataclasses.replace(
        Settings.load(), dimension=200, rounds=30, clients=(50,), epsilons=(4.0,), bits=(2,)
    )
    rows = {row["mechanism"]: row for row in error_rows(small)}
    assert set(rows) == {CENTRAL, *PEERS}
    for name in PEERS:
        assert float(str(rows[name]["epsilon_reached"])) <= 4.0
        assert float(str(rows[name]["ratio_to_central"])) > 1.0
    assert min(PEERS, key=lambda name: float(str(rows[name]["mean_squared_error"]))) == "optm_aggregate"


def test_training_learns_and_measures_the_error_of_its_noise() -> None:
    federation = deal(load_examples(TaskConfig(name="digits")), clients=20, seed=0)
    assert federation.dimension == 650
    plain = federation.train(0.0, 10, 0.5, 3.0, seed=0)
    noisy = federation.train(20.0, 10, 0.5, 3.0, seed=0)
    assert plain.accuracy > 0.7
    assert plain.mean_squared_error == 0.0
    assert noisy.mean_squared_error == pytest.approx(1.0, rel=0.1)
    assert math.isnan(noisy.share_clipped)


def test_encoded_training_has_the_error_that_the_design_says() -> None:
    import fl_privquant as pq
    from fl_privquant.mechanisms.optm_aggregate import usual_norm_ratio

    federation = deal(load_examples(TaskConfig(name="digits")), clients=20, seed=0)
    mechanism = pq.design("optm_aggregate", run_epsilon=8.0, rounds=3, num_clients=20, dimension=650)
    found = federation.train(mechanism, 3, 0.2, 3.0, seed=0)
    expected = mechanism.mse() / 20 * (0.2 / usual_norm_ratio(650)) ** 2
    assert found.mean_squared_error == pytest.approx(expected, rel=0.15)
    assert found.share_clipped < 0.02
    again = federation.train(mechanism, 3, 0.2, 3.0, seed=0)
    assert again == found


def test_the_committed_errors_meet_the_targets() -> None:
    errors = read("errors")
    ours = errors[(errors["mechanism"] == "optm_aggregate") & (errors["bits"] <= 3)]
    for clients, largest in ((100, 1.35), (1000, 1.15)):
        best = ours[ours["clients"] == clients].groupby("run_epsilon")["ratio_to_central"].min()
        assert list(best.index) == [1, 4, 10]
        assert best.max() <= largest
    assert np.all(errors["epsilon_reached"] <= errors["run_epsilon"])


def test_the_committed_errors_are_reached_in_fewer_bits_than_by_additive_noise() -> None:
    """Among our designs that err no more than a peer's, one is at least as narrow in the secure sum."""
    errors = read("errors")
    ours = errors[errors["mechanism"] == "optm_aggregate"]
    peers = errors[errors["mechanism"].isin(["skellam", "discrete_gaussian"])]
    assert len(peers) >= 6
    for row in peers.itertuples():
        rivals = ours[(ours["clients"] == row.clients) & (ours["run_epsilon"] == row.run_epsilon)]
        as_good = rivals[rivals["mean_squared_error"] <= row.mean_squared_error]
        assert not as_good.empty
        assert as_good["bits_in_sum"].min() <= row.bits_in_sum


def test_the_page_and_the_figure_come_from_the_tables(tmp_path: Path) -> None:
    assert page() == PAGE.read_text()
    assert draw(tmp_path / "figure.png").stat().st_size > 10_000
    assert set(best_errors(read("errors"))["mechanism"]) == {CENTRAL, *PEERS}


def small_study(**changes: object) -> Settings:
    task = {"task": "digits", "clients": 25, "epsilons": (8.0,), "l2_clip": 0.2, "learning_rate": 3.0}
    task |= {key: changes.pop(key) for key in list(changes) if key in task}
    values: dict[str, Any] = {"rounds": 3, "seeds": (0,), "training": (Training(**task),)}  # type: ignore[arg-type]
    return dataclasses.replace(Settings.load(), **{**values, **changes})


def test_rows_of_other_settings_are_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting that a run depends on is part of its row's key; equal settings are not run again."""
    monkeypatch.setattr("simulations.aggregate.__main__.PEERS", ())
    path = tmp_path / "training.csv"
    train_missing(small_study(), path, None, jobs=1)
    first = pd.read_csv(path)
    assert len(first) == 1
    stamp = path.read_bytes()
    train_missing(small_study(), path, None, jobs=1)
    assert path.read_bytes() == stamp
    for change in (
        {"l2_clip": 0.1},
        {"rounds": 4},
        {"delta": 1e-6},
        {"learning_rate": 2.0},
        {"clients": 26},
        {"seeds": (1,)},
        {"epsilons": (7.5,)},
    ):
        train_missing(small_study(**change), path, None, jobs=1)
        (row,) = pd.read_csv(path).to_dict("records")
        figures = ("accuracy", "mean_squared_error")
        assert [row[key] for key in figures] != [first[key].iloc[0] for key in figures], change
        train_missing(small_study(), path, None, jobs=1)
        pd.testing.assert_frame_equal(pd.read_csv(path), first)


def test_the_committed_tables_were_made_with_the_settings() -> None:
    settings = Settings.load()
    assert set(read("errors")["settings"]) == {settings.errors_key}
    assert list(read("training")["settings"].sort_values()) == sorted(
        settings.run_key(*job) for job in training_jobs(settings)
    )
    assert dataclasses.replace(settings, delta=1e-6).errors_key != settings.errors_key
