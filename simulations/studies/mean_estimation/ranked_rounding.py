"""Correlated quantization in mean estimation: one bit per coordinate, without privacy, errors that cancel.

Its errors are not independent over clients, so that the error of the whole mean is computed: exactly, for a
sample of the coordinates, and scaled to all of them. The range of the quantizer is the largest coordinate of
all clients, which everybody is assumed to know. Besides the kinds of vectors of the other tables there is one
where clients nearly agree (``alike``): a common unit vector plus a tenth of one of the client's own.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import sem

import fl_privquant as pq
from simulations.studies._pages import Compute, compute_rows
from simulations.studies.mean_estimation.local import CLIENTS, DATA, DIMENSIONS

CORRELATED, ALIKE = "correlated", "alike"

_COORDINATES = 50
_CHUNK_SIZE = 1 << 20
# With at most this many clients, this many whole means are drawn too.
_DRAWN_CLIENTS, _TRIALS = 100, 20


def _sample_vectors(data: str, num_clients: int, dimension: int) -> NDArray[np.float64]:
    """(clients, some coordinates) of vectors in the unit ball."""
    generator = np.random.default_rng(29)
    kept = generator.permutation(dimension)[:_COORDINATES]
    common = DATA["sphere"](generator, 1, dimension)
    at_once = max(1, _CHUNK_SIZE // dimension)
    parts = []
    for start in range(0, num_clients, at_once):
        count = min(at_once, num_clients - start)
        if data == ALIKE:
            x = (common + 0.1 * DATA["sphere"](generator, count, dimension)) / 1.1
        else:
            x = DATA[data](generator, count, dimension)
        parts.append(x[:, kept])
    return np.concatenate(parts)


def correlated_row(data: str, num_clients: int, dimension: int) -> dict[str, Any]:
    """Exact errors of the mean, all coordinates, with ranks and without; and with ranks from draws."""
    x = _sample_vectors(data, num_clients, dimension)
    clip, scale = float(np.abs(x).max()), dimension / x.shape[1]
    mechanism: Any = pq.design("correlated", levels=2, num_clients=num_clients)
    row: dict[str, Any] = {
        "data": data,
        "num_clients": num_clients,
        "dimension": dimension,
        "mechanism": CORRELATED,
        "bits": dimension,
        "error": scale * mechanism.squared_error_of_mean(x, clip),
        "error_without_ranks": scale * float((clip**2 - x**2).sum()) / num_clients**2,
        "drawn": math.nan,
        "drawn_standard_error": math.nan,
    }
    if num_clients <= _DRAWN_CLIENTS:
        stream, mean = pq.RandomStream.seeded(31), x.mean(axis=0)
        squares = []
        for seed in range(_TRIALS):
            ranked = [
                mechanism.decode(mechanism.encode_ranked(vector, rank, seed, clip, stream), clip)
                for rank, vector in enumerate(x)
            ]
            squares.append(scale * float(((np.mean(ranked, axis=0) - mean) ** 2).sum()))
        row |= {"drawn": float(np.mean(squares)), "drawn_standard_error": float(sem(squares))}
    return row


PARTS: dict[str, Compute] = {
    CORRELATED: lambda: compute_rows(correlated_row, itertools.product((*DATA, ALIKE), CLIENTS, DIMENSIONS))
}
"""By name, the function that computes the table."""
