"""Sweeps whose runs are compared with the central Gaussian's runs of the same seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from simulations.config import CENTRAL, RunConfig
from simulations.planned import plan_of
from simulations.studies.study import Scale, Tables, Tell
from simulations.studies.sweep import Sweep, finished

_COLUMNS = (
    "task",
    "rounds",
    "num_clients",
    "l2_clip",
    "run_epsilon",
    "seeds",
    "mechanism",
    "bits",
    "ratio_to_central",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "accuracy_lost",
    "accuracy_lost_error",
    "epsilon_total_aggregate",
)
_SETTING = ["run_epsilon", "mechanism", "bits"]


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
        planned = {_setting(config): _planned_ratio(config, dimension) for config in configs}
        ratios = [planned[_as_key(row)] for row in means[_SETTING].itertuples(index=False)]
        tables = means.assign(ratio_to_central=ratios)[list(_COLUMNS)], _by_seed(configs)
        order = ["run_epsilon", "bits"]
        return {
            name: table.sort_values(order, na_position="first", kind="stable", ignore_index=True)
            for name, table in zip(self.tables, tables, strict=True)
        }


def _as_key(setting: tuple[Any, ...]) -> tuple[float, str, float]:
    """A setting that equals itself: the central Gaussian has no bits."""
    epsilon, mechanism, bits = setting
    return epsilon, mechanism, 0.0 if math.isnan(bits) else bits


def _setting(config: RunConfig) -> tuple[float, str, float]:
    return _as_key((config.privacy.epsilon, config.label, config.mechanism.get("bits", math.nan)))


def _planned_ratio(config: RunConfig, dimension: int) -> float:
    """Squared error of the mean update over the central Gaussian's, as the plan predicts it."""
    plan = plan_of(config, dimension)
    if plan is None:
        return 1.0
    return math.nan if plan.ratio_to_central is None else plan.ratio_to_central


def _by_seed(configs: Sequence[RunConfig]) -> pd.DataFrame:
    accuracies = {(_setting(config), config.seed): finished(config)["accuracy"] for config in configs}
    return pd.DataFrame(
        [
            {
                "run_epsilon": epsilon,
                "mechanism": mechanism,
                "bits": bits or math.nan,
                "seed": seed,
                "accuracy": accuracy,
                "accuracy_lost": accuracies[(epsilon, CENTRAL, 0.0), seed] - accuracy,
            }
            for ((epsilon, mechanism, bits), seed), accuracy in accuracies.items()
        ]
    )
