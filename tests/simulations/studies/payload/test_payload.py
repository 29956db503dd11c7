"""The study of payloads: its committed tables keep the limits, and its measurements agree with the plans."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

import fl_privquant as pq
from simulations.studies.__main__ import study_folder
from simulations.studies._pages import read_table
from simulations.studies.payload.sizes import ERRORS, LIMITS, MECHANISMS, NEEDED, PAYLOADS, measure_plan

READ = partial(read_table, study_folder("payload"))


def test_the_limits_hold() -> None:
    table = READ(PAYLOADS)
    settings = table[["dimension", "num_clients", "rounds", "run_epsilon", "run_delta"]]
    assert {tuple(row) for row in settings.itertuples(index=False)} == set(LIMITS)
    for row in table.itertuples():
        asked = (row.dimension, row.num_clients, row.rounds, row.run_epsilon, row.run_delta)
        assert row.max_kilobytes == pytest.approx(LIMITS[asked])
        assert row.kilobytes <= LIMITS[asked], asked
        assert row.ratio_to_central <= 1.1
        assert row.epsilon_reached <= row.run_epsilon


def test_measured_errors_are_those_of_the_plans() -> None:
    table = READ(ERRORS)
    assert set(table["dimension"]) == {10_000, 1_000_000}
    assert set(table["mechanism"]) == set(MECHANISMS)
    off = table["measured"] / table["predicted"] - 1.0
    assert off.abs().max() <= 0.05
    assert table["overflowed_sums"].sum() == 0


def test_nobody_needs_fewer_bytes() -> None:
    table = READ(NEEDED)
    for _, rows in table.groupby("dimension"):
        assert rows.loc[rows["kilobytes"].idxmin(), "mechanism"] == "rounded_gaussian"
        assert rows["ratio_to_central"].max() <= 1.1


def test_a_cell_measured_anew() -> None:
    """20 rounds of 150 of 1500 coordinates: the ratio has a standard error of 3 % or so; 4 of them."""
    target = pq.Target(epsilon=4.0, rounds=20, num_clients=40)
    everybody = pq.SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    plan = target.plan(1500, max_bits=1, keep=150, aggregation=everybody)
    cell = SimpleNamespace(**measure_plan(plan, 20, seed=3))
    assert cell.measured == pytest.approx(cell.predicted, abs=4.0 * cell.error)
    assert cell.error < 0.06 * cell.predicted
    assert cell.overflowed_sums == 0
    # A plan with twice the noise would be told apart.
    assert cell.measured != pytest.approx(2.0 * cell.predicted, abs=4.0 * cell.error)
