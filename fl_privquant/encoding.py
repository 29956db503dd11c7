"""How an update becomes integers: one frozen description that plans, strategies and ledgers share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism

__all__ = ["Encoding"]


@dataclass(frozen=True)
class Encoding:
    """The mechanism that encodes coordinates, and how updates are bounded before it.

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
    """

    mechanism: Mechanism
    clip: float
    l2_clip: float | None = None
    rotate: bool = False

    def __post_init__(self) -> None:
        for name, bound in (("clip", self.clip), ("l2_clip", self.l2_clip)):
            if bound is not None and not (math.isfinite(bound) and bound > 0.0):
                raise InvalidSpecError(f"{name}: {bound} is not a finite number above 0")
