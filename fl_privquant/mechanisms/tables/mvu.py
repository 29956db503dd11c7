"""MVU: the minimum variance unbiased mechanism, values and probabilities designed together on a grid.

An input is rounded at random, unbiased, to one of 2^input_bits equidistant grid points of [-1, 1]. Then one
of m values is drawn from the row of that grid point. So the distribution is piecewise linear, with its knots
at the grid points. Values and rows minimize the mean variance *at the grid points*, by the published
trust-region method (:mod:`fl_privquant.optimize.mvu`). Equal values are merged, and values are rounded to a
lattice of ``max_code`` steps, so that sums of codes need few bits. The rows are then the exact optimum for
these values, by linear programming.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, certified on the
integer table; unbiased. With a ``metric`` also a loss per distance, see
:mod:`fl_privquant.mechanisms.tables._metric_table`.
Assumes: nothing about the inputs.
Reference: Chaudhuri, Guo, Rabbat, "Privacy-Aware Compression for Federated Data Analysis", UAI 2022.

The method ends in a local minimum. With 2 input bits and 4 values it finds the alphabets that are in print.
The free family with as many values (``optm`` with ``lattice=False``) has less error for uniform inputs: by a
share of 0.2 % at epsilon 0.5, 17 % at 1.5 and 1 % at 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant._validation import integer_between, one_of
from fl_privquant.distributions.codebook import FINE_MAX_CODE, Codebook
from fl_privquant.distributions.input_density import SampleDensity
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import Spec
from fl_privquant.mechanisms.tables._metric_table import certify_distribution
from fl_privquant.optimize.metric_privacy import METRICS, min_outer_value
from fl_privquant.optimize.mvu import design_alphabet
from fl_privquant.optimize.optm.free import design_free
from fl_privquant.optimize.tuning import design_with_slack

_DEFAULT_INPUT_BITS = 3
_LEVELS = integer_between(2, 64, "beyond, MVU's program takes hours: use 'optm', whose program is linear")
# Values this close, relative to the largest, are copies of one value that the solver left.
_SAME_VALUE = 1e-3


@dataclass(frozen=True)
class MvuSpec(Spec):
    """The specification of MVU."""

    epsilon: float
    """Privacy loss per coordinate; under a metric, the loss between inputs at -clip and clip (this is the
    published epsilon, whose inputs lie in [0, 1])."""
    levels: Annotated[int, _LEVELS] = 4
    """Number of output values, 2 to 64; fewer are used where some of them coincide."""
    input_bits: Annotated[int | None, integer_between(1, 6)] = None
    """There are 2^input_bits grid points; if not given, as many bits as the output has, but 3 at most."""
    metric: Annotated[str, one_of(*METRICS)] = "none"
    """``none`` (the published "strict"), ``l1`` or ``l2-grid``."""
    max_code: int = 4095
    """The lattice that values are rounded to has this many steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input_bits is None:
            bits = min(math.ceil(math.log2(self.levels)), _DEFAULT_INPUT_BITS)
            object.__setattr__(self, "input_bits", bits)
        if not 4 * self.levels <= self.max_code <= FINE_MAX_CODE:
            raise InvalidSpecError(
                "max_code",
                self.max_code,
                f"is outside {4 * self.levels}..{FINE_MAX_CODE}, the range for {self.levels} levels",
            )

    @property
    def grid(self) -> Floats:
        """The inputs that all others are rounded to."""
        return np.linspace(-1.0, 1.0, 2 ** int(self.input_bits or 1))


@register("mvu", MvuSpec, 40, "#66a182", cached=True)
def design_mvu(spec: MvuSpec) -> TableMechanism:
    """The certified mechanism at the local minimum that the published method finds."""
    codebook = search_mvu_values(spec)

    def certify(distribution: OutputDistribution) -> TableMechanism:
        return certify_distribution(
            "mvu", distribution, codebook, spec.epsilon, spec.parameters(), spec.metric
        )

    return design_with_slack(
        lambda epsilon: mvu_distribution(spec, codebook.values, epsilon), certify, spec.epsilon
    )


def mvu_distribution(spec: MvuSpec, values: Floats, epsilon: float) -> OutputDistribution:
    """The distribution with the least variance, averaged over the grid points, given the values."""
    density = SampleDensity(spec.grid, symmetric=True)
    return design_free(values, epsilon, density, 2, spec.grid, metric=spec.metric).distribution


def search_mvu_values(spec: MvuSpec) -> Codebook:
    """The alphabet of the local minimum, without repeats, on a symmetric lattice."""
    if spec.metric == "none" and spec.levels == 2:
        alphabet = np.array([-1.0, 1.0]) * min_outer_value(spec.epsilon)
    else:
        alphabet = design_alphabet(spec.epsilon, spec.levels, spec.grid, spec.metric)
    distinct = _merge_equal_values(alphabet)
    # Rounding must not bring the outermost value below the one that epsilon needs, with room for the slack.
    least = min_outer_value(spec.epsilon, spec.metric, spec.grid) * (1.0 + 1e-6)
    edge = max(float(distinct[-1]), least)
    if distinct.size < 2 or not np.isfinite(edge):
        raise InfeasibleDesignError(f"mvu: the alphabet {alphabet} has no two distinct values; raise epsilon")
    # An odd number of values has one at 0, in the middle of the lattice.
    max_code = spec.max_code - (spec.max_code % 2 if distinct.size % 2 else 0)
    upper = np.rint((distinct / distinct[-1] + 1.0) * (max_code / 2.0)).astype(np.int64)
    codes = (upper + max_code - upper[::-1]) // 2
    codes[: codes.size // 2] = max_code - codes[::-1][: codes.size // 2]
    return Codebook(codes, 2.0 * edge / max_code, -edge)


def _merge_equal_values(values: Floats) -> Floats:
    """Symmetric values with those that coincide merged into their mean."""
    closeness = _SAME_VALUE * float(np.abs(values).max())
    groups = np.split(values, np.flatnonzero(np.diff(values) > closeness) + 1)
    return np.array([group.mean() for group in groups])
