"""Plans for an error and for a size, and the error that they have when they are run.

Every error is relative to that of a central Gaussian with the same (epsilon, delta) of the whole run. All
clients hold the same update at the L2 clip, which is the worst case for what is not sent and for what the
coordinate clip cuts off. Measured errors are of whole rounds: rotation, subset, encoding, the sum of codes
modulo a power of two, its representative nearest to the center, and decoding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.stats import sem

import fl_privquant as pq
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import norm_clip_factor
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.optimize.sums.coordinate_clip import compute_clipped_moments, compute_kept_moments
from simulations.studies._pages import Compute, compute_rows

TRUSTING = pq.SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
PAYLOADS, NEEDED, ERRORS = "payloads", "payload-needed", "payload-errors"
MAX_ERROR = 1.1

LIMITS = {
    (7850, 100, 50, 1.0, 1e-5): 0.1 * 7850 / 8000,
    (7850, 100, 50, 4.0, 1e-5): 0.6 * 7850 / 8000,
    (7850, 100, 50, 10.0, 1e-5): 2.5 * 7850 / 8000,
    (7850, 1000, 50, 1.0, 1e-5): 4.0 * 7850 / 8000,
    (7850, 1000, 50, 4.0, 1e-5): 10.0 * 7850 / 8000,
    (7850, 1000, 50, 10.0, 1e-5): 10.0 * 7850 / 8000,
    (1_000_000, 500, 100, 4.0, 1e-6): 10.0,
}
"""For coordinates, clients, rounds, epsilon, delta of a run: the kilobytes allowed at an error of 1.1."""

# By number of coordinates, the sizes in kilobytes that are planned for.
_MEASURED = {10_000: (0.1, 0.25, 0.5, 1.0, 2.5), 1_000_000: (2.5, 10.0, 50.0)}
MECHANISMS = ("rounded_gaussian", "pbm", "discrete_gaussian", "skellam")
"""The mechanisms that are compared, ours first."""

# Codes have at most this many bits; integer noise takes as many as it needs.
_MAX_BITS, _CLIENTS = 3, 100
# The error of a round with k coordinates has a relative deviation of sqrt(2 / k). As many rounds are measured
# as give their mean a relative deviation of _PRECISION.
_PRECISION, _MIN_ROUNDS, _MAX_ROUNDS = 0.014, 3, 150
_TARGET = pq.Target(epsilon=4.0, rounds=50, num_clients=_CLIENTS, delta=1e-5)


def _plan_columns(plan: pq.Plan) -> dict[str, Any]:
    """What a plan says of what a client sends, and of the error of the mean."""
    return {
        "kept": plan.encoding.count_kept(plan.dimension),
        "kilobytes": plan.bytes_per_round / 1000.0,
        "ratio_to_central": plan.ratio_to_central,
        "epsilon_reached": plan.statement.epsilon,
    }


def _payload_row(
    dimension: int, clients: int, rounds: int, epsilon: float, delta: float, limit: float
) -> dict[str, Any]:
    """The fewest kilobytes at an error of 1.1, in a setting with a limit."""
    target = pq.Target(epsilon, rounds, clients, delta)
    plan = target.plan(dimension, max_bits=3, max_error=MAX_ERROR, aggregation=TRUSTING)
    mechanism, planned = plan.encoding.mechanism, _plan_columns(plan)
    return {
        "dimension": dimension,
        "num_clients": clients,
        "rounds": rounds,
        "run_epsilon": epsilon,
        "run_delta": delta,
        "mechanism": mechanism.name,
        "bits": int(mechanism.bits_per_coordinate),
        "kept": planned["kept"],
        "bits_in_secure_sum": mechanism.sum_ring(clients, planned["kept"]).bits,
        "bits_per_coordinate": 8.0 * plan.bytes_per_round / dimension,
        "kilobytes": planned["kilobytes"],
        "max_kilobytes": limit,
        "ratio_to_central": planned["ratio_to_central"],
        "noise_to_signal": plan.noise_to_signal,
        "epsilon_reached": planned["epsilon_reached"],
    }


def _needed_row(dimension: int, name: str) -> dict[str, Any]:
    """The fewest kilobytes of a mechanism at an error of 1.1."""
    plan = _TARGET.plan(
        dimension, mechanism=name, max_bits=_MAX_BITS, max_error=MAX_ERROR, aggregation=TRUSTING
    )
    return {"dimension": dimension, "mechanism": name, **_plan_columns(plan)}


def measure_plan(plan: pq.Plan, rounds: int, seed: int = 0) -> dict[str, Any]:
    """A plan for a size, with its measured error; ``error`` is one standard error of the measured ratio.

    The error is the squared one at unit gain of the mean of equal updates at the L2 clip, over a central
    Gaussian's. Each round has its own update, rotation, subset and noise.
    """
    dimension, clients = plan.dimension, plan.target.num_clients
    kept = plan.encoding.count_kept(dimension)
    deviation = (plan.encoding.l2_bound(dimension) or 1.0) / math.sqrt(kept)
    gain = compute_clipped_moments(plan.encoding.clip / deviation)[1]
    gain *= compute_kept_moments(kept, dimension, norm_clip_factor(kept))[1]
    ratios, wrapped = [], 0
    for number in range(rounds):
        update = np.random.default_rng([seed, number]).standard_normal(dimension)
        update *= (plan.encoding.l2_clip or 1.0) / np.linalg.norm(update)
        codec = UpdateCodec(Layout.of({"update": update}), plan.encoding, rotation_seed=seed + number)
        ring, total = codec.sum_ring(clients), np.zeros(codec.dimension, np.int64)
        # All clients have the same update: it is rotated once, and encoded by each.
        sent, mechanism = codec.prepare({"update": update}), codec.mechanism
        for client in range(clients):
            stream = pq.RandomStream.seeded(seed, round=number, client=client)
            total += mechanism.to_codes(mechanism.encode(sent, codec.clip, stream))
        opened = ring.unwrap(ring.residues(total), clients)
        wrapped += int(np.count_nonzero(opened != total))
        # At unit gain, as planned: divided by what both clips leave of the update.
        off = codec.decode_sum(opened, clients)["update"] / gain - update
        ratios.append(float(off @ off) / dimension / (plan.central_error or math.nan))
    mechanism = plan.encoding.mechanism
    return {
        "dimension": dimension,
        "num_clients": clients,
        "mechanism": mechanism.name,
        "bits": int(mechanism.bits_per_coordinate),
        "kept": kept,
        "kilobytes": plan.bytes_per_round / 1000.0,
        "predicted": plan.ratio_to_central or math.nan,
        "measured": float(np.mean(ratios)),
        "error": float(sem(ratios)),
        "rounds_measured": rounds,
        "overflowed_sums": wrapped,
    }


def _error_row(dimension: int, name: str, kilobytes: float) -> dict[str, Any]:
    """Predicted and measured error of a plan for a size."""
    plan = _TARGET.plan(
        dimension, mechanism=name, max_bits=_MAX_BITS, max_kilobytes=kilobytes, aggregation=TRUSTING
    )
    rounds = math.ceil(2.0 / (plan.encoding.count_kept(dimension) * _PRECISION**2))
    return measure_plan(plan, min(max(rounds, _MIN_ROUNDS), _MAX_ROUNDS))


def _error_cells() -> Iterator[tuple[Any, ...]]:
    for dimension, sizes in _MEASURED.items():
        for name, kilobytes in itertools.product(MECHANISMS, sizes):
            yield dimension, name, kilobytes


PARTS: dict[str, Compute] = {
    PAYLOADS: lambda: compute_rows(_payload_row, [(*setting, limit) for setting, limit in LIMITS.items()]),
    NEEDED: lambda: compute_rows(_needed_row, itertools.product(_MEASURED, MECHANISMS)),
    ERRORS: lambda: compute_rows(_error_row, _error_cells()),
}
"""By name, the functions that compute the tables."""
