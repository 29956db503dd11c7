"""Sums of rounded shares: the lemma against exact distributions, the counts against brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr

from fl_privquant._array_types import Floats
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta
from fl_privquant.privacy_loss.additive.rounded_gaussian import RoundedShares, fraction_gap
from fl_privquant.privacy_loss.additive.rounding_noise import RoundingNoise
from fl_privquant.privacy_loss.closed_forms import gaussian_loss
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon

# Distributions of sums are added up from positive numbers, so that even small probabilities have this
# relative error.
_EXACT = 2e-12


def distributions_of_sums(centers: Floats, deviations: Floats) -> Floats:
    """(B, L) sums of round(center + N(0, deviation^2)) of (B, h) clients with (h,) deviations."""
    reach = int(13.0 * deviations.max()) + 2
    whole = np.floor(centers + 0.5)
    edges = np.arange(-reach, reach + 2) - 0.5
    total = np.ones((len(centers), 1))
    for client, deviation in enumerate(deviations):
        scaled = (edges - (centers - whole)[:, client, None]) / deviation
        # Differences of tails are taken on the side where they are small.
        distribution = np.where(
            scaled[:, :-1] < 0.0,
            ndtr(scaled[:, 1:]) - ndtr(scaled[:, :-1]),
            ndtr(-scaled[:, :-1]) - ndtr(-scaled[:, 1:]),
        )
        wider = np.zeros((len(centers), total.shape[1] + distribution.shape[1] - 1))
        for place in range(distribution.shape[1]):
            wider[:, place : place + total.shape[1]] += distribution[:, place, None] * total
        total = wider
    # Whole parts were left out above. All rows have the same sum, so that sums now count from one place.
    shift = whole.sum(axis=1).astype(int)
    size = int(np.ptp(shift)) + total.shape[1]
    aligned = np.zeros((len(centers), size))
    for row, start in enumerate(shift - shift.min()):
        aligned[row, start : start + total.shape[1]] = total[row]
    return aligned


def random_splits(generator: np.random.Generator, pairs: int, h: int) -> tuple[Floats, Floats]:
    """Pairs of (pairs, h) inputs of the same sum, whose fractional parts are more or less alike."""
    first = generator.uniform(-3.0, 3.0, (pairs, h))
    alike = generator.random((pairs, 1)) ** 3
    first = first.mean(axis=1, keepdims=True) + alike * (first - first.mean(axis=1, keepdims=True))
    other = generator.uniform(-3.0, 3.0, (pairs, h))
    other = alike * (other - other.mean(axis=1, keepdims=True)) + first.mean(axis=1, keepdims=True)
    # A share j / h of a spacing for everyone is undone by whole numbers.
    shares = generator.integers(0, h, pairs)
    other += (shares / h)[:, None]
    undone = np.arange(h)[None, :] < shares[:, None]
    return first, other - undone


def largest_log_ratio(first: Floats, second: Floats, deviations: Floats) -> float:
    """The largest |log ratio| of the distributions of the sums, where both are likely enough to be exact."""
    distributions = distributions_of_sums(np.concatenate([first, second]), deviations)
    one, two = distributions[: len(first)], distributions[len(first) :]
    likely = (one > 1e-13) & (two > 1e-13)
    return float(np.abs(np.log(one[likely] / two[likely])).max())


def check_splits(splits: int, seed: int) -> dict[int, float]:
    """Compare that many random splits with the lemma, and return how much of the bound is reached, by h."""
    generator = np.random.default_rng(seed)
    reached: dict[int, float] = {}
    batches = list(itertools.product(range(2, 21), np.linspace(0.5, 2.0, 7)))
    for h, s in batches:
        first, second = random_splits(generator, -(-splits // (2 * len(batches))), h)
        worst = largest_log_ratio(first, second, np.full(h, s))
        bound = RoundedShares(h, float(s)).log_ratio
        assert worst <= bound + _EXACT, (h, s, worst, bound)
        if bound > 1e3 * _EXACT:
            reached[h] = max(reached.get(h, 0.0), worst / bound)
    return reached


def test_distributions_of_random_splits_keep_the_bound_and_come_close_to_it() -> None:
    reached = check_splits(splits=4000, seed=1)
    assert set(reached) == set(range(2, 21))
    assert min(reached.values()) > 0.25


@pytest.mark.parametrize(("h", "s"), [(2, 0.5), (2, 0.8), (3, 0.6), (3, 1.2), (4, 1.0), (5, 0.6)])
def test_the_gap_is_the_sum_over_the_dual_lattice(h: int, s: float) -> None:
    exact = -1.0
    for k in itertools.product(range(-4, 5), repeat=h - 1):
        exact += math.exp(-2.0 * math.pi**2 * s**2 * (sum(i * i for i in k) - sum(k) ** 2 / h))
    assert exact <= fraction_gap(h, s) <= 1.02 * exact


def test_figures_of_the_gap() -> None:
    assert fraction_gap(5, 0.6) == pytest.approx(0.0379, abs=1e-4)
    assert fraction_gap(100, 1.2) == pytest.approx(1.2e-10, rel=0.02)
    assert fraction_gap(1, 1.0) == 0.0
    assert math.isinf(RoundedShares(100, 0.5).log_ratio)
    assert RoundedShares(100, 0.5).losses(1.0, 10) == []
    # It grows with the number of clients for fixed shares, but never below its value for few of them.
    assert fraction_gap(10**7, 1.5) == pytest.approx(2e7 * math.exp(-2 * math.pi**2 * 2.25), rel=0.01)


def test_one_small_share_breaks_the_bound_of_the_others() -> None:
    """A negative control: the gap must be taken at the smallest share of an honest client."""
    centers = np.array([[0.0, 0.0, 0.0]]), np.array([[0.5, -0.25, -0.25]])
    shares = np.array([0.05, 2.0, 2.0])
    ratio = largest_log_ratio(*centers, shares)
    assert ratio > 0.5
    assert RoundedShares(3, 2.0).log_ratio < 1e-10
    assert ratio <= RoundedShares(3, 0.05).log_ratio


def fine_distribution(
    center: int, fine: int, deviation: float, rounded: Callable[[np.ndarray], np.ndarray]
) -> Floats:
    """A code's distribution on -20..20 if noise with ``fine`` points per spacing is rounded."""
    points = np.arange(-12 * fine, 12 * fine + 1)
    weights = np.exp(-0.5 * (points / (fine * deviation)) ** 2)
    codes = rounded(points + center).astype(int)
    return np.bincount(codes + 20, weights / weights.sum(), 41)


@pytest.mark.parametrize("half_to_even", [False, True])
def test_rounding_half_to_even_is_not_post_processing(half_to_even: bool) -> None:
    """A negative control on a lattice with few points per spacing, where many sums lie in the middle."""
    fine, s = 16, 1.2

    def rounded(points: np.ndarray) -> np.ndarray:
        return np.rint(points / fine) if half_to_even else np.floor((points + fine // 2) / fine)

    def distribution(*centers: int) -> Floats:
        total = np.ones(1)
        for center in centers:
            total = np.convolve(total, fine_distribution(center, fine, s, rounded))
        return total

    one, two = distribution(0, 0, 0), distribution(fine, -fine, 0)
    likely = (one > 1e-9) & (two > 1e-9)
    worst = float(np.abs(np.log(one[likely] / two[likely])).max())
    bound = RoundedShares(3, s).log_ratio
    assert (worst > 100.0 * bound) if half_to_even else (worst <= bound + 1e-10)


def hockey_stick(first: Floats, second: Floats, epsilon: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())


@pytest.mark.parametrize(("h", "s"), [(2, 0.9), (3, 1.0), (4, 1.2)])
@pytest.mark.parametrize("moved", [(0.7, -0.4), (1.3, 0.0)])
def test_whole_runs_by_brute_force(h: int, s: float, moved: tuple[float, float]) -> None:
    """Two coordinates, two rounds, all outputs listed: the stated epsilon is enough, and hardly too large."""
    generator = np.random.default_rng(h)
    run = np.ones(1), np.ones(1)
    for move in (*moved, *moved):
        others = generator.uniform(-1.0, 1.0, (1, h))
        shifted = others.copy()
        shifted[0, 0] += move
        distributions = [distributions_of_sums(centers, np.full(h, s)) for centers in (others, shifted)]
        starts = [int(np.floor(centers + 0.5).sum()) for centers in (others, shifted)]
        low = min(starts)
        size = max(starts) - low + distributions[0].shape[1]
        placed = np.zeros((2, size))
        for row in range(2):
            placed[row, starts[row] - low : starts[row] - low + distributions[row].shape[1]] = distributions[
                row
            ][0]
        keep = placed.max(axis=0) > 1e-12
        run = tuple(np.outer(run[row], placed[row, keep]).ravel() for row in range(2))  # type: ignore[assignment]
    distance = math.hypot(*moved)
    for named in RoundedShares(h, s).losses(distance, 2):
        for delta in (1e-2, 1e-4, 1e-6):
            stated = compose_epsilon([Part(named.loss, 2)], delta).epsilon
            exact = max(hockey_stick(*run, stated), hockey_stick(*run[::-1], stated))
            assert exact <= delta + 1e-10
        # Not by luck: with a fifth less loss it would not do.
        assert hockey_stick(*run, 0.8 * stated) > delta


def test_the_refined_count_is_the_smaller_one() -> None:
    simple, refined = (named.loss for named in RoundedShares(100, 1.5).losses(2.0, 1000))
    assert simple.separation == pytest.approx(2.0 / 15.0)
    assert refined.separation == pytest.approx(2.0 / math.sqrt(100 * (2.25 + 1 / 12)), rel=1e-3)
    assert refined.separation > 2.0 / math.sqrt(100 * (2.25 + 1 / 12))


def test_one_client_is_a_plain_gaussian() -> None:
    (only,) = RoundedShares(1, 1.5).losses(2.0, 1000)
    assert only.loss.separation == pytest.approx(2.0 / 1.5)
    assert only.loss.log_ratio < 1e-28


def test_ratios_and_tables_count() -> None:
    """The log ratio adds to epsilon and multiplies delta; the distance of tables is taken off delta."""
    plain, with_ratio = (
        compose_epsilon([Part(gaussian_loss(0.5, 0.0, r), 4)], 1e-5).epsilon for r in (0.0, 0.01)
    )
    assert with_ratio >= plain + 0.04
    assert gaussian_delta(1.0, with_ratio - 0.04) * math.exp(0.04) <= 1e-5 * (1.0 + 1e-9)
    far = RoundedShares(10, 1.5, table_distance=1e-12).losses(1.0, 100)[0].loss
    assert far.infinity >= 2.0 * 10 * 100 * 1e-12
    # The atoms, which are used with other kinds of releases, are no better than the closed form.
    atoms = gaussian_loss(0.5, 0.0, 0.01)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        assert atoms.delta(epsilon) >= gaussian_delta(0.5, epsilon - 0.01) * (1.0 - 1e-6)


def test_what_is_revealed_grows_with_the_ratio() -> None:
    """Q reveals all with probability 1e-6, and P, which is within e^(r/2) of Q, with e^(r/2) times that."""
    ratio, revealed = 2.0, 1e-6
    grown = revealed * math.exp(0.5 * ratio)
    loss = gaussian_loss(1e-3, revealed, ratio)
    assert loss.delta(20.0) >= grown
    assert math.isinf(compose_epsilon([Part(loss, 1)], 0.99 * grown).epsilon)
    assert math.isinf(compose_epsilon([Part(loss, 5)], 5.0 * 0.99 * grown).epsilon)


@pytest.mark.parametrize("distance", [1e-18, 1e-6, 1.0, 1e4, 1e13])
@pytest.mark.parametrize("h", [1, 2, 100])
def test_any_distance_has_a_loss_or_none(distance: float, h: int) -> None:
    """A server may choose the spacing, and so distances in its unit, as it likes."""
    losses = [named.loss for named in RoundedShares(h, 1.0, 1e-30).losses(distance, 1000)]
    for loss in losses:
        epsilon = compose_epsilon([Part(loss, 3)], 1e-5).epsilon
        assert gaussian_delta(math.sqrt(3.0) * loss.separation, epsilon) <= 1e-5
    assert bool(losses) == (distance <= 1.0)


@pytest.mark.parametrize("variance", [0.05, 0.2, 0.7])
def test_tails_of_one_rounding_error_and_little_noise(variance: float) -> None:
    """Against the closed form; waves beyond 2 pi matter, where one error's transform is negative."""
    noise, s = RoundingNoise(variance, 1), math.sqrt(variance)

    def integrated(x: float) -> float:
        return s * math.exp(-0.5 * (x / s) ** 2) / math.sqrt(2.0 * math.pi) - x * float(ndtr(-x / s))

    for odds in (0.7, 0.2, 0.01, 1e-5):
        place = noise.reach(odds)
        exact = 2.0 * (integrated(place - 0.5) - integrated(place + 0.5))
        assert noise.tail(place) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(("variance", "roundings"), [(2.0, 1), (0.5, 3), (180.0, 79), (2250.0, 999)])
def test_tails_of_normal_noise_and_rounding_errors(variance: float, roundings: int) -> None:
    """Against sums over the error's exact distribution on a fine lattice."""
    noise = RoundingNoise(variance, roundings)
    cells = 64
    distribution = np.ones(1)
    box = np.full(cells, 1.0 / cells)
    for _ in range(roundings):
        distribution = np.convolve(distribution, box)
    places = (np.arange(distribution.size) - 0.5 * (distribution.size - 1)) / cells
    for score in (1.0, 3.0, 6.0):
        reach = score * noise.deviation
        exact = 2.0 * float(distribution @ ndtr((places - reach) / math.sqrt(variance)))
        assert exact * (1.0 - 1e-2) <= noise.tail(reach) <= exact * 1.1
        assert noise.tail(noise.reach(exact)) <= exact
    assert noise.deviation == pytest.approx(math.sqrt(variance + roundings / 12.0))


@pytest.mark.parametrize("h", [2, 10, 1000])
@pytest.mark.parametrize("s", [0.7, 1.5])
def test_no_shift_is_told_better_than_stated(h: int, s: float) -> None:
    """For shifts and places at random, from the exact sum of h - 1 errors and normal noise."""
    noise = RoundingNoise(h * s**2, h - 1)
    slope = noise.separation(1e-18)
    assert 1.0 / noise.deviation <= slope <= 1.0 / (s * math.sqrt(h))
    generator = np.random.default_rng(7)
    distribution = np.ones(1)
    cells = 512 if h < 20 else 16
    for _ in range(h - 1):
        distribution = np.convolve(distribution, np.full(cells, 1.0 / cells))
    places = (np.arange(distribution.size) - 0.5 * (distribution.size - 1)) / cells
    for _ in range(100):
        place, shift = (
            noise.deviation * generator.uniform(-6.0, 6.0),
            noise.deviation * 10 ** generator.uniform(-2, 0),
        )
        level, power = (
            float(distribution @ ndtr((places - at) / (s * math.sqrt(h)))) for at in (place, place - shift)
        )
        # The fine lattice makes errors a little narrower.
        assert power <= float(ndtr(_score(level) + slope * shift * (1.0 + 1e-3))) * (1.0 + 1e-9) + 1e-18


def _score(probability: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(probability))


@pytest.mark.parametrize(("variance", "roundings"), [(0.5, 1), (2.88, 1), (9.0, 2)])
def test_tails_are_accurate_far_out(variance: float, roundings: int) -> None:
    """One or two rounding errors are integrated by quadrature, down to probabilities of 1e-35."""
    places, density, beyond, fall = RoundingNoise(variance, roundings)._grid
    nodes, weights = np.polynomial.legendre.leggauss(60)
    errors, shares = 0.5 * nodes, 0.5 * weights
    if roundings == 2:
        errors, shares = np.add.outer(errors, errors).ravel(), np.outer(shares, shares).ravel()
    scores = (places[:, None] - errors) / math.sqrt(variance)
    exact = ndtr(-scores) @ shares
    heights = np.exp(-0.5 * scores**2) @ shares / math.sqrt(2.0 * math.pi * variance)
    slopes = (np.exp(-0.5 * scores**2) * scores) @ shares / math.sqrt(2.0 * math.pi) / variance
    assert exact[-1] < 1e-35
    # The stated accuracy is 1e-8.
    assert beyond == pytest.approx(exact, rel=1e-9)
    assert density == pytest.approx(heights, rel=1e-9)
    assert fall == pytest.approx(slopes / heights, rel=1e-9, abs=1e-12)
