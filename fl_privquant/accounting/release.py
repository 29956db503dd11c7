"""What happened, apart from how it is counted: what was released, who saw it, how clients were drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fl_privquant.accounting.ledger import Ledger, Release, fingerprint
from fl_privquant.accounting.norm import NO_NORMS, Norms
from fl_privquant.errors import InvalidSpecError, one_line
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import LOCAL, View

__all__ = ["ALL_CLIENTS", "Sampling", "UpdateRelease", "release_event", "releases_of"]

_KINDS = ("none", "poisson", "fixed-size")
_MOST_COORDINATES = 1 << 48


@dataclass(frozen=True)
class Sampling:
    """How the participants of a round were drawn; it amplifies privacy only if a theorem fits.

    The theorem is for samples of a fixed size without replacement. A Poisson sample is one, given its size,
    and the size does not depend on anybody's data: so ``rate`` is, for both, the number drawn of those
    eligible.

    Parameters
    ----------
    kind
        "none", "poisson" (each client on its own, with one probability) or "fixed-size" (uniform, without
        replacement).
    rate
        Number of clients drawn over number of clients eligible.
    hidden
        Whether the adversary does not learn who was drawn. A server that picks its clients, or gets
        messages from them, knows: then nothing is amplified, whatever the kind.
    """

    kind: str = "none"
    rate: float = 1.0
    hidden: bool = False

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidSpecError(f"sampling: {self.kind!r} is not one of {', '.join(_KINDS)}")
        if not 0.0 < self.rate <= 1.0:
            raise InvalidSpecError(f"sampling rate: {self.rate} is outside (0, 1]")

    @property
    def amplifies(self) -> bool:
        """Whether the theorem fits."""
        return self.hidden and self.kind != "none" and self.rate < 1.0


ALL_CLIENTS = Sampling()
"""Every client takes part, or the adversary knows who does."""


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
    sampling
        How the round's clients were drawn.
    norms
        Norms that updates were clipped to before, in units of the coordinate clip.
    """

    mechanism: Mechanism
    dimension: int
    view: View = LOCAL
    sampling: Sampling = ALL_CLIENTS
    norms: Norms = NO_NORMS

    def __post_init__(self) -> None:
        if not 1 <= self.dimension <= _MOST_COORDINATES:
            raise InvalidSpecError(f"dimension: {one_line(self.dimension)} is outside 1..{_MOST_COORDINATES}")

    @cached_property
    def fingerprint(self) -> str:
        """What identifies the mechanism."""
        return fingerprint(self.mechanism.to_bytes())

    @property
    def key(self) -> tuple[str, int, View, Sampling, Norms]:
        """Equal for releases that cost the same."""
        return (self.fingerprint, self.dimension, self.view, self.sampling, self.norms)


def release_event(release: Release, mechanism: Mechanism, view: View = LOCAL) -> UpdateRelease:
    """A ledger's release as an event that an accountant can count exactly."""
    return UpdateRelease(mechanism, release.dimension, view, norms=Norms(l2=release.l2))


def releases_of(
    ledger: Ledger, mechanisms: Mapping[str, Mechanism | bytes], view: View = LOCAL
) -> list[UpdateRelease]:
    """The releases of a ledger as events that an accountant can count exactly.

    Parameters
    ----------
    ledger
        What was released, by fingerprint of the mechanism.
    mechanisms
        The mechanism of each fingerprint, or its bytes, which are certified anew.
    view
        What the adversary saw of all of them.
    """
    found: list[UpdateRelease] = []
    for kind, count in ledger.counts:
        name = kind.mechanism
        if name not in mechanisms:
            raise InvalidSpecError(f"ledger: a release by mechanism {name!r}, which is not among those given")
        given = mechanisms[name]
        mechanism = Mechanism.from_bytes(given) if isinstance(given, bytes) else given
        found += [release_event(kind, mechanism.for_dimension(kind.dimension), view)] * count
    return found
