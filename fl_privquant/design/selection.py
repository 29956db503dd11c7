"""Laws of the paper's two-step mechanism: pick a bin on either side of the input, then one of the two.

For x in [B_j, B_{j+1}) a left bin l <= j and a right bin r > j are selected; the output is B_l with
probability (B_r - x) / (B_r - B_l), else B_r, which makes it unbiased whatever the selection.

Reference: Cai, Zhang, Khalili, UAI 2024, algorithm 1 and the equation of p(x, i).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fl_privquant.array_types import Floats
from fl_privquant.law.density import Density
from fl_privquant.law.law import Law

# An interval of [-1, 1] narrower than this could vanish when its rows are rounded to integers.
_LEAST_PIECE = 1e-6


@dataclass(frozen=True)
class Interval:
    """The inputs [start, end] that have ``split`` bins on their left."""

    split: int
    start: float
    end: float


def intervals(values: Floats) -> list[Interval]:
    """The intervals between neighbouring bins, cut to [-1, 1].

    >>> [(piece.split, piece.start, piece.end) for piece in intervals(np.array([-2.0, 0.5, 2.0]))]
    [(1, -1.0, 0.5), (2, 0.5, 1.0)]
    """
    inner = [
        Interval(j, max(float(values[j - 1]), -1.0), min(float(values[j]), 1.0))
        for j in range(1, values.size)
    ]
    kept = [piece for piece in inner if piece.end - piece.start > _LEAST_PIECE]
    # A dropped interval is covered by its neighbour.
    return [
        Interval(piece.split, -1.0 if i == 0 else kept[i - 1].end, 1.0 if i == len(kept) - 1 else piece.end)
        for i, piece in enumerate(kept)
    ]


def interval_mass(density: Density, interval: Interval) -> float:
    """The probability that an input lies in the interval."""
    nodes, weights = density.quadrature(np.unique([-1.0, interval.start, interval.end, 1.0]))
    inside = (nodes >= interval.start) & ((nodes < interval.end) | (interval.end == 1.0))
    return float(weights[inside].sum())


def pair_law(values: Floats, pairs: list[tuple[Interval, Floats]]) -> Law:
    """The law of selecting the pair (l, r) with probability ``pairs[..][1][l, r]`` in each interval.

    The matrices are (split, m - split): left bins by right bins.
    """
    rows = [
        [_row(values, interval.split, joint, x) for x in (interval.start, interval.end)]
        for interval, joint in pairs
    ]
    return Law(
        values,
        np.array([interval.start for interval, _ in pairs]),
        np.array([interval.end for interval, _ in pairs]),
        np.array([start for start, _ in rows]),
        np.array([end for _, end in rows]),
    )


def selection_law(values: Floats, left: list[Floats], right: list[Floats]) -> Law:
    """The law of selecting both bins independently.

    For each of ``intervals(values)``, ``left`` and ``right`` have the distributions over the bins on its left
    (split entries) and on its right (m - split entries).
    """
    pieces = intervals(values)
    joint = [np.outer(lhs, rhs) for lhs, rhs in zip(left, right, strict=True)]
    return pair_law(values, list(zip(pieces, joint, strict=True)))


def mirrored_selection(values: Floats, selection: list[Floats]) -> Law:
    """The law of the paper's q: ``selection[n - 1]`` is q_n, over n bins, the nearest one last.

    The left bin is drawn from q_j, the right one from q_{m-j} counted from the right end.
    """
    levels = values.size
    pieces = intervals(values)
    return selection_law(
        values,
        [selection[piece.split - 1] for piece in pieces],
        [selection[levels - piece.split - 1][::-1] for piece in pieces],
    )


def _row(values: Floats, split: int, joint: Floats, x: float) -> Floats:
    low, high = values[:split, None], values[None, split:]
    to_high = joint * np.clip((x - low) / (high - low), 0.0, 1.0)
    return np.concatenate([(joint - to_high).sum(axis=1), to_high.sum(axis=0)])
