"""The paper's scalar experiments: what their commands compute, and what is committed of it."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from fl_privquant.distributions.output_distribution import OutputDistribution
from simulations.studies.paper import scalar
from tests.simulations.studies.paper.committed import READ

REFERENCE_2 = {0.1: 1.774, 0.2: 1.839, 0.3: 1.969}


def same(row: dict[str, object], found: pd.Series) -> None:
    for name, value in row.items():
        if value is None:
            assert pd.isna(found[name]), name
        elif isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=2e-4), name
        else:
            assert found[name] == value


def test_table_1_as_committed_reproduces_the_print_and_improves_on_it() -> None:
    frame = READ("table1")
    printed = frame.dropna(subset="printed")
    assert len(printed) == sum(len(values) for values in scalar.PRINTED_1.values())
    assert (printed["grid_mae"] - printed["printed"]).abs().max() < 8e-4
    optm = printed[printed["mechanism"] == "OPTM"]
    assert (optm["grid_mae"].round(3) == optm["printed"]).all()
    for _, at_epsilon in frame.groupby("epsilon"):
        ours = at_epsilon[at_epsilon["mechanism"] == "ours: free, best for MAE"].iloc[0]
        others = at_epsilon[at_epsilon["mechanism"] != ours["mechanism"]]
        assert ours["mae"] < others["mae"].min()
    assert (frame["certified_epsilon"].dropna() <= frame.loc[frame["mae"].notna(), "epsilon"]).all()


def test_table_1_as_committed_is_what_the_command_gives() -> None:
    """The block of the first epsilon: a third of the table, of every kind of row."""
    frame = READ("table1")
    block = list(scalar.table1(0.5))
    assert len(block) == (frame["epsilon"] == 0.5).sum() > 10
    for row, (_, found) in zip(block, frame.iterrows(), strict=False):
        same(row, found)


def test_table_2_as_committed_has_the_reference_values() -> None:
    """The printed figures are noisy (1000 samples); the authors' program itself gives the reference."""
    frame = READ("table2")
    for sigma, reference in REFERENCE_2.items():
        rows = frame[frame["sigma"] == sigma].set_index("mechanism")
        assert rows.loc["OPTM, clipped", "mae"] == pytest.approx(reference, abs=5e-4)
        assert rows.loc["OPTM, clipped", "printed"] == pytest.approx(reference, abs=5e-3)
        assert rows["certified_epsilon"].max() <= 1.0
        clipped = rows[rows.index.str.endswith("clipped")]
        assert clipped["mae"].idxmin() == "ours: free, best for MAE, clipped"


def test_table_2_as_committed_is_what_the_command_gives() -> None:
    frame = READ("table2")
    for row, (_, found) in zip(itertools.islice(scalar.table2(0.1), 3), frame.iterrows(), strict=False):
        same(row, found)


def test_the_curves_as_committed_are_what_the_command_gives() -> None:
    found, expected = scalar.error_curves(), READ("figure-scalar-error")
    assert len(found) == len(expected)
    assert found["error"].to_numpy() == pytest.approx(expected["error"].to_numpy(), rel=2e-4)


@pytest.fixture(scope="module")
def distributions() -> dict[str, OutputDistribution]:
    return {label: mechanism.distribution for label, mechanism in scalar.example_mechanisms().items()}


def test_limits_at_the_third_bin(distributions: dict[str, OutputDistribution]) -> None:
    """Example 1: from the right q_3(3), from the left q_6(6); rounding to integers moves them by 2^-32."""
    distribution = distributions["ERM"]
    nearest = {
        n: 1.0 / np.exp(scalar.EXAMPLE_GAMMA * np.arange(0, -n, -1) / (2.0 * (n - 1))).sum() for n in (3, 6)
    }
    assert distribution.starts[1] == pytest.approx(scalar.EXAMPLE_BINS[2], abs=1e-6)
    assert distribution.start_rows[1, 2] == pytest.approx(nearest[3], abs=1e-6)
    assert distribution.end_rows[0, 2] == pytest.approx(nearest[6], abs=1e-6)
    assert (distribution.end_rows[0, 2], distribution.start_rows[1, 2]) == (
        pytest.approx(0.2592, abs=1e-3),
        pytest.approx(0.5065, abs=1e-3),
    )


def test_it_falls_away_from_its_bin_and_is_mirrored(distributions: dict[str, OutputDistribution]) -> None:
    distribution = distributions["ERM"]
    assert distribution.start_rows[0, 2] < distribution.end_rows[0, 2]
    assert (distribution.start_rows[1:, 2] > distribution.end_rows[1:, 2]).all()
    assert distribution.start_rows[:, 2] == pytest.approx(distribution.end_rows[::-1, 5], abs=1e-8)


def test_the_free_design_has_no_jump_and_less_error(distributions: dict[str, OutputDistribution]) -> None:
    erm, free = distributions["ERM"], distributions["OPTM free (ours)"]
    assert np.abs(free.start_rows[1:] - free.end_rows[:-1]).max() == 0.0
    assert np.abs(erm.start_rows[1:] - erm.end_rows[:-1]).max() > 0.2
    assert free.epsilon <= erm.epsilon
    assert (erm.mae(), free.mae()) == (pytest.approx(0.57007, rel=1e-3), pytest.approx(0.27735, rel=1e-3))


def test_the_distributions_as_committed_are_what_the_command_gives() -> None:
    pieces, expected = scalar.distribution_pieces(), READ("figure-distribution")
    assert pieces.columns.tolist() == expected.columns.tolist()
    numbers = pieces.columns[1:]
    assert pieces[numbers].to_numpy() == pytest.approx(expected[numbers].to_numpy(), rel=1e-3, abs=1e-6)
