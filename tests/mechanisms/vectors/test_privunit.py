"""PrivUnit and ProjUnit: the least error, a loss that is never below the true one, and no bias."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fl_privquant as pq
from fl_privquant.distributions.sphere_cap import cap_share_bounds
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError
from fl_privquant.mechanisms.vectors.base import CHANCES
from fl_privquant.mechanisms.vectors.sphere import (
    cap_mean,
    cap_measure,
    derive_orthonormal_rows,
    privunit_squared_error,
    projection_quantile,
)


def design_privunit(epsilon: float = 2.0, dimension: int = 12, **parameters: Any) -> Any:
    return pq.design("privunit", epsilon=epsilon, dimension=dimension, **parameters)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_the_error_is_the_least(epsilon: float) -> None:
    error = design_privunit(epsilon, 7850).output_norm ** 2 - 1.0
    assert 1.0 - 1e-9 <= error / privunit_squared_error(epsilon, 7850) <= 1.005
    # Half of the directions or a hundred do nearly as well at a small epsilon.
    few = design_privunit(epsilon, 7850, projected=400).output_norm ** 2 - 1.0
    assert error < few < 1.01 * error


@pytest.mark.parametrize(("dimension", "height"), [(3, 0.3), (100, 0.15), (7850, 0.03)])
def test_other_caps_err_more(dimension: int, height: float) -> None:
    best = privunit_squared_error(4.0, dimension)
    for other in np.array([0.2, 0.5, 0.9, 1.1, 2.0]) * height:
        lift = math.expm1(4.0)
        mean = lift * float(cap_mean(other, dimension)) / (1.0 + lift * float(cap_measure(other, dimension)))
        assert 1.0 / mean**2 - 1.0 >= best * (1.0 - 1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0, 60.0, 200.0])
@pytest.mark.parametrize(("dimension", "repeats"), [(1, 1), (2, 1), (100, 1), (100, 4), (7850, 1)])
def test_the_stated_loss_covers_the_ratio_of_densities(epsilon: float, dimension: int, repeats: int) -> None:
    """For both ends of the bounds on the cap's measure; less than what is stated would not do."""
    mechanism = design_privunit(epsilon, dimension, repeats=repeats)
    inside, outside = mechanism._weights
    assert inside + outside == CHANCES
    assert mechanism.epsilon <= epsilon
    losses = []
    for bound in cap_share_bounds(mechanism.height, dimension):
        share = Fraction(bound)
        ratio = Fraction(inside, outside) * (1 - share) / share
        with localcontext() as context:
            context.prec = 80
            losses.append(repeats * (Decimal(ratio.numerator) / Decimal(ratio.denominator)).ln())
    assert 0 < max(losses) <= Decimal(mechanism.epsilon)
    if epsilon < 50.0:
        assert float(max(losses)) > epsilon * (1.0 - 1e-12)


def test_the_cap_is_drawn_as_often_as_stated() -> None:
    """Binomial tests at 1e-6: inside the cap, and as high inside it as a uniform direction reaches."""
    mechanism = design_privunit(3.0, 5)
    center = np.array([0.0, 0.6, 0.0, -0.8, 0.0])
    stream = pq.RandomStream.seeded(4)
    words = np.array([mechanism.encode(center, rng=stream) for _ in range(6000)])
    along = words.view(np.float32).astype(np.float64) @ center
    share = mechanism._weights[0] / CHANCES
    near = along >= mechanism.height - 1e-6
    assert stats.binomtest(int(near.sum()), near.size, share).pvalue > 1e-6
    assert stats.binomtest(int(near.sum()), near.size, 0.9 * share).pvalue < 1e-6
    measure = float(cap_measure(np.array(mechanism.height), 5))
    ranks = cap_measure(np.clip(along[near], 0.0, 1.0), 5) / measure
    assert stats.kstest(ranks, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("dimension", [2, 3, 50, 10**5])
@pytest.mark.parametrize("share", [1e-30, 1e-4, 0.01, 0.3, 0.5, 0.8])
def test_heights_of_shares(share: float, dimension: int) -> None:
    height = projection_quantile(share, dimension)
    found = float(cap_measure(np.array(abs(height)), dimension))
    assert (found if height >= 0.0 else 1.0 - found) == pytest.approx(share, rel=1e-6)


def test_projections_are_orthonormal_and_look_the_same_from_everywhere() -> None:
    rows = derive_orthonormal_rows(5, 0, 4, 30)
    assert rows @ rows.T == pytest.approx(np.eye(4), abs=1e-12)
    firsts = np.array([derive_orthonormal_rows(seed, 0, 2, 3)[1] for seed in range(3000)])
    assert stats.kstest(firsts[:, 0], stats.uniform(-1, 2).cdf).pvalue > 1e-6
    assert np.abs(firsts.mean(axis=0)).max() < 6.0 / math.sqrt(3 * 3000)


def test_sizes() -> None:
    assert design_privunit(4.0, 1000).message_size == 1000
    assert design_privunit(4.0, 1000, projected=50).message_size == 2 + 50
    assert design_privunit(4.0, 20, projected=50).message_size == 2 + 20
    assert design_privunit(4.0, 20, repeats=2).bits_per_coordinate == 64.0
    assert design_privunit().outputs_floats


@pytest.mark.parametrize("projected", [0, 10**6])
def test_projections_that_cannot_be_are_refused(projected: int) -> None:
    with pytest.raises(InvalidSpecError, match="projected"):
        design_privunit(2.0, 1000, projected=projected)


def test_messages_that_are_none() -> None:
    mechanism = design_privunit(2.0, 3)
    large = np.array([np.nan, 1e30, 0.5], np.float32).view(np.uint32)
    for bad in (large, np.zeros(3, np.uint32)):
        with pytest.raises(InvalidUpdateError, match="unit vector"):
            mechanism.decode(bad)
