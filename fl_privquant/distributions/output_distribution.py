"""The exact output distribution of a mechanism: probabilities that are piecewise linear in the input.

Between two neighboring bins (output values) the output probability p(x, i) of every mechanism of this
package that draws from a table is linear in x. A distribution is therefore a list of pieces [a, b], each
with the *row* of probabilities of all outputs at a (from the right) and at b (from the left). Everything
else is algebra on those rows:

* the privacy loss is a maximum over rows: no grid over x and no sampling is needed. Hockey-stick and
  Rényi divergences are jointly (quasi-)convex, so their worst case over x, x' is at a pair of rows too;
* errors are integrals of polynomials.

Symbols of the paper: x input, B_i ``values[i]``, m ``num_levels``, p(x, i) ``pmf(x)[:, i]``.

Reference: Cai, Zhang, Khalili, "Privacy-Aware Randomized Quantization via Linear Programming",
UAI 2024, section "Performance measure".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fl_privquant._array_types import ArrayLike, Floats
from fl_privquant.distributions.input_density import Density, as_density
from fl_privquant.errors import MISSING, InvalidSpecError

# How many nodes of a quadrature are in memory at a time.
_NODE_BLOCK = 1 << 16


@dataclass(frozen=True, eq=False)
class OutputDistribution:
    """Pieces [``starts[k]``, ``ends[k]``] with the output rows at both ends; inputs in [-1, 1].

    Randomized response with two values, unbiased, at epsilon = log 3:

    >>> distribution = OutputDistribution.from_knots([-2.0, 2.0], [-1.0, 1.0], [[0.75, 0.25], [0.25, 0.75]])
    >>> round(distribution.epsilon, 6), round(distribution.mse(), 6), round(distribution.mae(), 6)
    (1.098612, 3.666667, 1.833333)
    >>> distribution.pmf(0.0)
    array([[0.5, 0.5]])
    """

    values: Floats
    """(m,) output values, increasing."""
    starts: Floats
    """(K,) left ends of the pieces, in increasing order; together the pieces cover [-1, 1]."""
    ends: Floats
    """(K,) right ends of the pieces."""
    start_rows: Floats
    """(K, m) output probabilities at ``starts``, from the right."""
    end_rows: Floats
    """(K, m) output probabilities at ``ends``, from the left."""

    def __post_init__(self) -> None:
        pieces, levels = self.starts.size, self.values.size
        if self.start_rows.shape != (pieces, levels) or self.end_rows.shape != (pieces, levels):
            raise InvalidSpecError(
                "distribution",
                MISSING,
                f"rows of shape {self.start_rows.shape} and {self.end_rows.shape}, expected ({pieces}, "
                f"{levels}): one row per piece and one column per value",
            )
        rising = pieces > 0 and (self.starts < self.ends).all() and (self.starts[:-1] < self.starts[1:]).all()
        if not rising:
            raise InvalidSpecError(
                "distribution", MISSING, "pieces must be non-empty intervals in increasing order"
            )

    @classmethod
    def from_knots(cls, values: ArrayLike, knots: ArrayLike, rows: ArrayLike) -> OutputDistribution:
        """The continuous distribution that interpolates ``rows`` between ``knots``."""
        at = np.asarray(knots, dtype=np.float64)
        table = np.asarray(rows, dtype=np.float64)
        return cls(np.asarray(values, dtype=np.float64), at[:-1], at[1:], table[:-1], table[1:])

    @property
    def num_levels(self) -> int:
        """Number m of output values."""
        return int(self.values.size)

    @cached_property
    def rows(self) -> Floats:
        """Every distinct row, at any end of any piece."""
        return np.unique(np.concatenate([self.start_rows, self.end_rows]), axis=0)

    @cached_property
    def largest(self) -> Floats:
        """(m,) largest probability of each output, over all inputs."""
        return np.asarray(np.maximum(self.start_rows.max(axis=0), self.end_rows.max(axis=0)))

    @property
    def epsilon(self) -> float:
        """Privacy loss of one release: max over outputs of log(largest / smallest probability).

        Exact up to floating-point rounding. The table that is sampled from is certified in integers, see
        :mod:`fl_privquant.distributions.certified_table`.
        """
        largest = self.largest
        smallest = np.minimum(self.start_rows.min(axis=0), self.end_rows.min(axis=0))
        used = largest > 0.0
        if np.any(smallest[used] <= 0.0):
            return math.inf
        return float(np.log(largest[used] / smallest[used]).max())

    def pmf(self, x: ArrayLike) -> Floats:
        """(n, m) output probabilities for n inputs, clipped to [-1, 1] as the encoder does."""
        try:
            given = np.atleast_1d(np.asarray(x, dtype=np.float64)).ravel()
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidSpecError("x", x, f", expected numbers ({error})") from None
        inputs = np.clip(given, -1.0, 1.0)
        piece, right = _locate(inputs, self.starts, self.ends)
        return self.start_rows[piece] * (1.0 - right)[:, None] + self.end_rows[piece] * right[:, None]

    def error_at(self, x: ArrayLike, power: int = 1) -> Floats:
        """E|M(x) - x|^power for each input."""
        inputs = np.clip(np.atleast_1d(np.asarray(x, dtype=np.float64)).ravel(), -1.0, 1.0)
        return np.asarray((self.pmf(inputs) * np.abs(self.values - inputs[:, None]) ** power).sum(axis=1))

    def mean_at(self, x: ArrayLike) -> Floats:
        """E[M(x)] for each input: x itself where the mechanism is unbiased."""
        return self.pmf(x) @ self.values

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        """Mean absolute error E|M(X) - X|; ``density`` as in :func:`as_density`."""
        return self.error(1, density)

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        """Mean squared error E(M(X) - X)^2; ``density`` as in :func:`as_density`."""
        return self.error(2, density)

    def error(self, power: int, density: Density | ArrayLike | None = None) -> float:
        """E|M(X) - X|^power: :meth:`mae` for power 1, :meth:`mse` for 2."""
        return self.cost(*error_costs(self.values, self.starts, self.ends, power, density))

    def cost(self, at_start: Floats, at_end: Floats) -> float:
        """The error whose coefficients, (K, m) each, :func:`error_costs` has computed for these pieces."""
        return float((at_start * self.start_rows).sum() + (at_end * self.end_rows).sum())

    @cached_property
    def max_bias(self) -> float:
        """Largest |E[M(x)] - x| over [-1, 1]. It is at a piece end, as the bias is linear in between."""
        at_starts = np.abs(self.start_rows @ self.values - self.starts)
        at_ends = np.abs(self.end_rows @ self.values - self.ends)
        at_bounds = np.abs(self.mean_at([-1.0, 1.0]) - np.array([-1.0, 1.0]))
        return float(max(at_starts.max(), at_ends.max(), at_bounds.max()))

    @cached_property
    def max_variance(self) -> float:
        """Largest variance of the output over [-1, 1].

        On a piece mean and second moment are linear in the input, so that the variance is a parabola.
        """
        squares = self.values**2
        mean, moment = self.start_rows @ self.values, self.start_rows @ squares
        mean_step, moment_step = self.end_rows @ self.values - mean, self.end_rows @ squares - moment
        curved = mean_step != 0.0
        top = (moment_step - 2.0 * mean * mean_step) / np.where(curved, 2.0 * mean_step**2, 1.0)
        variances = [
            moment + share * moment_step - (mean + share * mean_step) ** 2
            for share in (0.0, 1.0, np.where(curved, np.clip(top, 0.0, 1.0), 0.0))
        ]
        return float(np.max(variances))

    @cached_property
    def min_variance(self) -> float:
        """Smallest variance of the output over [-1, 1]. It is at a piece end, as the variance is concave."""
        squares = self.values**2
        rows = np.concatenate((self.start_rows, self.end_rows))
        return max(float((rows @ squares - (rows @ self.values) ** 2).min()), 0.0)


def error_costs(
    values: Floats, starts: Floats, ends: Floats, power: int, density: Density | ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """Coefficients of E|M(X) - X|^power, which is linear in the probabilities of a distribution.

    Returns
    -------
    at_start, at_end
        (K, m) each; the expected error of a distribution with these values and pieces is
        ``(at_start * start_rows).sum() + (at_end * end_rows).sum()``.
    """
    # Break points are the kinks of |value - x| and of the distribution: between these the error is one
    # polynomial.
    points = np.concatenate([starts, ends, values])
    inside = points[(points > -1.0) & (points < 1.0)]
    breaks = np.unique(np.concatenate([[-1.0], inside, [1.0]]))
    nodes, weights = as_density(density).quadrature(breaks)
    at_start = np.zeros((starts.size, values.size))
    at_end = np.zeros_like(at_start)
    for first in range(0, nodes.size, _NODE_BLOCK):
        x, weight = nodes[first : first + _NODE_BLOCK], weights[first : first + _NODE_BLOCK]
        piece, right = _locate(x, starts, ends)
        errors = np.abs(values - x[:, None]) ** power * weight[:, None]
        entry = (piece[:, None] * values.size + np.arange(values.size)).ravel()
        for total, share in ((at_start, 1.0 - right), (at_end, right)):
            added = errors * share[:, None]
            if first == 0:
                # The same additions in the same order as below, in a third of the time.
                total[:] = np.bincount(entry, added.ravel(), total.size).reshape(total.shape)
            else:
                np.add.at(total, piece, added)
    return at_start, at_end


def _locate(x: Floats, starts: Floats, ends: Floats) -> tuple[NDArray[np.intp], Floats]:
    """The piece of each input, and how far along it the input lies (0 to 1)."""
    piece = np.clip(np.searchsorted(starts, x, side="right") - 1, 0, None)
    share = (x - starts[piece]) / (ends[piece] - starts[piece])
    return piece, np.clip(share, 0.0, 1.0)
