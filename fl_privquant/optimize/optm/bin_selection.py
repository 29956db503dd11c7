"""The paper's two-step mechanism: pick a bin on either side of the input, then one of the two.

For x in [B_j, B_{j+1}) a left bin l <= j and a right bin r > j are selected; the output is B_l with
probability (B_r - x) / (B_r - B_l), else B_r, which makes it unbiased whatever the selection.

Reference: Cai, Zhang, Khalili, UAI 2024, algorithm 1 and the equation of p(x, i).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.distributions.input_density import Density
from fl_privquant.distributions.output_distribution import OutputDistribution

# An interval of [-1, 1] narrower than this could vanish when its rows are rounded to integers.
_MIN_PIECE = 1e-6


@dataclass(frozen=True)
class Interval:
    """The inputs [start, end] that have ``split`` bins on their left."""

    split: int
    start: float
    end: float


def intervals(values: Floats) -> list[Interval]:
    """The intervals between neighboring bins, cut to [-1, 1].

    >>> [(piece.split, piece.start, piece.end) for piece in intervals(np.array([-2.0, 0.5, 2.0]))]
    [(1, -1.0, 0.5), (2, 0.5, 1.0)]
    """
    inner = [
        Interval(j, max(float(values[j - 1]), -1.0), min(float(values[j]), 1.0))
        for j in range(1, values.size)
    ]
    kept = [piece for piece in inner if piece.end - piece.start > _MIN_PIECE]
    # A dropped interval is covered by its neighbor.
    return [
        Interval(piece.split, -1.0 if i == 0 else kept[i - 1].end, 1.0 if i == len(kept) - 1 else piece.end)
        for i, piece in enumerate(kept)
    ]


def interval_mass(density: Density, interval: Interval) -> float:
    """The probability that an input lies in the interval."""
    nodes, weights = density.quadrature(np.unique([-1.0, interval.start, interval.end, 1.0]))
    inside = (nodes >= interval.start) & ((nodes < interval.end) | (interval.end == 1.0))
    return float(weights[inside].sum())


class Selections:
    """The distributions on given bins: what all of them share is computed once."""

    def __init__(self, values: Floats) -> None:
        self.values = values
        self.pieces = intervals(values)

    @cached_property
    def _ends(self) -> tuple[Floats, Floats]:
        starts = np.array([interval.start for interval in self.pieces])
        return starts, np.array([interval.end for interval in self.pieces])

    @cached_property
    def _to_high(self) -> list[Floats]:
        """(2, split, m - split) for each piece: the share of the right bin at its start and at its end."""
        shares = []
        for interval in self.pieces:
            low, high = self.values[: interval.split, None], self.values[None, interval.split :]
            at = np.array([interval.start, interval.end])[:, None, None]
            shares.append(np.clip((at - low) / (high - low), 0.0, 1.0))
        return shares

    def pair_distribution(self, joints: Sequence[Floats]) -> OutputDistribution:
        """The distribution of selecting the pair (l, r) with probability ``joints[..][l, r]`` in an interval.

        The matrices are (split, m - split): left bins by right bins.
        """
        rows = np.empty((2, len(self.pieces), self.values.size))
        for k, (interval, joint, share) in enumerate(zip(self.pieces, joints, self._to_high, strict=True)):
            to_high = joint * share
            np.add.reduce(joint - to_high, axis=2, out=rows[:, k, : interval.split])
            np.add.reduce(to_high, axis=1, out=rows[:, k, interval.split :])
        return OutputDistribution(self.values, *self._ends, rows[0], rows[1])

    def independent(self, left: list[Floats], right: list[Floats]) -> OutputDistribution:
        """The distribution of selecting both bins independently.

        For each interval, ``left`` and ``right`` have the distributions over the bins on its left (split
        entries) and on its right (m - split entries).
        """
        return self.pair_distribution(
            [np.multiply.outer(lhs, rhs) for lhs, rhs in zip(left, right, strict=True)]
        )

    def mirror(self, selection: list[Floats]) -> OutputDistribution:
        """The distribution of the paper's q: ``selection[n - 1]`` is q_n, over n bins, the nearest one last.

        The left bin is drawn from q_j, the right one from q_{m-j} counted from the right end.
        """
        levels = self.values.size
        return self.independent(
            [selection[piece.split - 1] for piece in self.pieces],
            [selection[levels - piece.split - 1][::-1] for piece in self.pieces],
        )
