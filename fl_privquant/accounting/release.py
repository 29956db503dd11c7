"""Releases: what left a client in a round, and who could see it.

A release is a plain description. What releases cost together is computed from these descriptions by the
accountant (:mod:`fl_privquant.accounting.accountant`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fl_privquant import _validation
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.privacy_loss.update_bounds import NO_NORMS, UpdateNorms
from fl_privquant.statement import LOCAL, Relation, View, check_relation

_MAX_COORDINATES = 1 << 48
_NO_NORM = "-"


@_validation.check_argument_names
@dataclass(frozen=True)
class Release:
    """One encoded update of one client, which is all that leaves the client in a round.

    Two releases are equal if all that their privacy loss depends on is equal: mechanism, dimension, view,
    norms and relation.

    Raises
    ------
    InvalidSpecError
        If the relation is add-remove and the view shows who takes part.
    """

    mechanism: Mechanism
    """The mechanism that encoded the update. One that depends on the dimension is adapted to it here."""
    dimension: int
    """Number of coordinates."""
    view: View = LOCAL
    """What the adversary sees of the release."""
    norms: UpdateNorms = NO_NORMS
    """The norms that updates were clipped to before they were encoded, in units of the coordinate clip."""
    relation: Relation = Relation.REPLACE_ONE
    """Which inputs are neighbors when the release is counted."""

    def __post_init__(self) -> None:
        _validation.check_integer("dimension", self.dimension, 1, _MAX_COORDINATES)
        hidden = self.view.sampled not in (None, 1.0)
        check_relation(self.relation, self.view.stated, hides_participants=hidden)
        object.__setattr__(self, "mechanism", self.mechanism.for_dimension(self.dimension))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the mechanism."""
        return self.mechanism.fingerprint

    @cached_property
    def kind(self) -> tuple[str, int, UpdateNorms]:
        """What identifies a release, except for view and relation: fingerprint, dimension and norms."""
        return (self.fingerprint, self.dimension, self.norms)

    def with_view(self, view: View) -> Release:
        """The same release in another view."""
        return self if view == self.view else dataclasses.replace(self, view=view)

    def with_relation(self, relation: Relation) -> Release:
        """The same release, counted for another neighboring relation."""
        return self if relation is self.relation else dataclasses.replace(self, relation=relation)

    @cached_property
    def text(self) -> str:
        """The release without its view as a line of text: fingerprint, dimension, and the norms.

        Norms are written as hexadecimal floats, which are exact, and as ``-`` where there is none.

        >>> import fl_privquant as pq
        >>> Release(pq.design("one_bit", epsilon=0.5), 10, norms=UpdateNorms(l2=2.0)).text.split()[1:]
        ['10', '0x1.0000000000000p+1', '-', '-', '-']
        """
        norms = (_NO_NORM if norm is None else norm.hex() for norm in dataclasses.astuple(self.norms))
        return " ".join([self.fingerprint, str(self.dimension), *norms])

    @classmethod
    def from_text(cls, text: str, mechanisms: Mapping[str, Mechanism], view: View = LOCAL) -> Release:
        """The release that :attr:`text` describes; its mechanism is looked up by the fingerprint."""
        name, dimension, *bounds = text.split(" ")
        if name not in mechanisms or len(bounds) != len(dataclasses.fields(UpdateNorms)):
            raise InvalidSpecError("ledger", text, "is not a release of a known mechanism")
        norms = UpdateNorms(*(None if bound == _NO_NORM else float.fromhex(bound) for bound in bounds))
        release = cls(mechanisms[name], int(dimension), view, norms)
        if release.fingerprint != name:
            raise InvalidSpecError(
                "ledger", MISSING, f"the bytes of mechanism {name} do not have that fingerprint"
            )
        return release
