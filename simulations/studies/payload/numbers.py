"""The numbers of the page, from the tables of the study."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simulations.studies.study import ReadTable


@dataclass(frozen=True)
class Paired:
    """Runs that send fewer bytes, compared with runs that send more: two tables by seed, with equal seeds."""

    fewer: pd.DataFrame
    more: pd.DataFrame

    @property
    def losses(self) -> pd.Series:
        """The accuracy that is lost with fewer bytes, by seed."""
        return self.more["accuracy"] - self.fewer["accuracy"]

    @property
    def lost(self) -> float:
        """The mean loss over seeds."""
        return float(self.losses.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean loss."""
        return float(self.losses.sem())

    @property
    def bits(self) -> float:
        """Bits per coordinate of the model that the runs with fewer bytes send."""
        return float((8000.0 * self.fewer["kilobytes"] / self.fewer["dimension"]).mean())

    @property
    def verdict(self) -> str:
        """Whether accuracy is lost, as far as the seeds tell."""
        if abs(self.lost) <= 2.0 * self.error:
            return "no difference is seen beyond two standard errors"
        return "accuracy is lost" if self.lost > 0.0 else "accuracy is gained"


class Numbers:
    """The values that the page's template uses, besides the tables themselves."""

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    @property
    def paired(self) -> Paired:
        """Runs with the least share of the coordinates, compared with runs that send all, through Flower."""
        shares = {
            keep: runs.set_index("seed") for keep, runs in self._read("payload-flower-mnist").groupby("keep")
        }
        return Paired(fewer=shares[min(shares)], more=shares[1.0])

    def adapted(self, task: str) -> dict[float, Paired]:
        """Adaptive shares compared with constant ones on a task, by share of the plan, the largest first."""
        lines = {}
        for keep, runs in sorted(self._read(f"payload-adaptive-{task}").groupby("keep"), reverse=True):
            policies = {policy: own.set_index("seed") for policy, own in runs.groupby("keep_policy")}
            lines[keep] = Paired(fewer=policies["adaptive"], more=policies["constant"])
        return lines
