"""The grid of mechanisms for secure sums: one small setting, and who is said to be behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulations.sum_grid import OURS, behind, cells_of, page


def test_a_setting_of_the_grid() -> None:
    """Two bits at a lax budget, where integer noise does not fit and binomial bits have more error."""
    cells = cells_of(650, 200, 10.0, most_bits=2)
    ours = {cell.bits: cell for cell in cells if cell.mechanism == OURS}
    binomial = {cell.bits: cell for cell in cells if cell.mechanism == "pbm"}
    assert {cell.mechanism for cell in cells} == {OURS, "pbm"}
    assert all(cell.certified for cell in ours.values())
    assert 1.0 < ours[2].ratio_to_central < ours[1].ratio_to_central < 1.4
    # Probed figures are a hair below certified ones.
    assert ours[1].ratio_to_central == pytest.approx(binomial[1].ratio_to_central, rel=3e-3)
    assert ours[2].ratio_to_central < binomial[2].ratio_to_central
    assert "in every setting at every width.\n" in page(cells)


def test_a_mechanism_with_clearly_less_error_is_named() -> None:
    cells = cells_of(650, 200, 10.0, most_bits=1)
    ours = next(cell for cell in cells if cell.mechanism == OURS)
    assert behind(cells) is None
    near = replace(ours, mechanism="skellam", ratio_to_central=ours.ratio_to_central / 1.004)
    assert behind([*cells, near]) is None
    better = replace(ours, mechanism="skellam", ratio_to_central=ours.ratio_to_central / 1.01)
    assert behind([*cells, better]) is better
    assert "1 bits: skellam" in page([*cells, better])
