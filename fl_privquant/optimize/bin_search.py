"""Bin search: the output values (bins) that suit an epsilon, a number of levels and a density best.

For given values a linear program finds the best distribution. For the free family it also gives the gradient
of its optimum in the values, and L-BFGS searches for the best values. Other families use Nelder-Mead; with
many levels the search is over two numbers only, the outermost value and an exponent that bends an even
spacing. Symmetric densities get symmetric values. Everything is deterministic.

A shape is a vector of fractions from 0 to 1, and ``edges`` are the absolute values of the outermost values:
``values = -edges[0] + (edges[0] + edges[1]) * fractions``. On a lattice the shape is an integer vector
instead, and only the edges are continuous. If there are few lattice shapes, all are tried. Else the
continuous optimum is rounded to each lattice and improved integer by integer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy

from fl_privquant._array_types import Floats, Ints
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.errors import InfeasibleDesignError

# Stands for the objective where there is no distribution for some values.
_INFEASIBLE = 1e9
# Bound of the logarithms of gaps between values, and the step by which numerical slopes are computed.
_LOG_GAP_BOUND, _SHAPE_STEP = 8.0, 1e-6
# Up to _MANY_SHAPES lattice shapes are all tried; of more, the _FINALISTS best ones are searched.
_MANY_SHAPES, _FINALISTS = 12, 4
# The least relative gain for which an integer move is made.
_GAIN = 1e-5
# Values of more levels than this are described by two numbers: scale and bend.
_FEW_LEVELS, _FEW_LEVELS_WITH_GRADIENT = 5, 32
# Searches begin at this multiple of the least outermost value.
_START_BEYOND = 1.12


@dataclass(frozen=True)
class Evaluation:
    """The objective for some values, and what computes its gradient in the values where that is known."""

    objective: float
    gradient: Callable[[], Floats] | None = None


def memoize_evaluations(evaluate: Callable[[Floats], Evaluation]) -> Callable[[Floats], Evaluation]:
    """The same function of values, which computes nothing twice: descents often meet at an end of a range."""
    known: dict[bytes, Evaluation] = {}

    def once(values: Floats) -> Evaluation:
        key = values.tobytes()
        if key not in known:
            known[key] = evaluate(values)
        return known[key]

    return once


@dataclass
class BinSearch:
    """A search for ``levels`` values whose outermost ones are between ``least`` and ``most`` in modulus."""

    evaluate: Callable[[Floats], Evaluation]
    """Gives the objective for a set of values; raises InfeasibleDesignError where no distribution exists."""
    levels: int
    least: float
    most: float
    typical: Floats | None = None
    """(levels - 2,) typical inputs, at which asymmetric values start; None searches symmetric values."""
    has_gradient: bool = True
    """Whether evaluations come with a gradient."""
    advice: str = ""
    """What else helps if nothing is found: the end of the error text."""
    best: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        if not self.most > self.least:
            raise InfeasibleDesignError(
                f"max_value: {self.most:.6g} is not above {self.least:.6g}, which an unbiased mechanism "
                "with this epsilon needs; raise max_value or epsilon"
            )

    def continuous(self) -> Codebook:
        """The best values on no particular lattice."""
        values = self._search_shape()
        self._check_found()
        return Codebook.from_values(values)

    def lattice(self, max_code: int) -> Codebook:
        """The best values with integer codes 0 to at most ``max_code``."""
        edges = np.full(2, self._clip(self.least * _START_BEYOND))
        shapes = self._symmetric_shapes(max_code) if self.typical is None else None
        if shapes is None or len(shapes) > _MANY_SHAPES:
            values = self._search_shape()
            edges = np.array([-values[0], values[-1]])
            shapes = self._round_codes(values, max_code)
            if self._bent:
                # Programs of these families are slow, so only the lattices that fit best are tried.
                shapes.sort(key=lambda shape: float(np.abs(_values(shape, edges) - values).max()))
                shapes = shapes[:_FINALISTS]
            worth = {shape: self._worth(_values(shape, edges)) for shape in shapes}
            finalists = _FINALISTS if self.has_gradient and not self._bent else 1
            shapes = sorted(shapes, key=lambda shape: worth[shape])[:finalists]
        scaled = [(shape, *self._search_edges(shape, edges)) for shape in shapes]
        shape, edges, worth_found = min(scaled, key=lambda entry: entry[2])
        if self.has_gradient and not self._bent:
            shape, edges = self._climb(shape, edges, worth_found, max_code)
        self._check_found()
        return Codebook(np.array(shape), float(edges.sum()) / shape[-1], -float(edges[0]))

    def _search_shape(self) -> Floats:
        descents = []
        for edges, log_gaps in self._starts():
            bounds = [(self.least, self.most)] * edges.size + [
                (-_LOG_GAP_BOUND, _LOG_GAP_BOUND)
            ] * log_gaps.size
            descents.append(self._descend(self._shape_values, np.concatenate([edges, log_gaps]), bounds))
        return self._shape_values(min(descents, key=lambda entry: entry[1])[0])

    def _search_edges(self, shape: tuple[int, ...], edges: Floats) -> tuple[Floats, float]:
        start = edges[:1] if self.typical is None else edges
        point, worth = self._descend(
            lambda free: _values(shape, np.broadcast_to(free, 2)),
            start,
            [(self.least, self.most)] * start.size,
        )
        return np.array(np.broadcast_to(point, 2)), worth

    def _climb(
        self, shape: tuple[int, ...], edges: Floats, worth: float, max_code: int
    ) -> tuple[tuple[int, ...], Floats]:
        """Move single codes one step up or down, as long as a move improves the objective."""
        tried = {shape}
        while True:
            moves = [move for move in self._neighbors(shape, max_code) if move not in tried]
            tried.update(moves)
            ranked = sorted((self._worth(_values(move, edges)), move) for move in moves)
            scaled = [(*self._search_edges(move, edges), move) for _, move in ranked[:2]]
            better = [entry for entry in scaled if entry[1] < worth * (1.0 - _GAIN)]
            if not better:
                return shape, edges
            edges, worth, shape = min(better, key=lambda entry: entry[1])

    def _starts(self) -> Iterator[tuple[Floats, Floats]]:
        """Starting points, as edges and logarithms of gaps: inner values even, far out, or split."""
        edge = self._clip(self.least * _START_BEYOND)
        if self.typical is not None:
            for beyond, spread in itertools.product((1.3, 2.5), (1.0, 2.0)):
                edge = self._clip(self.least * beyond)
                center = float(np.median(self.typical))
                inner = np.clip(center + spread * (self.typical - center), -0.9 * edge, 0.9 * edge)
                values = np.concatenate([[-edge], inner, [edge]])
                yield np.full(2, edge), np.log(np.maximum(np.diff(values), 1e-2))
            return
        half = self.levels // 2
        if self._bent:
            yield np.full(1, self._clip(self.least * 1.5)), np.ones(1)
            return
        shapes = [np.arange(1, half + 1) / half]
        if half > 1:
            outer = np.linspace(0.75, 1.0, half)
            shapes += [outer, np.concatenate([[0.06], outer[1:]]), np.geomspace(0.15, 1.0, half)]
        for fractions in shapes:
            yield np.full(1, edge), np.log(np.diff(fractions, prepend=0.0))

    def _shape_values(self, point: Floats) -> Floats:
        if self.typical is not None:
            gaps = np.exp(point[2:] - point[2:].max())
            fractions = np.concatenate([[0.0], np.cumsum(gaps)]) / gaps.sum()
            return np.asarray(-point[0] + (point[0] + point[1]) * fractions)
        if self._bent:
            count = self.levels // 2
            even = (np.arange(count) + (1.0 if self.levels % 2 else 0.5)) / (
                count - (0.0 if self.levels % 2 else 0.5)
            )
            half = point[0] * even ** max(float(point[1]), 0.05)
        else:
            gaps = np.exp(point[1:] - point[1:].max())
            half = point[0] * np.cumsum(gaps) / gaps.sum()
        center = [0.0] if self.levels % 2 else []
        return np.concatenate([-half[::-1], center, half])

    @property
    def _bent(self) -> bool:
        few = _FEW_LEVELS_WITH_GRADIENT if self.has_gradient else _FEW_LEVELS
        return self.typical is None and self.levels > few

    def _symmetric_shapes(self, max_code: int) -> list[tuple[int, ...]] | None:
        """All symmetric integer shapes, or None if there are too many to try."""
        half = self.levels // 2
        shapes: list[tuple[int, ...]] = []
        for largest in range(self.levels - 1, max_code + 1):
            if self.levels % 2 and largest % 2:
                continue
            positions = range((largest + 1) // 2 + (self.levels % 2 and largest % 2 == 0), largest)
            if math.comb(len(positions), half - 1) > 4 * _MANY_SHAPES:
                return None
            for inner in itertools.combinations(positions, half - 1):
                if inner and 2 * inner[0] == largest:
                    continue
                upper = (*inner, largest)
                center = (largest // 2,) if self.levels % 2 else ()
                shape = (*(largest - code for code in reversed(upper)), *center, *upper)
                if math.gcd(*shape) == 1:
                    shapes.append(shape)
        return shapes

    def _round_codes(self, values: Floats, max_code: int) -> list[tuple[int, ...]]:
        fractions = (values - values[0]) / (values[-1] - values[0])
        shapes = set()
        for largest in range(self.levels - 1, max_code + 1):
            if self.typical is None and self.levels % 2 and largest % 2:
                continue
            codes = np.rint(fractions * largest).astype(np.int64)
            if self.typical is None:
                upper = _separate(codes[-(self.levels // 2) :], largest // 2 + 1, largest)
                center = [largest // 2] if self.levels % 2 else []
                codes = np.concatenate([largest - upper[::-1], np.array(center, dtype=np.int64), upper])
            else:
                codes = _separate(codes, 0, largest)
            shapes.add(tuple((codes // math.gcd(*codes.tolist())).tolist()))
        return sorted(shapes)

    def _neighbors(self, shape: tuple[int, ...], max_code: int) -> Iterator[tuple[int, ...]]:
        middle = self.levels // 2 if self.typical is None else 1
        for i, step in itertools.product(range(middle, self.levels), (-1, 1)):
            codes = list(shape)
            if self.typical is None:
                if 2 * i + 1 == self.levels:
                    continue
                mirror = self.levels - 1 - i
                codes[i] += step
                codes[mirror] -= step
                codes = [code - codes[0] for code in codes]
            else:
                codes[i] += step
            rising = all(low < high for low, high in itertools.pairwise(codes))
            if rising and codes[-1] <= max_code and math.gcd(*codes) == 1:
                yield tuple(codes)

    def _descend(
        self, to_values: Callable[[Floats], Floats], start: Floats, bounds: list[tuple[float, float]]
    ) -> tuple[Floats, float]:
        """The best point near ``start``, and its objective."""
        seen: list[tuple[float, Floats]] = []

        def worth(point: Floats) -> float:
            value = self._worth(to_values(point))
            seen.append((value, np.array(point)))
            return value

        def worth_and_slope(point: Floats) -> tuple[float, Floats]:
            evaluation = self._evaluate(to_values(point))
            seen.append((evaluation.objective, np.array(point)))
            steps = _SHAPE_STEP * np.eye(point.size)
            shifts = np.array([to_values(point + step) - to_values(point - step) for step in steps])
            gradient = np.zeros(self.levels) if evaluation.gradient is None else evaluation.gradient()
            return evaluation.objective, shifts @ gradient / (2.0 * _SHAPE_STEP)

        if start.size == 1:
            worth(np.array([bounds[0][0]]))  # the bounded search below never evaluates an end
            tolerance: Any = {"xatol": (1e-2 if self._bent else 1e-3) * bounds[0][0]}
            scipy.optimize.minimize_scalar(
                lambda edge: worth(np.array([edge])), bounds=bounds[0], method="bounded", options=tolerance
            )
        elif self.has_gradient:
            scipy.optimize.minimize(
                worth_and_slope,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxiter": 30 + 5 * start.size, "ftol": 1e-8, "gtol": 1e-7},
            )
        else:
            scipy.optimize.minimize(
                worth,
                start,
                method="Nelder-Mead",
                bounds=bounds,
                options={"maxfev": 30 * start.size, "xatol": 1e-3, "fatol": 1e-5}
                if not self._bent
                else {"maxfev": 15 * start.size, "xatol": 1e-2, "fatol": 1e-3},
            )
        value, point = min(seen, key=lambda entry: entry[0])
        return point, value

    def _worth(self, values: Floats) -> float:
        return self._evaluate(values).objective

    def _evaluate(self, values: Floats) -> Evaluation:
        try:
            evaluation = self.evaluate(values)
        except InfeasibleDesignError:
            evaluation = Evaluation(_INFEASIBLE)
        self.best = min(self.best, evaluation.objective)
        return evaluation

    def _clip(self, edge: float) -> float:
        return float(np.clip(edge, self.least, self.most))

    def _check_found(self) -> None:
        """Raise InfeasibleDesignError if there was no distribution for any values that were tried."""
        if self.best >= _INFEASIBLE:
            raise InfeasibleDesignError(
                f"no {self.levels} bins up to {self.most:.6g} were found for this family and epsilon; raise "
                f"epsilon, levels or max_value{self.advice}"
            )


def _values(shape: tuple[int, ...], edges: Floats) -> Floats:
    return np.asarray(-edges[0] + edges.sum() * np.array(shape) / shape[-1])


def _separate(codes: Ints, first: int, last: int) -> Ints:
    """Increasing codes from ``first`` to ``last``, each near the one given: collisions move both ways.

    >>> _separate(np.array([4, 4, 4, 9]), 4, 9)
    array([4, 5, 6, 9])
    """
    ranks = np.arange(codes.size)
    # Codes increase strictly where these do not decrease.
    offsets = np.clip(codes - ranks, first, last - ranks[-1])
    highest = np.maximum.accumulate(offsets)
    lowest = np.minimum.accumulate(offsets[::-1])[::-1]
    return np.asarray((highest + lowest) // 2 + ranks)
