"""The paper's family: left and right bin drawn independently, designed by successive linear programs.

An output probability is a product q_j(i) * S(x, i) of a selection probability and a sum that is linear in the
other side's selection probabilities. The paper makes the DP constraint linear with bounds o <= q <= u, found
on a grid: p(x, i) is at most z = u S and at least w = o S (theorem "constraint1"). Every solution of such a
program is epsilon-DP, whatever the bounds. This module improves on the paper in four ways:

* The bounds are McCormick's, o S + (q - o) S_least <= q S <= u S - (u - q) S_least, of which the paper's
  are the case S_least = 0. They are loose only to second order in the width of the box [o, u].
* Instead of a grid over all bounds, which would be exponential in the number of levels, there is a sequence
  of shrinking boxes, each around the best selection so far, with an exact audit at each step.
* The objective is the error itself, linearized in each box, not a bound of it.
* All pairs of inputs are compared, not only those in the same interval, and left limits at bins count for
  outer bins too (corrections to the printed theorem). There is a ceiling and a floor for each output, which
  takes O(m^2) constraints instead of O(m^3).

Symbols of the paper: q_j(i) selection probabilities, o_j(i) ``lower``, u_j(i) ``upper``.

Reference: Cai, Zhang, Khalili, UAI 2024, theorems "constraint1" and "extend".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fl_privquant._array_types import Floats
from fl_privquant.distributions.input_density import Density
from fl_privquant.distributions.output_distribution import OutputDistribution, error_costs
from fl_privquant.errors import InfeasibleDesignError, PrivQuantError
from fl_privquant.optimize.linear_program import LinearProgram
from fl_privquant.optimize.optm.bin_selection import Selections
from fl_privquant.optimize.optm.free import is_symmetric, require_reach

Terms = dict[int, float]

_MIN_PROBABILITY = 1e-6
_GRID = (0.01, 0.03, 0.07, 0.13, 0.2, 0.28, 0.37, 0.47, 0.58, 0.7, 0.82, 0.93)
_RESTS = (0.1, 0.01, 0.001)
# With more levels than this, less effort is made: the last digits would take most of the time, and all
# starting points lead to the same optimum.
_FEW_LEVELS = 5


@dataclass(frozen=True)
class _Effort:
    """How thoroughly the search is done."""

    widest: float
    """Relative width of the first box."""
    narrowest: float
    """Relative width of the last box."""
    min_gain: float
    """Least relative gain for which a step is made."""
    num_starts: int = 1


_FULL = _Effort(0.5, 1e-6, 1e-6, num_starts=3)
_QUICK = _Effort(0.25, 2e-3, 1e-6)
_FULL_MANY = _Effort(0.25, 2e-3, 1e-4)
_QUICK_MANY = _Effort(0.25, 5e-2, 2e-3)


class _Family:
    """The unknown selection probabilities of one set of bins, as numbered variables.

    If bins and density are symmetric, mirror images share a variable.
    """

    def __init__(self, values: Floats, density: Density, power: int) -> None:
        self.values, self.density, self.power = values, density, power
        self.distributions = Selections(values)
        self.pieces = self.distributions.pieces
        self.symmetric = is_symmetric(values, density)
        self.left: list[NDArray[np.intp]] = []
        self.right: list[NDArray[np.intp]] = []
        self.groups: list[NDArray[np.intp]] = []
        used = 0
        for piece in self.pieces:
            self.left.append(np.arange(used, used + piece.split))
            self.groups.append(self.left[-1])
            used += piece.split
        for k, piece in enumerate(self.pieces):
            if self.symmetric:
                self.right.append(self.left[len(self.pieces) - 1 - k][::-1])
                continue
            self.right.append(np.arange(used, used + values.size - piece.split))
            self.groups.append(self.right[-1])
            used += values.size - piece.split
        self.size = used

    def distribution(self, q: Floats) -> OutputDistribution:
        return self.distributions.independent(
            [q[group] for group in self.left], [q[group] for group in self.right]
        )

    def normalize(self, q: Floats) -> Floats:
        scaled = np.maximum(q, 0.0)
        for group in self.groups:
            scaled[group] /= scaled[group].sum()
        return scaled

    def factor(self, k: int, x: float, i: int) -> tuple[int, Terms]:
        """p(x, i) = q[number] * (sum of coefficient * q): the number, and the terms of the sum."""
        split, values = self.pieces[k].split, self.values
        if i < split:
            others = range(split, values.size)
            numbers = self.right[k]
            shares = [(values[r] - x) / (values[r] - values[i]) for r in others]
            own = int(self.left[k][i])
        else:
            others = range(split)
            numbers = self.left[k]
            shares = [(x - values[low]) / (values[i] - values[low]) for low in others]
            own = int(self.right[k][i - split])
        terms: Terms = {}
        for number, share in zip(numbers.tolist(), shares, strict=True):
            terms[number] = terms.get(number, 0.0) + float(share)
        return own, terms

    @cached_property
    def error_costs(self) -> tuple[Floats, Floats]:
        """The coefficient in the error of each output probability at the ends of the pieces."""
        starts = np.array([piece.start for piece in self.pieces])
        ends = np.array([piece.end for piece in self.pieces])
        return error_costs(self.values, starts, ends, self.power, self.density)

    def cost(self, q: Floats) -> float:
        """The objective: the exact error."""
        return self.loss_and_cost(q)[1]

    def loss_and_cost(self, q: Floats) -> tuple[float, float]:
        """The privacy loss of a selection, and its :meth:`cost`."""
        distribution = self.distribution(q)
        return distribution.epsilon, distribution.cost(*self.error_costs)

    def error_slopes(self, q: Floats) -> Floats:
        """Slope of the exact error in the selection probabilities, at q."""
        costs = np.zeros(self.size)
        at_start, at_end = self.error_costs
        for k, piece in enumerate(self.pieces):
            for x, cost in ((piece.start, at_start[k]), (piece.end, at_end[k])):
                low, high = self.values[: piece.split, None], self.values[None, piece.split :]
                to_high = np.clip((x - low) / (high - low), 0.0, 1.0)
                pair = (1.0 - to_high) * cost[: piece.split, None] + to_high * cost[None, piece.split :]
                np.add.at(costs, self.left[k], pair @ q[self.right[k]])
                np.add.at(costs, self.right[k], q[self.left[k]] @ pair)
        return costs


def design_independent(
    values: Floats, epsilon: float, density: Density, power: int, start: Floats | None = None
) -> tuple[OutputDistribution, Floats]:
    """The best distribution found with independent selections, and its selection probabilities.

    With a ``start`` the search is quicker and less fine, which suits a search over bins. The objective is the
    exact error, linearized in each box; the paper minimizes a linear bound of the mean absolute error instead
    (theorem "extend").

    Parameters
    ----------
    values, epsilon, density, power
        As for :func:`~fl_privquant.optimize.optm.free.design_free`.
    start
        Selection probabilities to begin from: the second result of an earlier call.

    Returns
    -------
    tuple[OutputDistribution, Floats]
        The distribution, and its selection probabilities.

    Raises
    ------
    InfeasibleDesignError
        None was found within epsilon.
    """
    require_reach(values, epsilon)
    family = _Family(values, density, power)
    few = values.size <= _FEW_LEVELS
    full, quick = (_FULL, _QUICK) if few else (_FULL_MANY, _QUICK_MANY)
    effort = full if start is None else quick
    if start is not None and start.size == family.size:
        starts = [start]
    else:
        starts = _starts(family, epsilon)[: full.num_starts]
    best: Floats | None = None
    best_cost = math.inf
    for candidate in starts:
        descended = _descend(family, candidate, epsilon, effort)
        cost = math.inf if descended is None else family.cost(descended)
        if descended is not None and cost < best_cost:
            best, best_cost = descended, cost
    if best is None:
        raise InfeasibleDesignError(
            f"bins {np.array2string(values, precision=4)}: no independent selection with epsilon "
            f"{epsilon:g} was found; widen the outer bins, raise epsilon, or use family='paired' or 'free'"
        )
    return family.distribution(best), best


def _starts(family: _Family, epsilon: float) -> list[Floats]:
    """Selections to begin from, the best first: those within epsilon by error, the others by epsilon."""
    free_entries = sum(group.size - 1 for group in family.groups)
    if free_entries <= 3:
        candidates = list(_simplex_grid(family))
    else:
        candidates = [_by_rank(family, rate) for rate in np.linspace(0.02, 0.98, 49)]
        candidates += [_by_distance(family, rate) for rate in np.geomspace(0.01, 20.0, 24)]
    # Near the least epsilon that the bins allow, the outermost bins must be selected nearly always.
    candidates += [_outermost(family, rest / family.values.size) for rest in _RESTS]
    ranked = []
    for q in candidates:
        distribution = family.distribution(q)
        excess = max(distribution.epsilon - epsilon, 0.0)
        ranked.append((excess, distribution.cost(*family.error_costs), q))
    ranked.sort(key=lambda entry: entry[:2])
    return [q for _, _, q in ranked]


def _simplex_grid(family: _Family) -> list[Floats]:
    choices = []
    for group in family.groups:
        heads = itertools.product(_GRID, repeat=group.size - 1)
        choices.append([(*head, 1.0 - sum(head)) for head in heads if sum(head) < 0.999])
    grid = []
    for combination in itertools.product(*choices):
        q = np.empty(family.size)
        for group, entries in zip(family.groups, combination, strict=True):
            q[group] = entries
        grid.append(q)
    return grid


def _by_rank(family: _Family, rate: float) -> Floats:
    """Selection as in RQM: geometric in the number of bins in between."""
    return _fill(family, lambda group, nearest: np.abs(group - nearest) * math.log1p(-rate))


def _by_distance(family: _Family, rate: float) -> Floats:
    """Selection as in ERM: exponential in the distance to the nearest bin."""
    span = family.values[-1] - family.values[0]
    return _fill(
        family, lambda group, nearest: -rate * np.abs(family.values[group] - family.values[nearest]) / span
    )


def _outermost(family: _Family, rest: float) -> Floats:
    """Every bin but the outermost is selected with probability ``rest``."""
    q = np.empty(family.size)
    for group, outer in [(bins, 0) for bins in family.left] + [(bins, -1) for bins in family.right]:
        q[group] = rest
        q[group[outer]] = 1.0 - rest * (group.size - 1)
    return q


def _fill(family: _Family, log_weight: Callable[[NDArray[np.intp], int], Floats]) -> Floats:
    q = np.empty(family.size)
    levels = family.values.size
    for k, piece in enumerate(family.pieces):
        for numbers, bins, nearest in (
            (family.left[k], np.arange(piece.split), piece.split - 1),
            (family.right[k], np.arange(piece.split, levels), piece.split),
        ):
            q[numbers] = np.exp(log_weight(bins, nearest))
    return family.normalize(q)


def _descend(family: _Family, q: Floats, epsilon: float, effort: _Effort) -> Floats | None:
    """The best selection in shrinking boxes around the last one; None if none is epsilon-DP."""
    # Allows for float rounding; the certificate of the integer table has no such slack.
    allowed = epsilon * (1.0 + 1e-12)
    loss, cost = family.loss_and_cost(q)
    width = effort.widest
    while width > effort.narrowest:
        lower, upper = _box(family, q, width)
        private = loss <= allowed
        solved = _solve_box(family, q, lower, upper, epsilon, not private)
        moved = False
        if solved is not None:
            solved_loss, solved_cost = family.loss_and_cost(solved)
            if solved_loss <= allowed:
                moved = not private or solved_cost < cost * (1.0 - effort.min_gain)
            else:
                moved = not private and solved_loss < loss - effort.min_gain
            if moved:
                q, loss, cost = solved, solved_loss, solved_cost
        if not moved:
            width /= 3.0
    return q if loss <= allowed else None


def _box(family: _Family, q: Floats, width: float) -> tuple[Floats, Floats]:
    lower = np.clip(q * (1.0 - width), _MIN_PROBABILITY, 1.0)
    upper = np.clip(q * (1.0 + width), 2.0 * _MIN_PROBABILITY, 1.0)
    for group in family.groups:
        if group.size == 1:
            lower[group] = upper[group] = 1.0
    return lower, upper


def _solve_box(
    family: _Family, q: Floats, lower: Floats, upper: Floats, epsilon: float, elastic: bool
) -> Floats | None:
    """The best selection in one box, by theorem "constraint1"; None if the program has no solution.

    With ``elastic`` it is the most private selection, for boxes in which none may be private enough.
    """
    program = LinearProgram()
    number = program.variables("q", family.error_slopes(q) * (1e-3 if elastic else 1.0))
    for i in number:
        program.bound(i, float(lower[i]), float(upper[i]))
    for group in family.groups:
        program.equal([(int(entry), 1.0) for entry in group], 1.0)
    levels = family.values.size
    outputs = range((levels + 1) // 2) if family.symmetric else range(levels)
    ceiling = program.variables("ceiling", np.zeros(len(outputs)))
    floor = program.variables("floor", np.zeros(len(outputs)))
    excess = program.variables("excess", [1.0 if elastic else 0.0], 0.0, None if elastic else 0.0)[0]
    for i in outputs:
        program.at_most([(ceiling[i], 1.0), (floor[i], -math.exp(epsilon)), (excess, -1.0)], 0.0)
        own_at_bin: dict[bool, int] = {}
        for k, piece in enumerate(family.pieces):
            near, far = (piece.start, piece.end) if i < piece.split else (piece.end, piece.start)
            own, terms = family.factor(k, far, i)
            least = sum(share * lower[j] for j, share in terms.items())
            product = [(j, -lower[own] * share) for j, share in terms.items()]
            program.at_most([(floor[i], 1.0), (own, -least), *product], -lower[own] * least)
            if near == family.values[i]:
                # At its own bin an output has probability q_i(i) exactly, as the sum is 1.
                own_at_bin[i < piece.split] = own
                program.at_most([(own, 1.0), (ceiling[i], -1.0)], 0.0)
        for k, piece in enumerate(family.pieces):
            on_left = i < piece.split
            near = piece.start if on_left else piece.end
            own, terms = family.factor(k, near, i)
            if own_at_bin.get(on_left, own) != own:
                program.at_most([(own, 1.0), (own_at_bin[on_left], -1.0)], 0.0)
            elif on_left not in own_at_bin:
                least = sum(share * lower[j] for j, share in terms.items())
                product = [(j, upper[own] * share) for j, share in terms.items()]
                program.at_most([(ceiling[i], -1.0), (own, least), *product], upper[own] * least)
    try:
        solution = program.solve()
    except PrivQuantError:
        return None  # the caller tries a narrower box
    return family.normalize(solution.x[: family.size])
