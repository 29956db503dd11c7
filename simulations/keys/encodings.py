"""How the updates of a run are encoded: the keys of ``conf/encoding``, and the encoding of each round.

A new rule for clips or bits is a class of :mod:`fl_privquant.flower.policies`, its keys and name here, and a
YAML file in ``conf/encoding``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from fl_privquant import checks
from fl_privquant.codec.array_choice import ArrayChoice
from fl_privquant.encoding import Encoding, checked_keep
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism
from simulations.keys.config_checks import Keys, at_least

if TYPE_CHECKING:
    # Importing Flower takes a second, which reading a configuration need not.
    from fl_privquant.accounting import Plan
    from fl_privquant.flower.policies import Policy

_Encoded = TypeVar("_Encoded", "Encoding | Policy", "Plan | Policy")

# Former groups of keys, and where their keys are now.
_RENAMED = {
    "codec": "encoding",
    "clip_policy": "encoding.clip_policy",
    "bits_policy": "encoding.bits_policy",
}
# Former names of files, and their names now.
_RENAMED_CHOICES = {"constant": "plain"}


@dataclass(frozen=True)
class ClipPolicyConfig(Keys):
    """The clip of each round; see :class:`fl_privquant.flower.QuantileClip`.

    Parameters
    ----------
    name
        ``constant`` (encoding.clip and encoding.l2_clip); ``quantile`` (these at first, then a private
        quantile); or, with a target, ``pilot``: the L2 clip is the median norm of the first updates of some
        clients, which are measured without protection.
    coordinate_quantile
        Share of a client's coordinates that should lie within the clip.
    client_quantile
        Share of the clients for which the clip should be wide enough; 0.5 follows the median client.
    rate
        How fast the clip follows the quantile.
    """

    path: ClassVar[str] = "encoding.clip_policy"

    name: Annotated[str, checks.one_of("constant", "quantile", "pilot")] = "constant"
    coordinate_quantile: Annotated[float, checks.number_in("(0, 1)")] = 0.99
    client_quantile: Annotated[float, checks.number_in("(0, 1)")] = 0.5
    rate: Annotated[float, checks.positive] = 0.2

    def applied(self, encoding: _Encoded) -> _Encoded | Policy:
        """The encoding or plan, with the clip of each round."""
        if self.name != "quantile":
            return encoding
        from fl_privquant.flower import QuantileClip

        return QuantileClip(
            encoding,
            coordinate_quantile=self.coordinate_quantile,
            client_quantile=self.client_quantile,
            rate=self.rate,
        )


@dataclass(frozen=True)
class BitsPolicyConfig(Keys):
    """The number of levels of each round; see :class:`fl_privquant.flower.DoublingMechanism`.

    Parameters
    ----------
    name
        ``constant`` (the mechanism's own), ``schedule`` (by round) or ``doubling`` (when the loss stalls).
    rounds
        The round from which each entry of ``bits`` counts, for ``schedule``.
    bits
        2^bits levels from each of these rounds on, for ``schedule``.
    most_bits
        There are at most 2^most_bits levels, for ``doubling``.
    window
        Rounds without progress after which the levels double.
    smoothing
        Weight of earlier losses in the smoothed loss, for ``doubling``.
    """

    path: ClassVar[str] = "encoding.bits_policy"

    name: Annotated[str, checks.one_of("constant", "schedule", "doubling")] = "constant"
    rounds: tuple[int, ...] = (1, 11, 21)
    bits: tuple[int, ...] = (2, 3, 4)
    most_bits: Annotated[int, at_least(1)] = 4
    window: Annotated[int, at_least(1)] = 3
    smoothing: Annotated[float, checks.number_in("[0, 1)")] = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_schedule(self.path, self.rounds, self.bits, "bits", "bits")
        at_least(1)(f"{self.path}.bits", min(self.bits))

    def applied(self, encoding: Encoding, design: Callable[[int], Mechanism]) -> Encoding | Policy:
        """The encoding, with the mechanism of each round; ``design`` makes it for a number of levels."""
        from fl_privquant.flower import DoublingMechanism, ScheduledMechanism

        if self.name == "schedule":
            levels = dict(zip(self.rounds, self.bits, strict=True))
            return ScheduledMechanism(encoding, {start: design(2**bits) for start, bits in levels.items()})
        if self.name == "doubling":
            first = int(encoding.mechanism.parameters["levels"])
            most = max(first, 2**self.most_bits)
            return DoublingMechanism(
                encoding, design, first, most, window=self.window, smoothing=self.smoothing
            )
        return encoding


@dataclass(frozen=True)
class KeepPolicyConfig(Keys):
    """How many rotated coordinates each round sends; see :mod:`fl_privquant.flower.policies`.

    Parameters
    ----------
    name
        ``constant`` (encoding.keep), ``schedule`` (by round), or ``adaptive``, which needs a target:
        encoding.keep in the first round, and fewer coordinates later where the mean update is short.
    rounds
        The round from which each entry of ``keep`` counts, for ``schedule``.
    keep
        Shares of the coordinates that are sent from each of these rounds on, for ``schedule``.
    """

    path: ClassVar[str] = "encoding.keep_policy"

    name: Annotated[str, checks.one_of("constant", "schedule", "adaptive")] = "constant"
    rounds: tuple[int, ...] = (1, 11, 21)
    keep: tuple[float, ...] = (0.5, 0.2, 0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_schedule(self.path, self.rounds, self.keep, "keep", "shares")
        for share in self.keep:
            checked_keep(float(share))

    def applied(self, encoding: Encoding | Policy) -> Encoding | Policy:
        """The encoding, with what is kept in each round."""
        if self.name != "schedule":
            return encoding
        from fl_privquant.flower import ScheduledKeep

        shares = {start: float(share) for start, share in zip(self.rounds, self.keep, strict=True)}
        return ScheduledKeep(encoding, shares)

    def followed(self, plan: Plan) -> Plan | Policy:
        """The plan, or the policy that begins with it."""
        if self.name != "adaptive":
            return plan
        from fl_privquant.flower import AdaptiveKeep

        return AdaptiveKeep(plan)


@dataclass(frozen=True)
class EncodingConfig(Keys):
    """How updates are encoded: the coordinate clip, an L2 clip, the rotation, and what changes over rounds.

    Keys that are null have these defaults: without a target the clip is 0.05, and there is no L2 clip and no
    rotation; with a target (``privacy.epsilon``) updates are clipped to an L2 norm of 1 and rotated, and the
    plan chooses the clip: in sums the one with the least error for the mechanism, in the local view three
    standard deviations of a rotated coordinate.

    Parameters
    ----------
    clip
        Bound of each coordinate.
    l2_clip
        Largest L2 norm of an update; null for any, or for 1 with a target.
    rotate
        Whether updates are rotated at random before coordinates are clipped.
    keep
        How many coordinates of the rotated update are sent, as a number or a share; null for all.
    include, exclude
        Patterns on names of the model's arrays, as in [head.*]: arrays that match ``include`` (all, if it is
        empty) and not ``exclude`` are sent and counted.
    clip_scales
        Factors of both clips by pattern, as in {head.*: 1, "*": 0.1}; the first match of an array counts.
        null: 1 for all.
    clip_policy, bits_policy, keep_policy
        What changes from round to round.
    """

    path: ClassVar[str] = "encoding"

    clip: Annotated[float | None, checks.positive] = None
    l2_clip: Annotated[float | None, checks.positive] = None
    rotate: bool | None = None
    keep: int | float | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    clip_scales: Mapping[str, float] | None = None
    clip_policy: ClipPolicyConfig = field(default_factory=ClipPolicyConfig)
    bits_policy: BitsPolicyConfig = field(default_factory=BitsPolicyConfig)
    keep_policy: KeepPolicyConfig = field(default_factory=KeepPolicyConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None:
            checked_keep(self.keep)
        _ = self.arrays

    @property
    def arrays(self) -> ArrayChoice:
        """Which arrays of a model are sent, and on what scale they are clipped."""
        return ArrayChoice(self.include, self.exclude, tuple((self.clip_scales or {}).items()))

    @property
    def changes(self) -> dict[str, str]:
        """What changes from round to round, by key, and how."""
        policies = ("clip_policy", "bits_policy", "keep_policy")
        names = {policy: getattr(self, policy).name for policy in policies}
        return {f"encoding.{key}.name": name for key, name in names.items() if name != "constant"}

    def built(
        self, mechanism: Mechanism, l2_clip: float | None, design: Callable[[int], Mechanism]
    ) -> Encoding | Policy:
        """The encoding of each round of a run without a plan; ``l2_clip`` is the one that the run has."""
        # The central baseline clips the norm alone: no coordinate exceeds that.
        clip = (l2_clip or 1.0) if self.clip is None else self.clip
        encoding = Encoding(mechanism, clip, l2_clip, bool(self.rotate), self.keep)
        return self.clip_policy.applied(self.keep_policy.applied(self.bits_policy.applied(encoding, design)))

    def followed(self, plan: Plan) -> Plan | Policy:
        """The plan of a run with a target, or the policy that begins with it."""
        changes = self.changes
        if set(changes.values()) == {"quantile", "adaptive"}:
            raise InvalidSpecError(f"{' and '.join(changes)}: a plan has room for one of them; leave one out")
        return self.clip_policy.applied(self.keep_policy.followed(plan))


def _check_schedule(
    path: str, rounds: tuple[int, ...], entries: tuple[float, ...], key: str, noun: str
) -> None:
    """Refuse a schedule whose first rounds do not increase from 1, one for each entry."""
    if len(rounds) != len(entries) or rounds[:1] != (1,):
        raise InvalidSpecError(
            f"{path}.rounds: {list(rounds)} with {key} {list(entries)}, expected as many rounds as {noun}, "
            f"from round 1 on"
        )
    if list(rounds) != sorted(set(rounds)):
        raise InvalidSpecError(f"{path}.rounds: {list(rounds)} do not increase")


def renamed_key(key: str, choice: str | None = None) -> str | None:
    """What to write in place of a former key, or of a former group and its file; None if it is neither.

    >>> renamed_key("codec.clip"), renamed_key("codec", "rotated"), renamed_key("clip_policy", "constant")
    ('encoding.clip', 'encoding=rotated', 'encoding=plain')
    >>> renamed_key("bits_policy.window")
    'encoding.bits_policy.window'
    """
    group, dot, rest = key.partition(".")
    if group not in _RENAMED:
        return None
    if choice is not None and not dot:
        choices = (_RENAMED_CHOICES.get(name, name) for name in choice.split(","))
        return f"encoding={','.join(choices)}"
    return f"{_RENAMED[group]}{dot}{rest}"
