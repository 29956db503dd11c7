"""The aggregate view of a table on a fine lattice: bounded by the histogram of the codes, not by their sum.

The blanket argument (:mod:`fl_privquant.privacy_loss.sums.blanket`) convolves codes. If these lie on a fine
lattice, such as 0, 613, 3482, 4095, the sum of a thousand codes has some million values. Give the adversary
more than the sum: *how often* each output occurs among the K blanket draws and the protected client's code.
The sum is a function of that histogram, so what the histogram reveals bounds what the sum reveals, and this
bound does not depend on the codes.

**The curve as a sum of independent variables.** With b the blanket, the histogram n of N = K + 1 codes, one
of them from row P, has probability Multinomial_N,b(n) * sum of P_i n_i / (N b_i). So the hockey-stick curve
of rows P, P' given K is

    H_K(a) = E max(Z_1 + ... + Z_N, 0) / N,     independent Z = (P_i - a P'_i) / b_i with probability b_i.

**All pairs of rows at once.** A variable Z is below another one in *convex order* if E max(Z - t, 0) is for
all t, and the means are equal. Sums of independent copies are then ordered in the same way. For Z as above
the mean is 1 - a for every pair of rows, and

    E max(Z - t, 0) = max over sets S of outputs of P(S) - a P'(S) - t b(S).

Its largest value over all pairs, the maximum over S of [max P(S)] - a [min P'(S)] - t b(S), is convex in t
with slopes from -1 to 0. So it belongs to a variable Z* that is above every Z. Between the points of a grid
of t it is interpolated linearly, which is again convex and larger. Z* then takes values on the grid only, and
the distributions of its sums are convolutions.

**From a few points to a curve.** H is convex, so its chords between some a are above it, and so is the lower
convex hull of upper bounds at these a. For a < 1, H(a) = 1 - a + a H(1 / a), as all pairs occur in both
orders. A convex curve with corners is that of a pair of distributions with an atom at each corner.

**How much is lost.** In the Gaussian limit the bound exceeds that of the sum by a factor: the root of sum of
(P_i - P'_i)^2 / b_i, times the variance of a blanket code, over the squared difference of the means. This is
0 to 2 % at an epsilon of 1, and 12 % at 4.

Reference: Balle, Bell, Gascon, Nissim, "The Privacy Blanket of the Shuffle Model", CRYPTO 2019, Lemma 5.3 for
H_K; the variable Z* is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.distributions.integer_distribution import (
    IntegerDistribution,
    binomial_floors,
    convolve,
    power,
)
from fl_privquant.privacy_loss.composition.loss_distribution import ROUNDING, PrivacyLoss

# Up to this many outputs all sets S are enumerated; with more, all pairs of rows, if the number of pairs
# times outputs is at most _MAX_PAIRS.
_MAX_OUTPUTS = 12
_MAX_PAIRS = 100_000
_BUCKETS = 8
# The curve has _NEAR corners up to a loss of _REACH standard deviations, and _FAR corners beyond.
_NEAR, _REACH, _FAR = 48, 9.0, 10
# Grid points over the range of Z for few blanket draws, and for more than _MANY of them.
_FINE, _COARSE, _MANY = 128, 24, 100
# Convolutions of more than this many products are done by FFT.
_DIRECT = 200_000
_UNIT = 2.0**-53


def histogram_loss(rows: Floats, number: int, share: float, local: PrivacyLoss) -> PrivacyLoss | None:
    """The loss of one draw from a row, where the adversary sees a histogram of it and of blanket draws.

    ``rows`` are all (R, m) rows of the table. Each of ``number`` other clients draws from the blanket with
    probability ``share``. ``local`` is the loss where nothing else is seen. The result is None where there
    are too many rows and outputs to go through.
    """
    rows = np.unique(rows[:, rows.max(axis=0) > 0.0], axis=0)
    low = rows.min(axis=0)
    blanket = low / low.sum()
    stop_loss = _stop_loss(rows, blanket)
    if stop_loss is None:
        return None
    # The probability that no bucket covers is charged as in the local view.
    buckets = binomial_floors(number, share, _BUCKETS)
    covered = math.fsum(weight for _, weight in buckets)
    uncovered = max(1.0 - covered * (1.0 - 1e-12), 0.0)
    top = local.max_loss
    typical = max(round(number * share), 1)
    draw, width, _, _ = _dominating_draw(rows, blanket, 1.0, stop_loss, _FINE)
    values = width * np.arange(draw.values.size)
    # About the standard deviation of the loss, as Z* has mean 0 where a is 1.
    spread = math.sqrt(
        max(float(draw.values @ values**2) - float(draw.values @ values) ** 2, 1e-12) / typical
    )
    near = np.linspace(0.0, min(_REACH * spread, top), _NEAR + 1)
    far = np.geomspace(near[-1], top, _FAR) if near[-1] < top else np.array([])
    corners = np.unique(np.concatenate([near, far]))[:-1]
    points = _FINE if typical <= _MANY else _COARSE
    heights = []
    for corner in corners.tolist():
        ratio = math.exp(corner)
        bound = uncovered * local.delta(corner)
        distribution, step, start, largest = _dominating_draw(rows, blanket, ratio, stop_loss, points)
        total = power(distribution, buckets[0][0] + 1, _DIRECT)
        more = (
            power(distribution, buckets[1][0] - buckets[0][0], _DIRECT) if len(buckets) > 1 else distribution
        )
        for at, (floor, weight) in enumerate(buckets):
            total = convolve(total, more, _DIRECT) if at else total
            values = (floor + 1) * start + step * (total.first + np.arange(total.values.size))
            mean = float((np.maximum(values, 0.0) * total.values).sum()) * (1.0 + total.relative + 1e-12)
            bound += weight * min(mean / (floor + 1) + total.lost * largest, local.delta(corner))
        heights.append(min(bound, local.delta(corner)))
    return from_curve(np.append(corners, top), np.append(heights, 0.0), local.infinity)


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


def _stop_loss(rows: Floats, blanket: Floats) -> Callable[[float, Floats], Floats] | None:
    """The largest E max(Z - t, 0) over all pairs of rows, as a function of a and (k,) numbers t."""
    outputs = blanket.size
    if outputs <= _MAX_OUTPUTS:
        sets = ((np.arange(1 << outputs)[:, None] >> np.arange(outputs)) & 1).astype(np.float64)
        inside = rows @ sets.T
        most, least, weight = inside.max(axis=0), inside.min(axis=0), sets @ blanket
        return lambda ratio, t: (most - ratio * least - t[:, None] * weight).max(axis=1)
    if len(rows) ** 2 * outputs > _MAX_PAIRS:
        return None

    def over_pairs(ratio: float, t: Floats) -> Floats:
        gains = (rows[:, None, :] - ratio * rows[None, :, :]).reshape(-1, outputs)
        return np.array([np.maximum(gains - threshold * blanket, 0.0).sum(axis=1).max() for threshold in t])

    return over_pairs


def _dominating_draw(
    rows: Floats, blanket: Floats, ratio: float, stop_loss: Callable[[float, Floats], Floats], points: int
) -> tuple[IntegerDistribution, float, float, float]:
    """The distribution of Z* on a grid, the grid's step and first point, and the largest Z*."""
    most, least = rows.max(axis=0), rows.min(axis=0)
    start = float(((least - ratio * most) / blanket).min())
    end = float(((most - ratio * least) / blanket).max())
    step = (end - start) / points
    grid: Floats = start + step * np.arange(points + 1, dtype=np.float64)
    curve = np.maximum(stop_loss(ratio, grid), np.maximum(1.0 - ratio - grid, 0.0))
    curve[-1] = 0.0
    slopes: Floats = np.concatenate([[-1.0], np.diff(curve) / step, [0.0]])
    # Slopes are differences of rounded numbers. Their largest error is taken off, and charged as lost.
    wrong = 64.0 * _UNIT * (1.0 + ratio + abs(start)) / step
    values = np.maximum(np.diff(slopes) - wrong, 0.0)
    return IntegerDistribution(0, values, 8.0 * _UNIT, 2.0 * wrong * values.size), step, start, max(end, 0.0)
