"""The audit of a simulation: some of its clients or records are canaries, which an attack looks for.

A canary client sends a multiple of its direction in place of what it would train, so long that the clip is
what bounds it. A canary record has that gradient, and a silo draws it as any other
(:mod:`fl_privquant.accounting.canaries`). Each statement of the run is attacked by what its adversary sees:

* sums and models: the inner products of the opened sums with a canary's direction, over the rounds that the
  canary took part in. Noise that the next round takes off is known to have that covariance, so the rounds are
  weighted by its inverse;
* the local view: the codes of a canary, which are drawn once more as in the run, because a simulated secure
  sum does not show them; for records also the sums, which the adversary of that view sees too;
* one coordinate: codes of the mechanism for both ends of the clip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from fl_privquant._array_types import Floats
from fl_privquant.accounting import (
    Canaries,
    PrivacyStatement,
    Relation,
    Unit,
    ViewKind,
    audit_scores,
    bound_of_outputs,
)
from fl_privquant.codec.array_layout import Layout
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import RoundRecord
from fl_privquant.flower.client.record_update import RecordWork
from fl_privquant.privacy_loss.correlated_noise import LagNoise
from fl_privquant.sampling.stream import RandomStream
from simulations.runner.config import RunConfig
from simulations.tasks.task import Arrays, Task

# How many times as long as the clip a canary's update is, before it is clipped.
_TOO_LONG = 2.0
# Where the axis of the picture begins at the latest.
_LEAST_DRAWN = 0.05
# Codes of one coordinate for each end of the clip.
_COORDINATE_DRAWS = 200_000


class CanaryTask:
    """A task some of whose clients are canaries, or all of whose records are.

    Parameters
    ----------
    task
        What all other clients do.
    config
        The run; ``audit.canaries`` of its clients are canaries, or it has so many canary records.
    """

    def __init__(self, task: Task, config: RunConfig) -> None:
        self._task = task
        self._layout: Layout = config.encoding.arrays.layout(task.initial_arrays())
        of_records = config.privacy.unit == "record"
        relation = Relation.ADD_REMOVE if of_records else config.privacy.wanted_relation
        self.canaries = Canaries(config.audit.canaries, self._layout.dimension, relation, config.seed)
        self._silos = config.federation.num_clients
        # Without an L2 clip each coordinate is clipped, so that all of them should be too long.
        no_clip = 1e3 * self._layout.dimension * (config.encoding.clip or 1.0)
        self.norm = no_clip if config.l2_clip is None else _TOO_LONG * config.l2_clip

    def __getattr__(self, name: str) -> Any:
        if name == "train_batch":
            raise AttributeError("canaries and other clients are not trained together")
        return getattr(self._task, name)

    def train(self, arrays: Arrays, client: int, server_round: int) -> Arrays:
        """The model that a canary sends, or the one that another client trains."""
        if client >= self.canaries.count:
            return self._task.train(arrays, client, server_round)
        return self.moved(arrays, client)

    def moved(self, arrays: Arrays, canary: int) -> Arrays:
        """The model that a canary sends."""
        parts = self._split(self.canaries.update(canary, self.norm))
        return {
            name: (np.asarray(array) + parts[name]).astype(array.dtype) if name in parts else array
            for name, array in arrays.items()
        }

    def train_on_records(self, message: Message, client: int, rng: RandomStream | None) -> ArrayRecord:
        """The update of a silo whose records are canaries: of those that coins left in, some are drawn."""
        work, canaries = RecordWork(message), self.canaries
        own = np.arange(client, canaries.count, self._silos)
        own = own[canaries.coins[own]]
        drawn = own[work.draw(own.size, RandomStream.secure() if rng is None else rng)]
        # A step goes against the gradient.
        gradients = -_TOO_LONG * work.sampling.clip * canaries.directions[drawn]
        factors = work.clip_factors(np.linalg.norm(gradients, axis=1))
        return work.make_update(self._split(factors @ gradients))

    def _split(self, vector: Floats) -> dict[str, Floats]:
        """A vector as the arrays of the model."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self._layout.shapes])[:-1]
        parts = zip(self._layout.names, np.split(vector, ends), self._layout.shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in parts}


class CanaryScores:
    """What the adversaries of a run learn of its canaries, round by round."""

    def __init__(self, task: CanaryTask, config: RunConfig) -> None:
        self._task, self._config = task, config
        # For each round: its record, who took part, and the scores by its sum and by codes; None if unknown.
        self.opened: list[list[float] | None] = []
        self.local: list[list[float]] = []
        self.present: list[list[int]] = []
        self._last: RoundRecord | None = None

    def add(
        self, record: RoundRecord, decoded: Arrays | None, before: Arrays, clients: Sequence[int]
    ) -> None:
        """Add a round: the mean model that was decoded from a sum, the model before, and who took part."""
        canaries, layout = self._task.canaries, record.codec.layout
        self._last = record
        of_records = self._config.privacy.unit == "record"
        self.present.append([] if of_records else [client for client in clients if client < canaries.count])
        if decoded is None:
            self.opened.append(None)
        else:
            step = _flatten(layout, decoded) - _flatten(layout, before)
            self.opened.append((record.survivors * (canaries.directions @ step)).tolist())
        self.local.append(self._draw_codes(record, before))

    def _draw_codes(self, record: RoundRecord, before: Arrays) -> list[float]:
        """The scores of the canaries that took part, by their own codes."""
        scores, codec = np.zeros(self._task.canaries.count), record.codec
        for canary in self.present[-1]:
            rng = RandomStream.seeded(self._config.seed, round=record.round, client=canary, purpose="audit")
            encoded = codec.encode_difference(self._task.moved(before, canary), before, rng)
            arrays = codec.decode(encoded.pack())
            scores[canary] = self._task.canaries.directions[canary] @ _flatten(codec.layout, arrays)
        return scores.tolist()

    def checkpoint_state(self) -> dict[str, Any]:
        """The rounds so far."""
        return {"opened": self.opened, "local": self.local, "present": self.present}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`checkpoint_state` gave."""
        self.opened, self.local, self.present = state["opened"], state["local"], state["present"]

    def report(self, statements: Sequence[PrivacyStatement]) -> list[dict[str, Any]]:
        """For each statement of a finite ε, what the attack found; or why there is none."""
        return [self._attack(stated) for stated in statements if np.isfinite(stated.epsilon)]

    def _attack(self, stated: PrivacyStatement) -> dict[str, Any]:
        result: dict[str, Any] = {"stated": stated.to_dict()}
        reason = self._cannot_attack(stated)
        if reason:
            return result | {"text": f"no attack on {stated.brief}: {reason}"}
        if stated.unit is Unit.COORDINATE:
            assert self._last is not None
            mechanism = self._last.encoding.mechanism
            rng = RandomStream.seeded(self._config.seed, purpose="audit")
            low, high = (mechanism.encode(np.full(_COORDINATE_DRAWS, end), rng=rng) for end in (-1.0, 1.0))
            bound: Any = bound_of_outputs(low, high, stated)
            result |= {"estimate": bound.lower, "upper": None, "canaries": 2 * _COORDINATE_DRAWS}
            result["method"] = "codes of one coordinate"
        else:
            chosen, scores = self._scores(stated)
            coins, num_terms = self._task.canaries.coins[chosen], self._num_terms(stated)
            bound = audit_scores(scores, coins, stated, num_terms=num_terms)
            upper = bound.upper if np.isfinite(bound.upper) else None
            result |= {"estimate": bound.estimate, "upper": upper, "canaries": bound.num_canaries}
            result["method"] = bound.method
        same = {key: getattr(bound, key) for key in ("lower", "confidence", "refuted")}
        return result | same | {"text": str(bound)}

    def _cannot_attack(self, stated: PrivacyStatement) -> str:
        """Why a statement is not attacked; empty if it is."""
        coin, kind = self._task.canaries.relation, stated.view.kind
        of_records = self._config.privacy.unit == "record"
        if stated.unit is Unit.COORDINATE:
            per_coordinate = (
                self._last is not None and self._last.encoding.mechanism.unit == stated.unit.value
            )
            return "" if per_coordinate else "the mechanism encodes whole updates"
        if (stated.unit is Unit.RECORD) != of_records:
            return "the canaries are " + ("records" if of_records else "clients")
        if stated.relation not in (coin, Relation.REPLACE_ONE):
            return f"the coins are for {coin.value}"
        if kind is ViewKind.CENTRAL:
            return "the noise of a trusted server is not attacked"
        if (of_records or kind is not ViewKind.LOCAL) and None in self.opened:
            return "no sums were opened"
        chosen, _ = self._scores(stated)
        return "" if chosen.size >= 20 else f"only {chosen.size} canaries were asked as often as any client"

    def _scores(self, stated: PrivacyStatement) -> tuple[Any, Floats]:
        """The canaries that took part most often, and their scores."""
        part = self._participation(stated)
        local = stated.view.kind is ViewKind.LOCAL and self._config.privacy.unit == "client"
        seen = np.array(self.local if local else self.opened, dtype=np.float64)
        weights = part if local else np.linalg.solve(self._covariance(len(part)), part)
        chosen = np.flatnonzero(part.sum(axis=0) == part.sum(axis=0).max())
        size = np.sqrt(np.maximum((weights * part).sum(axis=0), 1e-300))
        return chosen, ((weights * seen).sum(axis=0) / size)[chosen]

    def _participation(self, stated: PrivacyStatement) -> Floats:
        """(rounds, canaries) 1 where a canary can have taken part in a round that the statement is about."""
        part = np.zeros((len(self.present), self._task.canaries.count))
        for at, present in enumerate(self.present):
            part[at, present] = 1.0
        if self._config.privacy.unit == "record" or stated.view.kind is ViewKind.MODELS:
            part[:] = 1.0
        if stated.unit is Unit.ROUND:
            part[:-1] = 0.0
        return part

    def _num_terms(self, stated: PrivacyStatement) -> int:
        """How many independent random numbers a score adds up."""
        assert self._last is not None
        encoding, rounds = self._last.encoding, int(self._participation(stated).sum(axis=0).max())
        per_coordinate = encoding.mechanism.unit is Unit.COORDINATE
        coordinates = encoding.count_kept(self._task.canaries.dimension) if per_coordinate else 1
        return rounds * coordinates * (stated.view.min_honest or 1)

    def _covariance(self, rounds: int) -> Floats:
        """The covariance of the noise of all sums, up to a factor."""
        handed = None if self._last is None else self._last.encoding.mechanism.handed
        return (
            np.eye(rounds)
            if handed is None
            else LagNoise(handed.correlation, handed.private).covariance(rounds)
        )


def _flatten(layout: Layout, arrays: Arrays) -> Floats:
    return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in layout.names])


def check_audit(config: RunConfig) -> None:
    """Raise InvalidSpecError if there are more canaries than clients."""
    if config.privacy.unit == "client" and config.audit.canaries > config.federation.num_clients:
        problem = f"of {config.federation.num_clients} clients cannot be canaries"
        raise InvalidSpecError("audit.canaries", config.audit.canaries, problem, "ask fewer canaries")


def plot_audit(
    report: Sequence[Mapping[str, Any]], target: float | None, relation: Relation, path: Path
) -> None:
    """Draw what was stated, attacked and, with a target, aimed at: a line for each statement."""
    from matplotlib.figure import Figure

    attacked = [bound for bound in report if "lower" in bound][::-1]
    figure = Figure(figsize=(7.0, 1.5 + 0.4 * len(attacked)), layout="constrained")
    axes = figure.add_subplot()
    names = [f"{bound['stated']['unit']}, {bound['stated']['view']}" for bound in attacked]
    names = [f"{name}, {bound['stated']['relation']}" for name, bound in zip(names, attacked, strict=True)]
    places = list(range(len(attacked)))
    # The axis is logarithmic: a bound of 0 ends at its left.
    lows = [max(bound["lower"], _LEAST_DRAWN) for bound in attacked]
    highs = [max(bound["upper"] or 0.0, low) for bound, low in zip(attacked, lows, strict=True)]
    interval = "attacked: interval of two bounds at 95 %"
    axes.hlines(places, lows, highs, linewidth=6, color="tab:blue", label=interval)
    estimates = [max(bound["estimate"], low) for bound, low in zip(attacked, lows, strict=True)]
    axes.plot(estimates, places, "o", color="black", markersize=4, label="attacked: most likely ε")
    stated = [bound["stated"]["epsilon"] for bound in attacked]
    axes.plot(stated, places, "|", color="tab:red", markersize=11, markeredgewidth=3, label="stated: no more")
    if target is not None:
        axes.axvline(target, linestyle=":", color="tab:green", label=f"target, {relation}")
    axes.set_yticks(places, names, fontsize="small")
    axes.set(xscale="log", ylim=(-0.7, len(names) - 0.3), xlabel="ε, in the relation of each line")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=150)
