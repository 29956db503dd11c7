"""Clip and mechanism that change from round to round, each by a policy of the server.

Laws are scale-free and travel with every request, so a round may have its own clip and its own number of
levels. A policy is given to :class:`~fl_privquant.flower.PrivQuantStrategy` in place of a constant:

* ``clip=QuantileClip(0.1)`` follows a quantile of the clients' coordinates, found privately;
* ``mechanism=ScheduledMechanism({1: coarse, 20: fine})`` changes at given rounds;
* ``mechanism=DoublingMechanism(design, levels=4, most_levels=16)`` doubles the levels when the loss stalls.

What policies know is what a checkpoint keeps, so that a run that is resumed goes on as if it had not stopped.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from fl_privquant.codec.clip import checked_clip
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism

__all__ = ["DoublingMechanism", "Policy", "QuantileClip", "ScheduledMechanism"]

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Policy(ABC):
    """What is used in each round; :meth:`checkpoint_state` is all that it has learnt."""

    @abstractmethod
    def __call__(self, server_round: int) -> Any:
        """What is used in the round."""

    def checkpoint_state(self) -> dict[str, Any]:
        """What a checkpoint keeps: nothing, unless the policy learns."""
        return {}

    def restore_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027, most have nothing to restore
        """Go on from what :meth:`checkpoint_state` gave."""


class QuantileClip(Policy):
    """A clip that follows the median client's quantile of coordinates, from one private vote a client.

    With its update, each client of a round votes whether the clip holds ``coordinate_quantile`` of its
    coordinates. The share b of votes for the clip moves it: clip *= exp(-rate (b - client_quantile)). It
    settles where a share ``client_quantile`` of clients finds it wide enough, whatever their scale.

    Votes are about clients, as in the reference, and not about the share of coordinates itself: near a high
    quantile that share hardly changes with the clip, and its noise would hide the change.

    Guarantee: the vote is one more coordinate of the update, encoded by the same certified mechanism, and is
    counted as such by both ledgers; with secure aggregation the server sees the sum of votes only. The clip
    of later rounds follows from these votes alone, so it is public.
    Assumes: a mechanism for single coordinates. The share is unbiased if the mechanism is; the bias of one
    that is not moves it towards one half.
    Reference: Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive
    Clipping", NeurIPS 2021 (section 2): there for norms, and with votes protected by their own noise.

    Parameters
    ----------
    initial
        The clip of the first round.
    coordinate_quantile
        The share of a client's coordinates that the clip is to hold.
    client_quantile
        The share of clients for which it is to do so.
    rate
        How fast the clip moves: by at most this, in logarithm, but for the noise of the votes.
    least, most
        Bounds of the clip.

    Examples
    --------
    >>> clip = QuantileClip(1.0, rate=0.5)
    >>> clip.observe(1.0)  # wide enough for everybody
    >>> round(clip(2), 4)
    0.7788
    """

    def __init__(
        self,
        initial: float,
        *,
        coordinate_quantile: float = 0.99,
        client_quantile: float = 0.5,
        rate: float = 0.2,
        least: float = 1e-6,
        most: float = 1e6,
    ) -> None:
        for name, share in (
            ("coordinate_quantile", coordinate_quantile),
            ("client_quantile", client_quantile),
        ):
            if not 0.0 < share < 1.0:
                raise InvalidSpecError(f"{name}: {share} is outside (0, 1)")
        if not (math.isfinite(rate) and rate > 0.0):
            raise InvalidSpecError(f"rate: {rate} is not a finite number above 0; 0.2 is typical")
        self.least, self.most = checked_clip("least", least), checked_clip("most", most)
        if not self.least <= checked_clip("initial", initial) <= self.most:
            raise InvalidSpecError(f"initial: {initial} is outside least {least:g} and most {most:g}")
        self.clip = float(initial)
        self.coordinate_quantile = coordinate_quantile
        self.client_quantile = client_quantile
        self.rate = rate

    def __call__(self, server_round: int) -> float:
        """The clip as it is now: that of the round that comes next."""
        return self.clip

    def observe(self, share: float) -> None:
        """Move the clip by the share of clients that voted for it; noise may carry it beyond 0 and 1."""
        step = -self.rate * (share - self.client_quantile)
        # In logarithms: a step of any size stays a number.
        moved = math.log(self.clip) + step
        self.clip = math.exp(min(max(moved, math.log(self.least)), math.log(self.most)))

    def checkpoint_state(self) -> dict[str, Any]:
        return {"clip": self.clip}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        self.clip = checked_clip("clip", state["clip"])


class ScheduledMechanism(Policy):
    """A mechanism that changes at given rounds.

    Parameters
    ----------
    mechanisms
        The mechanism of each round at which it changes, and of those after it; round 1 must be there.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> coarse, fine = (pq.design("grr", epsilon=3.0, levels=levels) for levels in (2, 4))
    >>> schedule = ScheduledMechanism({1: coarse, 10: fine})
    >>> [schedule(server_round).num_levels for server_round in (1, 9, 10, 99)]
    [2, 2, 4, 4]
    """

    def __init__(self, mechanisms: Mapping[int, Mechanism]) -> None:
        if 1 not in mechanisms or min(mechanisms) < 1:
            raise InvalidSpecError(f"schedule: rounds {sorted(mechanisms)} do not begin with round 1")
        self.mechanisms = dict(sorted(mechanisms.items()))

    def __call__(self, server_round: int) -> Mechanism:
        """The mechanism of the last change up to the round."""
        rounds = list(self.mechanisms)
        return self.mechanisms[rounds[max(bisect_right(rounds, server_round), 1) - 1]]


class DoublingMechanism(Policy):
    """A mechanism whose number of levels doubles when the loss stalls.

    Early on few levels are enough; near the end the error of quantization is what keeps the loss up. After
    each round a running mean of the loss is updated, mean = smoothing * mean + (1 - smoothing) * loss. Where
    it is no lower than ``window`` observations ago, with no change of levels since, they double.

    The loss is the server's: that of a central evaluation (:meth:`watching`), or the aggregated metric of
    federated evaluation, which PrivQuantStrategy hands over. Both are public already; nothing is asked of
    clients, and no metric of theirs is read.
    Reference: Hönig, Zhao, Mullins, "DAdaQuant: Doubly-adaptive quantization for communication-efficient
    Federated Learning", ICML 2022 (section 3.1).

    Parameters
    ----------
    design
        The mechanism with a number of levels; called once for each.
    levels
        How many to begin with.
    most_levels
        How many there may be at the end.
    window
        Observations (rounds) that the loss may take to fall.
    smoothing
        Weight of the past in the running mean, 0 to below 1.
    metric
        Name of the loss in metrics of evaluations.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> grr = lambda levels: pq.design("grr", epsilon=3.0, levels=levels)
    >>> bits = DoublingMechanism(grr, levels=2, most_levels=8, window=2, smoothing=0.0)
    >>> for server_round, loss in enumerate([1.0, 0.5, 0.25, 0.25, 0.8, 0.8]):
    ...     bits.observe(server_round, loss)
    >>> bits(6).num_levels
    4
    """

    def __init__(
        self,
        design: Callable[[int], Mechanism],
        levels: int,
        most_levels: int,
        *,
        window: int = 3,
        smoothing: float = 0.9,
        metric: str = "loss",
    ) -> None:
        if not 2 <= levels <= most_levels:
            raise InvalidSpecError(f"levels: {levels} is outside 2 and most_levels {most_levels}")
        if window < 1:
            raise InvalidSpecError(f"window: {window} is below 1")
        if not 0.0 <= smoothing < 1.0:
            raise InvalidSpecError(f"smoothing: {smoothing} is outside [0, 1)")
        self.design = design
        self.levels = levels
        self.most_levels = most_levels
        self.window = window
        self.smoothing = smoothing
        self.metric = metric
        self._last_round = -1
        self._means: list[float] = []

    def __call__(self, server_round: int) -> Mechanism:
        """The mechanism as it is now: that of the round that comes next."""
        if self.levels not in self._designed:
            self._designed[self.levels] = self.design(self.levels)
        return self._designed[self.levels]

    def observe(self, server_round: int, loss: float) -> None:
        """Take note of the loss after a round, once; what is not finite says nothing and is passed over."""
        if server_round <= self._last_round or not math.isfinite(loss):
            return
        self._last_round = server_round
        before = self._means[-1] if self._means else loss
        mean = self.smoothing * before + (1.0 - self.smoothing) * loss
        self._means = [*self._means[-self.window :], mean]
        if len(self._means) > self.window and mean >= self._means[0] and 2 * self.levels <= self.most_levels:
            self.levels *= 2
            # The new levels get a whole window to show what they are worth.
            self._means = [mean]

    def watching(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """The same central evaluation, for ``strategy.start``; its loss is observed on the way."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate_fn(server_round, arrays)
            self.observe_metrics(server_round, metrics)
            return metrics

        return evaluate

    def observe_metrics(self, server_round: int, metrics: MetricRecord | None) -> None:
        """Observe the loss among the metrics of an evaluation, if it is there."""
        loss = None if metrics is None else metrics.get(self.metric)
        if isinstance(loss, int | float):
            self.observe(server_round, float(loss))

    def checkpoint_state(self) -> dict[str, Any]:
        return {"levels": self.levels, "last_round": self._last_round, "means": list(self._means)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        self.levels = int(state["levels"])
        self._last_round = int(state["last_round"])
        self._means = [float(each) for each in state["means"]]

    @cached_property
    def _designed(self) -> dict[int, Mechanism]:
        return {}
