"""Mean estimation in the local view: the server sees each client's message, and averages its estimates.

If mechanisms are unbiased and independent over clients, the error of the mean is that of one client divided
by their number. So one client's error is computed: exactly, by the mechanism's own formula, averaged over a
sample of unit vectors, and once more from draws, with its standard error.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import sem

import fl_privquant as pq
from fl_privquant.mechanisms.vectors.base import VectorMechanism
from fl_privquant.mechanisms.vectors.sphere import privunit_squared_error
from fl_privquant.plotting import color_of, import_pyplot
from simulations.studies._pages import Compute, ReadTable, compute_rows, join_tables, label_values, look_of

Floats = NDArray[np.float64]

DIMENSIONS, EPSILONS, DELTA = (100, 1000, 10_000), (1.0, 2.0, 4.0, 8.0), 1e-5
PRIVATE = ("privunit", "shared_codebook", "sqkr", "cldp_l2", "vqsgd_private", "mmrc", "mrc", "gaussian")
"""Mechanisms with local privacy; only the last has a delta."""
WITHIN = 1.02
"""Mechanisms are as good as the best up to this many times the least error; then the fewest bits win."""

_SAMPLE = 200
_DRAWS = {100: 100, 1000: 30, 10_000: 5}
_REPEATS = (1, 2, 3, 4, 6, 8)
_WORDS = {
    "shared_codebook": "{0.levels} codewords, {0.num_near} near",
    "mmrc": "{0.levels} codewords",
    "mrc": "{0.levels} codewords",
    "sqkr": "{0.sampled} signs",
    "cldp_l2": "{0.repeats} draws",
    "vqsgd_private": "{0.repeats} draws",
    "privunit": "cap of height {0.height:.4f}",
}


def draw_unit_vectors(generator: np.random.Generator, count: int, dimension: int) -> Floats:
    """Vectors from the unit sphere, one in each row."""
    normal = generator.normal(size=(count, dimension))
    return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))


def best_design(name: str, epsilon: float, dimension: int) -> tuple[Any, str]:
    """The mechanism at its best setting, and what that is."""
    if name == "gaussian":
        # Two vectors in the unit ball are at most 2 apart, as are two coordinates in [-1, 1].
        return pq.design(name, epsilon=epsilon, delta=DELTA), f"δ = {DELTA:g}"
    # Only this one does not choose its own setting.
    choices: list[dict[str, Any]] = [{}]
    if name == "vqsgd_private":
        choices = [{"repeats": repeats} for repeats in _REPEATS]
    tried: list[Any] = [pq.design(name, epsilon=epsilon, dimension=dimension, **more) for more in choices]
    best = min(tried, key=lambda mechanism: mechanism.squared_error(np.zeros(dimension)))
    return best, _WORDS[name].format(best)


def _exact_error(mechanism: Any, x: Floats) -> float:
    if isinstance(mechanism, VectorMechanism):
        return float(np.mean([mechanism.squared_error(row) for row in x]))
    return float(x.shape[1] * mechanism.mse())


def local_row(dimension: int, epsilon: float, name: str, draws: int) -> dict[str, Any]:
    """A mechanism on unit vectors.

    ``error`` is one client's squared error by the mechanism's formula, ``drawn`` that of ``draws`` messages
    with its standard error; ``ratio_to_bound`` is the error divided by the least one of unbiased local
    mechanisms.
    """
    mechanism, setting = best_design(name, epsilon, dimension)
    x = draw_unit_vectors(np.random.default_rng(17), _SAMPLE, dimension)
    stream = pq.RandomStream.seeded(17, round=round(epsilon))
    errors = [
        float(((mechanism.decode(mechanism.encode(vector, rng=stream)) - vector) ** 2).sum())
        for vector in x[:draws]
    ]
    error = _exact_error(mechanism, x)
    return {
        "dimension": dimension,
        "round_epsilon": epsilon,
        "round_delta": mechanism.delta,
        "mechanism": name,
        "certified": not mechanism.outputs_floats,
        "setting": setting,
        "bits": round(dimension * mechanism.bits_per_coordinate),
        "error": error,
        "ratio_to_bound": error / privunit_squared_error(epsilon, dimension),
        # Draws use the first vectors, whose exact error differs from the sample's: that is corrected for.
        "drawn": float(np.mean(errors)) + error - _exact_error(mechanism, x[:draws]),
        "drawn_standard_error": float(sem(errors)),
        "draws": draws,
    }


def _compute_local(dimension: int) -> pd.DataFrame:
    cells = itertools.product([dimension], EPSILONS, PRIVATE, [_DRAWS[dimension]])
    return compute_rows(local_row, cells)


PARTS: dict[str, Compute] = {
    f"local-{dimension}": partial(_compute_local, dimension) for dimension in DIMENSIONS
}
"""By name, the functions that compute the tables: one for each number of coordinates."""


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    rows = join_tables(read, PARTS)
    return {
        "epsilons": EPSILONS,
        "delta": DELTA,
        "private": PRIVATE,
        "within": WITHIN,
        "lower_bound": privunit_squared_error,
        "local": rows,
        "winners": dict(winners(rows)["mechanism"].value_counts()),
    }


def winners(rows: pd.DataFrame) -> pd.DataFrame:
    """For each setting the certified row with the fewest bits among those of nearly the least error."""
    setting, certified = ["dimension", "round_epsilon"], rows[rows["certified"]]
    least = certified.groupby(setting)["error"].transform("min")
    near = certified[certified["error"] <= WITHIN * least].sort_values([*setting, "bits", "error"])
    return near.drop_duplicates(setting).set_index(setting)


def _draw_local(read: ReadTable) -> Any:
    """Errors over the bound against epsilon: a panel for each number of coordinates."""
    rows = join_tables(read, PARTS)
    figure, axes = import_pyplot().subplots(
        1, len(DIMENSIONS), figsize=(11.0, 4.2), sharey=True, layout="constrained"
    )
    for axis, dimension in zip(axes, DIMENSIONS, strict=True):
        for name in PRIVATE:
            own = rows[(rows["dimension"] == dimension) & (rows["mechanism"] == name)]
            own = own.sort_values("round_epsilon")
            bound = own["error"] / own["ratio_to_bound"]
            axis.plot(own["round_epsilon"], own["ratio_to_bound"], color=color_of(name), linewidth=1.3)
            drawn, error = own["drawn"] / bound, 2.0 * own["drawn_standard_error"] / bound
            look = {"markersize": 4.5, "linestyle": "", "capsize": 2, **look_of(name)}
            axis.errorbar(own["round_epsilon"], drawn, yerr=error, label=name, **look)
        axis.set(yscale="log", ylim=(0.9, 200.0), title=f"{dimension:,} coordinates, unit vectors")
        label_values(axis, EPSILONS)
        axis.axhline(1.0, color="#777777", linewidth=0.8)
        axis.set_xlabel("ε of an update and round, local view, replace-one")
    axes[0].set_ylabel("squared error over the lower bound")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(PRIVATE))
    return figure


FIGURES = {"local": _draw_local}
"""By name, the functions that draw the figures of the page."""
