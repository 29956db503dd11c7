"""A study as the simulations leave it on disk, made up in a second: real mechanisms, invented accuracies."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fl_privquant as pq
from fl_privquant.accounting import PrivacyStatement, StatedView, Unit, ViewKind
from fl_privquant.cli.comparison import list_variants
from fl_privquant.mechanisms.base import Mechanism

DIMENSION = 650
CENTRAL = "central_gaussian"
ALL = ("optm", "optm independent", "rqm", "erm", "one_bit", "stochastic", "none")
_HARM = {
    "optm": 0.05,
    "optm independent": 0.09,
    "rqm": 0.07,
    "erm": 0.08,
    "one_bit": 0.06,
    "stochastic": 0.01,
}


def mechanism_of(label: str, epsilon: float, bits: int) -> Mechanism:
    """A real mechanism, by its label."""
    name = label.partition(" ")[0]
    if name in ("none", CENTRAL):
        return pq.design("none")
    if name == "stochastic":
        return pq.design(name, bits=bits)
    if name in ("one_bit", "gaussian"):
        return pq.design(name, epsilon=epsilon)
    extra = next(dict(variant.parameters) for each, _, variant in list_variants((name,)) if each == label)
    return pq.design(name, epsilon=epsilon, **({} if "bins" in extra else {"bits": bits}), **extra)


def write_study(
    directory: Path,
    labels: Iterable[str] = ALL,
    epsilons: Iterable[float] = (1.0,),
    bits: Iterable[int] = (2,),
    seeds: Iterable[int] = (0, 1, 2),
    rounds: int = 20,
    settings: Iterable[Mapping[str, Any]] = ({},),
) -> list[Path]:
    """Write a run for each combination; what a mechanism does not have is not repeated."""
    written = []
    for label, epsilon, width, seed, setting in itertools.product(labels, epsilons, bits, seeds, settings):
        mechanism = mechanism_of(label, epsilon, width)
        asked = epsilon if math.isfinite(mechanism.epsilon) else None
        path = write_run(directory, label, mechanism, asked, seed, rounds, setting)
        if path not in written:
            written.append(path)
    return written


def write_run(
    directory: Path,
    label: str,
    mechanism: Mechanism,
    epsilon: float | None,
    seed: int,
    rounds: int,
    setting: Mapping[str, Any],
) -> Path:
    """One finished run."""
    bits = mechanism.bits_per_coordinate
    config: dict[str, Any] = {
        "study": directory.name,
        "seed": seed,
        "mechanism": {"name": mechanism.name, "epsilon": epsilon, "bits": bits}
        | ({"family": label.partition(" ")[2] or "free"} if mechanism.name == "optm" else {}),
        "encoding": {"clip": 0.1, "l2_clip": None, "rotate": False},
        "task": {"name": "digits", "model": "softmax", "learning_rate": 0.1},
        "partition": {"name": "iid", "seed": seed},
        "federation": {"num_clients": 20, "rounds": rounds, "strategy": "FedAvg", "fraction": 1.0},
        "engine": {"name": "inline"},
        "privacy": {"delta": 1e-5, "randomness": "seeded"},
        "secagg": {"enabled": False},
    }
    for key, value in setting.items():
        room, _, name = key.partition(".")
        if name:
            config[room][name] = value
        else:
            config[room] = value
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    path = directory / f"{mechanism.name}-{digest[:12]}"
    path.mkdir(parents=True, exist_ok=True)
    table = _rounds(directory.name, path.name, label, mechanism, epsilon, config)
    table.to_parquet(path / "rounds.parquet", index=False)
    table.to_csv(path / "rounds.csv", index=False)
    (path / "config.json").write_text(json.dumps(config))
    (path / "mechanism.pqm").write_bytes(mechanism.to_bytes())
    summary = table.iloc[-1].to_dict() | {"wall_seconds": 1.25, "finished": True}
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "provenance.json").write_text(json.dumps(_provenance(label, mechanism, config)))
    return path


def _rounds(
    study: str, run: str, label: str, mechanism: Mechanism, epsilon: float | None, config: dict[str, Any]
) -> pd.DataFrame:
    clients, rounds, seed = (
        config["federation"]["num_clients"],
        config["federation"]["rounds"],
        config["seed"],
    )
    rng = np.random.default_rng(int(hashlib.sha256(run.encode()).hexdigest()[:12], 16))
    steps = np.arange(rounds + 1)
    harm = _HARM.get(label, 0.0) * 2 / (mechanism.epsilon if math.isfinite(mechanism.epsilon) else 2) ** 0.6
    skew = 0.04 * (1 - min(1.0, config["partition"].get("alpha", 1.0)))
    top = 0.95 - harm - skew
    accuracy = top - (top - 0.1) * np.exp(-steps / (3 + 40 * harm)) + rng.normal(0, 0.004, rounds + 1)
    error = mechanism.mse() * 0.1**2 / clients if not isinstance(mechanism.mse(), complex) else 0.0
    per_round = clients * DIMENSION * mechanism.bits_per_coordinate / 8
    spent, secure = mechanism.epsilon * DIMENSION, config["secagg"]["enabled"]
    squared = np.maximum(error, 1e-9) * np.exp(rng.normal(0, 0.05, rounds + 1))
    return pd.DataFrame(
        {
            "study": study,
            "run": run,
            "label": label,
            "mechanism": mechanism.name,
            "epsilon": math.nan if epsilon is None else epsilon,
            "bits": mechanism.bits_per_coordinate,
            "seed": seed,
            "round": steps,
            "accuracy": np.clip(accuracy, 0, 1),
            "loss": 2.3 * np.exp(-steps / 6) + 0.3,
            "mean_squared_error": np.where(steps == 0, np.nan, squared),
            "share_clipped": np.where(steps == 0, np.nan, 0.02),
            "bytes_up": per_round * steps,
            "bytes_down": clients * DIMENSION * 4.0 * steps,
            "bytes_handshake": clients * 5000.0 * steps if secure else 0.0 * steps,
            "epsilon_coordinate": mechanism.epsilon,
            "epsilon_client_round": np.where(steps == 0, 0.0, spent),
            "epsilon_client_total": np.where(steps == 0, 0.0, spent * np.maximum(steps, 1)),
            "epsilon_client_round_sum": np.where(steps == 0, 0.0, spent / 8) if secure else np.nan,
            "epsilon_client_total_sum": np.where(steps == 0, 0.0, spent * np.maximum(steps, 1) / 8)
            if secure
            else np.nan,
            "delta_client_total": np.minimum(1.0, mechanism.delta * DIMENSION * steps),
            "composition_method": "pure",
            "composition_method_sum": "blanket+pld" if secure else "no sums",
            "num_honest": 18.0 if secure else np.nan,
            "num_clients": clients,
            "num_replies": np.where(steps == 0, 0, clients),
            "seconds_clients": 0.02,
            "seconds_aggregate": 0.001,
            "seconds_evaluate": 0.002,
        }
    )


def _provenance(label: str, mechanism: Mechanism, config: Mapping[str, Any]) -> dict[str, Any]:
    rounds, delta = config["federation"]["rounds"], config["privacy"]["delta"]
    total = mechanism.epsilon * DIMENSION * rounds
    scope = f"{DIMENSION} coordinates, {rounds} rounds"
    statements = [mechanism.statement]
    if math.isfinite(total):
        statements.append(PrivacyStatement(total, delta, Unit.TOTAL, method="pure", scope=scope))
    target = config["privacy"].get("epsilon")
    if config["secagg"]["enabled"]:
        view = StatedView(ViewKind.AGGREGATE, 18)
        statements.append(
            PrivacyStatement(target or total / 8, delta, Unit.TOTAL, view, method="blanket+pld")
        )
    if label == CENTRAL:
        statements.append(PrivacyStatement(target, delta, Unit.TOTAL, StatedView(ViewKind.CENTRAL)))
    return {
        "versions": {"fl_privquant": "0.1.0", "flwr": "1.41.0", "numpy": np.__version__, "python": "3.11.7"},
        "git_commit": "1f3870be274f6c49b3e31a0c6728957f",
        "solver": "HiGHS",
        "seed": config["seed"],
        "mechanism_label": label,
        "certified_epsilon": mechanism.epsilon,
        "delta": mechanism.delta,
        "dimension": DIMENSION,
        "statements": [each.to_dict() for each in statements],
        "statement": [*map(str, statements), "randomness: seeded, for simulation only"],
        "simulated": True,
    }
