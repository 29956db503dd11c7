"""Noise that is correlated over rounds, against a trusted server that adds fresh noise in each round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.mechanisms.additive.correlated_gaussian import CorrelatedGaussianMechanism
from fl_privquant.mechanisms.handed_noise import NoiseSeeds
from fl_privquant.plotting import import_pyplot
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon, gaussian_separation
from fl_privquant.statement import PrivacyStatement, Relation, StatedView, Unit, ViewKind
from simulations.studies._pages import (
    Compute,
    ReadTable,
    Tables,
    compute_once,
    compute_rows,
    one_row,
    tune_by_twos,
    zero_out_epsilon,
)
from simulations.studies.beyond_trusted_server.models import MODELS
from simulations.studies.beyond_trusted_server.training import (
    APART,
    ARMS,
    CLIENTS,
    COHORT,
    DECAY,
    DELTA,
    ROUNDS,
    Arm,
    Setting,
    run_training,
)

ERRORS = "correlated-errors"
NO_PRIVACY = "no privacy"
FIRST_CLIP, MAX_TRIALS = 0.1, 6
"""Where tuning of the L2 clip begins at the first ε (later at the last one's), and its most runs at each."""
TUNING_SEED, TEST_SEEDS = 100, (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Comparison:
    """Arms that are compared on a task, in a table of their own."""

    name: str
    """What the page calls it."""
    task: str
    """A function of :mod:`simulations.tasks.data`."""
    model: str = "softmax"
    """One of :data:`~simulations.studies.beyond_trusted_server.models.MODELS`."""
    epsilons: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    """By replace-one."""
    arms: tuple[str, ...] = tuple(arm for arm in ARMS if arm != NO_PRIVACY)


def _replace_one_epsilon(zero_out: float) -> float:
    """The replace-one ε of Gaussian noise on sums that has that zero-out ε, rounded down to four decimals."""
    return math.floor(1e4 * gaussian_epsilon(2.0 * gaussian_separation(zero_out, DELTA), DELTA)) / 1e4


COMPARISONS = {
    "correlated-mnist": Comparison("MNIST, softmax regression", "mnist"),
    "correlated-mnist-zero_out": Comparison(
        "MNIST, softmax regression, targets by zero-out",
        "mnist",
        epsilons=tuple(map(_replace_one_epsilon, (1.0, 2.0, 4.0, 8.0))),
    ),
    "correlated-fashion_mnist": Comparison("Fashion-MNIST, softmax regression", "fashion_mnist"),
    "correlated-mnist-cnn": Comparison(
        "MNIST, a small CNN",
        "mnist",
        "cnn",
        # Clients of Flower's wrapper are trained one by one, which takes twice as long.
        arms=tuple(arm for arm, noise in ARMS.items() if noise.server not in ("open", "flower")),
    ),
}
"""What is trained, by the names of tables."""
_MEASURED_COORDINATES, _MEASURED_EPSILON = 32_000, 1.0


def train_row(
    task: str, model: str, arm: str, epsilon: float, l2_clip: float, seed: int, validate: bool
) -> dict[str, Any]:
    """The row of one training run."""
    outcome = run_training(Setting(task, arm, epsilon, l2_clip, seed, model, validate))
    del outcome["model"]
    return {"arm": arm, "epsilon": epsilon, "l2_clip": l2_clip, "seed": seed, **outcome}


def compute_accuracy(table: str, epsilons: Sequence[float] = ()) -> Tables:
    """Tune the clips on validation examples of one seed, and run all arms on other seeds.

    Secure sums take the clip that was tuned for a trusted server with the same noise, whose error is within
    some percent of theirs, so that they are not favored.
    """
    compared = COMPARISONS[table]
    task, model = compared.task, compared.model
    trials: list[dict[str, Any]] = []
    chosen = [(NO_PRIVACY, math.inf, math.inf)]
    best: dict[Arm, float] = {}
    for epsilon in epsilons or compared.epsilons:
        for arm in compared.arms:
            if ARMS[arm].server != "secure":
                tried = tune_clip(task, model, arm, epsilon, best.get(ARMS[arm], FIRST_CLIP))
                trials += tried
                best[ARMS[arm]] = max(tried, key=score)["l2_clip"]
        for arm in compared.arms:
            noise = ARMS[arm]
            server = "trusted" if noise.server == "secure" else noise.server
            chosen.append((arm, epsilon, best[replace(noise, server=server)]))
    cells = [(task, model, *one, seed, False) for seed in TEST_SEEDS for one in chosen]
    return {f"{table}-trials": pd.DataFrame(trials), table: compute_rows(train_row, cells)}


def tune_clip(task: str, model: str, arm: str, epsilon: float, first: float) -> list[dict[str, Any]]:
    """The trials of an arm: by factors of two from a first clip to where it gets no better."""

    def run(clip: float) -> dict[str, Any]:
        return compute_once(train_row, task, model, arm, epsilon, clip, TUNING_SEED, True)

    return tune_by_twos(run, first, MAX_TRIALS, score)


def score(row: Mapping[str, Any]) -> float:
    """The accuracy of the last model or of the average, whichever is better."""
    return float(max(row["accuracy"], row["average_accuracy"]))


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of each arm at each ε, with the lowest and the highest seed."""
    rows = []
    for (epsilon, arm), own in runs.groupby(["epsilon", "arm"], sort=False):
        row = {"epsilon": epsilon, "arm": arm}
        for name in ("accuracy", "average_accuracy"):
            ends = {f"{name}_low": own[name].min(), f"{name}_high": own[name].max()}
            row |= {name: own[name].mean(), **ends}
        rows.append(row | own.iloc[0][["l2_clip", "correlation", "prefix_error", "kilobytes"]].to_dict())
    return pd.DataFrame(rows)


def compare_pairs(runs: pd.DataFrame, epsilon: float, arm: str, other: str) -> tuple[float, float, float]:
    """How much better an arm is than another with the same seed, in points: mean, lowest and highest seed.

    Each is taken at the average of its models, which is the better one.
    """
    by_seed = runs[runs["epsilon"] == epsilon].pivot_table("average_accuracy", "seed", "arm")
    gains = 100.0 * (by_seed[arm] - by_seed[other])
    return float(gains.mean()), float(gains.min()), float(gains.max())


def error_row(bits: int, fraction: float) -> dict[str, Any]:
    """The planned and the measured error of models, of updates that are all zero.

    That fraction of clients is corrupt, and that fraction lost in each round. Of the clients who are then
    asked for their seeds, as many are gone, too.
    """
    sums = SecureSum(corrupt_fraction=fraction, dropout_fraction=fraction)
    target = pq.Target(_MEASURED_EPSILON, ROUNDS, COHORT, DELTA, rounds_apart=APART)
    plan = target.plan(_MEASURED_COORDINATES, correlation="auto", aggregation=sums, wrap_bits=bits)
    mechanism, clip = plan.encoding.mechanism, plan.encoding.clip
    if not isinstance(mechanism, CorrelatedGaussianMechanism) or plan.central_error is None:
        raise TypeError("the plan has no correlated noise")
    generator, zeros = np.random.default_rng([bits, 1]), np.zeros(_MEASURED_COORDINATES)
    stream = pq.RandomStream.seeded(bits)
    left = COHORT - sums.num_lost(COHORT)
    model, squares = zeros.copy(), []
    # By receiver, what was handed over to it.
    handed: dict[int, bytes] = {}
    for _ in range(ROUNDS):
        survivors = generator.permutation(COHORT)[:left].tolist()
        own = [generator.bytes(32) for _ in survivors]
        total = np.zeros(_MEASURED_COORDINATES, np.int64)
        for client, seed in zip(survivors, own, strict=True):
            encoder = mechanism.with_seeds(NoiseSeeds(seed, handed.get(client)))
            total += encoder.to_codes(encoder.encode(zeros, clip, rng=stream))
        lost = [seed for client, seed in handed.items() if client not in survivors]
        opened = [seed for seed in lost if generator.random() >= fraction]
        model += mechanism.decode_sum(mechanism.take_off(total, opened), left, clip)
        squares.append(float(np.mean(model**2)))
        handed = dict(zip(generator.permutation(COHORT)[:left].tolist(), own, strict=True))
    measured = float(np.mean(squares)) / (plan.central_error * 0.5 * (ROUNDS + 1))
    return {
        "bits": bits,
        "corrupt_and_lost": fraction,
        "correlation": plan.correlation,
        "planned_error": plan.prefix_error,
        "measured_error": measured,
    }


def compute_errors() -> pd.DataFrame:
    """The table of planned and measured errors."""
    return compute_rows(error_row, [(10, 0.0), (11, 0.0), (11, 0.1)])


PARTS: dict[str, Compute] = {
    **{table: partial(compute_accuracy, table) for table in COMPARISONS},
    ERRORS: compute_errors,
}


def page_numbers(read: ReadTable) -> dict[str, Any]:
    """What the page names besides the tables."""
    runs = {table: read(table) for table in COMPARISONS}
    view = StatedView(ViewKind.AGGREGATE, COHORT)
    return {
        "clients": CLIENTS,
        "cohort": COHORT,
        "rounds": ROUNDS,
        "apart": APART,
        "participations": math.ceil(ROUNDS / APART),
        "decay": DECAY,
        "rate": MODELS["cnn"].learning_rate,
        "unclipped_rate": MODELS["cnn"].unclipped_rate,
        "first_clip": FIRST_CLIP,
        "max_trials": MAX_TRIALS,
        "seeds": len(TEST_SEEDS),
        "errors": read(ERRORS),
        "comparisons": COMPARISONS,
        "figures": dict(zip(COMPARISONS, FIGURES, strict=True)),
        "epsilons": {name: find_epsilons(table) for name, table in runs.items()},
        "arm": lambda table, name, epsilon: one_row(summarize(runs[table]), arm=name, epsilon=epsilon),
        "no_privacy": lambda table: one_row(summarize(runs[table]), arm=NO_PRIVACY),
        "gain": lambda table, *pair: compare_pairs(runs[table], *pair),
        "target": lambda epsilon: PrivacyStatement(epsilon, DELTA, Unit.TOTAL, view).brief,
        "zero_out": lambda epsilon: zero_out_epsilon(epsilon, DELTA),
        "per_cent": lambda value: f"{100.0 * value:.1f}",
        "measured_coordinates": _MEASURED_COORDINATES,
    }


def find_epsilons(runs: pd.DataFrame) -> list[float]:
    """The finite ε of a table, in order."""
    return sorted(float(epsilon) for epsilon in runs["epsilon"].unique() if math.isfinite(epsilon))


def _draw_accuracies(read: ReadTable, compared: str) -> Any:
    """Test accuracies of all arms, of the average of models: the mean, and the lowest and highest seed."""
    table = summarize(read(compared))
    epsilons = find_epsilons(table)
    columns = min(len(epsilons), 2)
    rows = math.ceil(len(epsilons) / columns)
    size = (2.0 + 3.6 * columns, 2.8 * rows)
    figure, grid = import_pyplot().subplots(
        rows, columns, figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, epsilon in zip(grid.flat, epsilons, strict=False):
        _draw_arms(axis, table, epsilon)
        axis.set_xlabel(f"test accuracy on {COMPARISONS[compared].name.partition(',')[0]}, %")
    return figure


def _draw_arms(axis: Any, table: pd.DataFrame, epsilon: float) -> None:
    """One panel: the arms at one ε, and a line where training without privacy ends."""
    colors = {arm: color for arm, color in _COLORS.items() if arm in set(table["arm"])}
    for place, arm in enumerate(reversed(colors)):
        row = one_row(table, arm=arm, epsilon=epsilon)
        mean, low, high = (100.0 * getattr(row, f"average_accuracy{end}") for end in ("", "_low", "_high"))
        axis.plot([low, high], [place, place], color=_COLORS[arm], linewidth=2)
        axis.plot(mean, place, "o", color=_COLORS[arm], markersize=9)
        axis.annotate(f"{mean:.1f}", (mean, place + 0.2), ha="center", va="bottom", fontsize=9)
    most = 100.0 * one_row(table, arm=NO_PRIVACY).average_accuracy
    axis.axvline(most, color="black", linestyle=":", linewidth=1)
    axis.annotate(
        f"no privacy {most:.1f}",
        (most, len(colors) - 1),
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    axis.set_yticks(range(len(colors)), list(reversed(colors)))
    axis.set_ylim(-0.5, len(colors) - 0.3)
    axis.margins(x=0.08)
    axis.grid(visible=False, axis="y")
    total = PrivacyStatement(epsilon, DELTA, Unit.TOTAL)
    other = replace(total, epsilon=zero_out_epsilon(epsilon, DELTA), relation=Relation.ZERO_OUT)
    axis.set_title(f"{total.figures} {total.relation} ({other.epsilon_number} {other.relation})")


_COLORS = {
    "Flower's wrapper, trusted server": "#b8860b",
    "trusted server, fresh noise": "#999999",
    "trusted server, correlated noise": "#555555",
    "secure sum, fresh noise": "#c9a3f0",
    "secure sum, correlated noise": "#7b2cbf",
}

FIGURES = {
    "accuracies": partial(_draw_accuracies, compared="correlated-mnist"),
    "accuracies-zero-out": partial(_draw_accuracies, compared="correlated-mnist-zero_out"),
    "accuracies-fashion": partial(_draw_accuracies, compared="correlated-fashion_mnist"),
    "accuracies-cnn": partial(_draw_accuracies, compared="correlated-mnist-cnn"),
}
"""By name, the functions that draw the figures of the page."""
