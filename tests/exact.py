"""Exact answers for small cases, by enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, rel_entr
from scipy.stats import binom, chi2

from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution

Floats = NDArray[np.float64]
Pair = tuple[Floats, Floats]


def hockey_stick(first: Floats, second: Floats, epsilon: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())


def worst_hockey_stick(rows: Floats, epsilon: float) -> float:
    """The largest hockey-stick divergence of two rows."""
    return max(hockey_stick(first, second, epsilon) for first in rows for second in rows)


def g_test(observed: NDArray[np.int64], expected: Floats) -> float:
    """The probability that counts with these expectations are as far from them; rare classes are pooled."""
    if np.any(observed[expected == 0.0]):
        return 0.0
    rare = expected < 20.0
    pooled = [np.append(each[~rare], each[rare].sum()) for each in (observed, expected)]
    if pooled[1][-1] < 20.0:
        # Too few even together for the chi-square distribution to hold: counted with another class.
        pooled = [np.append(each[1:-1], each[0] + each[-1]) for each in pooled]
    return float(chi2.sf(2.0 * rel_entr(*pooled).sum(), pooled[0].size - 1))


def sums_of(distributions: Sequence[Floats], number: int) -> list[Floats]:
    """The distributions of a sum of ``number`` codes, for every choice of what each is drawn from."""
    found = []
    for chosen in itertools.combinations_with_replacement(distributions, number):
        total = np.ones(1)
        for each in chosen:
            total = np.convolve(total, each)
        found.append(total)
    return found


def blanket_delta(rows: Floats, clients: int, epsilon: float) -> float:
    """Delta of the blanket argument for one bit: all numbers of blanket draws, one by one."""
    share = 2.0 * float(rows.min())
    exact = 0.0
    for draws in range(clients):
        coins = binom.pmf(np.arange(draws + 1), draws, 0.5)
        pair = (np.convolve(rows[0], coins), np.convolve(rows[1], coins))
        exact += binom.pmf(draws, clients - 1, share) * hockey_stick(*pair, epsilon)
    return exact


def product(pairs: Sequence[Pair]) -> Pair:
    """The pair of joint distributions of independent outputs, one output of each pair."""
    first, second = np.ones(1), np.ones(1)
    for p, q in pairs:
        first, second = np.outer(first, p).ravel(), np.outer(second, q).ravel()
    return first, second


def power(pair: Pair, count: int) -> Pair:
    """The pair of distributions of ``count`` independent outputs, as counts of each output."""
    first: list[float] = []
    second: list[float] = []
    p, q = pair
    for numbers in itertools.product(range(count + 1), repeat=p.size - 1):
        rest = count - sum(numbers)
        if rest < 0:
            continue
        ways = math.factorial(count) / math.prod(math.factorial(k) for k in (*numbers, rest))
        first.append(ways * float(np.prod(p ** np.array([*numbers, rest]))))
        second.append(ways * float(np.prod(q ** np.array([*numbers, rest]))))
    return np.array(first), np.array(second)


def epsilon_of(pair: Pair, delta: float) -> float:
    """The smallest epsilon >= 0 with a hockey-stick divergence of at most delta."""
    if hockey_stick(*pair, 0.0) <= delta:
        return 0.0
    low, high = 0.0, float(np.log(pair[0] / pair[1]).max())
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if hockey_stick(*pair, middle) <= delta else (middle, high)
    return high


def excess_of_pair(first: Floats, second: Floats, separation: float, revealed: float) -> float:
    """By how much a hockey-stick divergence of two distributions exceeds that of the normal pair, at most."""
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.log(first / second)
    epsilons = np.unique(np.abs(losses[np.isfinite(losses)]))
    growth = np.exp(epsilons)
    exact = np.maximum(first - growth[:, None] * second, 0.0).sum(axis=1)
    half, far = separation / 2.0, epsilons / separation
    normal = ndtr(half - far) - growth * ndtr(-half - far)
    return float((exact - (1.0 - revealed) * normal - revealed).max())


def response_epsilon(epsilon: float, count: int, delta: float) -> float:
    """Randomized response, composed: a binomial number of outputs that speak for the first input."""
    k = np.arange(count + 1)
    common = 1.0 / (1.0 + math.exp(-epsilon))
    first = binom.pmf(k, count, common)
    losses = (2.0 * k - count) * epsilon
    low, high = 0.0, count * epsilon
    for _ in range(100):
        middle = 0.5 * (low + high)
        spent = float((first * -np.expm1(np.minimum(middle - losses, 0.0))).sum())
        low, high = (low, middle) if spent <= delta else (middle, high)
    return high


def random_distribution(seed: int, levels: int, num_knots: int) -> OutputDistribution:
    """An unbiased continuous distribution: each row splits its mass between values around its knot."""
    rng = np.random.default_rng(seed)
    inner = np.sort(rng.uniform(-2.5, 2.5, levels - 2))
    values = np.concatenate([[-3.0], inner, [3.0]])
    knots = np.linspace(-1.0, 1.0, num_knots)
    rows = np.zeros((num_knots, levels))
    for k, knot in enumerate(knots):
        for low in np.flatnonzero(values < knot):
            for high in np.flatnonzero(values > knot):
                weight = rng.uniform(0.1, 1.0)
                share = (knot - values[low]) / (values[high] - values[low])
                rows[k, low] += weight * (1.0 - share)
                rows[k, high] += weight * share
        rows[k] /= rows[k].sum()
    return OutputDistribution.from_knots(values, knots, rows)


def random_table(seed: int, levels: int, rows: int = 3) -> CertifiedTable:
    """A certified table on codes 0, 1, ... or with a gap, of some epsilon; its rows have increasing means."""
    rng = np.random.default_rng(seed)
    codes = np.sort(rng.choice(np.arange(1, 2 * levels), levels - 1, replace=False))
    codes = np.concatenate([[0], codes])
    found = rng.uniform(0.2, 1.0, (rows, levels)) * np.exp(
        np.outer(np.linspace(-1, 1, rows), np.linspace(-1, 1, levels))
    )
    found /= found.sum(axis=1, keepdims=True)
    means = np.sort(found @ codes)
    found = found[np.argsort(found @ codes)]
    step = 2.0 / (means[-1] - means[0])
    book = Codebook(codes, step, -1.0 - step * means[0])
    distribution = OutputDistribution.from_knots(book.values, found @ book.values, found)
    return CertifiedTable.from_distribution(distribution, book, distribution.epsilon * 1.001)
