"""Mean estimation: what its committed tables must show, and rows computed anew."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest

import fl_privquant as pq
from simulations.studies.__main__ import study_folder
from simulations.studies._pages import join_tables, read_table
from simulations.studies.mean_estimation.local import (
    CHECK,
    DATA,
    DIMENSIONS,
    EPSILONS,
    FLOORS,
    LOCAL,
    PRIVATE,
    local_row,
)
from simulations.studies.mean_estimation.secure import central_error
from simulations.studies.mean_estimation.study import page_numbers, secure_table, winners
from simulations.studies.sum_grid.grid import OURS, Setting, plan_cells

READ = partial(read_table, study_folder("mean_estimation"))


@pytest.fixture(scope="module")
def local() -> pd.DataFrame:
    return join_tables(READ, LOCAL)


def test_every_mechanism_is_there_in_every_setting(local: pd.DataFrame) -> None:
    private = local[local["mechanism"].isin(PRIVATE)]
    assert len(private) == len(PRIVATE) * len(DATA) * len(DIMENSIONS) * len(EPSILONS)
    assert len(local) - len(private) == len(FLOORS) * len(DATA) * len(DIMENSIONS)
    assert set(local[local["certified"]]["mechanism"]) == set(PRIVATE) - {"privunit", "gaussian"}


def test_nobody_is_below_the_lower_bound(local: pd.DataFrame) -> None:
    """Of unit vectors; privunit is at it, and the shared codebook within 2 % with at most 76 bits."""
    sphere = local[(local["data"] == "sphere") & local["mechanism"].isin(PRIVATE)]
    assert (sphere["ratio_to_bound"] > 1.0 - 1e-6).all()
    assert (sphere[sphere["mechanism"] == "privunit"]["ratio_to_bound"] <= 1.005).all()
    codebook = sphere[sphere["mechanism"] == "shared_codebook"]
    assert (codebook["ratio_to_bound"] <= 1.02).all()
    assert (codebook["bits"] <= 76).all()
    won = winners(local[local["certified"]], ["data", "dimension", "round_epsilon"])
    assert len(won) == len(DATA) * len(DIMENSIONS) * len(EPSILONS)
    assert (won["mechanism"] == "shared_codebook").all()


def test_drawn_errors_are_the_exact_ones(local: pd.DataFrame) -> None:
    draws = page_numbers(READ)["draws"]
    assert draws["within_two"] > 0.9
    # The largest of some 260 cells, among them skewed ones.
    assert draws["most"] < 6.0
    check = READ(CHECK)
    away = (check["drawn"] - check["error"]) / check["drawn_standard_error"]
    assert set(check["mechanism"]) == set(PRIVATE)
    assert away.abs().max() < 5.0


@pytest.mark.parametrize(
    ("data", "dimension", "name"), [("heavy", 100, "sqkr"), ("sparse", 1000, "shared_codebook")]
)
def test_committed_rows_are_what_is_computed(
    local: pd.DataFrame, data: str, dimension: int, name: str
) -> None:
    row = local_row(data, dimension, 4.0, name, 5)
    same = ["data", "dimension", "round_epsilon", "mechanism"]
    kept = local[np.logical_and.reduce([local[key] == row[key] for key in same])]
    assert kept["error"].item() == pytest.approx(row["error"], rel=1e-6)
    assert kept["bits"].item() == row["bits"]
    assert row["drawn"] == pytest.approx(row["error"], abs=20.0 * row["drawn_standard_error"])


@pytest.mark.parametrize("data", DATA)
def test_vectors_lie_in_the_ball(data: str) -> None:
    x = DATA[data](np.random.default_rng(1), 50, 300)
    lengths = np.linalg.norm(x, axis=1)
    assert x.shape == (50, 300)
    assert lengths.max() <= 1.0 + 1e-12
    if data == "sparse":
        assert (np.count_nonzero(x, axis=1) == 5).all()
    assert (lengths.min() < 0.6) == (data == "heavy")


def test_the_trusted_server_is_a_gaussian_of_that_budget() -> None:
    sigma = math.sqrt(central_error(100, 50, 2.0) / 50)
    assert pq.design("gaussian", epsilon=2.0, delta=1e-5).scale / 100 == pytest.approx(sigma)


def test_secure_sums() -> None:
    rows = secure_table(READ)
    kept = rows[(rows["num_clients"] == 100) & (rows["dimension"] == 1000) & (rows["round_epsilon"] == 4.0)]
    assert (rows["ratio_to_central"] > 0.99).all()
    for cell in plan_cells(Setting(1000, 100, 4.0, rounds=1), (2,)):
        found = kept[(kept["mechanism"] == cell.mechanism) & (kept["levels"].isna() | (kept["levels"] == 4))]
        assert found["ratio_to_central"].item() == pytest.approx(cell.ratio_to_central, rel=1e-3)
        assert found["bits_in_sum"].item() == cell.bits_in_sum
    # A sum errs far less than the local view, the more so the more clients.
    regimes = page_numbers(READ)["regimes"]
    gains = {(line.num_clients, line.dimension): line.gain for line in regimes.itertuples()}
    assert min(gains.values()) > 5.0
    assert gains[1000, 1000] > 3.0 * gains[100, 1000]


def test_sampled_coordinates_are_never_better_than_the_default_of_plans() -> None:
    rows = secure_table(READ)
    sampled = rows[rows["mechanism"] == "csgm"]
    same = ["num_clients", "dimension", "round_epsilon"]
    both = sampled.merge(rows[rows["mechanism"] == OURS], on=same)
    assert len(both) == len(sampled)
    assert (both["error_x"] >= both["error_y"]).all()
