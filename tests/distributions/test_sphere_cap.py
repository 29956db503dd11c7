"""The measure of a cap of the sphere: bounds against exact rational numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import special

from fl_privquant.distributions.sphere_cap import cap_share_bounds
from fl_privquant.errors import InvalidSpecError


def exact_fraction(height: Fraction, dimension: int) -> Fraction:
    """The measure for an odd number of coordinates, where the density (1 - v^2)^m is a polynomial."""
    power = (dimension - 3) // 2

    def integral(at: Fraction) -> Fraction:
        return sum(
            (
                Fraction((-1) ** j * math.comb(power, j), 2 * j + 1) * at ** (2 * j + 1)
                for j in range(power + 1)
            ),
            Fraction(0),
        )

    whole = integral(Fraction(1))
    return (whole - integral(height)) / (2 * whole)


@pytest.mark.parametrize("dimension", [3, 5, 9, 101, 401])
@pytest.mark.parametrize("height", [2.0**-20, 0.01, 0.0999, 0.1, 0.25, 0.7, 0.95])
def test_the_bounds_hold_and_are_close(dimension: int, height: float) -> None:
    exact = exact_fraction(Fraction(height), dimension)
    low, high = (Fraction(bound) for bound in cap_share_bounds(height, dimension))
    assert low <= exact <= high
    assert high - low < exact * Fraction(1, 10**25)
    # Bounds that were a little off would be noticed: the next height is told from this one.
    other = exact_fraction(Fraction(math.nextafter(height, 1.0)), dimension)
    assert not low <= other <= high


@pytest.mark.parametrize("dimension", [2, 4, 64, 7850, 10**6, 10**9])
@pytest.mark.parametrize("deviations", [1e-3, 0.5, 1.0, 4.0, 10.0])
def test_against_floats(dimension: int, deviations: float) -> None:
    height = min(deviations / math.sqrt(dimension), 0.98)
    low, high = cap_share_bounds(height, dimension)
    assert 0 < low < high < 1
    near = 0.5 - 0.5 * special.betainc(0.5, 0.5 * (dimension - 1), height**2)
    far = 0.5 * special.betainc(0.5 * (dimension - 1), 0.5, 1.0 - height**2)
    assert float(low) == pytest.approx(near if deviations < 2.0 else far, rel=1e-6)


def test_even_dimensions_by_an_angle() -> None:
    for height in (0.05, 0.3, 0.9):
        angle = math.acos(height)
        assert float(cap_share_bounds(height, 2)[0]) == pytest.approx(angle / math.pi, rel=1e-14)
        fourth = (angle - math.sin(2.0 * angle) / 2.0) / math.pi
        assert float(cap_share_bounds(height, 4)[0]) == pytest.approx(fourth, rel=1e-12)


def test_half_of_a_sphere() -> None:
    assert [float(bound) for bound in cap_share_bounds(0.0, 7)] == [0.5, 0.5]
    assert [float(bound) for bound in cap_share_bounds(0.4, 1)] == [0.5, 0.5]


@pytest.mark.parametrize("height", [-0.1, 1.0, math.nan])
def test_heights_that_are_none(height: float) -> None:
    with pytest.raises(InvalidSpecError, match="height"):
        cap_share_bounds(height, 5)


def test_a_cap_without_measure_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="lower the height"):
        cap_share_bounds(float(np.sqrt(0.0099)), 10**6)
