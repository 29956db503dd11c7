"""The dominating pair of a table: the concave hull of the ROC curves of all pairs of rows, in integers.

For two rows P, Q of a table, a set S of outputs is a point (Q(S), P(S)). The hockey-stick curve is a maximum
over such points, H(a) = max over S of P(S) - a Q(S), reached at a set of the outputs with the largest
ratios P/Q. The worst case over *all* pairs is therefore

    H(a) = max over pairs and sets of P(S) - a Q(S),

the support function of all those points, and of their upper concave hull. Let (b_0, a_0) = (0, 0), ...,
(b_K, a_K) = (1, 1) be the corners of that hull, with slopes that fall. The pair of distributions with
P_k = a_k - a_{k-1} and Q_k = b_k - b_{k-1} has just these corners as its own points (its atoms are sorted
by ratio), hence the curve H. So the pair dominates every pair of rows and is the smallest that does,
although no single pair of rows may be the worst at every epsilon.

Mixtures of rows add nothing: H is jointly convex in (P, Q). Weights are integers that sum to 2^32, so the
corners and their differences are exact.

The hull contains each pair in both orders, so one pair serves for both directions.

**Zero-out.** One of the two inputs is 0. Its distribution is a mixture of few rows: those of inputs next to
0, which include the limits of both sides where the distribution jumps, and cover the sampler's rounding.
These rows are rounded to integers, and the relative error of that is charged: as a shift of the loss, and as
slack.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fl_privquant._array_types import Floats, Ints
from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.privacy_loss.composition.loss_distribution import ROUNDING, PrivacyLoss

# How many numbers are sorted at a time, which limits the memory to some 100 MB.
_BLOCK = 1 << 21
# In this many directions tangent points are found. Points below the hull of these are discarded.
_DIRECTIONS = 512
# Points closer than this to that hull, in units of 2^-32, are kept because floats could be wrong there.
_UNSURE = 64.0
# Inputs this close to 0 count as 0. The sampler's rounding is far below this.
_NEXT_TO_ZERO = 2.0**-24
# With a larger relative error of the rows of 0, the loss for all pairs is stated instead.
_MAX_ERROR = 1e-3


def dominating_loss(table: CertifiedTable) -> PrivacyLoss:
    """The privacy loss of one release of the table: exact, except for logarithms that are rounded up."""
    return _loss_of_corners(hull_corners(table.weights), table.epsilon)


def zero_out_loss(table: CertifiedTable) -> PrivacyLoss:
    """The privacy loss of one release, compared with a release of the input 0: both orders of the pair."""
    zeros = np.rint(rows_of_zero(table) * TOTAL_WEIGHT).astype(np.int64)
    # What rounding leaves over goes to the largest weight, where it matters least.
    zeros[np.arange(len(zeros)), zeros.argmax(axis=1)] += TOTAL_WEIGHT - zeros.sum(axis=1)
    possible = zeros[zeros > 0]
    error = 2.0 * table.codebook.num_levels / float(possible.min())
    if np.isinf(table.epsilon) or error > _MAX_ERROR:
        return dominating_loss(table)
    rows = np.unique(table.weights, axis=0)
    ends = np.array([[0, 0], [TOTAL_WEIGHT, TOTAL_WEIGHT]])
    points = np.concatenate([ends, _receiver_points(rows, zeros), _receiver_points(zeros, rows)])
    loss = _loss_of_corners(_upper_hull(_shortlist(points)), table.epsilon)
    losses = np.minimum(loss.losses + error, table.epsilon)
    merged = PrivacyLoss.merge_atoms(losses, loss.masses, loss.infinity)
    return dataclasses.replace(merged, slack=merged.slack + error)


def rows_of_zero(table: CertifiedTable) -> Floats:
    """(K, m) output probabilities of which those for the input 0 are a mixture."""
    distribution = table.distribution
    rows: list[Floats] = []
    for start, end, first, last in zip(
        distribution.starts, distribution.ends, distribution.start_rows, distribution.end_rows, strict=True
    ):
        if start <= _NEXT_TO_ZERO and end >= -_NEXT_TO_ZERO:
            inside = np.clip([-_NEXT_TO_ZERO, _NEXT_TO_ZERO], start, end)
            shares = (inside - start) / (end - start)
            rows += [(1.0 - share) * first + share * last for share in shares]
    return np.unique(rows, axis=0)


def _loss_of_corners(corners: Ints, max_loss: float) -> PrivacyLoss:
    """The loss of the pair whose points are these corners of a hull."""
    steps = np.diff(corners, axis=0)
    finite = steps[steps[:, 0] > 0]
    infinity = float(steps[steps[:, 0] == 0, 1].sum()) / TOTAL_WEIGHT
    reachable = finite[finite[:, 1] > 0][::-1]
    losses = np.log(reachable[:, 1] / reachable[:, 0])
    losses = np.minimum(losses + ROUNDING * (1.0 + np.abs(losses)), max_loss)
    # Corners that rounding does not separate become one, with the larger loss.
    return PrivacyLoss.merge_atoms(losses, reachable[:, 1] / TOTAL_WEIGHT, infinity)


def hull_corners(weights: Ints) -> Ints:
    """Corners (b, a) of the upper concave hull of all (Q(S), P(S)), from (0, 0) to (2^32, 2^32).

    >>> hull_corners(np.array([[3 << 30, 1 << 30], [1 << 30, 3 << 30]])) // (1 << 30)
    array([[0, 0],
           [1, 3],
           [4, 4]])
    """
    rows = np.unique(weights, axis=0)
    count, levels = rows.shape
    block = max(1, _BLOCK // (count * levels))
    shortlist = [np.array([[0, 0], [TOTAL_WEIGHT, TOTAL_WEIGHT]])]
    for start in range(0, count, block):
        points = _receiver_points(rows[start : start + block], rows)
        shortlist = [_shortlist(np.concatenate([*shortlist, points]))]
    return _upper_hull(shortlist[0])


def _receiver_points(first: Ints, second: Ints) -> Ints:
    """(Q(S), P(S)) of every pair, for S the outputs with the largest ratios P / Q."""
    top, bottom = np.broadcast_arrays(first[:, None, :], second[None, :, :])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(top > 0, top / bottom, -1.0)
    # Floats may sort nearly equal ratios wrongly. That moves a point of the curve inside the hull by less
    # than one unit in the last place of a ratio, which PrivacyLoss.slack covers.
    order = np.argsort(-ratio, axis=2, kind="stable")
    tops = np.cumsum(np.take_along_axis(top, order, axis=2), axis=2)
    bottoms = np.cumsum(np.take_along_axis(bottom, order, axis=2), axis=2)
    return np.stack([bottoms.ravel(), tops.ravel()], axis=1)


def _shortlist(points: Ints) -> Ints:
    """The points that may be corners: those not clearly below the hull of some tangent points."""
    points = np.unique(points, axis=0)
    if len(points) <= _DIRECTIONS:
        return points
    angles = np.linspace(0.0, np.pi / 2.0, _DIRECTIONS)
    floats = points.astype(np.float64)
    tangent = {int(np.argmax(np.cos(t) * floats[:, 1] - np.sin(t) * floats[:, 0])) for t in angles}
    hull = _upper_hull(points[sorted(tangent | {0, len(points) - 1})])
    height = np.interp(floats[:, 0], hull[:, 0].astype(np.float64), hull[:, 1].astype(np.float64))
    # The left end may be a vertical edge, where the hull has no height: all its points are kept.
    return np.asarray(points[(floats[:, 1] >= height - _UNSURE) | (points[:, 0] == 0)])


def _upper_hull(points: Ints) -> Ints:
    """Andrew's monotone chain, upper side, in exact integers."""
    corners: list[tuple[int, int]] = []
    for b, a in np.unique(points, axis=0).tolist():
        while len(corners) >= 2:
            (b0, a0), (b1, a1) = corners[-2], corners[-1]
            if (b1 - b0) * (a - a0) - (a1 - a0) * (b - b0) < 0:
                break
            corners.pop()
        corners.append((b, a))
    return np.array(corners, dtype=np.int64)
