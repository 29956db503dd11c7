"""Releases: what left a client in a round, and who could see it.

A release is a plain description. What releases cost together is computed from these descriptions by the
accountant (:mod:`fl_privquant.accounting.accountant`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError, one_line
from fl_privquant.loss.norms import NO_NORMS, Norms
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import LOCAL, View

_MOST_COORDINATES = 1 << 48
_NO_NORM = "-"


def fingerprint(blob: bytes) -> str:
    """The fingerprint of a mechanism: 32 hexadecimal digits of the SHA-256 of its bytes."""
    return hashlib.sha256(blob).hexdigest()[:32]


@checks.naming_arguments
@dataclass(frozen=True, eq=False)
class Release:
    """One encoded update of one client, which is all that leaves the client in a round.

    Two releases are equal if all that their privacy loss depends on is equal: mechanism, dimension, view and
    norms.
    """

    mechanism: Mechanism
    """The mechanism that encoded the update. One that depends on the dimension is adapted to it here."""
    dimension: int
    """Number of coordinates."""
    view: View = LOCAL
    """What the adversary sees of the release."""
    norms: Norms = NO_NORMS
    """The norms that updates were clipped to before they were encoded, in units of the coordinate clip."""

    def __post_init__(self) -> None:
        checks.whole("dimension", self.dimension, 1, _MOST_COORDINATES)
        object.__setattr__(self, "mechanism", self.mechanism.for_dimension(self.dimension))

    @cached_property
    def blob(self) -> bytes:
        return self.mechanism.to_bytes()

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.blob)

    @cached_property
    def kind(self) -> tuple[str, int, Norms]:
        """All that identifies a release except for its view: fingerprint, dimension and norms."""
        return (self.fingerprint, self.dimension, self.norms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Release) and (self.kind, self.view) == (other.kind, other.view)

    def __hash__(self) -> int:
        return hash((self.kind, self.view))

    def seen(self, view: View) -> Release:
        """The same release in another view."""
        if view == self.view:
            return self
        other = dataclasses.replace(self, view=view)
        # The mechanism is the same: its bytes need not be made and hashed again.
        other.__dict__.update(blob=self.blob, fingerprint=self.fingerprint)
        return other

    @cached_property
    def text(self) -> str:
        """The release without its view as a line of text: fingerprint, dimension, L2 norm and L1 norm.

        Norms are written as hexadecimal floats, which are exact, and as ``-`` where there is none.

        >>> import fl_privquant as pq
        >>> Release(pq.design("one_bit", epsilon=0.5), 10, norms=Norms(l2=2.0)).text.split()[1:]
        ['10', '0x1.0000000000000p+1', '-']
        """
        norms = (_NO_NORM if norm is None else norm.hex() for norm in (self.norms.l2, self.norms.l1))
        return " ".join([self.fingerprint, str(self.dimension), *norms])

    @classmethod
    def from_text(cls, text: str, mechanisms: Mapping[str, Mechanism], view: View = LOCAL) -> Release:
        """The release that :attr:`text` describes; its mechanism is looked up by the fingerprint."""
        name, dimension, *bounds = text.split(" ")
        if name not in mechanisms or len(bounds) != len(dataclasses.fields(Norms)):
            raise InvalidSpecError(f"ledger: {one_line(text)!r} is not a release of a known mechanism")
        l2, l1 = (None if bound == _NO_NORM else float.fromhex(bound) for bound in bounds)
        release = cls(mechanisms[name], int(dimension), view, Norms(l2, l1))
        if release.fingerprint != name:
            raise InvalidSpecError(f"ledger: the bytes of mechanism {name} do not have that fingerprint")
        return release
