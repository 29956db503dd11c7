"""Densities: what is accepted, what is refused, and how accurate the quadrature is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fl_privquant.distributions.input_density import as_density
from fl_privquant.errors import InvalidSpecError


@pytest.mark.parametrize("loc", [-2.0, 0.0, 0.37, 1.0])
@pytest.mark.parametrize("scale", [0.003, 0.1, 2.0])
def test_quadrature_integrates_polynomials_of_a_clipped_normal(loc: float, scale: float) -> None:
    nodes, weights = as_density(stats.norm(loc, scale)).quadrature(np.array([-1.0, 0.2, 1.0]))
    clipped = np.clip(stats.norm(loc, scale).ppf((np.arange(10**6) + 0.5) / 10**6), -1.0, 1.0)
    assert weights.sum() == pytest.approx(1.0)
    for power in (1, 2, 3):
        assert weights @ nodes**power == pytest.approx((clipped**power).mean(), abs=2e-6)


def test_uniform_is_exact_for_cubics() -> None:
    nodes, weights = as_density(None).quadrature(np.array([-1.0, -0.3, 0.9, 1.0]))
    for power in range(4):
        assert weights @ nodes**power == pytest.approx(0.0 if power % 2 else 1.0 / (power + 1.0), abs=1e-15)


@pytest.mark.parametrize(
    "density",
    [
        [0.1, np.nan],
        [np.inf],
        [],
        "uniform",
        stats.poisson(3.0),
        stats.norm(np.nan, 1.0),
        stats.norm(0.0, -1.0),
    ],
)
def test_bad_densities_are_refused(density: object) -> None:
    with pytest.raises(InvalidSpecError, match="density"):
        as_density(density)


def test_descriptions_identify() -> None:
    assert as_density(stats.norm(0.5, 0.1)).describe() == as_density(stats.norm(0.5, 0.1)).describe()
    descriptions = {
        as_density(each).describe()
        for each in (None, stats.norm(0.5, 0.1), stats.norm(0.5, 0.2), stats.laplace(0.5, 0.1), [0.1], [0.2])
    }
    assert len(descriptions) == 6


@pytest.mark.parametrize(
    ("distribution", "symmetric"),
    [
        (stats.norm(0, 0.1), True),
        (stats.norm(0, 3.0), True),
        (stats.beta(50.5, 50.5, loc=-1, scale=2), True),
        (stats.uniform(-0.5, 1.0), True),
        (stats.norm(1e-6, 0.1), False),
        (stats.beta(2, 2.001, loc=-1, scale=2), False),
        (stats.uniform(-0.5, 1.1), False),
    ],
)
def test_symmetry_of_distributions(distribution, symmetric):
    density = as_density(distribution)
    assert density.symmetric is symmetric
    assert density.describe().endswith(":symmetric") is symmetric
