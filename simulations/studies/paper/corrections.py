"""Where the paper's theorems need correcting: one check for each, by algebra on exact distributions.

Symbols of the paper: c = 1, B_i bins, m their number, Δ ``margin``, γ ``gamma``, q_n(i) ``selection[n - 1][i
- 1]``, ζ_n the expected distance of the bin selected among n from the nearest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

import fl_privquant as pq
from fl_privquant._array_types import Floats
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InfeasibleDesignError, PrivQuantError
from fl_privquant.mechanisms.tables.erm import erm_distribution
from fl_privquant.mechanisms.tables.rqm import rqm_distribution
from fl_privquant.optimize.optm.bin_selection import Selections, intervals
from simulations.studies._pages import Compute, compute_rows
from simulations.studies.paper import dpsgd, scalar, vector_error

WORDS: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("checks.yaml")))
"""The texts of each check, by its name."""

Finding = tuple[bool, Mapping[str, float]]
"""Whether a check confirms the correction, and the figures behind that."""

# Random cases in each check.
_CONFIGURATIONS = 200
_ROUNDING = 1e-9
_COUNTEREXAMPLE = [
    np.array(weights)
    for weights in (
        (1.0,),
        (0.01, 0.99),
        (0.05, 0.79, 0.16),
        (0.4, 0.28, 0.07, 0.25),
        # Not used by inputs in [-1, 1].
        (0.2,) * 5,
        (1.0 / 6.0,) * 6,
    )
]


def erm_privacy(configurations: int) -> Finding:
    """Theorem erm_privacy against the exact epsilon of ERM."""

    def claimed(gamma: float, levels: int, margin: float) -> float:
        return gamma + math.log(2.0 * levels * (1.0 + margin))

    exact = erm_distribution(_uniform_bins(4, 0.01), 0.1).epsilon
    broken = corrected = 0
    for levels, margin, gamma in _erm_configurations(configurations):
        lost = erm_distribution(_uniform_bins(levels, margin), gamma).epsilon
        broken += lost > claimed(gamma, levels, margin)
        bound = gamma + math.log(levels**2 * (1.0 + margin) / (2.0 * margin))
        corrected += lost <= bound * (1.0 + _ROUNDING)
    measured = {"exact": exact, "claimed": claimed(0.1, 4, 0.01), "broken": broken, "corrected": corrected}
    return exact > measured["claimed"] and broken > 0 and corrected == configurations, measured


def erm_error(configurations: int) -> Finding:
    """Theorem erm_error: both sides of the input are alike, and the bound says less than the bins do."""
    held = vacuous = 0
    for levels, margin, gamma in _erm_configurations(configurations):
        bins = _uniform_bins(levels, margin)
        worst = erm_distribution(bins, gamma).error_at(np.linspace(-1.0, 1.0, 401)).max()
        bound = 4.0 / gamma * math.log(levels) * (1.0 + margin) + 2.0 * (1.0 + margin) / (levels - 1)
        held += worst <= bound
        # Whatever is selected, E|M(x) - x| <= (B_r - B_l) / 2 <= c + Δ.
        vacuous += bound >= 1.0 + margin
    needed = min(4.0 * math.log(m) / (1.0 - 2.0 / (m - 1)) for m in range(4, 1000))
    # One distribution, counted from either end, selects both bins: E(B_j - B_l) = E(B_r - B_{j+1}).
    bins, gamma = _uniform_bins(8, 1.0), 0.7
    left, right = (_selected_distances(bins, gamma, from_right) for from_right in (False, True))
    asymmetry = float(np.abs(left - right).max())
    measured = {"held": held, "vacuous": vacuous, "needed_gamma": needed, "asymmetry": asymmetry}
    return held == configurations and vacuous == configurations and asymmetry < 1e-12, measured


def uniform_bound(configurations: int) -> Finding:
    """Theorem uniform: the printed expression, and the bound that its proof gives."""
    broken = held = 0
    for levels, margin, gamma in _erm_configurations(configurations, max_gamma=60.0):
        bins = _uniform_bins(levels, margin)
        distances = _selected_distances(bins, gamma, False)
        printed = bound = 0.0
        for piece in intervals(bins):
            length, split = piece.end - piece.start, piece.split
            both = distances[split - 1] + distances[levels - split - 1]
            printed += length * both
            bound += length * (both + bins[split] - bins[split - 1]) / 4.0
        error = erm_distribution(bins, gamma).mae()
        broken += printed < error
        held += error <= bound * (1.0 + _ROUNDING)
    measured = {"broken": broken, "held": held}
    return broken > 0 and held == configurations, measured


def maximum_set(configurations: int) -> Finding:
    """Lemma pr_set: whether the largest probability of an outer output is in the printed set."""
    missed_above = missed_below = mended = 0
    for bins, selection in _random_selections(configurations):
        distribution = Selections(bins).mirror(selection)
        largest = distribution.rows.max(axis=0) - _ROUNDING
        # Pieces start at -c and at the bins inside, where p is continuous from the right.
        at_bins, at_limits = distribution.start_rows[1:].max(axis=0), distribution.end_rows[:-1].max(axis=0)
        above = np.maximum(at_bins, distribution.end_rows[-1])
        below = np.maximum(at_bins, distribution.start_rows[0])
        missed_above += bool(np.any((largest > above)[bins > 1.0]))
        missed_below += bool(np.any((largest > below)[bins < -1.0]))
        mended += not np.any((largest > np.maximum(above, at_limits))[bins > 1.0])
    measured = {"missed_above": missed_above, "missed_below": missed_below, "mended": mended}
    return missed_above > 0 and missed_below == 0 and mended == configurations, measured


def constraint1_pairs(configurations: int) -> Finding:
    """Theorem constraint1: the epsilon that its printed rows allow, against the exact one."""
    bins = np.array([-3.0, -2.0, -0.5, 0.5, 2.0, 3.0])
    distribution = Selections(bins).mirror(_COUNTEREXAMPLE)
    printed = _constraint1_epsilon(bins, distribution, all_pairs=False)
    equal = 0
    for drawn_bins, selection in _random_selections(configurations):
        drawn = Selections(drawn_bins).mirror(selection)
        equal += abs(_constraint1_epsilon(drawn_bins, drawn, all_pairs=True) - drawn.epsilon) < _ROUNDING
    measured = {"printed": printed, "exact": distribution.epsilon, "equal": equal}
    return printed < distribution.epsilon - 1.0 and equal == configurations, measured


def constraint2_feasible(configurations: int) -> Finding:
    """Theorem constraint2 on the bins that the paper prints, and on uniform ones."""
    printed = {*scalar.OPTM_BINS.values(), *dpsgd.OPTM_BINS.values(), vector_error.OPTM_BINS}
    forced = {
        bins: (bins[-1] - bins[-2]) / (bins[-1] - bins[-3])
        for bins in sorted(printed, key=lambda bins: bins[-1])
    }
    refused = 0
    for bins in printed:
        try:
            pq.design("optm", family="independent", constraints="constraint2", epsilon=8.0, bins=bins)
        except InfeasibleDesignError as error:
            refused += error.every_epsilon
    common: dict[str, Any] = {"epsilon": 2.0, "objective": "mae", "bins": (-3.0, -1.0, 1.0, 3.0)}
    weak = pq.design("optm", family="independent", constraints="constraint2", **common).mae()
    free = pq.design("optm", family="free", **common).mae()
    least = min(forced.values())
    measured = {"least_forced": least, "refused": refused, "sets": len(printed), "weak": weak, "free": free}
    return least > 0.5 and refused == len(printed) and free < weak, measured


def jumps(configurations: int) -> Finding:
    """Whether distributions jump at bins, as the text says of p(x, i) in general."""
    worst = 0.0
    generator = np.random.default_rng(4)
    for levels, margin, _ in _erm_configurations(configurations):
        worst = max(
            worst,
            _largest_jump(rqm_distribution(_uniform_bins(levels, margin), generator.uniform(0.05, 0.95))),
        )
    erm = _largest_jump(erm_distribution(np.array([-2.7, -0.4, 0.4, 2.7]), 0.043))
    measured = {"rqm": worst, "erm": erm}
    return worst < 1e-12 and erm > 0.05, measured


def _uniform_bins(levels: int, margin: float) -> Floats:
    return np.linspace(-1.0 - margin, 1.0 + margin, levels)


def _erm_configurations(count: int, max_gamma: float = 5.0) -> Iterator[tuple[int, float, float]]:
    """Random numbers of bins from 4, margins and gammas, the last two on a logarithmic scale."""
    generator = np.random.default_rng(1)
    for _ in range(count):
        levels = int(generator.integers(4, 17))
        margin = float(np.exp(generator.uniform(math.log(0.01), math.log(3.0))))
        yield levels, margin, float(np.exp(generator.uniform(math.log(0.02), math.log(max_gamma))))


def _selected_distances(bins: Floats, gamma: float, from_right: bool) -> Floats:
    """ζ_1 to ζ_{m-1}: how far the bin that ERM selects among n lies from the nearest, on average."""
    ordered = -bins[::-1] if from_right else bins
    distances = []
    for n in range(1, bins.size):
        distance = ordered[n - 1] - ordered[:n]
        weights = np.exp(-gamma * distance / (2.0 * max(distance[0], 1e-300)))
        distances.append(float(weights @ distance / weights.sum()))
    return np.array(distances)


def _random_selections(count: int) -> Iterator[tuple[Floats, list[Floats]]]:
    """Symmetric bins, some outside [-1, 1], and selections with q_i(i) >= q_j(i), as the lemma assumes."""
    generator = np.random.default_rng(2)
    num_drawn = 0
    while num_drawn < count:
        half = np.sort(generator.uniform(0.1, 3.0, 3))
        if not (half[0] < 0.95 and half[-1] > 1.05):
            continue
        bins = np.concatenate([-half[::-1], half])
        selection = [generator.dirichlet(np.ones(n)) for n in range(1, bins.size + 1)]
        if all(
            selection[i][i] >= selection[j][i] for i, j in itertools.combinations(range(bins.size - 1), 2)
        ):
            num_drawn += 1
            yield bins, selection


def _constraint1_epsilon(bins: Floats, distribution: OutputDistribution, all_pairs: bool) -> float:
    """The least epsilon at which the rows of the theorem hold, with bounds o = u = q."""
    worst = 0.0
    for i in np.flatnonzero(bins <= 1.0):
        # By symmetry minima are sought at x >= B_i only, where the output is a left bin: at ends of pieces.
        to_right = np.flatnonzero(distribution.starts >= bins[i] - _ROUNDING)
        lows = distribution.end_rows[to_right, i]
        if bins[i] >= -1.0:
            # q_i(i) is p from the right of the bin, q_(m+1-i)(m+1-i) from its left.
            highs = np.array([distribution.rows[:, i].max()])
            pairs: Iterable[tuple[float, float]] = itertools.product(highs, lows)
        else:
            highs = distribution.start_rows[to_right, i]
            # Piece k starts at B_k (or -c) and ends at the next bin (or c): the left limit at B_k is piece
            # k - 1's end. Printed are (B_k, B_k), (B_k, c), (-c, B_k), (-c, c).
            if all_pairs:
                pairs = itertools.product(highs, lows)
            else:
                same = list(zip(highs[1:], lows[:-1], strict=True))
                pairs = itertools.chain(
                    same, ((high, lows[-1]) for high in highs), ((highs[0], low) for low in lows)
                )
        worst = max(worst, max(math.log(high / low) for high, low in pairs))
    return worst


def _largest_jump(distribution: OutputDistribution) -> float:
    return (
        float(np.abs(distribution.start_rows[1:] - distribution.end_rows[:-1]).max())
        if distribution.starts.size > 1
        else 0.0
    )


CHECKS: dict[str, Callable[[int], Finding]] = {
    "erm-privacy": erm_privacy,
    "erm-error": erm_error,
    "uniform-bound": uniform_bound,
    "maximum-set": maximum_set,
    "constraint1-pairs": constraint1_pairs,
    "constraint2-feasible": constraint2_feasible,
    "jumps": jumps,
}
"""By name, the functions that check a theorem in so many random cases."""


def _row(name: str, configurations: int) -> dict[str, Any]:
    words = WORDS[name]
    confirmed, measured = CHECKS[name](configurations)
    finding = words["finding"] % {**measured, "configurations": configurations}
    told = {"where": words["where"], "claim": words["claim"], "finding": finding, "verdict": words["verdict"]}
    return {"check": name, **told, "confirmed": confirmed}


def compute_corrections() -> pd.DataFrame:
    """The table of all checks.

    Raises
    ------
    PrivQuantError
        A check does not confirm.
    """
    table = compute_rows(_row, [(name, _CONFIGURATIONS) for name in CHECKS])
    refuted = table[~table["confirmed"]]["check"]
    if len(refuted):
        raise PrivQuantError(f"corrections: {', '.join(refuted)} did not confirm")
    return table


PARTS: dict[str, Compute] = {"corrections": compute_corrections}
"""By name, the function that computes the table."""
