"""The distribution of one release's privacy loss for the worst pair of inputs, as a list of atoms.

For a pair of output distributions (P, Q) the privacy loss of an output y is log(P(y) / Q(y)). What
composition needs of the pair is the distribution of the loss under P; everything follows from the
hockey-stick curve

    H(a) = sum over y of max(P(y) - a Q(y), 0),    a >= 0,

since a release is (epsilon, delta)-private exactly if H(e^epsilon) <= delta for all its pairs. A pair whose
curve is nowhere below those of all pairs of a mechanism *dominates* it, and the product of dominating
pairs dominates the adaptive composition of the mechanisms.

Reference: Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via Characteristic Function",
AISTATS 2022 (dominating pairs: Proposition 8 and Theorem 10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.errors import MISSING, InvalidSpecError

ROUNDING = 1e-14
"""Relative error, and error of a loss, of a few dozen operations in floating point."""

_MIN_EXPONENT = -700.0


@dataclass(frozen=True, eq=False)
class PrivacyLoss:
    """The privacy loss of a dominating pair, under the first distribution of the pair.

    Guarantee: for every a >= 0 the hockey-stick curve of each pair of neighboring inputs is at most
    ``(1 + slack)`` times the curve of these atoms.

    Randomized response at log 3:

    >>> loss = PrivacyLoss(np.log([1 / 3, 3.0]), np.array([0.25, 0.75]))
    >>> round(loss.delta(0.0), 6), round(loss.delta(1.0), 6), loss.delta(1.1)
    (0.5, 0.07043, 0.0)
    """

    losses: Floats
    """(k,) finite losses, increasing."""
    masses: Floats
    """(k,) the first distribution's probability of each; the second's is ``masses * exp(-losses)``."""
    infinity: float = 0.0
    """Probability of outputs that the second cannot give, or whose loss is not known to be finite."""
    slack: float = ROUNDING
    """Relative room for floating-point errors in the masses."""

    def __post_init__(self) -> None:
        if self.losses.shape != self.masses.shape or self.losses.ndim != 1 or self.losses.size == 0:
            raise InvalidSpecError(
                "losses, masses",
                (self.losses.shape, self.masses.shape),
                "are their shapes, which must be equal",
            )
        if not (np.all(np.isfinite(self.losses)) and np.all(np.diff(self.losses) > 0.0)):
            raise InvalidSpecError("losses", MISSING, "must be finite and increase")
        if not (np.all(self.masses >= 0.0) and self.infinity >= 0.0 and self.slack >= 0.0):
            raise InvalidSpecError("masses, infinity, slack", MISSING, "they must not be negative")

    @classmethod
    def merge_atoms(
        cls, losses: Floats, masses: Floats, infinity: float = 0.0, slack: float = ROUNDING
    ) -> Self:
        """The loss with these atoms, in any order; atoms of equal loss become one."""
        distinct, index = np.unique(losses, return_inverse=True)
        return cls(distinct, np.bincount(index, masses).astype(np.float64), infinity, slack)

    @cached_property
    def max_loss(self) -> float:
        """The pure epsilon: the largest loss that can occur."""
        if self.infinity > 0.0:
            return math.inf
        return max(float(self.losses[self.masses > 0.0].max(initial=0.0)), 0.0)

    @cached_property
    def mean(self) -> float:
        """Mean of the finite losses: about the Kullback-Leibler divergence of the pair."""
        return float(self.masses @ self.losses)

    def delta(self, epsilon: float) -> float:
        """The smallest delta of one release at ``epsilon``: exact except for rounding, which is upwards."""
        first = int(np.searchsorted(self.losses, epsilon, side="right"))
        excess = -np.expm1(epsilon - self.losses[first:])
        return min(float(self.masses[first:] @ excess) * (1.0 + self.slack) + self.infinity, 1.0)

    def log_moment(self, rate: float) -> float:
        """Log of E exp(rate * loss) over finite losses: rate times the Rényi divergence of order rate + 1.

        It is never below the exact value, as it includes the slack.
        """
        exponents = rate * self.losses
        exponents += self._log_masses
        peak = float(exponents.max())
        exponents -= peak
        # Rounded up to this, which is nothing next to 1: numbers close to underflow take five times as long.
        np.maximum(exponents, _MIN_EXPONENT, out=exponents)
        total = float(np.exp(exponents, out=exponents).sum())
        return peak + math.log(total) + self.slack + ROUNDING * abs(peak)

    @cached_property
    def _log_masses(self) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.masses))

    def on_grid(self, step: float) -> tuple[int, Floats]:
        """First index and masses of a dominating pair whose losses are multiples of ``step``.

        An atom with masses (p, q) is split between the grid losses next to it, a <= log(p/q) <= b, so that
        both masses are kept: p = v + w and q = v e^-a + w e^-b. As max(x + y, 0) <= max(x, 0) + max(y, 0),
        the curve H can only grow.

        Reference: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots: Tighter Discrete
        Approximations of Privacy Loss Distributions", PETS 2022.
        """
        scaled = self.losses / step
        below = np.floor(scaled)
        # A loss that differs from a grid point by rounding only is moved to the point above it.
        share = np.expm1(np.minimum(below * step - self.losses, 0.0)) / math.expm1(-step)
        upper = self.masses * np.minimum(share * (1.0 + ROUNDING) + ROUNDING * (scaled > below), 1.0)
        first = int(below[0])
        index = (below - first).astype(np.int64)
        size = int(index[-1]) + 2
        masses = np.bincount(index, self.masses - upper, size) + np.bincount(index + 1, upper, size)
        return first, np.asarray(masses)


def from_cells(edges: Floats, first: Floats, decay: Floats, infinity: float, slack: float) -> PrivacyLoss:
    """The dominating loss on k + 1 ``edges``, for atoms of which only their cells between edges are known.

    Cell j has mass ``first[j]`` under the first distribution, and the mean ``decay[j]`` of exp(edge j -
    loss), so that its mass under the second distribution is ``first * decay * exp(-edge)``. ``infinity`` and
    ``slack`` are those of :class:`PrivacyLoss`.
    """
    # As in on_grid, with the mean of the cell.
    share = np.clip((decay - 1.0) / np.expm1(-np.diff(edges)) * (1.0 + ROUNDING) + ROUNDING, 0.0, 1.0)
    masses = np.zeros(edges.size)
    masses[:-1] += first * (1.0 - share)
    masses[1:] += first * share
    return PrivacyLoss(edges, masses, infinity, slack + ROUNDING)


def from_curve(losses: Floats, heights: Floats, infinity: float = 0.0) -> PrivacyLoss:
    """The loss whose curve is the least convex one through upper bounds of a symmetric curve.

    The curve is at most ``heights`` at the ratios e^``losses`` >= 1, increasing; the last height is 0.
    ``infinity`` is the probability of an infinite loss.
    """
    upper = np.exp(losses) * (1.0 + ROUNDING)
    lower = 1.0 / upper[:0:-1]
    ratios = np.concatenate([[0.0], lower, upper])
    mirrored = (1.0 - lower) + lower * heights[:0:-1]
    bounds = np.concatenate([[1.0], mirrored, heights])
    kept = [0]
    for at in range(1, ratios.size):
        while len(kept) >= 2:
            first, second = kept[-2], kept[-1]
            before = (bounds[second] - bounds[first]) * (ratios[at] - ratios[second])
            if before < (bounds[at] - bounds[second]) * (ratios[second] - ratios[first]):
                break
            kept.pop()
        kept.append(at)
    corners, curve = ratios[kept], bounds[kept]
    slopes = np.append(np.diff(curve) / np.diff(corners), 0.0)
    second_masses = np.maximum(np.diff(slopes), 0.0)
    masses = second_masses * corners[1:]
    used = masses > 0.0
    return PrivacyLoss(np.log(corners[1:][used]), masses[used], infinity, 1e-9)
