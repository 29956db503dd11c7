"""Accuracy against kilobytes: softmax regression by one gradient of each client a round, at an equal budget.

Every mechanism sends a share of the rotated coordinates, and all of them, at its best design for that. Runs
are those of the study at an equal budget: 100 clients, 50 rounds, epsilon = 4 for a client's total in the
aggregate view, nobody corrupt or lost. There are three seeds of each; the question whether a small share
loses accuracy is put to five.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simulations.config import RunConfig
from simulations.results import RunDirectory
from simulations.studies.study import Part, Scale, Tables, Tell
from simulations.studies.sweep import PairedSweep, Sweep

__all__ = ["ADAPTED", "ADAPTIVE", "FLOWER", "MECHANISMS", "PARTS", "SHARE", "TASKS", "lost_to_all"]

MECHANISMS = ("optm_aggregate", "pbm", "discrete_gaussian", "skellam")
SHARE = 0.12
"""The share whose accuracy is compared with that of all coordinates: below one masked bit a coordinate."""

FLOWER = "payload-flower-mnist"
ADAPTIVE, ADAPTED = "payload-adaptive", ("digits", "mnist")
"""The part on shares that follow the length of the mean update, and its tasks."""

# Learning rates and norms are those of the study at an equal budget, with 50 rounds.
TASKS = {
    "digits": ("federation.server_learning_rate=3.0",),
    "mnist": ("federation.server_learning_rate=1.0", "encoding.l2_clip=0.3", "task.max_examples=10000"),
    "fashion_mnist": (
        "federation.server_learning_rate=0.5",
        "encoding.l2_clip=0.3",
        "task.max_examples=10000",
    ),
}
"""Tasks, and the settings of their runs."""

_SHARES = ",".join(f"{share:g}" for share in (0.04, SHARE))
_OURS = ("mechanism=optm_aggregate", f"encoding.keep={SHARE},null")
_ADAPTIVE = (
    "mechanism=optm_aggregate",
    "encoding.keep=0.5",
    "encoding.keep_policy.name=constant,adaptive",
    "seed=0,1,2,3,4",
)
_BITS, _LONG, _BUDGET = "mechanism.bits=3", "federation.rounds=50", "privacy.epsilon=4"
_NOTE = "run epsilon: client total, aggregate view of all clients, δ = 1e-5"


def _sweep(
    kind: type[Sweep], name: str, task: str, *overrides: str, variants: tuple[tuple[str, ...], ...] = ()
) -> Sweep:
    return kind(
        name=name,
        title=f"Accuracy against kilobytes, {task}",
        experiment="equal_budget/gradients",
        overrides=(f"task={task}", *TASKS[task], _LONG, _BITS, _BUDGET, *overrides),
        variants=variants,
        needs="" if task == "digits" else task,
        note=_NOTE,
    )


def _against_kilobytes(task: str) -> Part:
    private = ",".join(MECHANISMS)
    variants = ((f"mechanism={private}", f"encoding.keep={_SHARES},null"),)
    seeds = "seed=0,1,2"
    return _sweep(
        PairedSweep, f"payload-{task}", task, "mechanism=central_gaussian", seeds, variants=variants
    )


def lost_to_all(kept: Mapping[int, float], every: Mapping[int, float]) -> tuple[float, float]:
    """Accuracy lost to runs that send all coordinates, paired by seed: its mean and its standard error.

    >>> lost_to_all({0: 0.7, 1: 0.8}, {0: 0.75, 1: 0.81})
    (0.03, 0.02)
    """
    lost = np.array([every[seed] - accuracy for seed, accuracy in kept.items()])
    return round(float(lost.mean()), 9), round(float(lost.std(ddof=1) / math.sqrt(lost.size)), 9)


@dataclass(frozen=True, kw_only=True)
class _ThroughFlower(Part):
    """Runs of our mechanism with a share of the coordinates and with all, each a federated run."""

    sweep: Sweep

    def configuration(self, scale: Scale) -> Mapping[str, Any]:
        """That of its runs."""
        return self.sweep.configuration(scale)

    def compute(self, scale: Scale, tell: Tell) -> Tables:
        """Run what is missing; a row for each share and seed."""
        self.sweep.compute(scale, tell)
        return {self.name: pd.DataFrame([self.row(config) for config in self.sweep.runs(scale)])}

    def row(self, config: RunConfig) -> dict[str, Any]:
        """What a finished run sent and reached."""
        path = RunDirectory.of(config).path
        rounds = pd.read_parquet(path / "rounds.parquet")
        last = rounds.iloc[-1]
        sent = last["bytes_up"] / (config.federation.rounds * config.federation.num_clients)
        return {
            "task": config.task_name,
            "mechanism": config.label,
            "keep": config.encoding.keep or 1.0,
            "seed": config.seed,
            "dimension": json.loads((path / "provenance.json").read_text())["dimension"],
            "kilobytes": sent / 1000.0,
            "accuracy": last["accuracy"],
            "run_epsilon": config.privacy.epsilon,
            "epsilon_reached": last["epsilon_client_total_sum"],
            "wrapped_sums": int(rounds["wrapped_sums"].sum()),
        }


@dataclass(frozen=True, kw_only=True)
class _ByPolicy(_ThroughFlower):
    """The same, with shares that are constant and shares that follow the length of the mean update."""

    def row(self, config: RunConfig) -> dict[str, Any]:
        """The same, with the policy that chose what was kept."""
        return {"keep_policy": config.encoding.keep_policy.name, **super().row(config)}


def _adaptive(task: str) -> Part:
    name = f"{ADAPTIVE}-{task}"
    return _ByPolicy(
        name=name,
        title=f"Constant and adaptive shares, {task}, through Flower",
        needs="" if task == "digits" else task,
        note=_NOTE,
        sweep=_sweep(Sweep, name, task, *_ADAPTIVE),
    )


_PAIRS = _sweep(Sweep, FLOWER, "mnist", *_OURS)

PARTS: tuple[Part, ...] = (
    *(_against_kilobytes(task) for task in TASKS),
    _ThroughFlower(
        name=FLOWER,
        title="A small share and all coordinates, MNIST, through Flower",
        needs="mnist",
        note=_NOTE,
        sweep=_PAIRS,
    ),
    *(_adaptive(task) for task in ADAPTED),
)
