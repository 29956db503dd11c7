"""Losses in closed form: randomized response (the worst of all mechanisms), Gaussian and Laplace noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from fl_privquant._array_types import Floats
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss, from_cells

NOT_PRIVATE = PrivacyLoss(np.zeros(1), np.zeros(1), 1.0)
"""The loss of a release that protects nothing."""


_CELLS = 1 << 14
# Relative error of differences of neighboring tails, which lose some digits.
_SLACK = 1e-10
# The cells cover this many standard deviations of the loss. Beyond lies a probability below 1e-22.
_REACH = 9.8
# Atoms are those of a separation of at least this, so that their losses differ next to any log ratio.
_MIN_SEPARATION = 1e-10


def response_loss(epsilon: float, delta: float = 0.0) -> PrivacyLoss:
    """The loss that dominates every (``epsilon``, ``delta``)-private release, whatever its distribution.

    Reference: Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015,
    Theorem 3.4: randomized response at epsilon, which with probability delta reveals its input.

    Parameters
    ----------
    epsilon, delta
        What the release is certified for; without a bound, epsilon is infinite.

    Returns
    -------
    PrivacyLoss
        The loss.

    >>> response_loss(1.0).max_loss
    1.0
    """
    if math.isinf(epsilon):
        return NOT_PRIVATE
    if epsilon == 0.0:
        return PrivacyLoss(np.zeros(1), np.array([1.0 - delta]), delta)
    common = (1.0 - delta) / (1.0 + math.exp(-epsilon))
    return PrivacyLoss(np.array([-epsilon, epsilon]), np.array([1.0 - delta - common, common]), delta)


@dataclass(frozen=True, eq=False)
class NormalLoss(PrivacyLoss):
    """The loss of N(0, 1) and N(``separation``, 1), except for the probability ``infinity``.

    The atoms are slightly worse than the pair itself. They are not needed where only such pairs are composed
    (:func:`fl_privquant.privacy_loss.composition.compose.compose_epsilon`).
    """

    separation: float = math.inf
    log_ratio: float = 0.0
    """Logarithm of the factor by which output distributions may differ from post-processings of that pair."""


def gaussian_loss(separation: float, revealed: float = 0.0, log_ratio: float = 0.0) -> NormalLoss:
    """The loss of normal noise, for inputs ``separation`` standard deviations apart: N(s^2 / 2, s^2).

    With a ``log_ratio`` r, the output distributions P and P' are only close to post-processings Q and Q' of
    the normal pair: P <= p Q and Q' <= q P' with p q = e^r and p, q >= 1. Then P(S) - a P'(S) <= p (Q(S) - a
    e^-r Q'(S)) for all sets S: losses grow by r, and probabilities, ``revealed`` included, by the factor e^r
    at most.

    Parameters
    ----------
    separation
        Distance of the inputs, in standard deviations of the noise.
    revealed
        An additional probability with which everything is revealed.
    log_ratio
        How far the distributions are from post-processings of the normal pair, as above.

    Returns
    -------
    NormalLoss
        The loss.

    >>> round(gaussian_loss(1.0).delta(1.0), 5)
    0.12694
    """
    scores, log_first, first = _standard_cells()
    width = max(separation, _MIN_SEPARATION)
    edges = 0.5 * width**2 + width * scores
    log_second = _log_between(scores + width)
    decay = np.minimum(np.exp(log_second - log_first + edges[:-1]), 1.0)
    infinity = (math.exp(float(log_ndtr(-_REACH))) + revealed) * math.exp(log_ratio)
    atoms = from_cells(edges, first, decay, min(infinity, 1.0), _SLACK)
    slack = atoms.slack + (1.0 + atoms.slack) * math.expm1(log_ratio)
    return NormalLoss(atoms.losses + log_ratio, atoms.masses, atoms.infinity, slack, separation, log_ratio)


def laplace_loss(separation: float) -> PrivacyLoss:
    """The loss of Laplace noise, for inputs ``separation`` scales apart: at most ``separation``.

    Noise z has loss s = ``separation`` for z < 0 and -s for z > s. Between, the loss is s - 2 z and has
    density exp((loss - s) / 2) / 4 under the first distribution.

    Parameters
    ----------
    separation
        Distance of the inputs, in scales of the noise.

    Returns
    -------
    PrivacyLoss
        The loss.

    >>> round(laplace_loss(1.0).delta(0.5), 6)
    0.221199
    """
    edges = np.linspace(-separation, separation, _CELLS + 1)
    width = edges[1] - edges[0]
    first = 0.5 * np.exp(0.5 * (edges[:-1] - separation)) * math.expm1(0.5 * width)
    # The mean of exp(-y) over a cell 0 < y < width, with density in proportion to exp(y / 2).
    decay = np.full(_CELLS, -math.expm1(-0.5 * width) / math.expm1(0.5 * width))
    loss = from_cells(edges, first, decay, 0.0, _SLACK)
    masses = loss.masses.copy()
    masses[0] += 0.5 * math.exp(-separation)
    masses[-1] += 0.5
    return PrivacyLoss(loss.losses, masses, 0.0, loss.slack)


@lru_cache(maxsize=1)
def _standard_cells() -> tuple[Floats, Floats, Floats]:
    """The edges of the cells under N(0, 1), the logarithms of their probabilities, and these probabilities.

    The last ones count all that is below the cells as part of the lowest cell.
    """
    scores = np.linspace(-_REACH, _REACH, _CELLS + 1)
    log_first = _log_between(scores)
    first = np.exp(log_first)
    # The probability below the cells is added to the lowest one.
    first[0] += math.exp(float(log_ndtr(-_REACH)))
    for array in (scores, log_first, first):
        array.setflags(write=False)
    return scores, log_first, first


def _log_between(scores: Floats) -> Floats:
    """Log of the normal probability between neighboring, increasing scores, accurate in both tails."""
    # Probabilities of cells that begin above 0 are counted from the upper tail, the others from the lower.
    right = int(np.searchsorted(scores[:-1], 0.0, side="right"))
    lower, upper = log_ndtr(scores[: right + 1]), log_ndtr(-scores[right:])
    large = np.concatenate([lower[1:], upper[:-1]])
    small = np.concatenate([lower[:-1], upper[1:]])
    return np.asarray(large + np.log(-np.expm1(small - large)))
