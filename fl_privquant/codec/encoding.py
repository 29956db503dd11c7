"""How an update becomes integers: one frozen description that plans, strategies, mods and ledgers share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from fl_privquant import _validation
from fl_privquant.codec.record_sampling import RecordSampling
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism, check_mechanism


def check_keep(keep: object) -> int | float:
    """How many coordinates are sent, if it is a number from 1 on, or a share in (0, 1]."""
    if isinstance(keep, float) and 0.0 < keep <= 1.0:
        return keep
    if isinstance(keep, int) and not isinstance(keep, bool) and keep >= 1:
        return keep
    raise InvalidSpecError(
        "keep", keep, "is neither a whole number of coordinates, from 1 on, nor a share of them in (0, 1]"
    )


def metric_repeats(kept: int) -> int:
    """How many coordinates carry each private metric, beside ``kept`` coordinates of an update.

    One coordinate of many is mostly noise, and the mean of several is less so. A thousandth of the update
    costs little: with the usual clips each metric adds about a hundredth to the squared norm.

    >>> metric_repeats(900), metric_repeats(7850)
    (1, 7)
    """
    return max(1, kept // 1000)


def count_kept(keep: int | float | None, dimension: int) -> int:
    """How many of ``dimension`` coordinates are kept: that number, that share rounded up, or all for None.

    >>> count_kept(None, 7850), count_kept(0.1, 7850), count_kept(100, 7850)
    (7850, 785, 100)
    """
    if keep is None:
        return dimension
    if isinstance(keep, float):
        return min(dimension, math.ceil(keep * dimension))
    if keep > dimension:
        raise InvalidSpecError(
            "keep", keep, f"coordinates, but the update has {dimension}", "keep fewer, or give a share"
        )
    return keep


def kept_norm(norm: float, keep: int | float | None, dimension: int) -> float:
    """The L2 norm to which the kept part of a rotated update is clipped, if updates have at most that norm.

    The norm of the kept part varies from round to round. Its clip is two standard deviations below its usual
    norm, because noise must hide the largest norm that may be sent: a higher clip would cost more in noise
    than it saves in signal.
    """
    if keep is None or dimension == 0:
        return norm
    kept = count_kept(keep, dimension)
    return norm if kept == dimension else norm * math.sqrt(kept / dimension) * norm_clip_factor(kept)


def norm_clip_factor(kept: int) -> float:
    """The clip of the norm of ``kept`` coordinates, divided by their usual norm.

    >>> round(norm_clip_factor(100), 3), round(norm_clip_factor(10_000), 3)
    (0.876, 0.986)
    """
    return 1.0 / (1.0 + 2.0 / math.sqrt(2.0 * kept))


@_validation.check_argument_names
@dataclass(frozen=True, eq=False)
class Encoding:
    """The mechanism that encodes coordinates, and how updates are bounded before it.

    Two encodings are equal if their mechanisms have the same bytes, and all else is equal.

    Parameters
    ----------
    mechanism
        The certified mechanism that encodes each coordinate.
    clip
        Coordinates are clipped to [-clip, clip].
    l2_clip
        Largest L2 norm of an update; larger updates are scaled down. None for no bound.
    rotate
        Whether updates are rotated before coordinates are clipped, so that no coordinate stands out.
    keep
        How many of the rotated coordinates are sent: a number (an int), or a share in (0, 1] (a float); None
        for all. It needs the rotation and an L2 clip. In each round a new random subset, the same for all
        clients (:mod:`fl_privquant.codec._coordinate_subset`), is sent, and clipped to :func:`kept_norm`.
    records
        For updates that are sums over randomly drawn records, how clients make them; None for any updates.

    >>> import fl_privquant as pq
    >>> encoding = Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1)
    >>> encoding == Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1)
    True
    """

    mechanism: Mechanism
    clip: float
    l2_clip: float | None = None
    rotate: bool = False
    keep: int | float | None = None
    records: RecordSampling | None = None

    def __post_init__(self) -> None:
        check_mechanism(self.mechanism)
        if self.records is not None and (self.l2_clip is not None or self.keep is not None):
            raise InvalidSpecError(
                "l2_clip, keep",
                MISSING,
                problem="given for updates that are sums of clipped records",
                remedy="leave them out: the clip of a record is in records",
            )
        object.__setattr__(self, "clip", _validation.check_positive("clip", self.clip))
        if self.l2_clip is not None:
            object.__setattr__(self, "l2_clip", _validation.check_positive("l2_clip", self.l2_clip))
        if self.keep is not None:
            check_keep(self.keep)
            if not self.rotate or self.l2_clip is None:
                lacking = "a rotation: set rotate=True" if not self.rotate else "an L2 clip: set l2_clip"
                raise InvalidSpecError("keep", self.keep, f", which needs {lacking}, or leave keep out")

    def count_kept(self, dimension: int) -> int:
        """How many coordinates of an update of ``dimension`` coordinates are sent."""
        return count_kept(self.keep, dimension)

    def l2_bound(self, dimension: int) -> float | None:
        """Largest L2 norm of the coordinates that are sent of an update; None where it is not bounded."""
        return None if self.l2_clip is None else kept_norm(self.l2_clip, self.keep, dimension)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encoding) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Mechanism, float, float | None, bool, str, RecordSampling | None]:
        # The text of ``keep`` distinguishes 1, one coordinate, from 1.0, all of them.
        return (self.mechanism, self.clip, self.l2_clip, self.rotate, repr(self.keep), self.records)

    @cached_property
    def mechanism_bytes(self) -> bytes:
        """The mechanism as bytes, from which its receiver certifies it."""
        return self.mechanism.to_bytes()

    def with_mechanism(self, mechanism: Mechanism) -> Encoding:
        """The same encoding with another mechanism; the encoding itself if it already has that one."""
        return self if mechanism is self.mechanism else replace(self, mechanism=mechanism)
