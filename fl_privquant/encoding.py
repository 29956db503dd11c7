"""How an update becomes integers: one frozen description that plans, strategies, mods and ledgers share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism

__all__ = ["Encoding"]


@dataclass(frozen=True, eq=False)
class Encoding:
    """The mechanism that encodes coordinates, and how updates are bounded before it.

    Two encodings are equal if their mechanisms have the same bytes, and all else is equal.

    Parameters
    ----------
    mechanism
        What encodes a coordinate, certified.
    clip
        Coordinates are clipped to [-clip, clip].
    l2_clip
        Largest L2 norm of an update; larger ones are scaled down. None: any.
    rotate
        Whether updates are rotated before coordinates are clipped, so that no coordinate stands out.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> encoding = Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1)
    >>> encoding == Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1)
    True
    """

    mechanism: Mechanism
    clip: float
    l2_clip: float | None = None
    rotate: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism):
            raise InvalidSpecError(
                f"mechanism: {type(self.mechanism).__name__}, expected a Mechanism; see fl_privquant.design"
            )
        object.__setattr__(self, "clip", checks.positive("clip", self.clip))
        if self.l2_clip is not None:
            object.__setattr__(self, "l2_clip", checks.positive("l2_clip", self.l2_clip))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encoding) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[bytes, float, float | None, bool]:
        return (self.mechanism_bytes, self.clip, self.l2_clip, self.rotate)

    @cached_property
    def mechanism_bytes(self) -> bytes:
        """The mechanism in the bytes that its receiver certifies."""
        return self.mechanism.to_bytes()

    @classmethod
    def received(
        cls,
        mechanism_bytes: bytes,
        mechanism: Mechanism,
        clip: float,
        l2_clip: float | None = None,
        rotate: bool = False,
    ) -> Encoding:
        """The encoding by a mechanism that was certified from these bytes, which are kept as they came."""
        encoding = cls(mechanism, clip, l2_clip, rotate)
        encoding.__dict__["mechanism_bytes"] = mechanism_bytes
        return encoding

    def with_mechanism(self, mechanism: Mechanism) -> Encoding:
        """The same encoding by another mechanism; itself if that is its own."""
        return self if mechanism is self.mechanism else replace(self, mechanism=mechanism)
