"""Biased quantization: the exponential mechanism chooses one of two selected bins, which is not unbiased.

A left bin B_l and a right bin B_r are selected as in RQM: the neighbors of the input among the bins that are
kept (:mod:`fl_privquant.mechanisms.tables.rqm`). The output is then B_l or B_r with probability proportional
to e^(-rate |x - B|). With a small rate this depends less on x than the unbiased (B_r - x) / (B_r - B_l)
does. So the privacy loss is smaller, at the price of a bias, mostly towards 0.

Averages over clients keep the bias, however many clients there are. At a small epsilon the mean squared error
of *one* estimate is far below that of any unbiased mechanism; that of a mean over many clients is not.

In x this distribution is a mixture of logistic curves. The mechanism is *defined* by its rows at
``rows_per_interval`` inputs between neighboring bins and is linear in between, so that its privacy and errors
are exact.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, certified on the
integer table. *Not* unbiased: :meth:`BiasedTableMechanism.bias` states the bias at each input, ``max_bias``
the largest one, both exact.
Assumes: nothing about the inputs.
Reference: Cai, Zhang, Khalili, "Privacy-Aware Randomized Quantization via Linear Programming", UAI 2024,
Discussion, "Extension to biased quantization"; the selection is that of Youn, Hu, Ziani, Abernethy (2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import numpy as np
import scipy

from fl_privquant._array_types import Array, ArrayLike, Floats
from fl_privquant._validation import integer_between, number_between
from fl_privquant.distributions.certified_table import BiasedTable
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import CertificationError, InfeasibleDesignError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import SEARCHED_LEVELS, MinErrorSpec
from fl_privquant.mechanisms.tables.rqm import nearest_kept_probabilities, uniform_codebook
from fl_privquant.optimize.optm.bin_selection import intervals
from fl_privquant.optimize.tuning import design_with_slack

_KEEPS = (0.001, 0.005, 0.02, 0.07, 0.2, 0.45, 0.75)
_MARGINS = (0.0, 0.2, 1.0)
_MAX_RATE = 256.0
_RATE_STEPS = 24


@dataclass(frozen=True, kw_only=True)
class BiasedSpec(MinErrorSpec):
    """The specification of biased quantization; omitted parameters are tuned for the least error.

    The mean squared error includes the bias.
    """

    epsilon: float
    levels: Annotated[int, SEARCHED_LEVELS] = 4
    margin: Annotated[float | None, number_between("[0, inf)")] = None
    """How far the outermost bins lie beyond [-1, 1]."""
    keep: float | None = None
    rows_per_interval: Annotated[int, integer_between(2, 257)] = 9
    """How many rows define the distribution between neighboring bins."""


@dataclass(frozen=True, eq=False, repr=False)
class BiasedTableMechanism(TableMechanism, kind="biased-table"):
    """A table mechanism that is biased, and states its bias."""

    table: BiasedTable

    def bias(self, x: ArrayLike) -> Floats:
        inputs = np.asarray(x, dtype=np.float64)
        return np.asarray(
            self.distribution.mean_at(inputs).reshape(inputs.shape) - np.clip(inputs, -1.0, 1.0)
        )

    @property
    def max_bias(self) -> float:
        return self.distribution.max_bias

    def _arrays(self) -> list[Array]:
        return [*super()._arrays(), self.table.inputs.astype("<f8")]

    @classmethod
    def _other_fields(cls, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        rows = int(header["rows"])
        if not 8 <= 8 * rows <= len(body):
            raise CertificationError(f"mechanism: {len(body)} bytes of arrays hold no inputs of {rows} rows")
        parts = cls._read_table_parts(header, body[: -8 * rows])
        return {"table": BiasedTable(*parts, np.frombuffer(body[-8 * rows :], "<f8"))}


@register("biased", BiasedSpec, 60, "#c9ada7", cached=True)
def design_biased(spec: BiasedSpec) -> BiasedTableMechanism:
    """The certified mechanism with the least error within epsilon."""
    margin, keep = _tune(spec)
    codebook = uniform_codebook(spec.levels, margin)
    rates: list[float] = []

    def distribution_of(epsilon: float) -> OutputDistribution:
        rate, distribution = _find_max_rate(spec, margin, keep, epsilon)
        rates[:] = [rate]
        return distribution

    def certify(distribution: OutputDistribution) -> BiasedTableMechanism:
        table = BiasedTable.from_distribution(distribution, codebook, spec.epsilon)
        tuned = {"margin": margin, "keep": keep, "rate": rates[0]}
        return BiasedTableMechanism("biased", table, spec.epsilon, parameters=spec.parameters() | tuned)

    return design_with_slack(distribution_of, certify, spec.epsilon)


def biased_distribution(bins: Floats, keep: float, rate: float, rows_per_interval: int) -> OutputDistribution:
    """The distribution at ``rows_per_interval`` inputs between neighboring bins, linear in between.

    With a rate of 0 the input does not matter except for the selection:

    >>> biased_distribution(np.array([-1.0, 1.0]), 0.5, 0.0, 2).pmf([-1.0, 0.3])
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    starts, ends, start_rows, end_rows = [], [], [], []
    for interval in intervals(bins):
        left = nearest_kept_probabilities(interval.split, keep)
        right = nearest_kept_probabilities(bins.size - interval.split, keep)[::-1]
        inputs = np.linspace(interval.start, interval.end, rows_per_interval)
        rows = _rows(bins, interval.split, np.outer(left, right), inputs, rate)
        starts.append(inputs[:-1])
        ends.append(inputs[1:])
        start_rows.append(rows[:-1])
        end_rows.append(rows[1:])
    return OutputDistribution(
        bins, *(np.concatenate(parts) for parts in (starts, ends, start_rows, end_rows))
    )


def _rows(bins: Floats, split: int, joint: Floats, inputs: Floats, rate: float) -> Floats:
    low, high = bins[:split, None], bins[None, split:]
    # e^(-rate (B_r - x)) / (e^(-rate (x - B_l)) + e^(-rate (B_r - x))), in a form that does not overflow.
    to_high = joint * 0.5 * (1.0 + np.tanh(rate * (inputs[:, None, None] - (low + high) / 2.0)))
    return np.concatenate([(joint - to_high).sum(axis=2), to_high.sum(axis=1)], axis=1)


def _find_max_rate(
    spec: BiasedSpec, margin: float, keep: float, epsilon: float
) -> tuple[float, OutputDistribution]:
    """The largest rate whose exact loss is at most epsilon, and its distribution."""
    bins = np.linspace(-1.0 - margin, 1.0 + margin, spec.levels)

    def distribution_at(rate: float) -> OutputDistribution:
        return biased_distribution(bins, keep, rate, spec.rows_per_interval)

    slow, fast = 0.0, _MAX_RATE
    if distribution_at(slow).epsilon > epsilon:
        raise InfeasibleDesignError(
            f"biased: the selection with keep {keep:g} alone exceeds epsilon {epsilon:g}; lower keep"
        )
    for _ in range(_RATE_STEPS):
        # Rates range over orders of magnitude, so that the geometric mean is taken.
        middle = math.sqrt(slow * fast) if slow > 0.0 else fast / 8.0
        slow, fast = (middle, fast) if distribution_at(middle).epsilon <= epsilon else (slow, middle)
    return slow, distribution_at(slow)


def _tune(spec: BiasedSpec) -> tuple[float, float]:
    """The margin and the keep probability with the least error, each with its largest rate."""
    margins = _MARGINS if spec.margin is None else (spec.margin,)
    keeps = _KEEPS if spec.keep is None else (spec.keep,)

    @cache
    def error(margin: float, keep: float) -> float:
        try:
            distribution = _find_max_rate(spec, margin, keep, spec.epsilon)[1]
        except InfeasibleDesignError:
            return math.inf
        return distribution.error(spec.power, spec.density)

    pairs = [min(((margin, keep) for keep in keeps), key=lambda pair: error(*pair)) for margin in margins]
    if all(math.isinf(error(*pair)) for pair in pairs):
        raise InfeasibleDesignError(
            f"biased: no margin and keep probability stay within epsilon {spec.epsilon:g} with "
            f"{spec.levels} levels; raise epsilon or lower keep"
        )
    if spec.keep is None:
        # The least error is where the selection of bins alone uses nearly all of epsilon.
        pairs = [_refine(error, pair, 1) for pair in pairs]
    best = min(pairs, key=lambda pair: error(*pair))
    if spec.margin is None:
        best = _refine(error, best, 0)
        best = best if spec.keep is not None else _refine(error, best, 1)
    return best


def _refine(
    error: Callable[[float, float], float], pair: tuple[float, float], at: int
) -> tuple[float, float]:
    """The pair with its margin (0) or keep probability (1) improved by a search in its neighborhood."""
    bounds = (0.3 * pair[at], min(2.5 * pair[at], 0.99 if at else math.inf)) if pair[at] else (0.0, 0.1)

    def replace_value(value: float) -> tuple[float, float]:
        return (pair[0], value) if at else (value, pair[1])

    optimum = scipy.optimize.minimize_scalar(
        lambda value: min(error(*replace_value(value)), 1e9),
        bounds=bounds,
        method="bounded",
        options={"maxiter": 10},
    )
    better = replace_value(float(optimum.x))
    return better if error(*better) < error(*pair) else pair
