"""The aggregate view of a table: what the sum of the codes of n honest clients reveals about one of them.

**Blanket.** With low_i the smallest weight of output i over all rows, each row is gamma * blanket + rest,
where gamma = sum of low_i and blanket_i = low_i / gamma. So with probability gamma a client draws from the
blanket, which does not depend on its data. Give the adversary more than it has: which of the other n - 1
clients drew from the blanket, and all codes of those that did not. It then knows the number K ~
Binomial(n - 1, gamma) of blanket draws, and sees the sum of K such draws and of the protected client's code.
Given K, the pair of distributions for inputs x, x' is (row_x * blanket^K, row_x' * blanket^K), where * is the
convolution on the lattice of codes. As K has the same distribution for both inputs, the hockey-stick curve is

    H(a) = sum over K of Pr(K) H_K(a),        worst case over x, x' at a pair of rows (joint convexity).

H_K falls with K, because one more independent draw is post-processing. So K may be replaced by a smaller
number: here by the floor of one of sixteen buckets, and below the lowest floor by 0, which is the local view.

**Mixtures.** If the adversary knows the component of a mixture of pairs, the hockey-stick curve is the same
mixture of curves. So the pair for (K, sum) is a list of atoms, those of each K with weight Pr(K).

**All pairs of rows.** For each pair the atoms are gathered in narrow cells of the loss. At each edge e^edge
the largest curve of all pairs is taken. The points where it is reached are corners of the hull of all curves
(see :mod:`fl_privquant.privacy_loss.tables.dominating_pair`). Their differences are atoms whose ratios lie
in one cell, and each atom is split between the edges of its cell. The result is a pair that dominates all
pairs of rows.

**Zero-out.** The argument is the same with 0 for x', whose row is a mixture of few rows
(:func:`~fl_privquant.privacy_loss.tables.dominating_pair.rows_of_zero`). Only pairs with one of these are
compared.

**Errors.** Where a convolution is cut or rounded, a small part of blanket^K is missing. The bound assumes
that the adversary is told whenever the sum was drawn from that part, and that the part protects nothing, so
it is charged as K = 0. This is valid because max(x + y, 0) <= max(x, 0) + max(y, 0).

Reference: Balle, Bell, Gascon, Nissim, "The Privacy Blanket of the Shuffle Model", CRYPTO 2019 (the blanket,
there for shuffled messages; a sum of messages is a function of the shuffled ones).
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from fl_privquant._array_types import Floats, Ints
from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.distributions.integer_distribution import (
    IntegerDistribution,
    WeightedDistribution,
    binomial_sums,
    estimate_sum_width,
)
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss, from_cells
from fl_privquant.privacy_loss.tables.dominating_pair import dominating_loss, rows_of_zero, zero_out_loss
from fl_privquant.statement import Relation

_CELLS = 1 << 13
# How many buckets the number K of blanket draws is divided into: for the result, and for a rough first pass
# that finds pairs of rows that cannot matter.
_BUCKETS, _ROUGH_BUCKETS = 16, 3
# Up to this many pairs of rows are all computed; and how many pairs are computed at once.
_ALL_PAIRS, _BLOCK = 100, 128
# By how much the curve of a pair that is left out may exceed the others; it is charged as an infinite loss.
_IGNORED = 1e-21
# Rows within this relative distance of a segment between two others are replaced by it (the gap is charged).
_COLLINEAR = 1e-7
# The most atoms that are computed. They take about a second.
_MAX_WORK = 6e7
# Relative error of a few thousand additions, of scipy's binomial probabilities, and of ties.
_SLACK = 1e-9


def blanket_loss(
    table: CertifiedTable, num_honest: int, relation: Relation = Relation.REPLACE_ONE
) -> PrivacyLoss:
    """The loss of one coordinate in the sum of ``num_honest`` honest clients; at most the local one."""
    to_zero = relation is not Relation.REPLACE_ONE
    local = zero_out_loss(table) if to_zero else dominating_loss(table)
    if num_honest == 1 or math.isinf(table.epsilon):
        return local
    low = table.weights.min(axis=0)
    codes = table.codebook.codes // np.gcd.reduce(table.codebook.codes)
    share = int(low.sum()) / TOTAL_WEIGHT
    blanket = IntegerDistribution.of(codes, low / int(low.sum()))
    rows, gap = _corner_rows(table)
    # On a fine lattice sums take too many values. With fewer other clients the loss is larger, so counting
    # some of them gives a bound too.
    others = bisect_left(
        range(1, num_honest),
        True,
        key=lambda number: _work(len(rows), codes, low, number * share) > _MAX_WORK,
    )
    if others == 0:
        return local
    draws = BlanketDraws(blanket, others, share)
    return bound_covered_loss(rows, codes, draws, local, gap, rows_of_zero(table) if to_zero else None)


@dataclass(frozen=True, eq=False)
class BlanketDraws:
    """Independent draws, each from the blanket with probability ``share``; the adversary knows the rest."""

    blanket: IntegerDistribution
    number: int
    share: float


def bound_covered_loss(
    rows: Floats,
    codes: Ints,
    draws: BlanketDraws,
    local: PrivacyLoss,
    gap: float = 0.0,
    zeros: Floats | None = None,
) -> PrivacyLoss:
    """The loss of one draw of an integer from ``codes``, where the adversary sees its sum with ``draws``.

    The distributions of that draw lie between the (R, m) ``rows``, up to a relative distance ``gap``.
    ``local`` is the loss where nothing else is in the sum. If the rows of an input 0 are given as ``zeros``,
    each row is compared with these only.
    """
    sums, uncovered = binomial_sums(draws.blanket, draws.number, draws.share, _BUCKETS)
    edges = np.linspace(-1.0, 1.0, _CELLS + 1) * (local.max_loss * (1.0 + 1e-9) + 1e-12)
    hull = _Hull(edges)
    last = len(rows) - 1
    if zeros is None:
        ends = np.array([[0, last], [last, 0]])
        pairs = np.array(list(permutations(range(len(rows)), 2)), dtype=np.int64)
    else:
        rows = np.concatenate([rows, zeros])
        compared = list(product(range(last + 1), range(last + 1, len(rows))))
        pairs = np.array(compared + [pair[::-1] for pair in compared], dtype=np.int64)
        ends = pairs[np.isin(pairs, [0, last]).any(axis=1)]
    pairs = pairs[~(pairs[:, None] == ends).all(axis=2).any(axis=1)]
    hull.add(*_cells(rows, codes, edges, sums, ends))
    ignored = 0.0
    if len(pairs) > _ALL_PAIRS:
        rough, _ = binomial_sums(draws.blanket, draws.number, draws.share, _ROUGH_BUCKETS)
        pairs, ignored = _rivals(rows, codes, rough, pairs, hull), _IGNORED
    for start in range(0, len(pairs), _BLOCK):
        hull.add(*_cells(rows, codes, edges, sums, pairs[start : start + _BLOCK]))
    relative = max(part.distribution.relative for part in sums)
    return _mixture(hull.loss(gap + 2.0 * relative), local, uncovered, ignored)


def _cells(
    rows: Floats, codes: Ints, edges: Floats, sums: list[WeightedDistribution], pairs: Ints
) -> tuple[Floats, Floats]:
    """(pairs, cells) masses of pairs of rows, by loss, under the first row and the second."""
    # Imported here because numba takes a second to import, and only the aggregate view needs it.
    from fl_privquant.privacy_loss.sums._blanket_loops import gather_cells

    cells = edges.size - 1
    first, second = np.zeros((len(pairs), cells)), np.zeros((len(pairs), cells))
    per_loss = cells / (edges[-1] - edges[0])
    for part in sums:
        spread = np.zeros((len(rows), part.distribution.values.size + int(codes[-1])))
        for code, column in zip(codes.tolist(), rows.T, strict=True):
            spread[:, code : code + part.distribution.values.size] += (
                column[:, None] * part.distribution.values
            )
        # Leave out outputs that no row gives. As epsilon is finite, all others are possible for every row.
        spread = np.ascontiguousarray(spread[:, spread.max(axis=0) > 0.0])
        gather_cells(spread, np.log(spread) * per_loss, pairs, part.weight, first, second)
    return first, second


class _Hull:
    """The largest curve of all pairs that were added, and the corners where it is reached."""

    def __init__(self, edges: Floats) -> None:
        self.edges = edges
        self._ratios = np.exp(edges[:-1])
        self.curve = np.zeros(edges.size - 1)
        self._top, self._bottom = np.zeros(edges.size - 1), np.zeros(edges.size - 1)

    def curves(self, first: Floats, second: Floats) -> tuple[Floats, Floats, Floats]:
        """(pairs, cells) the curve at the lower edge of each cell, and both masses from there on."""
        # Summed from the top, where masses are small and matter most, so that they keep their digits.
        top = np.cumsum(first[:, ::-1], axis=1)[:, ::-1]
        bottom = np.cumsum(second[:, ::-1], axis=1)[:, ::-1]
        return top - self._ratios * bottom, top, bottom

    def add(self, first: Floats, second: Floats) -> None:
        """Take pairs with these masses in each cell into the hull."""
        for curve, top, bottom in zip(*self.curves(first, second), strict=True):
            # Changing between curves that are equal except for rounding would only add rounding errors.
            above = curve > self.curve * (1.0 + 0.1 * _SLACK)
            self.curve = np.where(above, curve, self.curve)
            self._top = np.where(above, top, self._top)
            self._bottom = np.where(above, bottom, self._bottom)

    def loss(self, gap: float) -> PrivacyLoss:
        """The loss that dominates all pairs added, and those of rows within ``gap`` of theirs."""
        first = np.maximum(self._top - np.append(self._top[1:], 0.0), 0.0)
        second = np.maximum(self._bottom - np.append(self._bottom[1:], 0.0), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            decay = np.where(first > 0.0, self._ratios * second / first, 1.0)
        loss = from_cells(self.edges, first, decay, 0.0, _SLACK + 2.0 * gap)
        return dataclasses.replace(loss, losses=self.edges + 2.0 * math.log1p(2.0 * gap))


def _rivals(rows: Floats, codes: Ints, rough: list[WeightedDistribution], pairs: Ints, hull: _Hull) -> Ints:
    """The pairs whose curve may exceed the hull by more than rounding errors, at some edge.

    Curves are larger with fewer buckets. The lowest floor stays the same, and so does the part that counts as
    local.
    """
    bound = hull.curve * (1.0 + 0.1 * _SLACK) + _IGNORED
    kept: list[Ints] = []
    for start in range(0, len(pairs), _BLOCK):
        block = pairs[start : start + _BLOCK]
        curves, _, _ = hull.curves(*_cells(rows, codes, hull.edges, rough, block))
        kept.append(block[(curves > bound).any(axis=1)])
    return np.concatenate(kept)


def _mixture(covered: PrivacyLoss, local: PrivacyLoss, share: float, infinity: float) -> PrivacyLoss:
    """``covered``, which has its weight already, and ``local`` with probability ``share``."""
    used = covered.masses > 0.0
    losses = np.concatenate([covered.losses[used], local.losses])
    masses = np.concatenate([covered.masses[used], share * local.masses])
    slack = covered.slack + local.slack
    return PrivacyLoss.merge_atoms(losses, masses, share * local.infinity + infinity, slack)


def _work(num_rows: int, codes: Ints, low: Ints, draws: float) -> float:
    """About how many atoms have to be computed for sums of that many draws."""
    width = estimate_sum_width(codes, low.astype(np.float64), draws)
    pairs = num_rows * (num_rows - 1)
    return width * pairs * (_BUCKETS if pairs <= _ALL_PAIRS else _ROUGH_BUCKETS + 1)


def _corner_rows(table: CertifiedTable) -> tuple[Floats, float]:
    """Rows between which all others lie, first and last knot at the ends; and the largest relative gap.

    A row r within a relative distance g of a mixture r' of two others has r <= (1 + g) r' and r >= (1 - g)
    r': H(a) of a pair of such rows is at most (1 + g) H'(a (1 - g) / (1 + g)), a shift of the loss by some
    2 g.
    """
    rows = table.weights[np.argsort(table.knots, kind="stable")] / TOTAL_WEIGHT
    kept, gap, start = [0], 0.0, 0
    while start < len(rows) - 1:
        end, reached = start + 1, 0.0
        for candidate in range(start + 2, len(rows)):
            distance = _distance_to_segment(rows[start : candidate + 1])
            if distance > _COLLINEAR:
                break
            end, reached = candidate, distance
        kept.append(end)
        gap = max(gap, reached)
        start = end
    return rows[kept], gap * (1.0 + 1e-6)


def _distance_to_segment(path: Floats) -> float:
    """Largest relative distance of the rows of a path to the segment between its ends."""
    along = path[-1] - path[0]
    length = float(along @ along)
    if length == 0.0:
        return math.inf
    share = np.clip((path[1:-1] - path[0]) @ along / length, 0.0, 1.0)
    nearest = path[0] + share[:, None] * along
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(path[1:-1] == nearest, 0.0, np.abs(path[1:-1] - nearest) / nearest)
    return float(relative.max())
