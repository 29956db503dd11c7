"""What happened, apart from how it is counted: what was released, and who saw it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fl_privquant.accounting.ledger import Release, fingerprint
from fl_privquant.errors import InvalidSpecError, one_line
from fl_privquant.loss.norms import NO_NORMS, Norms
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import LOCAL, View

__all__ = ["UpdateRelease", "release_event"]

_MOST_COORDINATES = 1 << 48


@dataclass(frozen=True, eq=False)
class UpdateRelease:
    """One client's update, encoded once: all that leaves the client in one round.

    Parameters
    ----------
    mechanism
        What encoded it, with its exact law.
    dimension
        Number of coordinates.
    view
        What the adversary sees.
    norms
        Norms that updates were clipped to before, in units of the coordinate clip.
    """

    mechanism: Mechanism
    dimension: int
    view: View = LOCAL
    norms: Norms = NO_NORMS

    def __post_init__(self) -> None:
        if not 1 <= self.dimension <= _MOST_COORDINATES:
            raise InvalidSpecError(f"dimension: {one_line(self.dimension)} is outside 1..{_MOST_COORDINATES}")

    @cached_property
    def fingerprint(self) -> str:
        """What identifies the mechanism."""
        return fingerprint(self.mechanism.to_bytes())

    @property
    def key(self) -> tuple[str, int, View, Norms]:
        """Equal for releases that cost the same."""
        return (self.fingerprint, self.dimension, self.view, self.norms)


def release_event(release: Release, mechanism: Mechanism, view: View = LOCAL) -> UpdateRelease:
    """A ledger's release as an event that an accountant can count exactly."""
    return UpdateRelease(mechanism, release.dimension, view, norms=Norms(l2=release.l2))
