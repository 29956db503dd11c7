"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from simulations.studies.payload.accuracy import ADAPTIVE, FLOWER, SHARE, lost_to_all
from simulations.studies.payload.sizes import ERRORS, NEEDED, PAYLOADS
from simulations.studies.study import ReadTable

__all__ = ["Adapted", "Numbers", "Paired"]


@dataclass(frozen=True)
class Paired:
    """Accuracy of runs that send a share of the coordinates, beside that of runs that send all."""

    seeds: int
    kept: float
    every: float
    kilobytes: float
    every_kilobytes: float
    bits: float
    lost: float
    error: float

    @property
    def within(self) -> bool:
        """Whether no more is lost than one standard error."""
        return self.lost <= self.error


@dataclass(frozen=True)
class Adapted:
    """Runs whose share follows the mean update, beside runs that send a constant share, with equal seeds."""

    keep: float
    seeds: int
    constant: float
    adaptive: float
    constant_kilobytes: float
    kilobytes: float
    lost: float
    error: float

    @property
    def sent(self) -> float:
        """What adaptive runs send, as a share of what constant ones do."""
        return self.kilobytes / self.constant_kilobytes

    @property
    def verdict(self) -> str:
        """Whether accuracy is lost, as far as the seeds tell."""
        if abs(self.lost) <= 2.0 * self.error:
            return "no difference is seen beyond two standard errors"
        return "accuracy is lost" if self.lost > 0.0 else "accuracy is gained"


class Numbers:
    """The values that the page's template uses; each is computed when it is read."""

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    @cached_property
    def payloads(self) -> list[Any]:
        """The fewest kilobytes at an error of 1.1, for each setting."""
        return list(self._read(PAYLOADS).itertuples())

    @cached_property
    def needed(self) -> list[Any]:
        """The fewest kilobytes of each mechanism at an error of 1.1."""
        return list(self._read(NEEDED).itertuples())

    @property
    def dimensions(self) -> list[int]:
        """Numbers of coordinates of these."""
        return sorted({line.dimension for line in self.needed})

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Predicted and measured errors."""
        return self._read(ERRORS)

    @property
    def errors(self) -> list[Any]:
        """The same table, row by row."""
        return list(self.cells.itertuples())

    @property
    def largest_difference(self) -> float:
        """The largest share by which a measured error differs from the predicted one."""
        return float((self.cells["measured"] / self.cells["predicted"] - 1.0).abs().max())

    @property
    def num_wrapped(self) -> int:
        """Sums that wrapped."""
        return int(self.cells["wrapped_sums"].sum())

    def trained(self, task: str) -> list[Any]:
        """Accuracies on a task, by mechanism and size."""
        return list(self._read(f"payload-{task}").itertuples())

    @cached_property
    def paired(self) -> Paired:
        """The share whose accuracy is compared with that of all coordinates, through Flower."""
        table = self._read(FLOWER)
        some, every = table[table["keep"] == SHARE], table[table["keep"] == 1.0]
        lost, error = lost_to_all(
            *(dict(zip(rows["seed"], rows["accuracy"], strict=True)) for rows in (some, every))
        )
        sent = float(some["kilobytes"].iloc[0])
        return Paired(
            seeds=len(some),
            kept=float(some["accuracy"].mean()),
            every=float(every["accuracy"].mean()),
            kilobytes=sent,
            every_kilobytes=float(every["kilobytes"].iloc[0]),
            bits=8000.0 * sent / int(some["dimension"].iloc[0]),
            lost=lost,
            error=error,
        )

    def adapted(self, task: str) -> list[Adapted]:
        """Constant and adaptive shares on a task, the larger share first."""
        table = self._read(f"{ADAPTIVE}-{task}")
        lines = []
        for keep, rows in sorted(table.groupby("keep"), reverse=True):
            constant, adaptive = (
                rows[rows["keep_policy"] == name].set_index("seed") for name in ("constant", "adaptive")
            )
            lost, error = lost_to_all(
                *(
                    {int(seed): value for seed, value in runs["accuracy"].items()}
                    for runs in (adaptive, constant)
                )
            )
            lines.append(
                Adapted(
                    keep=float(keep),
                    seeds=len(adaptive),
                    constant=float(constant["accuracy"].mean()),
                    adaptive=float(adaptive["accuracy"].mean()),
                    constant_kilobytes=float(constant["kilobytes"].mean()),
                    kilobytes=float(adaptive["kilobytes"].mean()),
                    lost=lost,
                    error=error,
                )
            )
        return lines
