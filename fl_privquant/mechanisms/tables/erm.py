"""ERM: exponential randomized mechanism, the paper's closed-form selection.

The nearest bin on either side is preferred exponentially: q_j(i) is proportional to
exp(gamma (B_i - B_j) / (2 (B_j - B_1))).

Guarantee: ``epsilon``-differential privacy of each coordinate and release, local view, computed exactly
from the distribution and certified on the integer table; unbiased. The paper's theorem "erm_privacy" is not
used because it is false: its bound stays finite as the margin goes to 0, while the true loss does not.
Reference: Cai, Zhang, Khalili, UAI 2024, section "Special cases".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Floats
from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.spec import SEARCHED_LEVELS, MinErrorSpec
from fl_privquant.optimize.bin_search import BinSearch, Evaluation, memoize_evaluations
from fl_privquant.optimize.metric_privacy import min_outer_value
from fl_privquant.optimize.optm.bin_selection import Selections
from fl_privquant.optimize.tuning import Tuned, tune_rate

_GAMMAS = np.geomspace(1e-3, 30.0, 30)
_ROUNDING_ROOM = 1e-7


@dataclass(frozen=True, kw_only=True)
class ErmSpec(MinErrorSpec):
    """The specification of ERM: tuned to ``epsilon``, or with ``gamma`` and ``bins`` as given.

    ``lattice``, ``max_code`` and ``max_value`` are as for OPTM.
    """

    instead_of_epsilon = ("gamma", "bins")

    epsilon: float | None = None
    levels: Annotated[int, SEARCHED_LEVELS] = 4
    gamma: Annotated[float | None, _validation.check_positive] = None
    bins: tuple[float, ...] | None = None
    lattice: bool = True
    max_code: int | None = None
    max_value: float | None = None


@register("erm", ErmSpec, 30, "#edae49", cached=True)
def design_erm(spec: ErmSpec) -> TableMechanism:
    """The certified mechanism. Parameters that are not given are tuned for the least error within epsilon."""
    if spec.epsilon is None:
        codebook = Codebook.from_values(spec.bins or ())
        gamma = float(spec.gamma or 0.0)
        distribution = erm_distribution(codebook.values, gamma)
        epsilon = distribution.epsilon * (1.0 + _ROUNDING_ROOM)
    else:
        epsilon = spec.epsilon
        codebook = Codebook.from_values(spec.bins) if spec.bins is not None else _search(spec)
        tuned = _tune(spec, codebook.values)
        gamma, distribution = tuned.rate, tuned.distribution
    table = CertifiedTable.from_distribution(distribution, codebook, epsilon)
    return TableMechanism("erm", table, epsilon, parameters={**spec.parameters(), "gamma": gamma})


def erm_distribution(bins: Floats, gamma: float) -> OutputDistribution:
    """The exact distribution of ERM on the given bins."""
    return Selections(bins).mirror(_selection_weights(bins, gamma))


def _selection_weights(bins: Floats, gamma: float) -> list[Floats]:
    """The weights q_j, over j bins, for each number j of them."""
    selection = [np.ones(1)]
    for n in range(2, bins.size + 1):
        weights = np.exp(gamma * (bins[:n] - bins[n - 1]) / (2.0 * (bins[n - 1] - bins[0])))
        selection.append(weights / weights.sum())
    return selection


def _tune(spec: ErmSpec, values: Floats) -> Tuned:
    epsilon = (spec.epsilon or 0.0) * (1.0 - _ROUNDING_ROOM)
    gammas = _GAMMAS if spec.gamma is None else np.array([spec.gamma])
    distributions = Selections(values)
    try:
        return tune_rate(
            lambda gamma: distributions.mirror(_selection_weights(values, gamma)),
            gammas,
            epsilon,
            spec.density,
            spec.power,
        )
    except InfeasibleDesignError:
        raise InfeasibleDesignError(
            f"erm: no gamma > 0 has epsilon {spec.epsilon:g} with {spec.levels} levels; its uniform choice "
            "between bins (gamma near 0) is as private as it gets: raise epsilon or use another mechanism"
        ) from None


def _search(spec: ErmSpec) -> Codebook:
    least = min_outer_value(spec.epsilon or 0.0) * (1.0 + 1e-6)
    search = BinSearch(
        memoize_evaluations(lambda values: Evaluation(_tune(spec, values).error)),
        spec.levels,
        least,
        spec.max_value if spec.max_value is not None else 4.0 * least,
        has_gradient=False,
    )
    try:
        return search.lattice(spec.max_code or 2 * spec.levels - 1) if spec.lattice else search.continuous()
    except InfeasibleDesignError:
        raise InfeasibleDesignError(
            f"erm: no gamma > 0 and bins have epsilon {spec.epsilon:g} with {spec.levels} levels; raise "
            "epsilon or use another mechanism"
        ) from None
