"""Mean estimation in the local view: each client's message is seen, and its estimates are averaged.

Mechanisms that are unbiased and independent over clients have an error of the mean that is that of one client
over their number. So one client's error is computed: exactly, by the mechanism's own formula, averaged over a
sample of vectors, and once more from draws, with its standard error. ``mean-check`` looks at whole means.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import fl_privquant as pq
from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.mechanisms.sphere import privunit_squared_error
from fl_privquant.mechanisms.vector import VectorMechanism
from simulations.studies.study import Computed, Scale, Tables, Tell

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
_REPEATS = (1, 2, 3, 4, 6, 8)


def _sphere(generator: np.random.Generator, count: int, dimension: int) -> Floats:
    normal = generator.normal(size=(count, dimension))
    return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))


def _ball(generator: np.random.Generator, count: int, dimension: int) -> Floats:
    return generator.random((count, 1)) ** (1.0 / dimension) * _sphere(generator, count, dimension)


def _sparse(generator: np.random.Generator, count: int, dimension: int) -> Floats:
    """Unit vectors of which one coordinate in a hundred, and at least 5, are not 0."""
    kept = max(5, dimension // 100)
    x = np.zeros((count, dimension))
    for row, values in zip(x, _sphere(generator, count, kept), strict=True):
        row[generator.choice(dimension, kept, replace=False)] = values
    return x


def _heavy(generator: np.random.Generator, count: int, dimension: int) -> Floats:
    """Coordinates of Student's law with 2 degrees; half shorter than 1/2, and clipped to the ball."""
    x = generator.standard_t(2.0, size=(count, dimension))
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x * np.minimum(0.5 / np.median(lengths), 1.0 / lengths))


DATA: dict[str, Callable[[np.random.Generator, int, int], Floats]] = {
    "sphere": _sphere,
    "ball": _ball,
    "sparse": _sparse,
    "heavy": _heavy,
}
"""What clients' vectors are drawn from; all lie in the unit ball."""


@dataclass(frozen=True)
class Row:
    """A mechanism on one kind of vectors.

    ``error`` is one client's squared error by the mechanism's formula, ``drawn`` that of ``draws`` messages
    with its standard error; ``ratio_to_bound`` is over the least error of unbiased local mechanisms for unit
    vectors. ``time_ratio``: seconds of encoding over those of randomized rounding of the same vector.
    """

    data: str
    dimension: int
    round_epsilon: float
    round_delta: float
    mechanism: str
    certified: bool
    setting: str
    bits: int
    error: float
    ratio_to_bound: float
    drawn: float
    drawn_standard_error: float
    draws: int
    time_ratio: float


def best_design(name: str, epsilon: float, dimension: int) -> tuple[Any, str]:
    """The mechanism at its best setting, and what that is."""
    if name == "gaussian":
        # Of a vector in the unit ball, two are at most 2 apart: as two coordinates in [-1, 1].
        return pq.design(name, epsilon=epsilon, delta=DELTA), f"δ = {DELTA:g}"
    if name in FLOORS:
        given = FLOORS[name]
        return pq.design(name, dimension=dimension, **given), ", ".join(f"{k} {v}" for k, v in given.items())
    if name == "vqsgd_private":
        tried = [
            pq.design(name, epsilon=epsilon, dimension=dimension, repeats=repeats) for repeats in _REPEATS
        ]
        best = min(tried, key=lambda mechanism: mechanism.squared_error(np.zeros(dimension)))
        return best, f"{best.repeats} draws"
    mechanism = pq.design(name, epsilon=epsilon, dimension=dimension)
    words = {
        "shared_codebook": lambda: f"{mechanism.levels} codewords, {mechanism.num_near} near",
        "mmrc": lambda: f"{mechanism.levels} codewords",
        "sqkr": lambda: f"{mechanism.sampled} signs",
        "cldp_l2": lambda: f"{mechanism.repeats} draws",
        "privunit": lambda: f"cap of height {mechanism.height:.4f}",
    }
    return mechanism, words[name]()


def _exact_error(mechanism: Any, x: Floats) -> float:
    if isinstance(mechanism, VectorMechanism):
        return float(np.mean([mechanism.squared_error(row) for row in x]))
    return float(x.shape[1] * mechanism.mse())


def _row(data: str, dimension: int, epsilon: float, name: str, draws: int) -> Row:
    mechanism, setting = best_design(name, epsilon, dimension)
    x = DATA[data](np.random.default_rng(17), _SAMPLE, dimension)
    stream = pq.RandomStream.seeded(17, round=round(epsilon) if math.isfinite(epsilon) else 0)
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
    # Draws on their own vectors, corrected by what these lack of the sample's exact error.
    drawn = float(np.mean(errors)) + error - _exact_error(mechanism, x[:draws])
    bound = privunit_squared_error(epsilon, dimension) if math.isfinite(epsilon) else math.nan
    return Row(
        data,
        dimension,
        epsilon,
        mechanism.delta if math.isfinite(epsilon) else 0.0,
        name,
        math.isfinite(epsilon) and not mechanism.outputs_floats,
        setting,
        round(dimension * mechanism.bits_per_coordinate),
        error,
        error / bound,
        drawn,
        float(np.std(errors, ddof=1) / math.sqrt(draws)),
        draws,
        seconds / compared,
    )


def _cases() -> Iterator[tuple[str, float]]:
    for epsilon in EPSILONS:
        yield from ((name, epsilon) for name in PRIVATE)
    yield from ((name, math.inf) for name in FLOORS)


def local_name(dimension: int) -> str:
    """The part, and the table, of a number of coordinates."""
    return f"local-{dimension}"


def _local(dimension: int) -> Computed:
    name = local_name(dimension)

    def compute(scale: Scale, tell: Tell) -> Tables:
        draws = max(2, min(_DRAWS[dimension], scale.vector_trials))
        rows, cases = [], list(_cases())
        for place, (mechanism, epsilon) in enumerate(cases):
            for data in DATA:
                tell(place / len(cases), f"{mechanism}, {data}")
                rows.append(_row(data, dimension, epsilon, mechanism, draws))
        return {name: pd.DataFrame([asdict(row) for row in rows])}

    title = f"Local view, {dimension} coordinates: squared error of one client's vector"
    note = "round epsilon: one update, one round, local view; infinite: without privacy"
    return Computed(name=name, title=title, function=compute, note=note)


def _check(scale: Scale, tell: Tell) -> Tables:
    """Whole means of 100 clients with 100 coordinates at epsilon 4: the error, and what theory says."""
    dimension, clients, epsilon = 100, 100, 4.0
    trials = max(2, min(20, scale.vector_trials))
    x = _sphere(np.random.default_rng(23), clients, dimension)
    rows = []
    for place, name in enumerate(PRIVATE):
        tell(place / len(PRIVATE), name)
        mechanism, _ = best_design(name, epsilon, dimension)
        stream = pq.RandomStream.seeded(23)
        squares = []
        for _ in range(trials):
            estimates = [mechanism.decode(mechanism.encode(vector, rng=stream)) for vector in x]
            squares.append(float(((np.mean(estimates, axis=0) - x.mean(axis=0)) ** 2).sum()))
        rows.append(
            {
                "mechanism": name,
                "trials": trials,
                "error": _exact_error(mechanism, x) / clients,
                "drawn": float(np.mean(squares)),
                "drawn_standard_error": float(np.std(squares, ddof=1) / math.sqrt(trials)),
            }
        )
    return {CHECK: pd.DataFrame(rows)}


PARTS = (
    *(_local(dimension) for dimension in DIMENSIONS),
    Computed(
        name=CHECK,
        title="Whole means of 100 clients, 100 coordinates",
        function=_check,
        note=PrivacyStatement(4.0, 0.0, Unit.ROUND).brief,
    ),
)
