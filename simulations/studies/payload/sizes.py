"""Plans for an error and for a size, and the error that they have when they are run.

Every error is over that of a central Gaussian with the same (epsilon, delta) of the whole run. All clients
hold the same update at the L2 clip, which is the worst case for what is not sent and for what the coordinate
clip cuts off. Measured errors are of whole rounds: rotation, subset, encoding, residues of codes added up,
the representative nearest to the centre, decoding.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

import fl_privquant as pq
from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.design.spread import clipped_moments, kept_moments
from fl_privquant.encoding import norm_share
from simulations.studies.study import QUICK, Computed, Scale, Tables, Tell

TRUSTING = pq.SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
PAYLOADS, NEEDED, ERRORS = "payloads", "payload-needed", "payload-errors"
MOST_ERROR = 1.1

LIMITS = {
    (7850, 100, 50, 1.0, 1e-5): 0.1 * 7850 / 8000,
    (7850, 100, 50, 4.0, 1e-5): 0.6 * 7850 / 8000,
    (7850, 100, 50, 10.0, 1e-5): 2.5 * 7850 / 8000,
    (7850, 1000, 50, 1.0, 1e-5): 4.0 * 7850 / 8000,
    (7850, 1000, 50, 4.0, 1e-5): 10.0 * 7850 / 8000,
    (7850, 1000, 50, 10.0, 1e-5): 10.0 * 7850 / 8000,
    (1_000_000, 500, 100, 4.0, 1e-6): 10.0,
}
"""Coordinates, clients, rounds, epsilon, delta of a run; kilobytes that are allowed at an error of 1.1."""

# Coordinates, and sizes in kilobytes.
_MEASURED = {10_000: (0.1, 0.25, 0.5, 1.0, 2.5), 1_000_000: (2.5, 10.0, 50.0)}
_MECHANISMS = ("optm_aggregate", "pbm", "discrete_gaussian", "skellam")
# Bits of a code that are chosen from; integer noise takes as many as it needs.
_MOST_BITS, _CLIENTS = 3, 100
# The error of a round varies by a share of sqrt(2 / k): so many rounds have a mean that varies by about this.
_PRECISION, _FEWEST_ROUNDS, _MOST_MEASURED = 0.014, 3, 150
_ROUNDS, _EPSILON, _DELTA = 50, 4.0, 1e-5


def _payloads(scale: Scale, tell: Tell) -> Tables:
    """The fewest kilobytes at an error of 1.1, for each setting with a limit."""
    rows = []
    for place, ((dimension, clients, rounds, epsilon, delta), limit) in enumerate(LIMITS.items()):
        tell(place / len(LIMITS), f"{dimension} coordinates, {clients} clients")
        target = pq.Target(epsilon, rounds, clients, delta)
        plan = target.plan(dimension, max_bits=3, most_error=MOST_ERROR, aggregation=TRUSTING)
        mechanism, kept = plan.encoding.mechanism, plan.encoding.kept(dimension)
        rows.append(
            {
                "dimension": dimension,
                "num_clients": clients,
                "rounds": rounds,
                "run_epsilon": epsilon,
                "run_delta": delta,
                "mechanism": mechanism.name,
                "bits": int(mechanism.bits_per_coordinate),
                "kept": kept,
                "bits_in_secure_sum": mechanism.sum_ring(clients, kept).bits,
                "bits_per_coordinate": 8.0 * plan.bytes_per_round / dimension,
                "kilobytes": plan.bytes_per_round / 1000.0,
                "most_kilobytes": limit,
                "ratio_to_central": plan.ratio_to_central,
                "noise_to_signal": plan.noise_to_signal,
                "epsilon_reached": plan.statement.epsilon,
            }
        )
    return {PAYLOADS: pd.DataFrame(rows)}


def _needed(scale: Scale, tell: Tell) -> Tables:
    """The fewest kilobytes of each mechanism at an error of 1.1, for each number of coordinates."""
    rows = []
    target = pq.Target(_EPSILON, _ROUNDS, _CLIENTS, _DELTA)
    for dimension in _MEASURED:
        for place, name in enumerate(_MECHANISMS):
            tell(place / len(_MECHANISMS), f"{name}, {dimension} coordinates")
            plan = target.plan(
                dimension, mechanism=name, max_bits=_MOST_BITS, most_error=MOST_ERROR, aggregation=TRUSTING
            )
            rows.append(
                {
                    "dimension": dimension,
                    "mechanism": name,
                    "kept": plan.encoding.kept(dimension),
                    "kilobytes": plan.bytes_per_round / 1000.0,
                    "ratio_to_central": plan.ratio_to_central,
                    "epsilon_reached": plan.statement.epsilon,
                }
            )
    return {NEEDED: pd.DataFrame(rows)}


@dataclass(frozen=True)
class Measured:
    """A plan for a size, and what came of it; ``error`` is one standard error of the measured ratio."""

    dimension: int
    num_clients: int
    mechanism: str
    bits: int
    kept: int
    kilobytes: float
    predicted: float
    measured: float
    error: float
    rounds_measured: int
    wrapped_sums: int


def measured(plan: pq.Plan, rounds: int, seed: int = 0) -> Measured:
    """The squared error at unit gain of the mean of equal updates at the L2 clip, over a central Gaussian's.

    Each round has its own update, rotation, subset and noise.
    """
    dimension, clients = plan.dimension, plan.target.num_clients
    kept = plan.encoding.kept(dimension)
    deviation = (plan.encoding.l2_bound(dimension) or 1.0) / math.sqrt(kept)
    gain = clipped_moments(plan.encoding.clip / deviation)[1]
    gain *= kept_moments(kept, dimension, norm_share(kept))[1]
    ratios, wrapped = [], 0
    for number in range(rounds):
        update = np.random.default_rng([seed, number]).standard_normal(dimension)
        update *= (plan.encoding.l2_clip or 1.0) / np.linalg.norm(update)
        codec = UpdateCodec(Layout.of({"update": update}), plan.encoding, rotation_seed=seed + number)
        ring, total = codec.sum_ring(clients), np.zeros(codec.dimension, np.int64)
        # All clients have the same update: it is rotated once, and encoded by each.
        sent, mechanism = codec.prepared({"update": update}), codec.mechanism
        for client in range(clients):
            stream = pq.RandomStream.seeded(seed, round=number, client=client)
            total += mechanism.to_codes(mechanism.encode(sent, codec.clip, stream))
        opened = ring.opened(ring.residues(total), clients)
        wrapped += int(np.count_nonzero(opened != total))
        # At unit gain, as planned: divided by what both clips leave of the update.
        off = codec.decode_sum(opened, clients)["update"] / gain - update
        ratios.append(float(off @ off) / dimension / (plan.central_error or math.nan))
    spread = float(np.std(ratios, ddof=1)) / math.sqrt(rounds)
    mechanism = plan.encoding.mechanism
    return Measured(
        dimension=dimension,
        num_clients=clients,
        mechanism=mechanism.name,
        bits=int(mechanism.bits_per_coordinate),
        kept=plan.encoding.kept(dimension),
        kilobytes=plan.bytes_per_round / 1000.0,
        predicted=plan.ratio_to_central or math.nan,
        measured=float(np.mean(ratios)),
        error=spread,
        rounds_measured=rounds,
        wrapped_sums=wrapped,
    )


def _errors(scale: Scale, tell: Tell) -> Tables:
    """Predicted and measured errors of plans for a size."""
    cells: list[Measured] = []
    target = pq.Target(_EPSILON, _ROUNDS, _CLIENTS, _DELTA)
    settings = [
        (dimension, name, size)
        for dimension, sizes in _MEASURED.items()
        for name in _MECHANISMS
        for size in sizes
    ]
    for dimension, name, size in settings:
        tell(len(cells) / len(settings), f"{name}, {dimension} coordinates, {size:g} kB")
        plan = target.plan(
            dimension, mechanism=name, max_bits=_MOST_BITS, most_kilobytes=size, aggregation=TRUSTING
        )
        rounds = math.ceil(2.0 / (plan.encoding.kept(dimension) * _PRECISION**2))
        rounds = min(max(rounds, _FEWEST_ROUNDS), _MOST_MEASURED)
        cells.append(measured(plan, 2 if scale.trials == QUICK.trials else rounds))
    return {ERRORS: pd.DataFrame([asdict(cell) for cell in cells])}


PARTS = (
    Computed(
        name=PAYLOADS,
        title="The fewest kilobytes at an error of 1.1 central Gaussians'",
        function=_payloads,
        note="run epsilon, epsilon reached: client total, aggregate view of all clients",
    ),
    Computed(
        name=NEEDED,
        title="The fewest kilobytes of each mechanism at an error of 1.1 central Gaussians'",
        function=_needed,
        note=f"{PrivacyStatement(_EPSILON, _DELTA, Unit.TOTAL, 'aggregate').brief}, {_ROUNDS} rounds",
    ),
    Computed(
        name=ERRORS,
        title="Predicted and measured errors of plans for a size",
        function=_errors,
        note=f"{PrivacyStatement(_EPSILON, _DELTA, Unit.TOTAL, 'aggregate').brief}, {_ROUNDS} rounds",
    ),
)
