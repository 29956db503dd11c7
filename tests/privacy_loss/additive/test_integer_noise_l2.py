"""Integer noise in the sum, by normal pairs: against exact sums and random rounding."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fl_privquant as pq
from fl_privquant.distributions.integer_distribution import IntegerDistribution
from fl_privquant.privacy_loss.additive.integer_noise import NoisyInteger, ideal_sum
from fl_privquant.privacy_loss.additive.integer_noise_l2 import (
    NoisyUpdate,
    _hull_at,
    _rounded_loss,
    rounded_length,
    shift_separation,
)
from fl_privquant.privacy_loss.additive.normal_pairs import spare_for
from fl_privquant.privacy_loss.update_bounds import UpdateNorms, WholeUpdate
from fl_privquant.sampling.integer_noise import DiscreteGaussian, DiscreteLaplace, IntegerNoise, Skellam
from tests.exact import excess_of_pair

REVEALED = 1e-9

NOISES: list[IntegerNoise] = [
    Skellam(Fraction(7, 3)),
    Skellam(Fraction(40)),
    DiscreteGaussian(Fraction(1, 2)),
    DiscreteGaussian(Fraction(25, 2)),
    DiscreteLaplace(Fraction(5)),
]


def shifted(distribution: IntegerDistribution, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """The distribution moved up by a shift, and the distribution, on the same outputs."""
    zeros = np.zeros(shift)
    return np.concatenate([zeros, distribution.values]), np.concatenate([distribution.values, zeros])


def rounded_at_random(distribution: IntegerDistribution, center: float, size: int) -> np.ndarray:
    """The sum of noises and an input that is rounded at random to a neighbor, from 0 on."""
    below = math.floor(center)
    out = np.zeros(size)
    for point, share in ((below, 1.0 - (center - below)), (below + 1, center - below)):
        out[point : point + distribution.values.size] += share * distribution.values
    return out


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("count", [3, 25])
def test_no_real_shift_of_rounded_inputs_is_told_apart_better_than_certified(
    noise: IntegerNoise, count: int
) -> None:
    distribution = ideal_sum(noise, count, 1e-36)
    generator = np.random.default_rng(5)
    checked = 0
    for farthest in (0.3, 1.0, 2.5):
        most = 3.0 * farthest / math.sqrt(count * float(noise.variance))
        if most > 3.0:
            continue
        separation = shift_separation(distribution, spare_for(REVEALED, most), whole=False)
        if not separation * farthest <= most:
            continue
        for shift in farthest * generator.uniform(0.02, 1.0, 6):
            center = generator.uniform(0.0, 3.0)
            pair = [
                rounded_at_random(distribution, at, distribution.values.size + 8)
                for at in (center, center + shift)
            ]
            for first, second in (pair, pair[::-1]):
                assert excess_of_pair(first, second, separation * shift, REVEALED) <= 1e-15
        assert shift_separation(distribution, spare_for(REVEALED, most)) <= separation
        # A negative control: less than half of the separation is not enough.
        first, second = (
            rounded_at_random(distribution, at, distribution.values.size + 8) for at in (0.0, 0.05)
        )
        assert excess_of_pair(second, first, 0.4 * separation * 0.05, REVEALED) > 1e-9
        checked += 1
    assert checked or float(noise.variance) * count < 10.0


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("count", [3, 25])
def test_no_whole_shift_is_told_apart_better_than_certified(noise: IntegerNoise, count: int) -> None:
    distribution = ideal_sum(noise, count, 1e-36)
    for farthest in (1, 2, 5, 11):
        most = 2.0 * farthest / math.sqrt(count * float(noise.variance))
        if most > 3.0:
            continue
        separation = shift_separation(distribution, spare_for(REVEALED, most))
        assert separation * farthest <= most
        for shift in range(1, farthest + 1):
            assert excess_of_pair(*shifted(distribution, shift), separation * shift, REVEALED) <= 1e-14
        # Negative control: a separation that is a little too small is caught, unless the steps are coarse.
        if count * float(noise.variance) < 5.0:
            continue
        assert excess_of_pair(*shifted(distribution, 1), 0.95 * separation, 0.0) > 1e-14


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.floats(0.5, 60.0), st.floats(0.01, 4.0), st.floats(0.0, 1.0))
def test_random_rounding_is_in_the_count(
    clients: int, variance: float, distance: float, start: float
) -> None:
    """One coordinate: two inputs that are rounded at random, each by its own coin, and the noise of all."""
    distribution = ideal_sum(Skellam(Fraction(variance)), clients, 1e-36)

    def release(value: float) -> np.ndarray:
        low = math.floor(value)
        share = value - low
        rounded = np.zeros(8)
        rounded[low : low + 2] = [1.0 - share, share]
        return np.convolve(rounded, distribution.values)

    farthest = math.ceil(distance) + 1
    most = 2.5 * farthest / math.sqrt(clients * variance)
    if most > 3.0:
        return
    separation = shift_separation(distribution, spare_for(REVEALED, most))
    if separation * farthest > most:
        return
    length = rounded_length(8, distance**2, 1, REVEALED)
    first, second = release(start), release(start + distance)
    assert excess_of_pair(first, second, separation * length, 2.0 * REVEALED) <= 1e-14
    assert excess_of_pair(second, first, separation * length, 2.0 * REVEALED) <= 1e-14
    # What the accountant composes: the mixture over lengths, which is smaller.
    loss = _rounded_loss(separation, 8, distance**2, 1)
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        exact = np.maximum(first - math.exp(epsilon) * second, 0.0).sum()
        assert exact <= loss.delta(epsilon) + REVEALED + 1e-14


def test_two_coordinates_that_are_rounded_at_random() -> None:
    """Both at once, exactly: the distribution of two independent sums, for differences of unequal size."""
    distribution = ideal_sum(Skellam(Fraction(9)), 25, 1e-36)

    def release(value: float) -> np.ndarray:
        low = math.floor(value)
        rounded = np.zeros(8)
        rounded[low : low + 2] = [1.0 - (value - low), value - low]
        return np.convolve(rounded, distribution.values)

    for near, far in ((0.3, 0.4), (0.05, 2.7), (1.5, 1.5)):
        first = np.outer(release(0.2), release(0.7)).ravel()
        second = np.outer(release(0.2 + near), release(0.7 + far)).ravel()
        separation = shift_separation(distribution, spare_for(REVEALED, 1.0))
        loss = _rounded_loss(separation, 8, near**2 + far**2, 2)
        for epsilon in (0.0, 0.1, 0.4, 0.8):
            exact = np.maximum(first - math.exp(epsilon) * second, 0.0).sum()
            assert exact <= loss.delta(epsilon) + 2.0 * REVEALED


def test_the_length_of_a_rounded_difference_is_rarely_exceeded() -> None:
    """Drawn ten thousand times, with differences of equal and of very different size."""
    rng = np.random.default_rng(2)
    dimension, chance = 301, 1e-3
    for scale in (0.02, 0.4, 3.0):
        differences = scale * rng.exponential(1.0, dimension).clip(0.0, 6.0)
        bound = rounded_length(7, float((differences**2).sum()), dimension, chance)
        whole = np.floor(differences + rng.random((10_000, 1, dimension)))[:, 0]
        lengths = np.sqrt((whole**2).sum(axis=1))
        assert (lengths > bound).mean() <= chance
        assert bound >= math.sqrt(float((differences**2).sum()))


def test_noise_that_hides_nothing_is_not_certified() -> None:
    """Half a unit of variance, alone: the whole range is more than a few deviations apart."""
    assert math.isinf(shift_separation(IntegerDistribution(0, np.array([1.0])), 1e-9))
    mechanism = pq.design("discrete_laplace", epsilon=8.0, levels=16)
    names = [each.name for each in mechanism.update_losses(WholeUpdate(UpdateNorms(l2=3.0), 10))]
    assert names == []


def test_the_concave_hull_is_never_too_low_and_hardly_too_high() -> None:
    """Against all chords of two points around the place, of which the hull is the highest."""
    rng = np.random.default_rng(8)
    for _ in range(100):
        x = np.concatenate([[0.0], np.sort(rng.random(30))])
        y = np.sort(rng.random(31) ** rng.integers(1, 4))
        at = float(rng.uniform(0.0, x[-1]))
        chords = [
            y[i] + (y[j] - y[i]) * (at - x[i]) / (x[j] - x[i])
            for i in range(31)
            for j in range(31)
            if x[i] <= at < x[j]
        ]
        assert max(chords) <= _hull_at(x, y, at) <= max(chords) * (1.0 + 1e-8)


def test_the_distance_of_updates_includes_the_rounding_of_inputs() -> None:
    """Chances of rounding up are multiples of 2^-32: coordinates of equal updates may get that far apart."""
    mechanism = pq.design("discrete_gaussian", epsilon=4.0, delta=1e-6, levels=17)
    dimension, l2 = 1_000_000, 1e-9
    update = NoisyUpdate(NoisyInteger(mechanism.noise, 16), 2.0 * l2, dimension, 1)
    apart = 2.0 * l2 / mechanism.step + math.sqrt(dimension) * 2.0**-32
    assert update.squared >= apart**2
