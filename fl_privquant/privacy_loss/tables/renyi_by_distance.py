"""Bounds of Rényi divergences by the squared distance of the inputs, for updates of bounded L2 norm.

For a continuous piecewise-linear distribution the rate

    C = sup over x, x' of  D_order(P_x || P_x') / (x - x')^2

is finite. Divergences of independent coordinates add up, so two updates at L2 distance D have outputs at
Rényi divergence C (D / clip)^2 at most, *whatever the dimension*: an update clipped to L2 norm R costs
C (2 R / clip)^2 per release. As x' goes to x the quotient goes to order / 2 times the Fisher information
sum_i p_i'(x)^2 / p_i(x), which is what the I-MVU mechanism is accounted by; C covers distant inputs too.

The bound is rigorous, for the distribution that is sampled. It is found by branch and bound: boxes of pairs
(x, x'), each input inside one piece, are split until the bound of every box exceeds the largest quotient
found by a tolerance at most. The bound of a box is as follows. With rows p at x and q at x', d = |x - x'|,
h_i = p_i / q_i - 1 and f(h) = ((1 + h)^a - 1 - a h) / h^2,

    exp((a - 1) D_a) = sum q_i (1 + h_i)^a = 1 + sum q_i h_i^2 f(h_i) = 1 + d^2 sum f(h_i) s_i^2 / q_i

where s_i = (p_i - q_i) / (x - x') is the slope of a chord. f is monotone, and h_i, q_i and s_i are ratios
of linear functions of x and of x'. So in a box each is largest and smallest at a corner (where x and x'
may meet, s is a mixture of the slopes of their two pieces). With these extremes the last sum is at most
some F, and D_a / d^2 at most log(1 + F d^2) / ((a - 1) d^2), which falls with d.

Reference for the accounting: Guo, Chaudhuri, Stock, Rabbat, "Privacy-Aware Compression for Federated
Learning Through Numerical Mechanism Design", ICML 2023.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_privquant._array_types import Floats
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InvalidSpecError

INPUT_ROUNDING = 2.0**-30
"""How much randomized rounding with 32 bits may add to the distance of two inputs, in units of the clip."""

# The share by which the bound of a box may exceed the largest quotient found.
_TOLERANCE = 0.01
_LARGEST_ORDER = 1e4
_MAX_BOXES = 1 << 16
_MAX_ROUNDS = 30
# The most boxes of one round times outputs, and how many are computed at once. A server may have chosen the
# distribution, and there are as many boxes at first as pairs of its pieces.
_MAX_WORK, _AT_ONCE = 1 << 25, 1 << 16
# Inputs closer than this count as equal: the difference of their rows would be mostly rounding error.
_MEETING = 1e-7
# Covers the rounding of floats, whose quotients are of order 1 and right to some 10 digits.
_FLOAT_ROOM = 1.0 + 1e-8
# Below this |h| the quotient f(h) is taken from its series: the formula would cancel.
_SMALL = 1e-3


def fisher_information(distribution: OutputDistribution) -> float:
    """Largest Fisher information of one release about its input, in units of 1 / clip^2.

    By the Cramér-Rao bound, the variance of an unbiased mechanism is at least the inverse of its information.

    >>> distribution = OutputDistribution.from_knots([-2.0, 2.0], [-1.0, 1.0], [[0.75, 0.25], [0.25, 0.75]])
    >>> round(fisher_information(distribution), 6)
    0.333333
    """
    if not is_continuous(distribution):
        return math.inf
    used = distribution.largest > 0.0
    slopes = slopes_of(distribution)[:, used] ** 2
    at_ends = [
        (slopes / rows[:, used]).sum(axis=1).max()
        for rows in (distribution.start_rows, distribution.end_rows)
    ]
    return float(max(at_ends)) * _FLOAT_ROOM


def renyi_per_squared_distance(distribution: OutputDistribution, order: float) -> float:
    """Upper bound of D_order(P_x || P_x') / (x - x')^2 over all inputs; infinite where it jumps.

    The bound is at most 1 % above the exact supremum, unless that takes too many boxes. It is infinite above
    order 10^4, and for distributions with thousands of pieces.

    For randomized response the supremum is approached by close inputs, and given by the Fisher information:

    >>> distribution = OutputDistribution.from_knots([-2.0, 2.0], [-1.0, 1.0], [[0.75, 0.25], [0.25, 0.75]])
    >>> 1 / 3 <= renyi_per_squared_distance(distribution, 2.0) <= 1 / 3 * 1.011
    True
    """
    if not order > 1.0:
        raise InvalidSpecError(
            "order", order, "is not above 1", "the divergence of order 1 is below that of 1.01"
        )
    too_large = distribution.starts.size**2 * distribution.values.size > _MAX_WORK
    if too_large or not is_continuous(distribution) or order > _LARGEST_ORDER:
        return math.inf
    used = distribution.largest > 0.0
    distribution = OutputDistribution(
        distribution.values[used],
        distribution.starts,
        distribution.ends,
        distribution.start_rows[:, used],
        distribution.end_rows[:, used],
    )
    reached = order / 2.0 * fisher_information(distribution)
    first, second = (
        index.ravel() for index in np.indices((distribution.starts.size, distribution.starts.size))
    )
    boxes = np.stack(
        [
            distribution.starts[first],
            distribution.ends[first],
            distribution.starts[second],
            distribution.ends[second],
        ],
        axis=1,
    )
    settled = 0.0
    for _ in range(_MAX_ROUNDS):
        above, largest = _all_bounds(distribution, boxes, order)
        reached = max(reached, largest)
        open_boxes = above > reached * (1.0 + _TOLERANCE)
        settled = max(settled, float(above[~open_boxes].max(initial=0.0)))
        if not open_boxes.any():
            break
        if 4 * np.count_nonzero(open_boxes) > min(_MAX_BOXES, _MAX_WORK // distribution.values.size):
            settled = max(settled, float(above.max()))
            break
        boxes = _split(boxes[open_boxes])
    else:
        settled = max(settled, float(above.max()))
    return max(settled, reached) * _FLOAT_ROOM


def is_continuous(distribution: OutputDistribution) -> bool:
    """Whether the distribution has no jumps, and every output that occurs is possible for all inputs."""
    joined = np.array_equal(distribution.starts[1:], distribution.ends[:-1]) and np.array_equal(
        distribution.start_rows[1:], distribution.end_rows[:-1]
    )
    used = distribution.largest > 0.0
    return joined and all(
        bool((rows[:, used] > 0.0).all()) for rows in (distribution.start_rows, distribution.end_rows)
    )


def slopes_of(distribution: OutputDistribution) -> Floats:
    """(K, m) slopes: how fast each probability rises with the input, in each piece."""
    return np.asarray(
        (distribution.end_rows - distribution.start_rows) / (distribution.ends - distribution.starts)[:, None]
    )


def _split(boxes: Floats) -> Floats:
    """Each box as its four quarters."""
    x_low, x_high, y_low, y_high = boxes.T
    x_middle, y_middle = (x_low + x_high) / 2.0, (y_low + y_high) / 2.0
    quarters = [
        np.stack([x_start, x_end, y_start, y_end], axis=1)
        for x_start, x_end in ((x_low, x_middle), (x_middle, x_high))
        for y_start, y_end in ((y_low, y_middle), (y_middle, y_high))
    ]
    return np.concatenate(quarters)


def _all_bounds(distribution: OutputDistribution, boxes: Floats, order: float) -> tuple[Floats, float]:
    """The results of :func:`_box_bounds` for all boxes, computed in parts that take little memory."""
    size = max(_AT_ONCE // distribution.values.size, 1)
    parts = [_box_bounds(distribution, boxes[at : at + size], order) for at in range(0, len(boxes), size)]
    return np.concatenate([above for above, _ in parts]), max(largest for _, largest in parts)


def _box_bounds(distribution: OutputDistribution, boxes: Floats, order: float) -> tuple[Floats, float]:
    """A bound of the quotient in each box, and the largest quotient at any corner of a box."""
    x_ends, y_ends = boxes[:, :2, None], boxes[:, None, 2:]
    p = distribution.pmf(x_ends).reshape(len(boxes), 2, 1, -1)
    q = distribution.pmf(y_ends).reshape(len(boxes), 1, 2, -1)
    slopes = slopes_of(distribution)
    pieces = np.stack([_piece(distribution, boxes[:, at : at + 2]) for at in (0, 2)])
    inside = slopes[pieces[0]][:, None, None, :]
    steps = np.broadcast_to((x_ends - y_ends)[..., None], (len(boxes), 2, 2, 1))
    apart = np.abs(steps) > _MEETING
    rise, ratio = p - q, p / q
    beyond = ratio - 1.0
    chords = np.divide(rise, steps, out=np.broadcast_to(inside, rise.shape).copy(), where=apart)
    gaps = np.maximum(np.maximum(boxes[:, 0] - boxes[:, 3], boxes[:, 2] - boxes[:, 1]), 0.0)
    meeting = gaps <= _MEETING
    with np.errstate(over="ignore", invalid="ignore"):
        excess = _excess(beyond, order)
        weights = _largest(excess) / np.minimum(q[:, 0, 0], q[:, 0, 1])
        # A chord between two pieces is the same mixture of slopes, from one to the other, for every output.
        beside = _rates(weights, slopes[pieces] ** 2).max(axis=0)
        for box in np.flatnonzero(meeting & (np.abs(pieces[0] - pieces[1]) > 1)):
            first, last = sorted(pieces[:, box])
            beside[box] = _rates(weights[box], slopes[first : last + 1] ** 2).max()
        rate = np.where(meeting, beside, _rates(weights, _largest(chords**2)))
        squares = np.where(meeting, 0.0, gaps**2)
        bound = np.divide(np.log1p(rate * squares), squares, out=rate.copy(), where=squares > 0.0)
    shown = _divergence(q, beyond, excess, order)
    distances = steps[..., 0] ** 2
    quotients = np.divide(shown, distances, out=np.zeros_like(shown), where=apart[..., 0])
    # No divergence exceeds that of infinite order, whose largest value in a box is at a corner.
    capped = np.divide(
        np.log(_largest(ratio).max(axis=1)), squares, out=np.full(len(boxes), np.inf), where=squares > 0.0
    )
    return np.minimum(bound / (order - 1.0), capped), float(quotients.max())


def _rates(weights: Floats, squares: Floats) -> Floats:
    """The sums of weights times squared slopes. What does not change adds 0, even if its weight overflows."""
    shape = np.broadcast_shapes(weights.shape, squares.shape)
    return np.asarray(np.multiply(weights, squares, out=np.zeros(shape), where=squares > 0.0).sum(axis=-1))


def _piece(distribution: OutputDistribution, ends: Floats) -> NDArray[np.intp]:
    """The piece that holds each of the intervals."""
    return np.asarray(np.searchsorted(distribution.starts, ends.mean(axis=1), side="right") - 1)


def _largest(corners: Floats) -> Floats:
    """The largest of the four corners of each box, (boxes, 2, 2, outputs): one for each output."""
    return np.maximum(
        np.maximum(corners[:, 0, 0], corners[:, 0, 1]), np.maximum(corners[:, 1, 0], corners[:, 1, 1])
    )


def _divergence(q: Floats, h: Floats, excess: Floats, order: float) -> Floats:
    """D_order(p || q) over the last axis, without cancellation where p and q are close.

    ``h`` is p / q - 1, and ``excess`` its :func:`_excess`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        power_sum = np.log1p((q * h**2 * excess).sum(axis=-1)) / (order - 1.0)
    # The divergence is at most that of infinite order. This also covers an overflow.
    return np.asarray(np.fmin(power_sum, np.log1p(h.max(axis=-1))))


def _excess(h: Floats, order: float) -> Floats:
    """((1 + h)^a - 1 - a h) / h^2, by its series where h is small."""
    series = order * (order - 1.0) / 2.0 * (1.0 + (order - 2.0) * h / 3.0 * (1.0 + (order - 3.0) * h / 4.0))
    small = np.abs(h) < _SMALL / max(order, 1.0)
    safe = np.where(small, 1.0, h)
    with np.errstate(over="ignore"):
        return np.where(small, series, ((1.0 + safe) ** order - 1.0 - order * safe) / safe**2)
