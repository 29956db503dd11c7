"""Exact errors in the secure sum: rotated updates at the norm bound, clip bias included."""

from __future__ import annotations

import pytest

from simulations.runner.mechanism_config import has_levels
from simulations.studies.equal_budget.planned_errors import OURS, PEERS, error_row


@pytest.mark.parametrize(
    ("dimension", "clients", "epsilon", "max_bits"),
    [
        (7850, 100, 4.0, 8),
        (7850, 1000, 10.0, 10),
        (650, 100, 10.0, 9),
        (301, 25, 3.0, 8),
    ],
)
def test_errors_are_close_to_a_trusted_server(
    dimension: int, clients: int, epsilon: float, max_bits: int
) -> None:
    row = error_row(OURS, dimension, clients, epsilon, None)
    assert row is not None
    assert 1.0 < float(row["ratio_to_central"]) <= 1.01
    assert row["bits_in_sum"] <= max_bits
    assert 0.99 * epsilon < float(row["epsilon_reached"]) <= epsilon


def test_ours_errs_min_among_its_peers() -> None:
    rows = {name: error_row(name, 200, 50, 4.0, 4 if has_levels(name) else None, rounds=30) for name in PEERS}
    errors = {name: float(row["ratio_to_central"]) for name, row in rows.items() if row is not None}
    assert set(errors) == set(PEERS)
    assert all(float(row["epsilon_reached"]) <= 4.0 for row in rows.values() if row is not None)
    assert min(errors.values()) > 1.0
    assert min(errors, key=lambda name: errors[name]) == OURS
