"""Sweeps whose runs are compared with the central Gaussian's runs of the same seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fl_privquant.encoding import kept_of
from simulations.config import CENTRAL, RunConfig
from simulations.planned import plan_of
from simulations.studies.study import Scale, Tables, Tell
from simulations.studies.sweep import Sweep, finished

_COLUMNS = [
    *("task", "rounds", "num_clients", "l2_clip", "run_epsilon", "seeds", "mechanism", "bits"),
    *(
        "ratio_to_central",
        "accuracy",
        "accuracy_low",
        "accuracy_high",
        "accuracy_lost",
        "accuracy_lost_error",
    ),
    "epsilon_total_aggregate",
]
# Only where some runs send a share of the coordinates.
_SIZES = ["kept", "kilobytes"]

_Setting = tuple[float, str, float, int]
"""Run epsilon, mechanism, bits (0 for none), and how many coordinates are sent."""


@dataclass(frozen=True, kw_only=True)
class PairedSweep(Sweep):
    """A sweep with a second table, which has what each seed loses to the central Gaussian."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Means over seeds, and what each seed loses."""
        return self.name, f"{self.name}-by-seed"

    def compute(self, scale: Scale, tell: Tell) -> Tables:
        """Run what is missing; both tables."""
        (means,) = super().compute(scale, tell).values()
        configs, dimension = self.runs(scale), int(means["dimension"].iloc[0])
        settings = [_setting(config, dimension) for config in configs]
        # Groups of seeds are in the order of their first runs, as in the table of the sweep.
        firsts = dict(zip(settings[::-1], configs[::-1], strict=True))
        planned = pd.DataFrame([_planned(firsts[setting], dimension) for setting in dict.fromkeys(settings)])
        by_seed = _by_seed(configs, settings)
        sizes = _SIZES if by_seed["kept"].nunique() > 1 else []
        means = pd.concat([means, planned], axis=1)[_COLUMNS + sizes]
        tables = means, by_seed if sizes else by_seed.drop(columns="kept")
        return {
            name: table.sort_values(
                ["run_epsilon", "bits"], na_position="first", kind="stable", ignore_index=True
            )
            for name, table in zip(self.tables, tables, strict=True)
        }


def _setting(config: RunConfig, dimension: int) -> _Setting:
    bits = float(config.mechanism.get("bits", 0))
    return float(config.privacy.epsilon or 0.0), config.label, bits, kept_of(config.encoding.keep, dimension)


def _planned(config: RunConfig, dimension: int) -> dict[str, Any]:
    """What the plan says: the squared error over the central Gaussian's, and what a client sends."""
    plan = plan_of(config, dimension)
    if plan is None:
        # A central Gaussian is sent 32-bit floats.
        return {"ratio_to_central": 1.0, "kept": dimension, "kilobytes": 4 * dimension / 1000.0}
    return {
        "ratio_to_central": plan.ratio_to_central,
        "kept": plan.encoding.kept(dimension),
        "kilobytes": plan.bytes_per_round / 1000.0,
    }


def _by_seed(configs: Sequence[RunConfig], settings: Sequence[_Setting]) -> pd.DataFrame:
    rows = [
        {
            "run_epsilon": epsilon,
            "mechanism": mechanism,
            "bits": bits or math.nan,
            "kept": kept,
            "seed": config.seed,
            "accuracy": finished(config)["accuracy"],
        }
        for config, (epsilon, mechanism, bits, kept) in zip(configs, settings, strict=True)
    ]
    central = {(row["run_epsilon"], row["seed"]): row for row in rows if row["mechanism"] == CENTRAL}
    for row in rows:
        row["accuracy_lost"] = central[row["run_epsilon"], row["seed"]]["accuracy"] - row["accuracy"]
    return pd.DataFrame(rows)
