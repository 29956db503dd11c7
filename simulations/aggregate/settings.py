"""What the study looks at: the values of conf/aggregate.yaml, checked."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from omegaconf import OmegaConf

__all__ = ["PEERS", "TRAINING_BITS", "Settings", "Training"]

PEERS = ("optm_aggregate", "pbm", "discrete_gaussian", "skellam")
"""The mechanisms that are compared, ours first."""

TRAINING_BITS = 2
"""Bits of a coordinate in training; for additive mechanisms the lattice has as many points."""

# Settings of the runs, which the table of errors does not depend on.
_RUNS = ("seeds", "training")
_PATH = Path(__file__).parents[2] / "conf" / "aggregate.yaml"


@dataclass(frozen=True)
class Training:
    """One task: its data, how many clients, the budgets, and how it is trained."""

    task: str = "digits"
    clients: int = 100
    epsilons: tuple[float, ...] = (8.0,)
    l2_clip: float = 1.0
    learning_rate: float = 1.0


@dataclass(frozen=True)
class Settings:
    """The whole study; see conf/aggregate.yaml."""

    delta: float
    rounds: int
    dimension: int
    clients: tuple[int, ...]
    epsilons: tuple[float, ...]
    bits: tuple[int, ...]
    seeds: tuple[int, ...]
    training: tuple[Training, ...]

    @property
    def errors_key(self) -> str:
        """A hash of all settings that the table of errors depends on."""
        return _key({each.name: getattr(self, each.name) for each in fields(self) if each.name not in _RUNS})

    def run_key(self, task: Training, epsilon: float, name: str, seed: int) -> str:
        """A hash of all settings that one run depends on: a row of the table with another one is stale."""
        trained = {key: value for key, value in asdict(task).items() if key != "epsilons"}
        common = {"delta": self.delta, "rounds": self.rounds, "bits": TRAINING_BITS}
        return _key({**common, **trained, "run_epsilon": epsilon, "mechanism": name, "seed": seed})

    @classmethod
    def load(cls, path: Path = _PATH) -> Settings:
        """The settings in a file."""
        values = OmegaConf.to_container(OmegaConf.load(path))
        tasks = tuple(
            Training(**{**each, "epsilons": tuple(map(float, each["epsilons"]))})
            for each in values.pop("training")
        )
        lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists}, training=tasks)


def _key(settings: dict[str, object]) -> str:
    def plain(value: object) -> object:
        # 8 and 8.0 are the same setting.
        return float(value) if isinstance(value, int) else value

    text = json.dumps(
        {
            key: [plain(each) for each in value] if isinstance(value, tuple) else plain(value)
            for key, value in settings.items()
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]
