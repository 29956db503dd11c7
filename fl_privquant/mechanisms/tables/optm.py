"""OPTM: the optimal randomized quantization mechanism, designed by linear programming.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, certified on
the integer table that is sampled from; unbiased for inputs in [-clip, clip].
With ``metric="l1"`` or ``"l2-grid"`` (family ``free``) the loss also grows at most in proportion to the
distance of two inputs: ``metric_epsilon`` = epsilon / 2 per |x - x'| / clip, or epsilon / 4 per
|x - x'|^2 / clip^2 between knots; see :mod:`fl_privquant.mechanisms.tables._metric_table`.
Assumes: nothing about the inputs; the density only shapes the error.
Reference: Cai, Zhang, Khalili, "Privacy-Aware Randomized Quantization via Linear Programming",
UAI 2024 (family ``independent``). The families ``paired`` and ``free`` contain it; see
:mod:`fl_privquant.optimize`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant._validation import integer_between, number_between, one_of
from fl_privquant.distributions.certified_table import TOTAL_WEIGHT
from fl_privquant.distributions.codebook import FINE_MAX_CODE, Codebook
from fl_privquant.distributions.input_density import Density
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError, PrivQuantError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import MinErrorSpec, Variant
from fl_privquant.mechanisms.tables._metric_table import certify_distribution
from fl_privquant.optimize.bin_search import BinSearch, Evaluation, memoize_evaluations
from fl_privquant.optimize.linear_program import Method
from fl_privquant.optimize.metric_privacy import METRICS, min_outer_value
from fl_privquant.optimize.optm.free import FreeFamily, design_free, place_knots
from fl_privquant.optimize.optm.independent import design_independent
from fl_privquant.optimize.optm.monotone import design_monotone
from fl_privquant.optimize.optm.paired import design_paired
from fl_privquant.optimize.tuning import design_with_slack

# The search begins slightly beyond the least outermost value, at which only two values are feasible.
_BEYOND_MIN = 1.0 + 1e-6
_MAX_LEVELS = {"free": 256, "paired": 32, "independent": 16}
# Intervals between the knots of the program for the distribution on the values found, per epsilon.
_KNOTS, _METRIC_KNOTS = 32, 200
# The most numbers in the rows of that program, and how many make interior points faster under a metric.
_MAX_ENTRIES, _INTERIOR_POINT_ENTRIES = 1 << 16, 1 << 12
# Many rows are close to their neighbors, so that rounding to integers matters under a metric. By how many
# units, and one for each level, a weight may move; and by what share of epsilon distributions may be designed
# below.
_ROUNDED, _MAX_SLACK = 16, 1e-4
# On a finer grid the loss between neighbors must be smaller, so that the outer values would lie further out.
_GRID_KNOTS = 5
# From this epsilon on, a search finds values and their distribution in the accuracy of linear programming
# solvers.
_SURELY_SEARCHED = 0.01

PAPER_BINS = (-3.0, -0.5, 0.5, 3.0)
"""Output values of the paper's OPTM at an epsilon of 1, which its training runs use as well."""


@dataclass(frozen=True, kw_only=True)
class OptmSpec(MinErrorSpec):
    """The specification of OPTM. The paper's objective is ``mae``."""

    # Constraints with larger factors than e^32 are beyond the accuracy of linear programming solvers.
    max_epsilon = 32.0
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant("", {"family": "free"}),
        Variant("paired", {"family": "paired"}, "#4d9bd6"),
        Variant("independent", {"family": "independent"}, "#9cc9ec"),
        Variant("paper", {"family": "independent", "objective": "mae", "bins": PAPER_BINS}, "#7a86d1"),
    )

    epsilon: float
    family: Annotated[str, one_of("independent", "paired", "free")] = "free"
    """``independent`` (the paper's), ``paired``, or ``free`` (the best of all unbiased distributions)."""
    bins: tuple[float, ...] | None = None
    lattice: bool = True
    """Whether searched values have integer codes up to ``max_code``, so that sums stay narrow."""
    max_code: int | None = None
    """Largest code of a lattice; 2 levels - 1 if not given."""
    max_value: Annotated[float | None, number_between("(-inf, inf)")] = None
    """Largest modulus of a searched value; 4 (e^epsilon + 1) / (e^epsilon - 1) if not given. Without a limit,
    the mean absolute error is least with outer values, and a squared error, that are infinite."""
    num_knots: Annotated[int | None, integer_between(2, 4097)] = None
    """Number of knots of the free family's linear program; if not given, enough to come within half a percent
    of the optimum. With ``metric="l1"`` the distribution has these knots; with ``"l2-grid"`` they are the
    inputs
    that the guarantee is for, and 5 if not given."""
    constraints: Annotated[str, one_of("constraint1", "constraint2")] = "constraint1"
    """For ``independent``: the paper's theorem ``constraint1``, or ``constraint2`` (large m)."""
    metric: Annotated[str, one_of(*METRICS)] = "none"
    """The distance that bounds the loss between two inputs: ``none`` (it may be ``epsilon`` for all),
    ``l1`` or ``l2-grid``. ``epsilon`` is the loss between -clip and clip in either case."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = _MAX_LEVELS[self.family]
        if self.levels > most:
            remedy = "more hardly lower the error" if self.family == "free" else "or use family='free'"
            raise InvalidSpecError(
                "levels",
                self.levels,
                f"is above {most}, the most with family={self.family!r}, whose linear programs would "
                "take many minutes and gigabytes",
                f"lower levels or bits, {remedy}",
            )
        if self.constraints == "constraint2" and self.family != "independent":
            raise InvalidSpecError(
                "constraints", "constraint2", f"goes with family='independent', not {self.family!r}"
            )
        if self.metric != "none" and self.family != "free":
            raise InvalidSpecError(
                "metric",
                self.metric,
                f"goes with family='free', not {self.family!r}, whose distribution jumps at bins, so "
                "that two inputs on either side of a bin differ however close they are",
            )
        if self.max_code is not None and not self.levels - 1 <= self.max_code <= FINE_MAX_CODE:
            raise InvalidSpecError(
                "max_code",
                self.max_code,
                f"is outside {self.levels - 1}..{FINE_MAX_CODE}, the range for {self.levels} levels",
            )


@register("optm", OptmSpec, 0, "#0b5fa5", cached=True, plans_for_sums=True, plans_for_local=True)
def design_optm(spec: OptmSpec) -> TableMechanism:
    """The certified mechanism with the least error that meets the spec."""
    try:
        return _design(spec)
    except PrivQuantError as error:
        if spec.epsilon >= _SURELY_SEARCHED or spec.bins is not None or spec.max_value is not None:
            raise
        # What failed is of no help: the search, its linear programs or the table, at values that nobody gave.
        least = min_outer_value(spec.epsilon, spec.metric, _grid(spec))
        raise InfeasibleDesignError(
            f"an epsilon of {spec.epsilon:g} is too small for a search of {spec.levels} levels: unbiased "
            f"values reach ±{least:.3g} or beyond, where floating point does not tell distributions apart; "
            "raise epsilon "
            f"({_SURELY_SEARCHED:g} is enough for any number of levels), or take 'one_bit', which needs no "
            "search"
        ) from error


def _design(spec: OptmSpec) -> TableMechanism:
    codebook = _search(spec) if spec.bins is None else Codebook.from_values(spec.bins)

    def certify(distribution: OutputDistribution) -> TableMechanism:
        return certify_distribution(
            "optm", distribution, codebook, spec.epsilon, spec.parameters(), spec.metric
        )

    return design_with_slack(
        lambda epsilon: _solve_distribution(spec, codebook.values, epsilon), certify, spec.epsilon
    )


def _solve_distribution(spec: OptmSpec, values: Floats, epsilon: float) -> OutputDistribution:
    if spec.family == "free":
        knots = _grid(spec) if spec.metric == "l2-grid" else place_knots(values, _num_knots(spec))
        many = spec.metric != "none" and knots.size * spec.levels > _INTERIOR_POINT_ENTRIES
        method: Method = "ipm" if many else "simplex"
        room = (spec.levels + _ROUNDED) / TOTAL_WEIGHT if spec.metric == "l1" else 0.0
        optimum = design_free(values, epsilon, spec.density, spec.power, knots, method, spec.metric, room)
        return optimum.concentrated if spec.metric == "none" else optimum.distribution
    if spec.family == "paired":
        return design_paired(values, epsilon, spec.density, spec.power)
    if spec.constraints == "constraint2":
        return design_monotone(values, epsilon, spec.density, spec.power)
    return design_independent(values, epsilon, spec.density, spec.power)[0]


def _num_knots(spec: OptmSpec) -> int:
    """How many knots the free family's program has, for a distribution within half a percent of the optimum.

    Under metric "l1" a probability can grow by 1 + epsilon h / 2 between knots at distance h, instead of
    e^(epsilon h / 2), so that the excess error is in proportion to epsilon h. With very many levels there are
    fewer knots, as the program would take minutes.
    """
    per_epsilon, least = (_METRIC_KNOTS, 64) if spec.metric == "l1" else (_KNOTS, 32)
    most = min(8 * per_epsilon, _MAX_ENTRIES // spec.levels)
    return spec.num_knots or 2 * round(0.5 * float(np.clip(per_epsilon * spec.epsilon, least, most))) + 1


def _grid(spec: OptmSpec) -> Floats:
    """The knots while values are searched; with metric "l2-grid" they are the grid itself."""
    if spec.metric == "l2-grid":
        return np.linspace(-1.0, 1.0, spec.num_knots or _GRID_KNOTS)
    return np.linspace(-1.0, 1.0, 2 * round(float(np.clip(4.0 * spec.epsilon, 8.0, 32.0))) + 1)


def _search(spec: OptmSpec) -> Codebook:
    room = 1.0 if spec.metric == "none" else 1.0 - _MAX_SLACK
    least = min_outer_value(spec.epsilon * room, spec.metric, _grid(spec)) * _BEYOND_MIN
    search = BinSearch(
        _make_evaluation(spec),
        spec.levels,
        least,
        spec.max_value if spec.max_value is not None else 4.0 * least,
        None if spec.density.symmetric else _density_quantiles(spec.density, spec.levels),
        has_gradient=spec.family == "free",
        advice="" if spec.family == "free" else ", or use family='free'",
    )
    if not spec.lattice:
        return search.continuous()
    return search.lattice(spec.max_code or 2 * spec.levels - 1)


def _make_evaluation(spec: OptmSpec) -> Callable[[Floats], Evaluation]:
    if spec.family == "free":
        family = FreeFamily(spec.epsilon, spec.density, spec.power, _grid(spec), metric=spec.metric)

        def free(values: Floats) -> Evaluation:
            optimum = family.best(values)
            return Evaluation(optimum.objective, lambda: optimum.gradient)

        return memoize_evaluations(free)

    last: list[Floats] = []

    def other(values: Floats) -> Evaluation:
        if spec.family == "paired" or spec.constraints == "constraint2":
            distribution = _solve_distribution(spec, values, spec.epsilon)
        else:
            start = last[-1] if last else None
            distribution, selection = design_independent(
                values, spec.epsilon, spec.density, spec.power, start
            )
            last[:] = [selection]
        return Evaluation(distribution.error(spec.power, spec.density))

    return other


def _density_quantiles(density: Density, levels: int) -> Floats:
    """Quantiles of the input density, where inputs usually are."""
    nodes, weights = density.quadrature(np.linspace(-1.0, 1.0, 65))
    order = np.argsort(nodes)
    cumulated = np.cumsum(weights[order])
    shares = 0.1 + 0.8 * np.arange(1, levels - 1) / (levels - 1)
    return np.asarray(np.interp(shares, cumulated, nodes[order]))
