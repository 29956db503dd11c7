"""Certificates of integer noise against brute force over every shift, output and pair of inputs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fl_privquant.distributions.certified_table import log_ratio_upper
from fl_privquant.errors import CertificationError, InvalidSpecError
from fl_privquant.mechanisms.additive._certificate import calibrate, certify_delta, certify_epsilon
from fl_privquant.sampling.integer_noise import DiscreteGaussian, DiscreteLaplace, IntegerNoise, Skellam

NOISES = [
    DiscreteLaplace(Fraction(7, 2)),
    DiscreteLaplace(Fraction(1, 8)),
    DiscreteGaussian(Fraction(20)),
    DiscreteGaussian(Fraction(1, 5)),
    Skellam(Fraction(20)),
    Skellam(Fraction(1, 100)),
]


def signed_distribution(noise: IntegerNoise) -> dict[int, Fraction]:
    """The distribution that is drawn, exactly."""
    distribution: dict[int, Fraction] = {}
    for magnitude, units in enumerate(noise.units()):
        for sign in (1, -1):
            k = sign * magnitude
            distribution[k] = distribution.get(k, Fraction(0)) + Fraction(units, 1 << 128)
    return distribution


@pytest.mark.parametrize("epsilon", [0.0, 0.25, 1.0, 6.0])
@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_no_shift_up_to_the_largest_has_a_larger_delta(noise: IntegerNoise, epsilon: float) -> None:
    distribution, max_shift = signed_distribution(noise), 5
    growth = Fraction(math.nextafter(math.exp(epsilon), 0.0) if epsilon else 1.0)
    outputs = range(min(distribution) - max_shift, max(distribution) + max_shift + 1)
    deltas = []
    for shift in range(-max_shift, max_shift + 1):
        terms = (
            distribution.get(y, Fraction(0)) - growth * distribution.get(y - shift, Fraction(0))
            for y in outputs
        )
        deltas.append(float(sum(max(term, Fraction(0)) for term in terms)))
    certified = certify_delta(noise, max_shift, epsilon)
    # e^epsilon is rounded down here, too, by up to 1e-15.
    assert max(deltas) <= certified * (1.0 + 1e-12) + 1e-14
    assert certified <= max(deltas) * (1.0 + 1e-12) + 1e-20
    np.testing.assert_array_less(np.array(deltas[max_shift + 1 :]) * (1.0 - 1e-12) - 1e-20, certified)
    assert np.all(np.diff(deltas[max_shift:]) >= -1e-15)


@pytest.mark.parametrize(("scale", "max_shift", "reach"), [(Fraction(2), 3, 50), (Fraction(1, 4), 2, 5)])
def test_pure_epsilon_is_the_worst_ratio_of_all_outputs(scale: Fraction, max_shift: int, reach: int) -> None:
    noise = DiscreteLaplace(scale)
    outputs: list[dict[int, Fraction]] = []
    for point in range(max_shift + 1):
        clamped: dict[int, Fraction] = {}
        for k, probability in signed_distribution(noise).items():
            y = min(max(point + k, -reach), max_shift + reach)
            clamped[y] = clamped.get(y, Fraction(0)) + probability
        outputs.append(clamped)
    assert all(set(each) == set(range(-reach, max_shift + reach + 1)) for each in outputs)
    worst = max(a[y] / b[y] for a in outputs for b in outputs for y in a)
    certified = certify_epsilon(noise, max_shift, reach)
    assert certified == log_ratio_upper(worst.numerator, worst.denominator)
    assert certified == pytest.approx(max_shift / float(scale), rel=1e-6)


def test_a_table_that_ends_too_early_has_no_pure_epsilon() -> None:
    noise = DiscreteLaplace(Fraction(2))
    with pytest.raises(CertificationError, match="does not cover"):
        certify_epsilon(noise, 3, noise.largest)
    with pytest.raises(CertificationError, match="does not cover"):
        certify_epsilon(noise, 10**6, 1)


@pytest.mark.parametrize("epsilon", [-1.0, 33.0, math.nan, math.inf])
def test_epsilon_out_of_range(epsilon: float) -> None:
    with pytest.raises(InvalidSpecError, match="epsilon"):
        certify_delta(DiscreteLaplace(Fraction(2)), 1, epsilon)


@pytest.mark.parametrize("make", [DiscreteGaussian, Skellam])
@pytest.mark.parametrize("guess", [1.0, 60.0, 4000.0])
def test_calibration_meets_delta_and_wastes_nothing_from_any_guess(make, guess: float) -> None:
    noise = calibrate(make, guess, 3, 2.0, 1e-5)
    assert certify_delta(noise, 3, 2.0) <= 1e-5
    variance = getattr(noise, noise.parameter)
    assert certify_delta(make(variance * Fraction(999_999, 1_000_000)), 3, 2.0) > 1e-5
