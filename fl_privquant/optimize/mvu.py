"""MVU's non-convex program: output values and the matrix of probabilities, found together.

Unknowns are the alphabet a_i and the rows P[k, :] at the grid inputs x_k:

    minimize  mean over k of  sum_i P[k, i] (a_i - x_k)^2
    subject to  sum_i P[k, i] = 1,   sum_i P[k, i] a_i = x_k,   P[k, i] <= bound(k, k') P[k', i].

As published, it is solved by a trust-region interior-point method from evenly spaced values and
constant rows. The constraints of unbiasedness are bilinear, so the solver finds a *local* minimum; from this
start it is the same one every time.

Grid, start and constraints are symmetric around 0, and so are all iterates of the solver. So only the upper
half of the unknowns is kept. An unknown that stands for two is scaled by the root of 2, and inequalities are
kept for both. Thus lengths, slacks and barriers, and with them the path of the solver, are those of the whole
program.

Reference: Chaudhuri, Guo, Rabbat, "Privacy-Aware Compression for Federated Data Analysis", UAI 2022,
the design problem and its trust-region solver.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from fl_privquant._array_types import Floats
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.optimize.metric_privacy import ratio_bounds

_MAX_ITERATIONS = 2000
_VIOLATION = 1e-6
# The published solver has inputs in an interval of length 1, and its steps and barriers suit that scale.
_SCALE = 0.5
_ROOT = math.sqrt(2.0)


def design_alphabet(epsilon: float, levels: int, grid: Floats, metric: str = "none") -> Floats:
    """The values of the local minimum that the published start leads to, symmetric and sorted.

    Some of them may coincide: the minimum then needs fewer than ``levels`` values. ``epsilon`` is the privacy
    loss of one release in the local view; under a ``metric`` (:mod:`fl_privquant.optimize.metric_privacy`)
    it is the loss between the inputs -1 and 1. ``grid`` is an even number of equidistant inputs from -1 to 1.
    """
    half = _Half(_SCALE * grid[grid.size // 2 :], levels)
    error, gradient, curvature = _error(half)
    with warnings.catch_warnings():
        # As inequalities are kept twice, the Jacobian is singular. The solver warns, and continues by SVD.
        warnings.simplefilter("ignore", UserWarning)
        optimum = scipy.optimize.minimize(
            error,
            half.start,
            method="trust-constr",
            jac=gradient,
            hess=curvature,
            constraints=[_bounds(half, ratio_bounds(metric, epsilon, grid)), _sums(half), _means(half)],
            options={"maxiter": _MAX_ITERATIONS, "sparse_jacobian": True},
        )
    if optimum.constr_violation > _VIOLATION:
        raise InfeasibleDesignError(
            f"no alphabet of {levels} values for {grid.size} inputs was found: after {optimum.nit} "
            f"iterations constraints are off by {optimum.constr_violation:.2g}; change input_bits, levels or "
            "epsilon"
        )
    values = np.sort(half.alphabet(optimum.x)) / _SCALE
    return np.asarray((values - values[::-1]) / 2.0)


@dataclass(frozen=True)
class _Half:
    """The unknowns: rows of the positive inputs, one after the other, then the positive values.

    The row of -x is that of x with its outputs in reverse. All unknowns are scaled by the root of 2.
    """

    inputs: Floats
    levels: int

    @property
    def num_entries(self) -> int:
        return self.inputs.size * self.levels

    @property
    def num_values(self) -> int:
        return self.levels // 2

    @property
    def size(self) -> int:
        return self.num_entries + self.num_values

    @property
    def start(self) -> Floats:
        values = _SCALE * np.linspace(-1.0, 1.0, self.levels)[self.levels - self.num_values :]
        return _ROOT * np.concatenate([np.full(self.num_entries, 1.0 / self.levels), values])

    @cached_property
    def spread(self) -> Floats:
        """(m, m // 2) the matrix that turns the unknown values into the alphabet."""
        matrix = np.zeros((self.levels, self.num_values))
        order = np.arange(self.num_values)
        matrix[self.levels - self.num_values + order, order] = 1.0
        matrix[self.num_values - 1 - order, order] = -1.0
        return matrix / _ROOT

    def entry(self, row: int, output: int) -> int:
        """The unknown that stands for P[row, output], where rows count from the most negative input."""
        upper = row - self.inputs.size
        if upper < 0:
            upper, output = -1 - upper, self.levels - 1 - output
        return upper * self.levels + output

    def rows(self, x: Floats) -> Floats:
        return np.asarray(x[: self.num_entries].reshape(-1, self.levels) / _ROOT)

    def alphabet(self, x: Floats) -> Floats:
        return np.asarray(self.spread @ x[self.num_entries :])

    def offsets(self, x: Floats) -> Floats:
        return np.asarray(self.alphabet(x) - self.inputs[:, None])


def _error(
    half: _Half,
) -> tuple[Callable[[Floats], float], Callable[[Floats], Floats], Callable[[Floats], Floats]]:
    """The mean squared error at the grid inputs, its gradient and its Hessian."""
    share = 1.0 / half.inputs.size

    def error(x: Floats) -> float:
        return share * float((half.rows(x) * half.offsets(x) ** 2).sum())

    def gradient(x: Floats) -> Floats:
        by_entry = (half.offsets(x) ** 2).ravel() / _ROOT
        by_value = 2.0 * (half.rows(x) * half.offsets(x)).sum(axis=0) @ half.spread
        return share * np.concatenate([by_entry, by_value])

    def curvature(x: Floats) -> Floats:
        mixed = (2.0 / _ROOT * half.offsets(x)[:, :, None] * half.spread).reshape(half.num_entries, -1)
        weights = 2.0 * half.rows(x).sum(axis=0)[:, None]
        return share * _add_border(mixed, half.spread.T @ (weights * half.spread))

    return error, gradient, curvature


def _bounds(half: _Half, ratios: list[tuple[int, int, float]]) -> Any:
    """Entries >= 0 and P[k, i] - bound(k, k') P[k', i] <= 0, for both of two mirror images."""
    outputs = range(half.levels)
    pairs = [(half.entry(k, i), half.entry(other, i)) for k, other, _ in ratios for i in outputs]
    coefficients = [(1.0, -bound) for _, _, bound in ratios for _ in outputs]
    at = np.repeat(np.arange(len(pairs)), 2)
    matrix = scipy.sparse.csr_matrix(
        (np.array(coefficients).ravel(), (at, np.array(pairs).ravel())), shape=(len(pairs), half.size)
    )
    negative = scipy.sparse.eye(half.num_entries, half.size) * -1.0
    whole: Any = scipy.sparse.vstack([negative, negative, matrix])
    return scipy.optimize.LinearConstraint(whole.tocsr() / _ROOT, -np.inf, 0.0)


def _sums(half: _Half) -> Any:
    ones = scipy.sparse.kron(scipy.sparse.eye(half.inputs.size), np.ones((1, half.levels)))
    nothing = scipy.sparse.csr_matrix((half.inputs.size, half.num_values))
    whole: Any = scipy.sparse.hstack([ones, nothing])
    return scipy.optimize.LinearConstraint(whole.tocsr(), _ROOT, _ROOT)


def _means(half: _Half) -> Any:
    """Unbiasedness at the grid inputs: bilinear, which is what makes the program non-convex."""

    def bias(x: Floats) -> Floats:
        return np.asarray(_ROOT * (half.rows(x) @ half.alphabet(x) - half.inputs))

    def slopes(x: Floats) -> Any:
        by_entry = scipy.sparse.kron(scipy.sparse.eye(half.inputs.size), half.alphabet(x)[None, :])
        by_value = scipy.sparse.csr_matrix(_ROOT * half.rows(x) @ half.spread)
        whole: Any = scipy.sparse.hstack([by_entry, by_value])
        return whole.tocsr()

    def curvature(x: Floats, prices: Floats) -> Floats:
        mixed = np.asarray(np.kron(prices[:, None], half.spread), dtype=np.float64)
        return _add_border(mixed, np.zeros((half.num_values,) * 2))

    hessian: Any = curvature
    return scipy.optimize.NonlinearConstraint(bias, 0.0, 0.0, slopes, hessian)


def _add_border(mixed: Floats, corner: Floats) -> Floats:
    """The symmetric block matrix [[0, mixed], [mixed^T, corner]]."""
    count = mixed.shape[0]
    return np.block([[np.zeros((count, count)), mixed], [mixed.T, corner]])
