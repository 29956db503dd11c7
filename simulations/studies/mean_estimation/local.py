"""Mean estimation in the local view: the server sees each client's message, and averages its estimates.

If mechanisms are unbiased and independent over clients, the error of the mean is that of one client divided
by their number. So one client's error is computed: exactly, by the mechanism's own formula, averaged over a
sample of vectors, and once more from draws, with its standard error. ``mean-check`` looks at whole means.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import sem

import fl_privquant as pq
from fl_privquant.mechanisms.vectors.base import VectorMechanism
from fl_privquant.mechanisms.vectors.sphere import privunit_squared_error
from simulations.studies._pages import Compute, compute_rows

Floats = NDArray[np.float64]

CLIENTS, DIMENSIONS, EPSILONS, DELTA = (100, 1000, 10_000), (100, 1000, 10_000), (1.0, 2.0, 4.0, 8.0), 1e-5
PRIVATE = ("privunit", "shared_codebook", "sqkr", "cldp_l2", "vqsgd_private", "mmrc", "gaussian")
"""Mechanisms with local privacy; only the last has a delta."""
FLOORS: dict[str, dict[str, Any]] = {
    "drive": {},
    "terngrad": {},
    "qsgd": {"levels": 3},
    "top_k": {"share": 0.05},
    "vqsgd": {},
}
"""Quantizers without privacy, and their parameters."""
CHECK = "mean-check"

_SAMPLE = 200
_DRAWS = {100: 100, 1000: 30, 10_000: 5}
_CHECK_TRIALS = 20
_REPEATS = (1, 2, 3, 4, 6, 8)


def _draw_sphere(generator: np.random.Generator, count: int, dimension: int) -> Floats:
    normal = generator.normal(size=(count, dimension))
    return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))


def _draw_ball(generator: np.random.Generator, count: int, dimension: int) -> Floats:
    return generator.random((count, 1)) ** (1.0 / dimension) * _draw_sphere(generator, count, dimension)


def _draw_sparse(generator: np.random.Generator, count: int, dimension: int) -> Floats:
    """Unit vectors of which one coordinate in a hundred, and at least 5, are not 0."""
    kept = max(5, dimension // 100)
    x = np.zeros((count, dimension))
    for row, values in zip(x, _draw_sphere(generator, count, kept), strict=True):
        row[generator.choice(dimension, kept, replace=False)] = values
    return x


def _draw_heavy_tailed(generator: np.random.Generator, count: int, dimension: int) -> Floats:
    """Coordinates from Student's t with 2 degrees of freedom; the median norm is 1/2, clipped to the ball."""
    x = generator.standard_t(2.0, size=(count, dimension))
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x * np.minimum(0.5 / np.median(lengths), 1.0 / lengths))


DATA: dict[str, Callable[[np.random.Generator, int, int], Floats]] = {
    "sphere": _draw_sphere,
    "ball": _draw_ball,
    "sparse": _draw_sparse,
    "heavy": _draw_heavy_tailed,
}
"""What clients' vectors are drawn from; all lie in the unit ball."""


def best_design(name: str, epsilon: float, dimension: int) -> tuple[Any, str]:
    """The mechanism at its best setting, and what that is."""
    if name == "gaussian":
        # Two vectors in the unit ball are at most 2 apart, as are two coordinates in [-1, 1].
        return pq.design(name, epsilon=epsilon, delta=DELTA), f"δ = {DELTA:g}"
    if name in FLOORS:
        parameters = FLOORS[name]
        return pq.design(name, dimension=dimension, **parameters), ", ".join(
            f"{key} {value}" for key, value in parameters.items()
        )
    if name == "vqsgd_private":
        tried: list[Any] = [
            pq.design(name, epsilon=epsilon, dimension=dimension, repeats=repeats) for repeats in _REPEATS
        ]
        best = min(tried, key=lambda mechanism: mechanism.squared_error(np.zeros(dimension)))
        return best, f"{best.repeats} draws"
    mechanism = pq.design(name, epsilon=epsilon, dimension=dimension)
    words = {
        "shared_codebook": "{0.levels} codewords, {0.num_near} near",
        "mmrc": "{0.levels} codewords",
        "sqkr": "{0.sampled} signs",
        "cldp_l2": "{0.repeats} draws",
        "privunit": "cap of height {0.height:.4f}",
    }
    return mechanism, words[name].format(mechanism)


def _exact_error(mechanism: Any, x: Floats) -> float:
    if isinstance(mechanism, VectorMechanism):
        return float(np.mean([mechanism.squared_error(row) for row in x]))
    return float(x.shape[1] * mechanism.mse())


def local_row(data: str, dimension: int, epsilon: float, name: str, draws: int) -> dict[str, Any]:
    """A mechanism on one kind of vectors.

    ``error`` is one client's squared error by the mechanism's formula, ``drawn`` that of ``draws`` messages
    with its standard error; ``ratio_to_bound`` is the error divided by the least one of unbiased local
    mechanisms for unit vectors. ``time_ratio`` is the time of encoding divided by that of randomized rounding
    of the same vector.
    """
    mechanism, setting = best_design(name, epsilon, dimension)
    is_private = math.isfinite(epsilon)
    x = DATA[data](np.random.default_rng(17), _SAMPLE, dimension)
    stream = pq.RandomStream.seeded(17, round=round(epsilon) if is_private else 0)
    rounding = pq.design("stochastic")
    errors, seconds, compared = [], 0.0, 0.0
    for vector in x[:draws]:
        started = time.perf_counter()
        message = mechanism.encode(vector, rng=stream)
        between = time.perf_counter()
        rounding.encode(vector, rng=stream)
        seconds, compared = seconds + between - started, compared + time.perf_counter() - between
        errors.append(float(((mechanism.decode(message) - vector) ** 2).sum()))
    error = _exact_error(mechanism, x)
    bound = privunit_squared_error(epsilon, dimension) if is_private else math.nan
    return {
        "data": data,
        "dimension": dimension,
        "round_epsilon": epsilon,
        "round_delta": mechanism.delta if is_private else 0.0,
        "mechanism": name,
        "certified": is_private and not mechanism.outputs_floats,
        "setting": setting,
        "bits": round(dimension * mechanism.bits_per_coordinate),
        "error": error,
        "ratio_to_bound": error / bound,
        # Draws use the first vectors, whose exact error differs from the sample's: that is corrected for.
        "drawn": float(np.mean(errors)) + error - _exact_error(mechanism, x[:draws]),
        "drawn_standard_error": float(sem(errors)),
        "draws": draws,
        "time_ratio": seconds / compared,
    }


def _compute_local(dimension: int) -> pd.DataFrame:
    named = [*itertools.product(EPSILONS, PRIVATE), *((math.inf, floor) for floor in FLOORS)]
    return compute_rows(
        local_row,
        (
            (data, dimension, epsilon, mechanism, _DRAWS[dimension])
            for (epsilon, mechanism), data in itertools.product(named, DATA)
        ),
    )


def _check_row(name: str, trials: int) -> dict[str, Any]:
    """Whole means of 100 clients with 100 coordinates at epsilon 4: the error, and what theory says."""
    dimension, clients, epsilon = 100, 100, 4.0
    x = _draw_sphere(np.random.default_rng(23), clients, dimension)
    mechanism, _ = best_design(name, epsilon, dimension)
    stream = pq.RandomStream.seeded(23)
    squares = []
    for _ in range(trials):
        estimates = [mechanism.decode(mechanism.encode(vector, rng=stream)) for vector in x]
        squares.append(float(((np.mean(estimates, axis=0) - x.mean(axis=0)) ** 2).sum()))
    return {
        "mechanism": name,
        "trials": trials,
        "error": _exact_error(mechanism, x) / clients,
        "drawn": float(np.mean(squares)),
        "drawn_standard_error": float(sem(squares)),
    }


LOCAL: dict[str, Compute] = {
    f"local-{dimension}": partial(_compute_local, dimension) for dimension in DIMENSIONS
}
"""By name, the functions that compute the tables: one for each number of coordinates."""

PARTS = LOCAL | {CHECK: lambda: compute_rows(_check_row, [(name, _CHECK_TRIALS) for name in PRIVATE])}
