"""Noise that is correlated over rounds, against a trusted server that adds fresh noise in each round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.mechanisms.additive.correlated_gaussian import CorrelatedGaussianMechanism
from fl_privquant.mechanisms.handed_noise import NoiseSeeds
from fl_privquant.plotting import import_pyplot
from fl_privquant.statement import PrivacyStatement, Relation, StatedView, Unit, ViewKind
from simulations.studies._pages import Compute, ReadTable, Tables, compute_rows, one_row, zero_out_epsilon
from simulations.studies.beyond_trusted_server.training import (
    APART,
    CLIENTS,
    COHORT,
    DECAY,
    DELTA,
    ROUNDS,
    Setting,
    run_training,
)

ACCURACY, ERRORS = "correlated-accuracy", "correlated-errors"
EPSILONS = (1.0, 4.0)
CLIPS = (0.025, 0.05, 0.1, 0.2, 0.4)
TUNING_SEED, TEST_SEEDS = 100, (0, 1, 2, 3, 4)
_MEASURED_COORDINATES = 4000

ARMS = {
    "trusted server, fresh noise": (True, False),
    "trusted server, correlated noise": (True, True),
    "secure sum, fresh noise": (False, False),
    "secure sum, correlated noise": (False, True),
}
"""By name: whether the server is trusted, and whether noise is correlated over rounds."""


def train_row(
    trusted: bool, correlated: bool, epsilon: float, l2_clip: float, seed: int, validate: bool
) -> dict[str, Any]:
    """The row of one training run."""
    outcome = run_training(Setting(trusted, correlated, epsilon, l2_clip, seed, validate=validate))
    del outcome["model"]
    arm = next(name for name, flags in ARMS.items() if flags == (trusted, correlated))
    return {"arm": arm, "run_epsilon": epsilon, "l2_clip": l2_clip, "seed": seed, **outcome}


def compute_accuracy() -> Tables:
    """Tune the clip of both kinds of noise on validation examples, and run all arms on other seeds.

    Clips are tuned with a trusted server, and the secure sum takes the same, so that it is not favored.
    """
    trials = compute_rows(
        train_row,
        [
            (True, correlated, epsilon, clip, TUNING_SEED, True)
            for epsilon in EPSILONS
            for correlated in (False, True)
            for clip in CLIPS
        ],
    )
    best = best_clips(trials)
    tests = compute_rows(
        train_row,
        [
            (trusted, correlated, epsilon, best[epsilon, correlated], seed, False)
            for seed in TEST_SEEDS
            for epsilon in EPSILONS
            for trusted, correlated in ARMS.values()
        ],
    )
    return {ACCURACY: summarize(tests), f"{ACCURACY}-runs": tests, f"{ACCURACY}-trials": trials}


def best_clips(trials: pd.DataFrame) -> dict[tuple[float, bool], float]:
    """The clip with the best validation accuracy, of the last model or of the average, by ε and noise."""
    chosen = {}
    for (arm, epsilon), rows in trials.groupby(["arm", "run_epsilon"]):
        scores = rows[["accuracy", "average_accuracy"]].max(axis=1)
        chosen[float(epsilon), ARMS[str(arm)][1]] = float(rows["l2_clip"][scores.idxmax()])
    return chosen


def summarize(tests: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of each arm at each ε, with the lowest and the highest seed."""
    rows = []
    for (epsilon, arm), runs in tests.groupby(["run_epsilon", "arm"], sort=False):
        zero_out = zero_out_epsilon(float(epsilon), DELTA)
        row = {"run_epsilon": epsilon, "zero_out_epsilon": zero_out, "arm": arm}
        for name in ("accuracy", "average_accuracy"):
            row |= {
                name: runs[name].mean(),
                f"{name}_low": runs[name].min(),
                f"{name}_high": runs[name].max(),
            }
        kept = runs.iloc[0][["l2_clip", "correlation", "prefix_error", "kilobytes"]].to_dict()
        rows.append({**row, "seeds": len(runs), **kept})
    return pd.DataFrame(rows)


def error_row(bits: int, epsilon: float) -> dict[str, Any]:
    """The planned and the measured error of models, of updates that are all zero."""
    honest = SecureSum(corrupt_fraction=0.0, dropout_fraction=0.0)
    target = pq.Target(epsilon, ROUNDS, COHORT, DELTA, rounds_apart=APART)
    plan = target.plan(_MEASURED_COORDINATES, correlation="auto", aggregation=honest, wrap_bits=bits)
    mechanism, clip = plan.encoding.mechanism, plan.encoding.clip
    if not isinstance(mechanism, CorrelatedGaussianMechanism) or plan.central_error is None:
        raise TypeError("the plan has no correlated noise")
    random, zeros = np.random.default_rng(1), np.zeros(_MEASURED_COORDINATES)
    model, squares, previous = zeros.copy(), [], [None] * COHORT
    for _ in range(ROUNDS):
        seeds = [random.bytes(32) for _ in range(COHORT)]
        total = sum(
            mechanism.to_codes(mechanism.with_seeds(NoiseSeeds(own, last)).encode(zeros, clip))
            for own, last in zip(seeds, previous, strict=True)
        )
        model += mechanism.decode_sum(total & ((1 << bits) - 1), COHORT, clip)
        squares.append(float(np.mean(model**2)))
        previous = list(random.permutation(np.array(seeds, dtype=object)))
    measured = float(np.mean(squares)) / (plan.central_error * 0.5 * (ROUNDS + 1))
    return {
        "bits": bits,
        "run_epsilon": epsilon,
        "correlation": plan.correlation,
        "planned_error": plan.prefix_error,
        "measured_error": measured,
    }


def compute_errors() -> pd.DataFrame:
    """The table of planned and measured errors."""
    return compute_rows(error_row, [(bits, epsilon) for bits in (10, 11) for epsilon in EPSILONS])


PARTS: dict[str, Compute] = {ACCURACY: compute_accuracy, ERRORS: compute_errors}


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    table = read(ACCURACY)
    view = StatedView(ViewKind.AGGREGATE, COHORT)
    return {
        "clients": CLIENTS,
        "cohort": COHORT,
        "rounds": ROUNDS,
        "apart": APART,
        "decay": DECAY,
        "clips": CLIPS,
        "seeds": TEST_SEEDS,
        "arms": list(ARMS),
        "errors": read(ERRORS),
        "epsilons": EPSILONS,
        "arm": lambda name, epsilon: one_row(table, arm=name, run_epsilon=epsilon),
        "targets": {
            epsilon: PrivacyStatement(epsilon, DELTA, Unit.TOTAL, view).brief for epsilon in EPSILONS
        },
        "zero_out": {epsilon: zero_out_epsilon(epsilon, DELTA) for epsilon in EPSILONS},
        "per_cent": lambda value: f"{100.0 * value:.1f}",
    }


def _draw_accuracies(read: ReadTable) -> Any:
    """Test accuracies of all arms, of the average of models: the mean, and the lowest and highest seed."""
    table = read(ACCURACY)
    figure, axes = import_pyplot().subplots(
        1, len(EPSILONS), figsize=(8.4, 2.4), sharey=True, layout="constrained"
    )
    colors = dict(zip(ARMS, ("#999999", "#555555", "#c9a3f0", "#7b2cbf"), strict=True))
    for axis, epsilon in zip(np.atleast_1d(axes), EPSILONS, strict=True):
        rows = table[table["run_epsilon"] == epsilon].set_index("arm").loc[list(ARMS)[::-1]]
        for place, (arm, row) in enumerate(rows.iterrows()):
            mean, low, high = (100.0 * row[f"average_accuracy{end}"] for end in ("", "_low", "_high"))
            axis.plot([low, high], [place, place], color=colors[str(arm)], linewidth=2)
            axis.plot(mean, place, "o", color=colors[str(arm)], markersize=9)
            axis.annotate(f"{mean:.1f}", (mean, place + 0.2), ha="center", va="bottom", fontsize=9)
        axis.set_yticks(range(len(rows)), list(rows.index))
        axis.set_ylim(-0.5, len(rows) - 0.2)
        axis.margins(x=0.08)
        axis.grid(visible=False, axis="y")
        total = PrivacyStatement(epsilon, DELTA, Unit.TOTAL)
        other = replace(total, epsilon=zero_out_epsilon(epsilon, DELTA), relation=Relation.ZERO_OUT)
        axis.set_title(f"{total.figures}: {total.relation} ({other.epsilon_number} {other.relation})")
        axis.set_xlabel("test accuracy, %")
    return figure


FIGURES = {"accuracies": _draw_accuracies}
"""By name, the functions that draw the figures of the page."""
