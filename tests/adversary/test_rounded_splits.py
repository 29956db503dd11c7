"""An adversary who chooses all inputs of runs with rounded shares: stated losses against exact ones.

It chooses the fractional parts of all inputs, and how one client's update moves in each coordinate and round.
The distributions of sums are computed from the distribution of a code alone, and know nothing of the lemma or
of normal pairs.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import erfc

from fl_privquant._array_types import Floats
from fl_privquant.privacy_loss.additive.rounded_gaussian import RoundedShares
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon

DELTAS = (1e-2, 1e-4, 1e-8)


def distribution_of_sum(inputs: Floats, deviation: float, reach: int) -> Floats:
    """The distribution of the sum of floor(x + g + 1/2), from -reach to reach for each client."""
    edges = (np.arange(-reach, reach + 2) - 0.5 - inputs[:, None]) / (math.sqrt(2.0) * deviation)
    # Differences of tails are taken on the side where they are small.
    low, high = edges[:, :-1], edges[:, 1:]
    codes = 0.5 * np.where(low > 0.0, erfc(low) - erfc(high), erfc(-high) - erfc(-low))
    total = np.ones(1)
    for distribution in codes:
        total = np.convolve(total, distribution)
    return total


def chosen_inputs(generator: np.random.Generator, h: int) -> Floats:
    """Fractional parts of h inputs: any, all alike, on lattice points or in the middle, or shares j / h."""
    choices = (
        generator.uniform(-0.5, 0.5, h),
        np.full(h, generator.uniform(-0.5, 0.5)),
        generator.choice([0.0, 0.5], h),
        np.full(h, generator.integers(h) / h),
    )
    return choices[generator.integers(4)]


def chosen_moves(generator: np.random.Generator, distance: float, dimension: int) -> Floats:
    """An update's move of that length: in any direction, in equal parts, or in one coordinate."""
    choices = generator.normal(size=dimension), np.ones(dimension), np.eye(dimension)[0]
    direction = choices[generator.integers(3)]
    return np.asarray(distance * direction / np.linalg.norm(direction))


def total_loss(pairs: list[tuple[Floats, Floats]], step: float) -> tuple[Floats, Floats]:
    """The losses of all outputs together, each rounded down to a grid, and their probabilities."""
    first, total = 0, np.ones(1)
    for one, other in pairs:
        # Less likely outputs are left out, which can only make the exact loss smaller.
        likely = (one > 1e-13) & (other > 0.0)
        cells = np.floor(np.log(one[likely] / other[likely]) / step).astype(int)
        first += int(cells.min())
        total = np.convolve(total, np.bincount(cells - cells.min(), one[likely]))
    return (first + np.arange(total.size)) * step, total


def used_fraction(generator: np.random.Generator, h: int, deviation: float) -> tuple[float, ...]:
    """The exact delta of a random run at the stated epsilon, over the stated delta: the most, by count."""
    dimension, rounds = generator.integers(1, 4, 2).tolist()
    distance = 10.0 ** generator.uniform(-1.0, 0.5) * deviation * math.sqrt(h)
    reach = int(12.0 * deviation + distance) + 3
    pairs = []
    for _ in range(rounds):
        for move in chosen_moves(generator, distance, dimension):
            inputs, half = chosen_inputs(generator, h), np.eye(h)[0] * move / 2.0
            distributions = [
                distribution_of_sum(inputs + side * half, deviation, reach) for side in (1.0, -1.0)
            ]
            pairs.append((distributions[0], distributions[1]))
    step = 1e-3 * max(1.0, distance**2 * rounds / (deviation**2 * h))
    totals = [total_loss(order, step) for order in (pairs, [(two, one) for one, two in pairs])]
    used = []
    for named in RoundedShares(h, deviation).losses(distance, dimension):
        used.append(0.0)
        for delta in DELTAS:
            stated = compose_epsilon([Part(named.loss, rounds)], delta).epsilon
            for losses, masses in totals:
                beyond = losses > stated
                exact = float(masses[beyond] @ -np.expm1(stated - losses[beyond]))
                used[-1] = max(used[-1], exact / delta)
    return tuple(used)


@pytest.mark.parametrize("deviation", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("h", range(2, 7))
def test_no_run_of_chosen_inputs_exceeds_its_stated_loss(h: int, deviation: float) -> None:
    generator = np.random.default_rng(h)
    simple, refined = np.max([used_fraction(generator, h, deviation) for _ in range(15)], axis=0)
    assert simple <= 1.0 + 1e-9
    assert refined <= 1.0 + 1e-9
    # Not by luck: little is left, unless the fractional parts show something.
    if deviation >= 1.0:
        assert refined > 0.85
