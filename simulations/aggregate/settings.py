"""What the study looks at: the values of conf/aggregate.yaml, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

__all__ = ["PEERS", "Settings", "Training"]

PEERS = ("optm_aggregate", "pbm", "discrete_gaussian", "skellam")
"""The mechanisms that are compared, ours first."""

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
