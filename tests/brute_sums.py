"""Two laws compared with a normal pair by brute force, at every likelihood ratio."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]


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
