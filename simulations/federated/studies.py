"""The studies, and the runs of which each consists."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from fl_privquant.errors import InvalidSpecError
from simulations.config import RunConfig
from simulations.config_checks import nearest
from simulations.overrides import CONF

__all__ = ["STUDIES", "Study", "study"]

_PREFIX = "federated-"


@dataclass(frozen=True)
class Study:
    """One experiment of ``conf/experiment``, and the question that it answers."""

    name: str
    question: str

    @property
    def experiment(self) -> str:
        """The name of its file in ``conf/experiment``."""
        return f"{_PREFIX}{self.name}"

    @property
    def on_mnist(self) -> bool:
        """Whether it needs MNIST."""
        return "mnist" in self.name

    @property
    def command(self) -> str:
        """What runs it."""
        return f"python -m simulations.federated {self.name}{' --mnist DIRECTORY' if self.on_mnist else ''}"

    def runs(self, overrides: Sequence[str] = ()) -> list[RunConfig]:
        """The config of every run of the sweep, each once, in its order."""
        return list(self._runs(tuple(overrides)))

    # Composing takes a tenth of a second for each run.
    @lru_cache(maxsize=64)  # noqa: B019 - studies are few, and live as long as the process
    def _runs(self, overrides: tuple[str, ...]) -> tuple[RunConfig, ...]:
        found: dict[str, RunConfig] = {}
        for config in self._swept(overrides):
            found.setdefault(config.run_name, config)
        return tuple(found.values())

    def _swept(self, overrides: Sequence[str]) -> Iterator[RunConfig]:
        chosen = [f"experiment={self.experiment}", *overrides]
        fixed = {each.partition("=")[0] for each in overrides}
        with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
            params = compose("config", overrides=chosen, return_hydra_config=True).hydra.sweeper.params
            swept = {str(key): str(text).split(",") for key, text in params.items() if str(key) not in fixed}
            seeds = [int(each) for each in swept.pop("seed", [])]
            for values in itertools.product(*swept.values()):
                picked = [f"{key}={value}" for key, value in zip(swept, values, strict=True)]
                composed: Any = OmegaConf.to_container(
                    compose("config", overrides=[*chosen, *picked]), resolve=True
                )
                config = RunConfig.from_mapping(composed)
                yield from (dataclasses.replace(config, seed=seed) for seed in seeds or [config.seed])


STUDIES = (
    Study("clip-digits", "Which coordinate clip, digits?"),
    Study("clip-mnist", "Which coordinate clip, MNIST?"),
    Study("clip-digits-cnn", "Which coordinate clip, digits with a CNN?"),
    Study("clip-mnist-cnn", "Which coordinate clip, MNIST with a CNN?"),
    Study("norm-digits", "Which L2 clip, digits?"),
    Study("norm-mnist", "Which L2 clip, MNIST?"),
    Study("mechanisms-digits", "Every mechanism for coordinates at the same ε"),
    Study("vectors-digits", "Mechanisms for whole updates"),
    Study("epsilon-mnist", "Accuracy and error against ε"),
    Study("bits-mnist", "What do bits buy?"),
    Study("partition-digits", "Unlike clients, digits"),
    Study("partition-mnist", "Unlike clients, MNIST"),
    Study("cnn-digits", "A CNN, digits"),
    Study("cnn-mnist", "A CNN, MNIST"),
    Study("secagg-mnist", "With and without secure aggregation"),
    Study("equal-budget-digits", "Equal budget for the whole run, digits"),
    Study("equal-budget-mnist", "Equal budget for the whole run, MNIST"),
)


def study(name: str) -> Study:
    """The study of that name.

    >>> study("bits-mnist").experiment
    'federated-bits-mnist'
    """
    known = {each.name: each for each in STUDIES}
    if name not in known:
        raise InvalidSpecError(f"study: {name!r} is not one of {', '.join(known)}{nearest(name, known)}")
    return known[name]
