"""The grid of mechanisms for secure sums: what its committed tables must show, and cells computed anew."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fl_privquant.cli.plots import save
from simulations.studies.catalogue import study_of
from simulations.studies.page import page_text
from simulations.studies.study import Figure, Store
from simulations.studies.sum_grid.grid import OURS, TOLD_APART, Cell, Setting, cells_of
from simulations.studies.sum_grid.numbers import LIMITS, Numbers, computed_cells, wins

STUDY = study_of("sum_grid")
STORE = Store(STUDY.home)
# The table: 7850 coordinates, 50 rounds, delta 1e-5; 1, 2 and 3 bits.
MUST_HOLD = {
    (100, 1): (1.03, 1.02, 1.02),
    (100, 4): (1.03, 1.02, 1.02),
    (100, 10): (1.06, 1.03, 1.02),
    (1000, 1): (1.03, 1.02, 1.02),
    (1000, 4): (1.06, 1.03, 1.02),
    (1000, 10): (1.13, 1.05, 1.03),
}


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return computed_cells(STORE.read)


def test_a_setting_of_the_grid() -> None:
    """Two bits at a lax budget, where integer noise does not fit and binomial bits have more error."""
    row = cells_of(Setting(650, 200, 10.0), widths=(1, 2))
    ours = {cell.bits: cell for cell in row if cell.mechanism == OURS}
    binomial = {cell.bits: cell for cell in row if cell.mechanism == "pbm"}
    assert {cell.mechanism for cell in row} == {OURS, "pbm"}
    assert all(cell.certified for cell in ours.values())
    assert all(0.99 * 10.0 < cell.epsilon_reached <= 10.0 for cell in ours.values())
    assert 1.0 < ours[2].ratio_to_central < ours[1].ratio_to_central < 1.4
    # Probed figures are a hair below certified ones.
    assert ours[1].ratio_to_central == pytest.approx(binomial[1].ratio_to_central, rel=3e-3)
    assert ours[2].ratio_to_central < binomial[2].ratio_to_central


def test_a_mechanism_with_clearly_less_error_is_named(cells: pd.DataFrame) -> None:
    ours = Cell(650, 100, 4.0, 1, OURS, 2, 2.0, 1.04, certified=True)
    near = replace(ours, mechanism="skellam", ratio_to_central=1.04 / 1.004)
    better = replace(ours, mechanism="skellam", ratio_to_central=1.04 / 1.01)
    assert not list(wins(pd.DataFrame([asdict(cell) for cell in (ours, near)])))
    assert [best.mechanism for _, best in wins(pd.DataFrame([asdict(ours), asdict(better)]))] == ["skellam"]
    # And the page says so, in the setting where it is.
    setting = {"dimension": 7850, "num_clients": 100, "run_epsilon": 10.0, "bits": 1}
    row = cells[(cells[list(setting)] == pd.Series(setting)).all(axis=1)].iloc[:1]
    winner = row.assign(mechanism="skellam", ratio_to_central=1.0)

    def read(name: str) -> pd.DataFrame:
        table = STORE.read(name)
        return pd.concat([table, winner]) if name == "sums-7850-100" else table

    text = page_text(STUDY, read, {})
    assert "but for:\n\n- 7850 coordinates, 100 clients, ε = 10, 1 bit: `skellam` 1.0000" in text
    assert "but for:" not in page_text(STUDY, STORE.read, {})


def test_the_committed_errors_meet_the_limits(cells: pd.DataFrame) -> None:
    assert {(clients, int(epsilon)): limits for (clients, epsilon), limits in LIMITS.items()} == MUST_HOLD
    ours = cells[(cells["mechanism"] == OURS) & (cells["dimension"] == 7850)]
    errors = ours.set_index(["num_clients", "run_epsilon", "bits"])["ratio_to_central"]
    for (clients, epsilon), limits in MUST_HOLD.items():
        for bits, limit in enumerate(limits, start=1):
            assert 1.0 < errors[clients, epsilon, bits] <= limit
    counted = ours[ours["num_clients"].isin([100, 1000])]
    assert counted["certified"].all()
    assert (counted["epsilon_reached"] <= counted["run_epsilon"]).all()


def test_ours_leads_in_every_committed_cell(cells: pd.DataFrame) -> None:
    """Or is within 0.5 % of the best; where it were not, the page would name the cell."""
    assert not list(wins(cells))
    # No clip takes more of the signal than a tenth.
    assert (cells[cells["mechanism"] == OURS]["spread"] >= 1.65).all()
    # Every setting of the table has all mechanisms' best, at every width that holds them.
    widths = cells[cells["mechanism"].isin([OURS, "pbm"])].groupby(
        ["dimension", "num_clients", "run_epsilon"]
    )
    assert (widths["bits"].nunique() >= 3).all()
    assert len(Numbers(STORE.read).errors) == 36


def test_the_poisson_binomial_mechanism_leads_by_less_than_is_told_apart(cells: pd.DataFrame) -> None:
    peers, below, most = Numbers(STORE.read).beside_binomial
    assert 0 <= below <= peers == (cells["mechanism"] == "pbm").sum()
    assert most <= TOLD_APART


@pytest.mark.parametrize(
    ("setting", "bits"),
    [
        (Setting(7850, 100, 4.0), 2),
        (Setting(7850, 100, 10.0), 3),
        (Setting(7850, 1000, 10.0), 1),
        (Setting(650, 50, 10.0), 2),
        (Setting(1_000_000, 100, 10.0), 1),
    ],
)
def test_committed_cells_are_what_is_computed(setting: Setting, bits: int, cells: pd.DataFrame) -> None:
    for cell in cells_of(setting, widths=(bits,)):
        same = ["dimension", "num_clients", "run_epsilon", "bits", "mechanism"]
        rows = cells[np.logical_and.reduce([cells[key] == getattr(cell, key) for key in same])]
        assert rows["ratio_to_central"].item() == pytest.approx(cell.ratio_to_central, rel=1e-3)


@pytest.mark.parametrize("figure", STUDY.figures, ids=lambda figure: figure.name)
def test_figures_are_drawn_from_the_tables(figure: Figure, tmp_path: Path) -> None:
    assert save(figure.draw(STORE.read), tmp_path / "figure.png").stat().st_size > 10_000
