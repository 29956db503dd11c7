"""The command that measures the secure sum: rotated updates at the norm bound, clip bias included."""

from __future__ import annotations

import pytest

from simulations.sum_errors import measure


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
    cell = measure(dimension, clients, epsilon, bits)
    assert 1.0 < float(cell["ratio_to_central"]) <= largest
    assert 0.99 * epsilon < float(cell["epsilon_reached"]) <= epsilon
    assert 2.0 <= float(cell["spread"]) <= 6.0
