"""The grid of mechanisms for secure sums: what its committed tables must show, and cells computed anew."""

from __future__ import annotations

import itertools
from functools import partial

import pandas as pd
import pytest

from simulations.studies.__main__ import study_folder
from simulations.studies._pages import join_tables, read_table
from simulations.studies.sum_grid.study import (
    GRID,
    OTHERS,
    OURS,
    PEERS,
    Setting,
    page_numbers,
    plan_cells,
)

READ = partial(read_table, study_folder("sum_grid"))
# 7850 coordinates, 50 rounds, δ = 1e-5: the most bits and the largest error over a central Gaussian's.
MUST_HOLD = {100: (8, 1.01), 1000: (10, 1.01)}


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return join_tables(READ, GRID)


def test_the_committed_errors_meet_the_limits(cells: pd.DataFrame) -> None:
    ours = cells[(cells["mechanism"] == OURS) & (cells["dimension"] == 7850)]
    for clients, (bits, limit) in MUST_HOLD.items():
        rows = ours[ours["num_clients"] == clients]
        assert list(rows["run_epsilon"]) == [1.0, 4.0, 10.0]
        assert rows["bits_in_sum"].max() <= bits
        assert 1.0 < rows["ratio_to_central"].min() <= rows["ratio_to_central"].max() <= limit
    assert (cells["epsilon_reached"] <= cells["run_epsilon"]).all()


def test_ours_leads_in_every_committed_cell(cells: pd.DataFrame) -> None:
    """Or is within 0.5 % of the best in as many bits."""
    numbers = page_numbers(READ)
    assert len(numbers["ours"]) == 36
    for ours, peer in itertools.product(list(numbers["ours"].itertuples()), PEERS):
        other = numbers["in_as_many_bits"](ours, peer)
        assert other is None or ours.ratio_to_central <= 1.005 * other.ratio_to_central
    assert set(cells["mechanism"]) == {OURS, *PEERS}


@pytest.mark.parametrize(
    "setting", [Setting(7850, 100, 4.0), Setting(7850, 1000, 10.0), Setting(650, 50, 10.0)], ids=repr
)
def test_committed_cells_are_what_is_computed(setting: Setting, cells: pd.DataFrame) -> None:
    here = cells[(cells["dimension"] == setting.dimension) & (cells["num_clients"] == setting.num_clients)]
    here = (
        here[here["run_epsilon"] == setting.run_epsilon]
        .fillna({"levels": 0})
        .set_index(["mechanism", "levels"])
    )
    computed = plan_cells(setting, code_bits=(1, 3))
    assert len(computed) == 1 + 2 * len(PEERS)
    for cell in computed:
        row = here.loc[cell["mechanism"], 0 if cell["mechanism"] == OURS else cell["levels"]]
        assert row["ratio_to_central"] == pytest.approx(cell["ratio_to_central"], rel=1e-4)
        assert row["bits_in_sum"] == cell["bits_in_sum"]


def test_no_other_mechanism_is_better_than_the_default_of_plans(cells: pd.DataFrame) -> None:
    others = READ("sums-others")
    setting = ["dimension", "num_clients", "run_epsilon"]
    both = others.merge(cells[cells["mechanism"] == OURS], on=setting)
    assert set(others["mechanism"]) == set(OTHERS)
    assert len(both) == len(others) >= 35
    assert (both["ratio_to_central_x"] > both["ratio_to_central_y"]).all()
    assert (others["epsilon_reached"] <= others["run_epsilon"]).all()
