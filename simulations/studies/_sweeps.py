"""The federated runs of a study: an experiment of ``conf/experiment``, with overrides."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from hydra_plugins.fl_privquant_sweeper import swept_values
from simulations.run import execute
from simulations.runner.config import CONF, RunConfig
from simulations.runner.results import RunDirectory
from simulations.studies._pages import CACHE


@dataclass(frozen=True)
class Sweep:
    """The runs of an experiment.

    Parameters
    ----------
    name
        The part of the study, its table, and the folder of its runs.
    experiment
        A file of ``conf/experiment``.
    overrides
        Overrides of Hydra, sweeps such as ``encoding.clip=0.1,0.2`` included.
    variants
        Further runs of the same table, each with more overrides after these.
    needs
        The task whose files it needs, if any.
    """

    name: str
    experiment: str
    overrides: tuple[str, ...] = ()
    variants: tuple[tuple[str, ...], ...] = ()
    needs: str = ""


def execute_runs(configs: Sequence[RunConfig]) -> None:
    """Run what is missing, seed by seed: an interrupted sweep has all mechanisms on the first seeds."""
    for place, config in enumerate(sorted(configs, key=lambda config: config.seed), start=1):
        print(f"{place}/{len(configs)} {config.run_name}", file=sys.stderr)
        execute(config)


def sweep_runs(sweep: Sweep, *more: str) -> list[RunConfig]:
    """The config of every run with more overrides, each once, in the order of the sweep."""
    runs: dict[str, RunConfig] = {}
    # Beside the rows that are kept, so that --fresh forgets both.
    place = (f"study={sweep.name}", f"output={CACHE.as_posix()}")
    for variant in ((), *sweep.variants):
        for config in _expand(sweep.experiment, (*place, *sweep.overrides, *variant, *more)):
            # Overrides that a mechanism ignores do not add runs.
            runs.setdefault(config.run_name, config)
    return list(runs.values())


@lru_cache(maxsize=128)
def _expand(experiment: str, overrides: tuple[str, ...]) -> list[RunConfig]:
    """The configs of all combinations of values, those of the experiment's own sweep included."""
    swept = swept_values(overrides, experiment_params(experiment))
    seeds = [int(seed) for seed in swept.pop("seed", [])]
    configs = []
    for values in itertools.product(*swept.values()):
        settings = _compose(experiment, dict(zip(swept, values, strict=True)))
        config = RunConfig.from_mapping(OmegaConf.to_container(settings, resolve=True))  # type: ignore[arg-type]
        configs += [dataclasses.replace(config, seed=seed) for seed in seeds or [config.seed]]
    return configs


def experiment_params(experiment: str) -> dict[str, str]:
    """The keys that an experiment sweeps, with their values as they are written for Hydra's sweeper."""
    params = _compose_files(f"experiment={experiment}").hydra.sweeper.params or {}
    return {str(key): str(values) for key, values in params.items()}


def _compose(experiment: str, values: Mapping[str, str]) -> DictConfig:
    """The settings of one run: as in Hydra, first the files that were chosen, then single keys."""
    is_file = {key: (CONF / key).is_dir() for key in values}
    files = [f"{key}={value}" for key, value in values.items() if is_file[key]]
    settings = copy.deepcopy(_compose_files(f"experiment={experiment}", *files))
    with open_dict(settings):
        del settings["hydra"]
    keys = [f"{key}={value}" for key, value in values.items() if not is_file[key]]
    for override in OverridesParser.create().parse_overrides(keys):
        OmegaConf.update(settings, override.key_or_group, override.value())
    return settings


# Composing takes a tenth of a second, and most runs of a sweep differ in keys alone, not in files.
@lru_cache(maxsize=128)
def _compose_files(*files: str) -> DictConfig:
    with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        return compose("config", overrides=list(files), return_hydra_config=True)


def run_columns(config: RunConfig) -> dict[str, Any]:
    """What a finished run was, what a client sent in a round, and what the run reached and cost."""
    path = RunDirectory.of(config).path
    rounds = pd.read_parquet(path / "rounds.parquet")
    last = rounds.iloc[-1]
    sent = last["bytes_up"] / (config.federation.rounds * config.federation.num_clients)
    return {
        "task": config.task_name,
        "mechanism": config.label,
        "seed": config.seed,
        "dimension": json.loads((path / "provenance.json").read_text())["dimension"],
        "kilobytes": sent / 1000.0,
        "accuracy": last["accuracy"],
        "run_epsilon": config.privacy.epsilon,
        "epsilon_reached": last[f"epsilon_{config.privacy.unit}_total_sum"],
        "overflowed_sums": int(rounds["overflowed_sums"].sum()),
    }
