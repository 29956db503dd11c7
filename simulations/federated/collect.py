"""From runs to a table: one row for runs that differ in their seed only, with what the row's ε means."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.mechanisms.base import Mechanism
from simulations.central import noise_of_sum
from simulations.config import CENTRAL, RunConfig
from simulations.planned import central_target, run_statement
from simulations.report.statistics import student_interval
from simulations.results import ResultsError, RunDirectory

__all__ = ["TABLES", "collect", "read_table", "table_or_none", "write_table"]

TABLES = Path(__file__).parent / "tables"
"""Where the committed tables are."""

_DIGITS = 6
_NEGLIGIBLE_BIAS = 1e-3


def collect(configs: Iterable[RunConfig]) -> pd.DataFrame:
    """The table of finished runs: means over seeds, 95 % intervals (Student t), and privacy statements.

    Raises
    ------
    ResultsError
        A run is not finished.
    """
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        values = config.to_mapping()
        del values["seed"]
        groups.setdefault(json.dumps(values, sort_keys=True), []).append(config)
    return pd.DataFrame([_row(group) for group in groups.values()])


def write_table(name: str, table: pd.DataFrame, folder: Path = TABLES) -> Path:
    """Write a table as CSV, with so many digits that it is the same wherever it was made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    table.to_csv(path, index=False, float_format=f"%.{_DIGITS}g", lineterminator="\n")
    return path


def read_table(name: str, folder: Path = TABLES) -> pd.DataFrame:
    """A table that :func:`write_table` wrote."""
    path = folder / f"{name}.csv"
    if not path.exists():
        raise ResultsError(f"{path} is missing; python -m simulations.federated {name} makes it")
    return pd.read_csv(path, keep_default_na=True, na_values=[""], dtype={"view": "string"})


def table_or_none(tables: Callable[[str], pd.DataFrame], name: str) -> pd.DataFrame | None:
    """The table of a study, if it was run."""
    try:
        return tables(name)
    except ResultsError:
        return None


def _row(configs: Sequence[RunConfig]) -> dict[str, Any]:
    first = configs[0]
    runs = [_finished(config) for config in configs]
    mechanism = Mechanism.from_bytes((RunDirectory.of(first).path / "mechanism.pqm").read_bytes())
    dimension = int(runs[0]["dimension"])
    clients = first.federation.num_clients
    return {
        "task": first.task.name,
        "model": first.task.model,
        "partition": first.partition.name,
        "mechanism": first.label,
        "secure_aggregation": first.secagg.enabled,
        "clip": first.encoding.clip,
        "l2_clip": first.l2_clip,
        "seeds": len(runs),
        **_interval("accuracy", [run["accuracy"] for run in runs]),
        **_interval("mean_squared_error", [run["mean_squared_error"] for run in runs]),
        "noise_error": _noise(first, mechanism),
        "share_clipped": sum(run["share_clipped"] for run in runs) / len(runs),
        "bits_per_coordinate": 8.0 * runs[0]["bytes_up"] / (first.federation.rounds * clients * dimension),
        "bits_in_secure_sum": mechanism.sum_bits(clients) if mechanism.summable else math.nan,
        "dimension": dimension,
        "rounds": first.federation.rounds,
        "num_clients": clients,
        "run_epsilon": first.privacy.epsilon,
        **_privacy(first, mechanism, dimension, runs[0]["totals"]),
        # Of a single run: with secure aggregation and without, it must be the same.
        "model_sha256": runs[0]["model"] if len(runs) == 1 else "",
    }


def _finished(config: RunConfig) -> dict[str, Any]:
    """The last round of a run, with its error averaged over the rounds, and what its model was."""
    directory = RunDirectory.of(config)
    if directory.summary() is None:
        raise ResultsError(f"{directory.path} holds no finished run; run the study without --page")
    rounds = pd.read_parquet(directory.path / "rounds.parquet")
    provenance = json.loads((directory.path / "provenance.json").read_text())
    return {
        "accuracy": rounds["accuracy"].iloc[-1],
        "mean_squared_error": rounds["mean_squared_error"].iloc[1:].mean(),
        "share_clipped": rounds["share_clipped"].iloc[1:].mean(),
        "bytes_up": int(rounds["bytes_up"].iloc[-1]),
        "dimension": provenance["dimension"],
        "model": provenance.get("model_sha256", ""),
        "totals": {
            each["view"]: PrivacyStatement.from_dict(each)
            for each in provenance.get("statements", [])
            if each["unit"] == Unit.TOTAL.value
        },
    }


def _noise(config: RunConfig, mechanism: Mechanism) -> float:
    """The error of a coordinate of the mean that is noise, without clipping: exact, for uniform inputs.

    NaN where it is not one coordinate's, or where a bias, which no mean takes away, is a part of it.
    """
    clients = config.federation.num_clients
    if config.mechanism["name"] == CENTRAL:
        l2_clip, epsilon, delta = central_target(config)
        return (noise_of_sum(l2_clip, config.federation.rounds, epsilon, delta) / clients) ** 2
    if mechanism.unit != Unit.COORDINATE.value or mechanism.max_bias > _NEGLIGIBLE_BIAS:
        return math.nan
    return mechanism.mse() * config.encoding.clip**2 / clients


def _interval(name: str, values: list[float]) -> dict[str, float]:
    mean, low, high, _ = student_interval(values)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def _privacy(
    config: RunConfig, mechanism: Mechanism, dimension: int, stated: Mapping[str, PrivacyStatement]
) -> dict[str, Any]:
    """The figures of one release in the local view, and of a client's total in both views.

    Totals are those that the run stated, if it did; else they are counted for a client of all rounds.
    """
    local = stated.get("local") or run_statement(config, mechanism, dimension, in_sum=False)
    found = {
        "unit": mechanism.unit,
        "epsilon": mechanism.epsilon,
        "delta": mechanism.delta,
        "epsilon_total_local": local.epsilon,
        "epsilon_total_aggregate": math.nan,
        "delta_total": config.privacy.delta,
        "view": "",
        "counted_by": "",
    }
    if mechanism.summable or config.mechanism["name"] == CENTRAL:
        in_sum = next((each for view, each in stated.items() if view != "local"), None)
        in_sum = in_sum or run_statement(config, mechanism, dimension)
        found |= {
            "epsilon_total_aggregate": in_sum.epsilon,
            "view": in_sum.view,
            "counted_by": in_sum.method,
        }
    return found
