"""Metric privacy: a loss bounded by the distance of the inputs, as constraints on the rows at knots.

``epsilon`` keeps its meaning, the largest privacy loss between any two inputs of [-1, 1]. A metric demands
more: the loss between inputs at distance d is at most ``metric_epsilon`` * d, where ``metric_epsilon`` is
``epsilon`` / (distance of -1 and 1). Distances are in units of the clip.

* ``none``: the loss of every pair of inputs may be ``epsilon``.
* ``l1``: d = |x - x'|, exact for all reals. Neighboring knots at distance h have
  p_{k+1} <= (1 + metric_epsilon h) p_k and the reverse. Between knots p is linear, so the slope of log p
  is at most metric_epsilon everywhere, and a path from x to x' gives the bound for every pair. The losses
  of the coordinates add up to metric_epsilon times the L1 distance of two updates.
* ``l2-grid``: d = |x - x'|^2, *for inputs on the grid of knots only*, with a constraint for each pair of
  knots. It cannot hold for all reals: the slope of log p would be 0 everywhere, so that p would be constant.

Reference: Chaudhuri, Guo, Rabbat, "Privacy-Aware Compression for Federated Data Analysis", UAI 2022,
section on metric differential privacy. Inputs lie in [0, 1] there, so that its epsilon is the one used here.
Its L1 constraint is e^(metric_epsilon h), which holds on the grid only.
"""

from __future__ import annotations

import math

import numpy as np

from fl_privquant._array_types import Floats

METRICS = ("none", "l1", "l2-grid")
"""The possible values of ``metric``."""


def diameter(metric: str) -> float:
    """The distance of -1 and 1: ``epsilon`` = ``diameter`` * ``metric_epsilon``.

    >>> diameter("l1"), diameter("l2-grid")
    (2.0, 4.0)
    """
    return {"none": 1.0, "l1": 2.0, "l2-grid": 4.0}[metric]


def ratio_bounds(metric: str, epsilon: float, knots: Floats) -> list[tuple[int, int, float]]:
    """All (k, k', bound) such that p(k, i) <= bound * p(k', i) must hold for every output i.

    >>> ratio_bounds("l1", 1.0, np.array([-1.0, 0.0, 1.0]))
    [(0, 1, 1.5), (1, 0, 1.5), (1, 2, 1.5), (2, 1, 1.5)]
    """
    rate = epsilon / diameter(metric)
    if metric == "l1":
        steps = np.diff(knots).tolist()
        return [
            (row, other, 1.0 + rate * step)
            for k, step in enumerate(steps)
            for row, other in ((k, k + 1), (k + 1, k))
        ]
    distances = (knots[:, None] - knots) ** 2 if metric == "l2-grid" else np.ones((knots.size, knots.size))
    return [
        (row, other, math.exp(rate * float(distances[row, other])))
        for row in range(knots.size)
        for other in range(knots.size)
        if row != other
    ]


def min_outer_value(epsilon: float, metric: str = "none", knots: Floats | None = None) -> float:
    """The least modulus of the outermost values of an unbiased mechanism M, for a metric on its knots.

    It is necessary: B_m - M is not negative and has mean B_m - x, so that B_m - x obeys every bound on ratios
    itself. Without a metric the strictest is that between x = -1 and 1, and the least modulus is
    (e^epsilon + 1) / (e^epsilon - 1); with one, the strictest are those next to x = 1. It is enough for two
    values, whose distribution obeys the bounds exactly if B_m - x does.
    """
    if metric == "none" or knots is None:
        return 1.0 / math.tanh(epsilon / 2.0)
    needed = [
        (bound * float(knots[other]) - float(knots[row])) / (bound - 1.0)
        for row, other, bound in ratio_bounds(metric, epsilon, knots)
    ]
    return max(needed)
