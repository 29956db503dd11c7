"""The audit of a simulation: some of its clients are canaries, which an attack on the opened sums looks for.

A canary sends a multiple of its direction in place of what it would train, so long that the L2 clip is what
bounds it (:mod:`fl_privquant.accounting.canaries`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl_privquant.accounting import Canaries, PrivacyStatement, Unit, ViewKind, audit_scores
from fl_privquant.codec.array_layout import Layout
from fl_privquant.errors import InvalidSpecError
from simulations.runner.config import RunConfig
from simulations.tasks.task import Arrays, Task

# How many times as long as the L2 clip a canary's update is, before it is clipped.
_TOO_LONG = 2.0


class CanaryTask:
    """A task some of whose clients are canaries.

    Parameters
    ----------
    task
        What all other clients do.
    config
        The run; ``audit.canaries`` of its clients are canaries.
    """

    def __init__(self, task: Task, config: RunConfig) -> None:
        self._task = task
        self._layout: Layout = config.encoding.arrays.layout(task.initial_arrays())
        self.canaries = Canaries(config.audit.canaries, self._layout.dimension, seed=config.seed)
        self._norm = _TOO_LONG * (config.l2_clip or 1.0)

    def __getattr__(self, name: str) -> Any:
        if name == "train_batch":
            raise AttributeError("canaries and other clients are not trained together")
        return getattr(self._task, name)

    def train(self, arrays: Arrays, client: int, server_round: int) -> Arrays:
        """The model that a canary sends, or the one that another client trains."""
        if client >= self.canaries.count:
            return self._task.train(arrays, client, server_round)
        moved, start = dict(arrays), 0
        update = self.canaries.update(client, self._norm)
        for name in self._layout.names:
            array = np.asarray(arrays[name])
            part = update[start : start + array.size].reshape(array.shape)
            moved[name] = (array + part).astype(array.dtype)
            start += array.size
        return moved


class CanaryScores:
    """The scores of a run's canaries, from what the server opened in each round."""

    def __init__(self, canaries: Canaries) -> None:
        self.canaries = canaries
        self.total = np.zeros(canaries.dimension)

    def add(self, layout: Layout, decoded: Arrays, before: Arrays, num_clients: int) -> None:
        """Add the sum of a round: the decoded mean model, less the model before, times the clients."""
        step = [np.asarray(decoded[name], np.float64) - before[name] for name in layout.names]
        self.total += num_clients * np.concatenate([part.ravel() for part in step])

    def report(self, statements: Sequence[PrivacyStatement]) -> Mapping[str, Any] | None:
        """What the attack found, beside the statement for sums; None where a run has no such statement."""
        stated = [
            statement
            for statement in statements
            if statement.unit is Unit.TOTAL and statement.view.kind is ViewKind.AGGREGATE
        ]
        if not stated:
            return None
        bound = audit_scores(self.canaries.score([self.total]), self.canaries.coins, stated[-1])
        return {
            "text": str(bound),
            "lower": bound.lower,
            "estimate": bound.estimate,
            "upper": bound.upper,
            "confidence": bound.confidence,
            "canaries": bound.num_canaries,
            "method": bound.method,
            "stated": bound.stated.to_dict(),
            "refuted": bound.refuted,
        }


def check_audit(config: RunConfig) -> None:
    """Raise InvalidSpecError unless the run can be audited."""
    if config.audit.canaries > config.federation.num_clients:
        problem = f"of {config.federation.num_clients} clients cannot be canaries"
        raise InvalidSpecError("audit.canaries", config.audit.canaries, problem, "ask fewer canaries")
    if not config.secagg.enabled or (config.l2_clip is None and config.privacy.epsilon is None):
        raise InvalidSpecError(
            "audit.canaries",
            config.audit.canaries,
            "are looked for in sums of updates of bounded L2 norm",
            "use secagg=on, with encoding.l2_clip or privacy.epsilon",
        )


def plot_audit(report: Mapping[str, Any], target: float | None, path: Path) -> None:
    """Draw what was stated, attacked and, with a target, aimed at."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 1.8), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([report["lower"], report["upper"]], [1, 1], linewidth=6, label="attacked: bounds at 95 % each")
    axes.plot([report["estimate"]], [1], "o", color="black")
    axes.axvline(report["stated"]["epsilon"], label="stated: no more than this")
    if target is not None:
        axes.axvline(target, linestyle=":", label="target")
    axes.set(yticks=[], ylim=(0, 3.2), xlim=(0, None))
    axes.set_xlabel(
        f"ε, {report['stated']['unit']}, {report['stated']['view']}, {report['stated']['relation']}"
    )
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path)
