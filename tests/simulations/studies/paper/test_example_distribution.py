"""The paper's example of an output distribution: what its text says of the picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.plotting import save_figure
from simulations.studies.paper import example_distribution
from simulations.studies.paper.study import FIGURES
from tests.simulations.studies.paper.committed import READ


@pytest.fixture(scope="module")
def distributions() -> dict[str, OutputDistribution]:
    return {label: mechanism.distribution for label, mechanism in example_distribution.mechanisms().items()}


def test_limits_at_the_third_bin(distributions: dict[str, OutputDistribution]) -> None:
    """Example 1: from the right q_3(3), from the left q_6(6); rounding to integers moves them by 2^-32."""
    distribution = distributions["ERM"]
    nearest = {
        n: 1.0 / np.exp(example_distribution.GAMMA * np.arange(0, -n, -1) / (2.0 * (n - 1))).sum()
        for n in (3, 6)
    }
    assert distribution.starts[1] == pytest.approx(example_distribution.BINS[2], abs=1e-6)
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


def test_the_committed_table_and_its_figure(tmp_path: Path) -> None:
    pieces, expected = example_distribution.distribution_pieces(), READ("figure-distribution")
    assert pieces.columns.tolist() == expected.columns.tolist()
    numbers = pieces.columns[1:]
    assert pieces[numbers].to_numpy() == pytest.approx(expected[numbers].to_numpy(), rel=1e-3, abs=1e-6)
    assert save_figure(FIGURES["distribution"](READ), tmp_path / "distribution.png").stat().st_size > 10_000
