"""Secure sums by brute force: every number of others at each row, every pair of inputs, every ratio.

``python -m tests.brute_sums --laws 20000`` goes through many random laws and prints the largest excess over
what is certified; the tests go through some hundred.
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fl_privquant.loss.two_row_sums import TwoRows, sum_separation

__all__ = ["excess_of_pair", "largest_excess", "own_code", "random_law", "search"]

Floats = NDArray[np.float64]


def random_law(rng: np.random.Generator) -> tuple[TwoRows, int, int]:
    """A law of two rows on 2 to 6 outputs, clients, and the draws of each of them."""
    levels = int(rng.integers(2, 7))
    codes = np.concatenate([[0], np.cumsum(rng.integers(1, 4, levels - 1))])
    base = rng.uniform(0.05, 1.0, levels)
    signal = rng.uniform(0.02, 0.6) * rng.uniform(0.0, 1.0, (2, levels))
    rows = base + signal
    rows /= rows.sum(axis=1, keepdims=True)
    if rng.random() < 0.3:
        rows[0] = rows[1][::-1]
    bits = int(rng.integers(1, 5)) if rng.random() < 0.4 else 1
    clients = int(rng.integers(2, 13)) if bits == 1 else int(rng.integers(2, 6))
    return TwoRows(codes, rows[0], rows[1], 0.5), clients, bits


def sums_of_draws(law: TwoRows, number: int) -> list[Floats]:
    """The laws of the sum of ``number`` draws, for every number of them from the upper row."""
    found = []
    for upper in range(number + 1):
        total = np.ones(1)
        for at in range(number):
            total = np.convolve(total, law.row(1.0 if at < upper else 0.0))
        found.append(total)
    return found


def excess_of_pair(first: Floats, second: Floats, separation: float, revealed: float) -> float:
    """By how much a hockey-stick divergence of two laws exceeds that of the normal pair, at most."""
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.log(first / second)
    epsilons = np.unique(np.abs(losses[np.isfinite(losses)]))
    growth = np.exp(epsilons)
    exact = np.maximum(first - growth[:, None] * second, 0.0).sum(axis=1)
    half, far = separation / 2.0, epsilons / separation
    normal = ndtr(half - far) - growth * ndtr(-half - far)
    return float((exact - (1.0 - revealed) * normal - revealed).max())


def own_code(law: TwoRows, bits: int, share: float, stratified: bool) -> Floats:
    """The law of a client's code: each draw of one share, or as many as it says from the upper row."""
    total = np.ones(1)
    for at in range(bits):
        own = min(max(bits * share - at, 0.0), 1.0) if stratified else share
        total = np.convolve(total, law.row(own))
    return total


def largest_excess(
    law: TwoRows, clients: int, bits: int, rate: float, separation: float, stratified: bool = False
) -> tuple[float, int]:
    """The largest excess over all cases, and how many pairs of laws were compared."""
    shares = np.array([0.0, 0.03, 0.31, 0.5, 0.97, 1.0])
    worst, pairs = -math.inf, 0
    own = [own_code(law, bits, share, stratified) for share in shares]
    for others in sums_of_draws(law, (clients - 1) * bits):
        seen = [np.convolve(each, others) for each in own]
        for i in range(shares.size):
            for j in range(shares.size):
                if i == j:
                    continue
                distance = abs(shares[i] - shares[j]) / law.slope
                excess = excess_of_pair(seen[i], seen[j], separation * distance, rate * distance)
                worst, pairs = max(worst, excess), pairs + 1
    return worst, pairs


def search(laws: int, seed: int, rate: float = 1e-9, stratified: bool = False) -> tuple[float, int, int]:
    """The largest excess over random laws, the number of pairs compared, and of laws that were certified."""
    rng = np.random.default_rng(seed)
    worst, pairs, certified = -math.inf, 0, 0
    for _ in range(laws):
        law, clients, bits = random_law(rng)
        separation = sum_separation(law, clients, rate, bits, stratified)
        if math.isfinite(separation):
            excess, compared = largest_excess(law, clients, bits, rate, separation, stratified)
            worst, pairs, certified = max(worst, excess), pairs + compared, certified + 1
    return worst, pairs, certified


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--laws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stratified", action="store_true")
    given = parser.parse_args()
    excess, pairs, certified = search(given.laws, given.seed, stratified=given.stratified)
    sys.stdout.write(f"excess {excess:.3g} in {pairs} pairs of laws, {certified} laws certified\n")
