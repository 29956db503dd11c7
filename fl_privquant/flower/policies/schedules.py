"""Policies: encodings that the server changes from round to round.

Every request to clients carries its whole encoding, so that each round may have its own clip and number of
levels. A policy is a function of a round's number that gives the
:class:`~fl_privquant.codec.encoding.Encoding` of that round. :class:`~fl_privquant.flower.PrivQuantStrategy`
takes it in place of a constant encoding:

* ``QuantileClip(encoding)`` follows a quantile of the clients' coordinates, which is estimated privately;
* ``ScheduledMechanism(encoding, {20: fine})`` changes the mechanism at given rounds;
* ``ScheduledKeep(encoding, {20: 0.5})`` changes how many rotated coordinates are sent at given rounds.

Policies compose: ``QuantileClip(ScheduledMechanism(encoding, {20: fine}))`` does both. A checkpoint keeps
what they have learned, so that a run that is resumed goes on as if it had not stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fl_privquant import _validation
from fl_privquant.codec.encoding import Encoding, check_keep
from fl_privquant.errors import MISSING, InvalidSpecError, one_line
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.planning.target import Plan

# The clip is adapted between the inverse of this power of e and the power, which is 1e6.
_MAX_LOG_CLIP = math.log(1e6)


class Policy:
    """A function that gives the encoding of a round: that of ``base``, which subclasses change.

    A policy hands everything that it observes on to its base, if that is a policy too.

    Parameters
    ----------
    base
        The encoding to begin with; or another policy, or any function of the round that gives an encoding.
    """

    def __init__(self, base: Encoding | Callable[[int], Encoding]) -> None:
        if not isinstance(base, Encoding) and not callable(base):
            raise InvalidSpecError(
                "encoding",
                base,
                ", expected an Encoding, such as Encoding(mechanism, clip=0.1), a plan that "
                "Target.plan made, or a function of the round",
            )
        self.base = base
        self._inner = base if isinstance(base, Policy) else None

    def __call__(self, server_round: int) -> Encoding:
        return self.change_encoding(self.base_encoding(server_round), server_round)

    def base_encoding(self, server_round: int) -> Encoding:
        """The base's encoding of the round."""
        encoding = self.base if isinstance(self.base, Encoding) else self.base(server_round)
        if not isinstance(encoding, Encoding):
            raise InvalidSpecError(
                "encoding", MISSING, f"the function gave {type(encoding).__name__} for round {server_round}"
            )
        return encoding

    def change_encoding(self, encoding: Encoding, server_round: int) -> Encoding:
        """The base's encoding of a round, as this policy changes it."""
        return encoding

    @property
    def adaptive(self) -> bool:
        """Whether encodings may depend on what earlier rounds showed, so that a budget must allow for it.

        True of every policy and function that does not say otherwise. It costs something only if the
        encodings of a run differ in what they release.
        """
        return type(self) is not Policy or not isinstance(self.base, Encoding)

    @property
    def clip_quantile(self) -> float | None:
        """Clients vote on whether the clip holds this share of their coordinates; None: there is no vote."""
        return None if self._inner is None else self._inner.clip_quantile

    @property
    def plan(self) -> Plan | None:
        """The plan that the run keeps to, which brings the aggregation and the budget; None without one."""
        return None if self._inner is None else self._inner.plan

    def observe_votes(self, share: float) -> None:
        """Take note of the share of clients that voted for the clip, which noise may put outside [0, 1]."""
        if self._inner is not None:
            self._inner.observe_votes(share)

    def get_learned_state(self) -> dict[str, Any]:
        """What this policy, without its base, has learned."""
        return {}

    def set_learned_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`get_learned_state` gave."""

    def checkpoint_state(self) -> dict[str, Any]:
        """What a checkpoint keeps: what was learned, and by which policies."""
        below = None if self._inner is None else self._inner.checkpoint_state()
        return {"policy": type(self).__name__, "learned": self.get_learned_state(), "base": below}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`checkpoint_state` gave."""
        if state["policy"] != type(self).__name__ or (state["base"] is None) != (self._inner is None):
            raise InvalidSpecError(
                "encoding",
                MISSING,
                f"the checkpoint is of a {one_line(state['policy'], 40)}, not of this {type(self).__name__}",
                "give the run's own policy, or begin anew",
            )
        self.set_learned_state(state["learned"])
        if self._inner is not None:
            self._inner.restore_state(state["base"])


def as_policy(encoding: Encoding | Callable[[int], Encoding]) -> Policy:
    """The policy that gives the encoding of each round: itself, or one that changes nothing."""
    return encoding if isinstance(encoding, Policy) else Policy(encoding)


@_validation.check_argument_names
class QuantileClip(Policy):
    """A clip that follows what the median client needs, from one private vote per client.

    With its update, each client of a round votes whether the clip is wide enough: with an L2 clip whether it
    holds the norm of the client's update, and without one whether the coordinate clip holds
    ``coordinate_quantile`` of its coordinates. The share b of votes for the clip moves it: clip *=
    exp(-rate (b - client_quantile)). It settles where a share ``client_quantile`` of clients finds it wide
    enough, whatever their scale. An L2 clip and its coordinate clip change together, by powers of two.

    **With a target**, ``PrivQuantStrategy(FedAvg(), QuantileClip(plan))`` keeps to the plan, made again with
    room for the vote. What a round costs depends on the mechanism, the number of coordinates, and the ratio
    of the two clips, and all of these stay the same: every round is the very release that was planned. Begin
    with a small L2 clip: while it is too small, updates are cut, but while it is too large, the model gets
    noise that later rounds cannot take back. A ``rate`` of 1 makes up for a factor of 1000 in 14 rounds.

    As in the reference, a vote is one bit about the client, and not the share of its coordinates that the
    clip holds: near a high quantile that share hardly changes with the clip, and noise would hide the change.

    Guarantee: the vote is one more coordinate of the update, encoded by the same certified mechanism, and is
    counted as such by both ledgers; with secure aggregation the server sees the sum of votes only. The clip
    of later rounds follows from these votes alone, so it is public.
    Assumes: a mechanism for single coordinates. The share is unbiased if the mechanism is; a biased mechanism
    moves it towards one half.
    Reference: Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive
    Clipping", NeurIPS 2021 (section 2). They clip norms, and protect votes by noise of their own.

    Parameters
    ----------
    base
        The encoding, whose clip is that of the first round; or another policy, or a plan.
    coordinate_quantile
        The share of a client's coordinates that should lie within the clip, where there is no L2 clip.
    client_quantile
        The share of clients for which that should be so.
    rate
        How fast the clip moves: the largest change of its logarithm in a round without noise. The coordinate
        clip stays between 1e-6 and 1e6.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> policy = QuantileClip(Encoding(pq.design("one_bit", epsilon=1.0), clip=1.0), rate=0.5)
    >>> policy.observe_votes(1.0)  # wide enough for everybody
    >>> round(policy(2).clip, 4)
    0.7788
    """

    def __init__(
        self,
        base: Encoding | Callable[[int], Encoding] | Plan,
        *,
        coordinate_quantile: float = 0.99,
        client_quantile: float = 0.5,
        rate: float = 0.2,
    ) -> None:
        self._plan = base.with_vote() if isinstance(base, Plan) else None
        super().__init__(self._plan.encoding if self._plan is not None else base)  # type: ignore[arg-type]
        self.rate = _validation.check_positive("rate", rate, "0.2 is typical")
        self.clip = _validation.check_in_interval("clip", self.base_encoding(1).clip, "[1e-6, 1e6]")
        self.coordinate_quantile = _validation.check_in_interval(
            "coordinate_quantile", coordinate_quantile, "(0, 1)"
        )
        self.client_quantile = _validation.check_in_interval("client_quantile", client_quantile, "(0, 1)")

    def change_encoding(self, encoding: Encoding, server_round: int) -> Encoding:
        if encoding.l2_clip is None:
            return replace(encoding, clip=self.clip)
        # Powers of two scale both clips exactly: their ratio, and with it the release, stays the same.
        factor = 2.0 ** round(math.log2(self.clip / encoding.clip))
        return replace(encoding, clip=factor * encoding.clip, l2_clip=factor * encoding.l2_clip)

    @property
    def clip_quantile(self) -> float:
        return self.coordinate_quantile

    @property
    def plan(self) -> Plan | None:
        return super().plan if self._plan is None else self._plan

    @property
    def adaptive(self) -> bool:
        """With an L2 clip only if the base is: both clips change together, so all rounds release the same."""
        return as_policy(self.base).adaptive or self.base_encoding(1).l2_clip is None

    def observe_votes(self, share: float) -> None:
        super().observe_votes(share)
        step = -self.rate * (share - self.client_quantile)
        # In logarithms, so that no step overflows.
        self.clip = math.exp(min(max(math.log(self.clip) + step, -_MAX_LOG_CLIP), _MAX_LOG_CLIP))

    def get_learned_state(self) -> dict[str, Any]:
        return {"clip": self.clip}

    def set_learned_state(self, state: Mapping[str, Any]) -> None:
        self.clip = _validation.check_positive("clip", state["clip"])


class _Schedule(Policy):
    """Changes a field of the encoding at given rounds; each change lasts until the next one."""

    _field: str

    def __init__(self, base: Encoding | Callable[[int], Encoding], changes: Mapping[int, Any]) -> None:
        super().__init__(base)
        if min(changes, default=1) < 1:
            raise InvalidSpecError("schedule", MISSING, f"round {min(changes)} is below 1, the first one")
        self._changes = dict(changes)

    @property
    def adaptive(self) -> bool:
        """Only if the base is: the schedule is known before the first round."""
        return as_policy(self.base).adaptive

    def change_encoding(self, encoding: Encoding, server_round: int) -> Encoding:
        """The encoding with the last change up to the round."""
        past = [start for start in self._changes if start <= server_round]
        return replace(encoding, **{self._field: self._changes[max(past)]}) if past else encoding


@_validation.check_argument_names
class ScheduledMechanism(_Schedule):
    """A mechanism that changes at given rounds.

    Parameters
    ----------
    base
        The encoding, whose mechanism is that of the first rounds; or another policy.
    changes
        The mechanism of each round at which it changes, and of those after it.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> coarse, fine = (pq.design("grr", epsilon=3.0, levels=levels) for levels in (2, 4))
    >>> schedule = ScheduledMechanism(Encoding(coarse, clip=0.1), {10: fine})
    >>> [schedule(server_round).mechanism.num_levels for server_round in (1, 9, 10, 99)]
    [2, 2, 4, 4]
    """

    _field = "mechanism"

    def __init__(self, base: Encoding | Callable[[int], Encoding], changes: Mapping[int, Mechanism]) -> None:
        super().__init__(base, changes)


@_validation.check_argument_names
class ScheduledKeep(_Schedule):
    """A number of rotated coordinates that are sent, which changes at given rounds.

    If k of d coordinates are sent, a client sends k / d of the bytes, and the round costs it less: both
    ledgers count the coordinates that are sent, and their norm. The mean has d / k times the noise, and lacks
    what was not sent (:mod:`fl_privquant.codec._coordinate_subset`). So rounds in which a rough direction is
    enough can be small and cheap, and others exact.

    The mechanism and the coordinate clip stay as they are: the typical size of a coordinate after the
    rotation does not depend on how many are sent. The ledger certifies each number of coordinates by itself.

    Parameters
    ----------
    base
        The encoding, rotated and with an L2 clip, whose ``keep`` is that of the first rounds; or a policy.
    changes
        The ``keep`` of each round at which it changes, and of those after it: a number (an int), a share (a
        float), or None for all.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> encoding = Encoding(pq.design("one_bit", epsilon=1.0), 0.1, l2_clip=1.0, rotate=True, keep=0.5)
    >>> schedule = ScheduledKeep(encoding, {10: 0.1, 20: None})
    >>> [schedule(server_round).count_kept(1000) for server_round in (1, 9, 10, 19, 20)]
    [500, 500, 100, 100, 1000]
    """

    _field = "keep"

    def __init__(
        self, base: Encoding | Callable[[int], Encoding], changes: Mapping[int, int | float | None]
    ) -> None:
        super().__init__(base, changes)
        for start, keep in changes.items():
            if keep is not None:
                check_keep(keep)
            # Refuses a change that the encoding does not allow now, rather than in its round.
            self(start)
