"""A sweeper for Hydra: all combinations, as its own has them, in less time.

Hydra composes the settings of every job twice, once to check them. Here jobs that differ in their seed alone
are composed once, and run with that. Launchers for other processes, such as joblib's, compose theirs anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

_Job = tuple[str, ...]

ConfigStore.instance().store(
    group="hydra/sweeper",
    name="seeds",
    node={"_target_": f"{__name__}.SeedSweeper", "params": None},
    provider="fl_privquant",
)


class SeedSweeper(Sweeper):
    """Runs all combinations of values; for jobs that differ in their seed, settings are composed once.

    Parameters
    ----------
    params
        Keys and their values in a sweep, beside those of the command line, which count before them.
    """

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self._params = params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what Hydra gives before a sweep."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        """Run a job for each combination, once all of them are known to be valid."""
        assert self.config is not None
        assert self.hydra_context is not None
        loader = self.hydra_context.config_loader
        swept = swept_values(arguments, self._params)
        pairs = [[f"{key}={value}" for value in values] for key, values in swept.items()]
        jobs: list[_Job] = list(itertools.product(*pairs))
        composed: dict[_Job, DictConfig] = {}
        for job in jobs:
            rest, seed = _split_seed(job)
            if rest not in composed:
                composed[rest] = loader.load_sweep_config(self.config, list(rest))
            _set_seed(composed[rest], seed)
        directory = Path(self.config.hydra.sweep.dir)
        directory.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, directory / "multirun.yaml")
        if "basic" in self.config.hydra.launcher._target_:
            setup_globals()
            returned = [self._run(job, number, composed) for number, job in enumerate(jobs)]
        else:
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=self.hydra_context, task_function=self.task_function, config=self.config
            )
            returned = list(launcher.launch(jobs, initial_job_idx=0))
        for each in returned:
            # Raises the error of a job that failed.
            _ = each.return_value
        return returned

    def _run(self, job: _Job, number: int, composed: Mapping[_Job, DictConfig]) -> JobReturn:
        rest, seed = _split_seed(job)
        config = composed[rest]
        _set_seed(config, seed)
        with read_write(config.hydra), open_dict(config.hydra):
            config.hydra.overrides.task = list(job)
            config.hydra.job.id = config.hydra.job.num = number
        return run_job(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


def swept_values(overrides: Sequence[str], params: Mapping[str, str]) -> dict[str, list[str]]:
    """The values of each key in a sweep, of which all combinations are run; one value for what is not swept.

    Parameters
    ----------
    overrides
        Those of the command line, which count in place of the file's; of two for one key the later counts.
    params
        Those that the file of an experiment has for Hydra's sweeper.
    """
    hydra = GlobalHydra.instance()
    # It knows the choices that a pattern of names stands for.
    parser = OverridesParser.create(hydra.config_loader() if hydra.is_initialized() else None)
    own = [f"{key}={values}" for key, values in params.items()]
    return {
        override.get_key_element(): list(map(str, override.sweep_string_iterator()))
        if override.is_sweep_override()
        else [override.get_value_element_as_str()]
        for override in parser.parse_overrides([*own, *overrides])
    }


def _split_seed(job: _Job) -> tuple[_Job, str | None]:
    """The overrides of a job but that of its seed, and that one."""
    seeds = [override for override in job if override.startswith("seed=")]
    return tuple(override for override in job if override not in seeds), seeds[0] if seeds else None


def _set_seed(config: DictConfig, seed: str | None) -> None:
    if seed is not None:
        config.seed = OverridesParser.create().parse_override(seed).value()
