"""Parts that are sweeps of federated runs, each an experiment of ``conf/experiment``, and their tables."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra.core.override_parser.overrides_parser import OverridesParser
from numpy.typing import NDArray
from omegaconf import OmegaConf, open_dict

from fl_privquant.accounting import PrivacyStatement, Unit, ViewKind
from fl_privquant.encoding import kept_of
from fl_privquant.mechanisms.base import Mechanism
from simulations.central import noise_of_sum
from simulations.config import CENTRAL, RunConfig
from simulations.overrides import CONF, choices_of, composed
from simulations.planned import central_target, plan_of, run_statement
from simulations.progress import SWEEP_POSITION
from simulations.report.statistics import student_interval
from simulations.results import ResultsError, RunDirectory
from simulations.run import execute
from simulations.studies.study import Part, Scale, Tables, Tell
from simulations.tasks import TorchTask, task_of

_NEGLIGIBLE_BIAS = 1e-3
# The columns of a paired sweep, and those that it has only where some runs send a share of the coordinates.
_PAIRED = [
    *("task", "rounds", "num_clients", "l2_clip", "run_epsilon", "seeds", "mechanism", "bits"),
    *("ratio_to_central", "accuracy", "accuracy_low", "accuracy_high"),
    *("accuracy_lost", "accuracy_lost_error", "epsilon_total_aggregate"),
]
_SIZES = ["kept", "kilobytes"]


@dataclass(frozen=True, kw_only=True)
class Sweep(Part):
    """All runs of an experiment, with some overrides; its table has one row for runs that differ by seed.

    Parameters
    ----------
    experiment
        A file of ``conf/experiment``.
    overrides
        Overrides of Hydra, sweeps such as ``encoding.clip=0.1,0.2`` included.
    variants
        Further runs of the same table, each with more overrides after these.
    guessing
        Whether the table has the accuracy of guessing: of always saying the commonest training label.
    """

    experiment: str
    overrides: tuple[str, ...] = ()
    variants: tuple[tuple[str, ...], ...] = ()
    guessing: bool = False

    def configuration(self, scale: Scale) -> Mapping[str, Any]:
        """The hashes of its runs."""
        return {"runs": [config.run_name for config in self.runs(scale)]}

    def compute(self, scale: Scale, tell: Tell) -> Tables:
        """Run what is missing; its table."""
        configs = self.runs(scale)
        self.execute(configs, tell)
        table = self.table(configs)
        return {self.name: table.assign(guessing=_guessing(configs[0])) if self.guessing else table}

    def execute(self, configs: Sequence[RunConfig], tell: Tell) -> None:
        """Run what is missing, seed by seed: an interrupted sweep has all mechanisms on the first seeds."""
        for place, config in enumerate(sorted(configs, key=lambda config: config.seed)):
            tell(place / len(configs), config.run_name)
            # On a terminal the study's own display shows how far the sweep is.
            os.environ[SWEEP_POSITION] = "quiet" if sys.stderr.isatty() else f"{place + 1}/{len(configs)}"
            execute(config)

    def table(self, configs: Sequence[RunConfig]) -> pd.DataFrame:
        """The table of finished runs."""
        return collect(configs)

    def runs(self, scale: Scale | None = None) -> list[RunConfig]:
        """The config of every run, each once, in the order of the sweep."""
        placed: list[str] = []
        if scale is not None:
            placed += [*scale.overrides, f"output={scale.output}", f"study={self.name}"]
            placed += [f"task.data_root={scale.data_root(self.needs)}"] if self.needs else []
        runs: dict[str, RunConfig] = {}
        for more in ((), *self.variants):
            for config in _composed(self.experiment, (*self.overrides, *more, *placed)):
                # Overrides that a mechanism ignores do not add runs.
                runs.setdefault(config.run_name, config)
        return list(runs.values())


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
        planned = pd.DataFrame([_planned(group[0], dimension) for group in _by_setting(configs)])
        by_seed = _by_seed(configs, dimension)
        sizes = _SIZES if by_seed["kept"].nunique() > 1 else []
        means = pd.concat([means, planned], axis=1)[_PAIRED + sizes]
        tables = means, by_seed if sizes else by_seed.drop(columns="kept")
        return {
            name: table.sort_values(
                ["run_epsilon", "bits"], na_position="first", kind="stable", ignore_index=True
            )
            for name, table in zip(self.tables, tables, strict=True)
        }


@dataclass(frozen=True, kw_only=True)
class SweepOfRuns(Sweep):
    """A sweep whose table has one row for each run, with these columns (:func:`run_columns`)."""

    columns: tuple[str, ...]

    def table(self, configs: Sequence[RunConfig]) -> pd.DataFrame:
        """The table of finished runs."""
        return pd.DataFrame([run_columns(config) for config in configs])[list(self.columns)]


_KINDS = {"means": Sweep, "paired": PairedSweep, "runs": SweepOfRuns}


def sweeps_of(path: Path) -> tuple[Sweep, ...]:
    """The sweeps of a study that its YAML file lists, if it has one; lists of overrides may hold lists.

    ``common`` has what all of them share. ``kind`` says what a table holds: ``means`` over seeds (the
    default), the same and each seed's loss to the central Gaussian (``paired``), or single ``runs``.
    """
    if not path.exists():
        return ()
    content: Any = OmegaConf.to_container(OmegaConf.load(path))
    sweeps = []
    for name, own in content["sweeps"].items():
        fields = {**content.get("common", {}), **own}
        kind = _KINDS[fields.pop("kind", "means")]
        fields["overrides"] = tuple(_flat(fields.get("overrides", [])))
        fields["variants"] = tuple(tuple(overrides) for overrides in fields.get("variants", []))
        lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
        sweeps.append(kind(name=name, **(fields | lists)))
    return tuple(sweeps)


def _flat(overrides: Iterable[str | list[str]]) -> Iterator[str]:
    for override in overrides:
        yield from [override] if isinstance(override, str) else _flat(override)


@lru_cache(maxsize=128)
def _composed(experiment: str, overrides: tuple[str, ...]) -> tuple[RunConfig, ...]:
    return tuple(_swept(experiment, overrides))


def _swept(experiment: str, overrides: Sequence[str]) -> Iterator[RunConfig]:
    # If a key is given twice, the later value counts.
    choices = {
        override.key_or_group: choices_of(override)
        for override in OverridesParser.create().parse_overrides(list(overrides))
    }
    params, _ = _chosen(f"experiment={experiment}")
    swept = {key: text.split(",") for key, text in params.items()} | choices
    seeds = [int(seed) for seed in swept.pop("seed", [])]
    for values in itertools.product(*swept.values()):
        picked = {key: f"{key}={value}" for key, value in zip(swept, values, strict=True)}
        groups = {key: override for key, override in picked.items() if (CONF / key).is_dir()}
        # As Hydra does: first the files that were chosen, then single keys.
        _, files = _chosen(f"experiment={experiment}", *groups.values())
        settings = pickle.loads(files)
        keys = [override for key, override in picked.items() if key not in groups]
        for override in OverridesParser.create().parse_overrides(keys):
            OmegaConf.update(settings, override.key_or_group, override.value())
        config = RunConfig.from_mapping(OmegaConf.to_container(settings, resolve=True))  # type: ignore[arg-type]
        yield from (dataclasses.replace(config, seed=seed) for seed in seeds or [config.seed])


# What only a program of Hydra's has, which takes a third of the time.
_OF_PROGRAMS = tuple(
    f"~hydra/{group}" for group in ("help", "hydra_help", "job_logging", "hydra_logging", "env")
)


# Composing takes a tenth of a second, and most runs of a sweep differ in keys alone, not in files.
@lru_cache(maxsize=128)
def _chosen(*groups: str) -> tuple[dict[str, str], bytes]:
    """What the experiment sweeps, and the settings of these choices of files, pickled.

    Each run changes settings of its own: reading them takes a tenth of the time of OmegaConf's copy.
    """
    settings = composed([*groups, *_OF_PROGRAMS])
    params = {str(key): str(text) for key, text in (settings.hydra.sweeper.params or {}).items()}
    with open_dict(settings):
        del settings["hydra"]
    return params, pickle.dumps(settings)


def collect(configs: Iterable[RunConfig]) -> pd.DataFrame:
    """The table of finished runs: means over seeds, 95 % intervals (Student t), and privacy statements.

    ``accuracy_lost`` is how much accuracy is lost to the central Gaussian at the same budget, paired by seed:
    the mean of the differences, with its standard error; NaN where there is no such row or one seed only.

    Raises
    ------
    ResultsError
        A run is not finished.
    """
    table = pd.DataFrame([_row(group) for group in _by_setting(configs)])
    lost = [_lost_to_central(row, table) for row in table.itertuples()]
    return table.drop(columns="accuracies").assign(
        accuracy_lost=[losses.mean() for losses in lost],
        accuracy_lost_error=[losses.sem() for losses in lost],
    )


def _by_setting(configs: Iterable[RunConfig]) -> list[list[RunConfig]]:
    """The configs of runs that differ in their seed only, together, in the order of their first runs."""
    groups: dict[str, list[RunConfig]] = defaultdict(list)
    for config in configs:
        values = config.to_mapping()
        del values["seed"]
        groups[json.dumps(values, sort_keys=True)].append(config)
    return list(groups.values())


def _lost_to_central(row: Any, table: pd.DataFrame) -> pd.Series:
    """By seed, the accuracy of the central Gaussian at the row's budget less that of the row."""
    same = table["run_epsilon"].eq(row.run_epsilon) & table["task"].eq(row.task)
    central = table[same & table["mechanism"].eq(CENTRAL) & table["num_clients"].eq(row.num_clients)]
    paired = central["accuracies"].iloc[0] if len(central) == 1 else pd.Series(dtype=float)
    return (paired - row.accuracies).dropna()


def _row(configs: Sequence[RunConfig]) -> dict[str, Any]:
    first = configs[0]
    runs = [finished(config) for config in configs]
    mechanism = Mechanism.from_bytes((RunDirectory.of(first).path / "mechanism.pqm").read_bytes())
    dimension = int(runs[0]["dimension"])
    clients = first.federation.num_clients
    return {
        "task": first.task_name,
        "model": first.task.get("model"),
        "partition": first.partition.name,
        "mechanism": first.label,
        "bits": first.mechanism.get("bits", math.nan),
        "secure_aggregation": first.secagg.enabled,
        "clip": first.encoding.clip,
        "l2_clip": first.l2_clip,
        "keep": math.nan if first.encoding.keep is None else first.encoding.keep,
        "seeds": len(runs),
        **_interval("accuracy", [run["accuracy"] for run in runs]),
        "accuracies": pd.Series(
            [run["accuracy"] for run in runs], [config.seed for config in configs], dtype=float
        ),
        **_interval("mean_squared_error", [run["mean_squared_error"] for run in runs]),
        "noise_error": _noise(first, mechanism),
        "share_clipped": sum(run["share_clipped"] for run in runs) / len(runs),
        "bits_per_coordinate": 8.0 * runs[0]["bytes_up"] / (first.counted_rounds * clients * dimension),
        "bits_in_secure_sum": mechanism.sum_bits(_asked(first)) if mechanism.summable else math.nan,
        "dimension": dimension,
        "rounds": first.federation.rounds,
        "num_clients": clients,
        "run_epsilon": first.privacy.epsilon,
        **_privacy(first, mechanism, dimension, runs[0]["totals"]),
        # The model of a single run, which must be the same with and without secure aggregation.
        "model_sha256": runs[0]["model"] if len(runs) == 1 else "",
    }


def finished(config: RunConfig) -> dict[str, Any]:
    """The last round of a run, with its error averaged over the rounds, and what its model was."""
    directory = RunDirectory.of(config)
    if directory.summary() is None:
        raise ResultsError(f"{directory.path} holds no finished run; run the study without --page")
    rounds = pd.read_parquet(directory.path / "rounds.parquet")
    provenance = json.loads((directory.path / "provenance.json").read_text())
    statements = [PrivacyStatement.from_dict(values) for values in provenance.get("statements", [])]
    return {
        "accuracy": rounds["accuracy"].iloc[-1],
        "mean_squared_error": rounds["mean_squared_error"].iloc[1:].mean(),
        "share_clipped": rounds["share_clipped"].iloc[1:].mean(),
        "bytes_up": int(rounds["bytes_up"].iloc[-1]),
        "dimension": provenance["dimension"],
        "model": provenance.get("model_sha256", ""),
        "totals": {
            statement.view.kind: statement for statement in statements if statement.unit is Unit.TOTAL
        },
    }


def run_columns(config: RunConfig) -> dict[str, Any]:
    """What a finished run was, what a client sent in a round, and what the run reached and cost."""
    path = RunDirectory.of(config).path
    rounds = pd.read_parquet(path / "rounds.parquet")
    last = rounds.iloc[-1]
    sent = last["bytes_up"] / (config.federation.rounds * config.federation.num_clients)
    return {
        "task": config.task_name,
        "mechanism": config.label,
        "keep_policy": config.encoding.keep_policy.name,
        "keep": config.encoding.keep or 1.0,
        "seed": config.seed,
        "dimension": json.loads((path / "provenance.json").read_text())["dimension"],
        "kilobytes": sent / 1000.0,
        "accuracy": last["accuracy"],
        "run_epsilon": config.privacy.epsilon,
        "epsilon_reached": last["epsilon_client_total_sum"],
        "wrapped_sums": int(rounds["wrapped_sums"].sum()),
    }


def _guessing(config: RunConfig) -> float:
    task = task_of(config)
    assert isinstance(task, TorchTask)
    return guessing(task.examples.train_y, task.examples.test_y)


def guessing(train_labels: NDArray[Any], test_labels: NDArray[Any]) -> float:
    """The test accuracy of always saying the label that most training examples have.

    >>> guessing(np.array([2, 2, 1]), np.array([1, 2, 0, 0]))
    0.25
    """
    return float(np.mean(test_labels == np.bincount(train_labels.ravel()).argmax()))


def _asked(config: RunConfig) -> int:
    """Clients that are asked in a round: fewer than all, if each takes part in some rounds only."""
    return config.federation.num_clients * config.counted_rounds // config.federation.rounds


def _noise(config: RunConfig, mechanism: Mechanism) -> float:
    """The part of a mean coordinate's error that is noise, without clipping: exact, for uniform inputs.

    NaN if a plan chose the clip, or the mechanism encodes whole updates or has a bias.
    """
    num_asked = _asked(config)
    if config.mechanism["name"] == CENTRAL:
        l2_clip, epsilon, delta = central_target(config)
        return (noise_of_sum(l2_clip, config.counted_rounds, epsilon, delta) / num_asked) ** 2
    clip = config.encoding.clip
    if clip is None or mechanism.unit != Unit.COORDINATE.value or mechanism.max_bias > _NEGLIGIBLE_BIAS:
        return math.nan
    return mechanism.mse() * clip**2 / num_asked


def _interval(name: str, values: list[float]) -> dict[str, float]:
    mean, low, high, _ = student_interval(values)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def _privacy(
    config: RunConfig, mechanism: Mechanism, dimension: int, stated: Mapping[ViewKind, PrivacyStatement]
) -> dict[str, Any]:
    """The figures of one release in the local view, and of a client's total in both views.

    Totals are those that the run stated, if it did; else they are counted for a client of all rounds.
    """
    local = stated.get(ViewKind.LOCAL) or run_statement(config, mechanism, dimension, in_sum=False)
    figures = {
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
        in_sum = next((statement for kind, statement in stated.items() if kind is not ViewKind.LOCAL), None)
        in_sum = in_sum or run_statement(config, mechanism, dimension)
        figures |= {
            "epsilon_total_aggregate": in_sum.epsilon,
            "view": str(in_sum.view),
            "counted_by": in_sum.method,
        }
    return figures


def _planned(config: RunConfig, dimension: int) -> dict[str, Any]:
    """What the plan says: the squared error over the central Gaussian's, and what a client sends."""
    plan = plan_of(config, dimension)
    if plan is None:
        # With a central Gaussian, clients send 32-bit floats.
        return {"ratio_to_central": 1.0, "kept": dimension, "kilobytes": 4 * dimension / 1000.0}
    return {
        "ratio_to_central": plan.ratio_to_central,
        "kept": plan.encoding.kept(dimension),
        "kilobytes": plan.bytes_per_round / 1000.0,
    }


def _by_seed(configs: Sequence[RunConfig], dimension: int) -> pd.DataFrame:
    """The accuracy of every run, and what it loses to the central Gaussian's run of its budget and seed."""
    runs = pd.DataFrame(
        [
            {
                "run_epsilon": config.privacy.epsilon,
                "mechanism": config.label,
                "bits": config.mechanism.get("bits", math.nan),
                "kept": kept_of(config.encoding.keep, dimension),
                "seed": config.seed,
                "accuracy": finished(config)["accuracy"],
            }
            for config in configs
        ]
    )
    pair = ["run_epsilon", "seed"]
    central = runs[runs["mechanism"] == CENTRAL].set_index(pair)["accuracy"]
    return runs.assign(accuracy_lost=central[pd.MultiIndex.from_frame(runs[pair])].array - runs["accuracy"])
