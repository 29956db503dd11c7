"""Exact errors in the secure sum: rotated updates at the norm bound, clip bias included."""

from __future__ import annotations

import pytest

from simulations.keys.mechanism_keys import has_levels
from simulations.studies.equal_budget.planned_errors import PEERS, error_row


@pytest.mark.parametrize(
    ("dimension", "clients", "epsilon", "bits", "largest"),
    [
        (7850, 100, 4.0, 1, 1.03),
        (7850, 1000, 10.0, 1, 1.13),
        (7850, 1000, 10.0, 2, 1.05),
        (7850, 100, 10.0, 3, 1.02),
        (650, 100, 10.0, 3, 1.05),
        (301, 25, 3.0, 2, 1.05),
    ],
)
def test_errors_are_close_to_a_trusted_server(
    dimension: int, clients: int, epsilon: float, bits: int, largest: float
) -> None:
    row = error_row("optm_aggregate", dimension, clients, epsilon, 2**bits)
    assert row is not None
    assert 1.0 < float(row["ratio_to_central"]) <= largest
    assert 0.99 * epsilon < float(row["epsilon_reached"]) <= epsilon
    assert 2.0 <= float(row["spread"]) <= 6.0


def test_ours_errs_least_among_its_peers() -> None:
    rows = {name: error_row(name, 200, 50, 4.0, 4 if has_levels(name) else None, rounds=30) for name in PEERS}
    errors = {name: float(row["ratio_to_central"]) for name, row in rows.items() if row is not None}
    assert set(errors) == set(PEERS)
    assert all(float(row["epsilon_reached"]) <= 4.0 for row in rows.values() if row is not None)
    assert min(errors.values()) > 1.0
    assert min(errors, key=lambda name: errors[name]) == PEERS[0]
