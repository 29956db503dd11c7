"""The study of payloads: its committed tables keep the limits, and its measurements agree with the plans."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import fl_privquant as pq
from simulations.studies.catalogue import study_of
from simulations.studies.page import page_text
from simulations.studies.payload.numbers import Numbers
from simulations.studies.payload.sizes import ERRORS, LIMITS, MECHANISMS, NEEDED, PAYLOADS, measured
from simulations.studies.study import Store

STUDY = study_of("payload")
STORE = Store(STUDY.home)


def test_the_limits_hold() -> None:
    table = STORE.read(PAYLOADS)
    settings = table[["dimension", "num_clients", "rounds", "run_epsilon", "run_delta"]]
    assert {tuple(row) for row in settings.itertuples(index=False)} == set(LIMITS)
    for row in table.itertuples():
        asked = (row.dimension, row.num_clients, row.rounds, row.run_epsilon, row.run_delta)
        assert row.most_kilobytes == pytest.approx(LIMITS[asked])
        assert row.kilobytes <= LIMITS[asked], asked
        assert row.ratio_to_central <= 1.1
        assert row.epsilon_reached <= row.run_epsilon


def test_measured_errors_are_those_of_the_plans() -> None:
    table = STORE.read(ERRORS)
    assert set(table["dimension"]) == {10_000, 1_000_000}
    assert set(table["mechanism"]) == set(MECHANISMS)
    off = table["measured"] / table["predicted"] - 1.0
    assert off.abs().max() <= 0.05
    assert table["wrapped_sums"].sum() == 0


def test_a_small_share_has_the_accuracy_of_all_coordinates() -> None:
    """Five seeds through Flower, paired; below one masked bit a coordinate."""
    paired = Numbers(STORE.read).paired
    assert len(paired.losses) == 5
    assert paired.bits <= 1.0
    assert paired.lost <= paired.error


def test_nobody_needs_fewer_bytes() -> None:
    table = STORE.read(NEEDED)
    for _, rows in table.groupby("dimension"):
        assert rows.loc[rows["kilobytes"].idxmin(), "mechanism"] == "rounded_gaussian"
        assert rows["ratio_to_central"].max() <= 1.1


def test_a_cell_measured_anew() -> None:
    """20 rounds of 150 of 1500 coordinates: the ratio has a standard error of 3 % or so; 4 of them."""
    target = pq.Target(epsilon=4.0, rounds=20, num_clients=40)
    everybody = pq.SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    plan = target.plan(1500, max_bits=1, keep=150, aggregation=everybody)
    cell = SimpleNamespace(**measured(plan, 20, seed=3))
    assert cell.measured == pytest.approx(cell.predicted, abs=4.0 * cell.error)
    assert cell.error < 0.06 * cell.predicted
    assert cell.wrapped_sums == 0
    # A plan with twice the noise would be told apart.
    assert cell.measured != pytest.approx(2.0 * cell.predicted, abs=4.0 * cell.error)


def test_the_page_is_that_of_its_tables() -> None:
    assert STORE.page.read_text(encoding="utf-8") == page_text(STUDY, STORE.read, STORE.seconds())
