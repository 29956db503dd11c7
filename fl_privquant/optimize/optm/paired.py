"""The paired family: left and right bin drawn jointly, exactly solved by one linear program.

The paper draws the two bins independently, so that output probabilities are products of unknowns
and must be bounded. A joint distribution pi_j(l, r) for each interval makes p(x, i) linear in the
unknowns: the exact DP constraints and the exact error form one linear program, whose optimum is
the best mechanism of the paper's two-step form.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from fl_privquant._array_types import Floats
from fl_privquant.distributions.input_density import Density
from fl_privquant.distributions.output_distribution import OutputDistribution, error_costs
from fl_privquant.optimize.linear_program import LinearProgram
from fl_privquant.optimize.optm.bin_selection import Interval, Selections
from fl_privquant.optimize.optm.free import is_symmetric, require_reach


def design_paired(values: Floats, epsilon: float, density: Density, power: int) -> OutputDistribution:
    """The least error among joint selections of two bins.

    Parameters
    ----------
    values, epsilon, density, power
        As for :func:`~fl_privquant.optimize.optm.free.design_free`.

    Returns
    -------
    OutputDistribution
        The distribution.

    Raises
    ------
    InfeasibleDesignError
        The values do not reach far enough for an unbiased mechanism.
    """
    require_reach(values, epsilon)
    levels = values.size
    selections = Selections(values)
    pieces = selections.pieces
    symmetric = is_symmetric(values, density)
    at_start, at_end = error_costs(
        values,
        np.array([piece.start for piece in pieces]),
        np.array([piece.end for piece in pieces]),
        power,
        density,
    )

    numbers, costs = _pair_numbers(pieces, levels, symmetric)
    outputs = [
        _output_terms(values, piece, x, cost, numbers[k], costs)
        for k, piece in enumerate(pieces)
        for x, cost in ((piece.start, at_start[k]), (piece.end, at_end[k]))
    ]
    program = LinearProgram()
    program.variables("pair", costs)
    floor = program.variables("floor", np.zeros((levels + 1) // 2 if symmetric else levels))
    floor_of = [min(i, levels - 1 - i) if symmetric else i for i in range(levels)]
    half = len(pieces) // 2 if symmetric else 0
    for k in range(half, len(pieces)):
        program.equal([(pair, 1.0) for pair in numbers[k].ravel().tolist()], 1.0)
    for terms in outputs[2 * half :]:
        for i, output in enumerate(terms):
            entries = [(pair, share) for pair, share in output.items() if share > 0.0]
            program.at_most([*entries, (floor[floor_of[i]], -math.exp(epsilon))], 0.0)
            program.at_most([(floor[floor_of[i]], 1.0), *((pair, -share) for pair, share in entries)], 0.0)
    solution = np.maximum(program.solve().x, 0.0)

    joints = [solution[own] for own in numbers]
    return selections.pair_distribution([joint / joint.sum() for joint in joints])


def _pair_numbers(
    pieces: list[Interval], levels: int, symmetric: bool
) -> tuple[list[NDArray[np.intp]], list[float]]:
    """Variable numbers of the pairs of each piece (mirror images share one), and a cost of 0 for each."""
    numbers: list[NDArray[np.intp]] = []
    costs: list[float] = []
    for k, piece in enumerate(pieces):
        shape = (piece.split, levels - piece.split)
        mirror = len(pieces) - 1 - k
        own = np.arange(shape[0] * shape[1]).reshape(shape) + len(costs)
        if symmetric and mirror < k:
            own = numbers[mirror][::-1, ::-1].T
        elif symmetric and mirror == k:
            own = np.minimum(own, own[::-1, ::-1].T)
        numbers.append(own)
        costs.extend([0.0] * (int(own.max()) + 1 - len(costs)))
    return numbers, costs


def _output_terms(
    values: Floats, piece: Interval, x: float, cost: Floats, number: NDArray[np.intp], costs: list[float]
) -> list[dict[int, float]]:
    """Every output probability at ``x`` as terms in the unknown pairs, whose costs are added to ``costs``."""
    terms: list[dict[int, float]] = [defaultdict(float) for _ in range(values.size)]
    for low in range(piece.split):
        for high in range(piece.split, values.size):
            to_high = (x - values[low]) / (values[high] - values[low])
            to_high = min(max(float(to_high), 0.0), 1.0)
            pair = int(number[low, high - piece.split])
            terms[low][pair] += 1.0 - to_high
            terms[high][pair] += to_high
            costs[pair] += cost[low] * (1.0 - to_high) + cost[high] * to_high
    return terms
