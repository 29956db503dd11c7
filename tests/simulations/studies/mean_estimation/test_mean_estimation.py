"""Mean estimation: what its committed tables must show, and rows computed anew."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest

from simulations.studies.__main__ import study_folder
from simulations.studies._pages import join_tables, read_table
from simulations.studies.mean_estimation.study import (
    DIMENSIONS,
    EPSILONS,
    PARTS,
    PRIVATE,
    local_row,
    winners,
)

READ = partial(read_table, study_folder("mean_estimation"))


@pytest.fixture(scope="module")
def local() -> pd.DataFrame:
    return join_tables(READ, PARTS)


def test_every_mechanism_is_there_in_every_setting(local: pd.DataFrame) -> None:
    assert len(local) == len(PRIVATE) * len(DIMENSIONS) * len(EPSILONS)
    assert set(local[local["certified"]]["mechanism"]) == set(PRIVATE) - {"privunit", "gaussian"}


def test_nobody_is_below_the_lower_bound(local: pd.DataFrame) -> None:
    """Privunit is at it, and the shared codebook within 2 % with at most 76 bits."""
    assert (local["ratio_to_bound"] > 1.0 - 1e-6).all()
    assert (local[local["mechanism"] == "privunit"]["ratio_to_bound"] <= 1.005).all()
    codebook = local[local["mechanism"] == "shared_codebook"]
    assert (codebook["ratio_to_bound"] <= 1.02).all()
    assert (codebook["bits"] <= 76).all()
    won = winners(local)
    assert len(won) == len(DIMENSIONS) * len(EPSILONS)
    assert (won["mechanism"] == "shared_codebook").all()


def test_drawn_errors_are_the_exact_ones(local: pd.DataFrame) -> None:
    # Standard errors of fewer draws are rough, and where all errors are equal rarer outcomes are missing.
    many = (local["draws"] >= 30) & (local["drawn_standard_error"] > 1e-9 * local["error"])
    away = (local["drawn"] - local["error"]).abs()[many] / local["drawn_standard_error"][many]
    assert len(away) > 60
    assert (away < 2.0).mean() > 0.9
    assert away.max() < 6.0


@pytest.mark.parametrize(("dimension", "name"), [(100, "sqkr"), (1000, "shared_codebook")])
def test_committed_rows_are_what_is_computed(local: pd.DataFrame, dimension: int, name: str) -> None:
    row = local_row(dimension, 4.0, name, 5)
    same = ["dimension", "round_epsilon", "mechanism"]
    kept = local[np.logical_and.reduce([local[key] == row[key] for key in same])]
    assert kept["error"].item() == pytest.approx(row["error"], rel=1e-6)
    assert kept["bits"].item() == row["bits"]
    assert row["drawn"] == pytest.approx(row["error"], abs=20.0 * row["drawn_standard_error"])
