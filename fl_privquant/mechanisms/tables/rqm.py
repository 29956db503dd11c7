"""RQM: randomized quantization to a random subset of uniform bins.

Inner bins are kept with probability ``keep`` each, the outermost always; the output is one of the two
kept bins next to the input, unbiased. The selection is geometric: q_j(i) = keep (1 - keep)^(j - i) for
i > 1, and (1 - keep)^(j - 1) for i = 1.

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, computed exactly
from the distribution (not from the published bound) and certified on the integer table; unbiased.
Reference: Youn, Hu, Ziani, Abernethy, "Randomized Quantization is All You Need for Differential
Privacy in Federated Learning", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy

from fl_privquant import _validation
from fl_privquant._array_types import Floats
from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import SEARCHED_LEVELS, MinErrorSpec
from fl_privquant.optimize.metric_privacy import min_outer_value
from fl_privquant.optimize.optm.bin_selection import Selections
from fl_privquant.optimize.tuning import tune_rate

_KEEP_RATES = np.linspace(0.01, 0.999, 60)
_ROUNDING_ROOM = 1e-7
_WIDEST = 8.0


@dataclass(frozen=True, kw_only=True)
class RqmSpec(MinErrorSpec):
    """The specification of RQM: tuned to ``epsilon``, or with ``margin`` and ``keep`` as given.

    ``margin`` is how far the outermost bins lie beyond [-1, 1]: the paper's Delta. ``keep`` is its q.
    """

    instead_of_epsilon = ("margin", "keep")

    epsilon: float | None = None
    levels: Annotated[int, SEARCHED_LEVELS] = 4
    margin: Annotated[float | None, _validation.check_positive] = None
    keep: float | None = None


@register("rqm", RqmSpec, 20, "#d1495b", cached=True)
def design_rqm(spec: RqmSpec) -> TableMechanism:
    """The certified mechanism. Parameters that are not given are tuned for the least error within epsilon."""
    if spec.epsilon is None:
        margin, keep = float(spec.margin or 0.0), float(spec.keep or 0.0)
        distribution = rqm_distribution(_make_bins(spec.levels, margin), keep)
        epsilon = distribution.epsilon * (1.0 + _ROUNDING_ROOM)
    else:
        epsilon = spec.epsilon
        margin, keep, distribution = _tune(spec, epsilon * (1.0 - _ROUNDING_ROOM))
    table = CertifiedTable.from_distribution(distribution, uniform_codebook(spec.levels, margin), epsilon)
    tuned = {"margin": margin, "keep": keep}
    return TableMechanism("rqm", table, epsilon, parameters=spec.parameters() | tuned)


def rqm_distribution(bins: Floats, keep: float) -> OutputDistribution:
    """The exact distribution of RQM on the given bins (uniform in the published mechanism)."""
    return _compute_distribution(Selections(bins), keep)


def _compute_distribution(bins: Selections, keep: float) -> OutputDistribution:
    return bins.mirror([nearest_kept_probabilities(count, keep) for count in range(1, bins.values.size + 1)])


def nearest_kept_probabilities(count: int, keep: float) -> Floats:
    """(count,) probabilities that each bin is the nearest kept one, where the last is next to the input.

    >>> nearest_kept_probabilities(3, 0.5)
    array([0.25, 0.25, 0.5 ])
    """
    chances = keep * (1.0 - keep) ** np.arange(count - 1, -1, -1.0)
    chances[0] = (1.0 - keep) ** (count - 1)
    return np.asarray(chances)


def uniform_codebook(levels: int, margin: float) -> Codebook:
    """Evenly spaced bins from -1 - margin to 1 + margin."""
    return Codebook(np.arange(levels), 2.0 * (1.0 + margin) / (levels - 1), -1.0 - margin)


def _make_bins(levels: int, margin: float) -> Floats:
    return np.linspace(-1.0 - margin, 1.0 + margin, levels)


def _tune(spec: RqmSpec, epsilon: float) -> tuple[float, float, OutputDistribution]:
    keeps = _KEEP_RATES if spec.keep is None else np.array([spec.keep])
    least = min_outer_value(epsilon) - 1.0
    best: tuple[float, float, float, OutputDistribution] | None = None

    def error(margin: float) -> float:
        nonlocal best
        bins = Selections(_make_bins(spec.levels, margin))
        try:
            tuned = tune_rate(
                lambda keep: _compute_distribution(bins, keep), keeps, epsilon, spec.density, spec.power
            )
        except InfeasibleDesignError:
            return 1e6 / margin  # wider bins are more private
        candidate = (tuned.error, margin, tuned.rate, tuned.distribution)
        best = candidate if best is None or candidate[0] < best[0] else best
        return candidate[0]

    if spec.margin is not None:
        error(spec.margin)
    else:
        widest = _WIDEST * (1.0 + least)
        margins = np.geomspace(max(least, 1e-3), widest, 24)
        errors = [error(margin) for margin in margins]
        at = int(np.argmin(errors))
        bounds = (margins[max(at - 1, 0)], margins[min(at + 1, margins.size - 1)])
        scipy.optimize.minimize_scalar(error, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    if best is None:
        raise InfeasibleDesignError(
            f"rqm: no margin and keep probability have epsilon {spec.epsilon:g} with {spec.levels} levels; "
            "raise epsilon"
        )
    return best[1:]
