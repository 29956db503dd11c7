"""What an epsilon means: its unit, its view, its relation, how it was counted, and what that assumes.

This package shows an epsilon to users in three ways only: a line is ``str()`` of a statement, a figure in a
sentence is its :attr:`~PrivacyStatement.brief`, and a column of figures has a heading made by
:meth:`PrivacyStatement.heading`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from fl_privquant import _validation
from fl_privquant.errors import MISSING, InvalidSpecError

# No deployment has more honest clients than this, and larger sums take long to count.
_MAX_HONEST = 100_000_000


class Unit(StrEnum):
    """What is protected: how much of a client's contribution a statement covers."""

    COORDINATE = "coordinate release"
    ROUND = "client round"
    TOTAL = "client total"
    RECORD = "record total"
    """All that a run releases about one record, such as a patient of one of the hospitals."""


class Relation(StrEnum):
    """The neighboring relation: which two inputs an adversary can hardly tell apart.

    If updates have norm C at most, a sum of updates moves by 2C under replace-one, and by C under the other
    two. For Gaussian noise an epsilon of 4 for replace-one is about 1.8 for zero-out, so figures compare only
    within one relation.

    >>> print(Relation.ZERO_OUT, "is short for", Relation.ZERO_OUT.words)
    zero-out is short for one client's update replaced by zero
    """

    REPLACE_ONE = "replace-one"
    """Any update in place of any other: the strongest of the three for a given epsilon."""
    ZERO_OUT = "zero-out"
    """The encoding of zero in place of any update; everybody may know who took part."""
    ADD_REMOVE = "add-remove"
    """With and without the client. The view must hide who takes part."""

    @property
    def words(self) -> str:
        """The relation as it reads in a sentence."""
        return _RELATION_WORDS[self]

    @property
    def beside(self) -> Relation:
        """The relation that is shown beside this one."""
        return Relation.ZERO_OUT if self is Relation.REPLACE_ONE else Relation.REPLACE_ONE

    @property
    def distance(self) -> float:
        """How far apart neighboring sums of updates can be, if updates have norm 1 at most."""
        return 2.0 if self is Relation.REPLACE_ONE else 1.0


_RELATION_WORDS = {
    Relation.REPLACE_ONE: "one client's update replaced by any other",
    Relation.ZERO_OUT: "one client's update replaced by zero",
    Relation.ADD_REMOVE: "one client added or removed",
}


class ViewKind(StrEnum):
    """What the adversary sees, without numbers of clients."""

    LOCAL = "local"
    AGGREGATE = "aggregate"
    MODELS = "models"
    CENTRAL = "central"
    """The models, where the server sees every update and is trusted."""
    LOCAL_OR_AGGREGATE = "local or aggregate"
    """The codes of some rounds, and the sums of others."""


@dataclass(frozen=True)
class StatedView:
    """What the adversary of a statement sees, and how many honest clients are in each sum.

    >>> view = StatedView(ViewKind.AGGREGATE, 6, 7)
    >>> str(view), view.words
    ('aggregate of 6 to 7', 'aggregate view of 6 to 7')
    """

    kind: ViewKind = ViewKind.LOCAL
    min_honest: int | None = None
    """Honest clients in the smallest sum; None where there are no sums, or for any number."""
    max_honest: int | None = None
    """Honest clients in the largest sum; None where all sums have ``min_honest``."""

    def __str__(self) -> str:
        return f"{self.kind}{self._numbers}"

    @property
    def words(self) -> str:
        """The view in a sentence."""
        return f"{self.kind} view{self._numbers}"

    @property
    def _numbers(self) -> str:
        largest = "" if self.max_honest is None else f" to {self.max_honest}"
        return "" if self.min_honest is None else f" of {self.min_honest}{largest}"

    @classmethod
    def from_text(cls, text: str) -> StatedView:
        """The view that ``str()`` wrote into a file."""
        kind, _, numbers = text.partition(" of ")
        try:
            return cls(ViewKind(kind), *(int(number) for number in numbers.split(" to ") if number))
        except (ValueError, TypeError) as error:
            raise InvalidSpecError(
                "view", text, "is none", "expected one such as 'local' or 'aggregate of 6 to 7'"
            ) from error


LOCAL_VIEW = StatedView()
"""The local view, as statements have it."""


def check_relation(relation: Relation, view: StatedView, hides_participants: bool) -> None:
    """Refuse add-remove of clients where the adversary sees who takes part."""
    if relation is Relation.ADD_REMOVE and not hides_participants:
        raise InvalidSpecError(
            "relation",
            relation.value,
            f"needs a view that hides who takes part, but the {view.words} shows it",
            f"state {Relation.ZERO_OUT} instead, or draw clients in secret and state the models view",
        )


@dataclass(frozen=True)
class PrivacyStatement:
    """An (epsilon, delta) with its meaning: unit, view, relation, method and assumptions.

    Guarantee: with P and Q the distributions of all that the adversary sees, for any two inputs
    that the relation makes neighbors, P(S) <= e^epsilon Q(S) + delta for every set S. Both figures are upper
    bounds.

    >>> statement = PrivacyStatement(1.0, 0.0, Unit.COORDINATE, method="exact")
    >>> print(statement)  # doctest: +NORMALIZE_WHITESPACE
    coordinate release, local view, replace-one: ε = 1, δ = 0 for one client's update replaced by any other
    [exact]
    >>> print(statement.brief)
    ε = 1, δ = 0 (coordinate release, local view, replace-one)
    >>> print(PrivacyStatement.heading(Unit.TOTAL, View(20).stated))
    ε, client total, aggregate view of 20, replace-one
    """

    epsilon: float
    delta: float
    unit: Unit
    """What is protected."""
    view: StatedView = LOCAL_VIEW
    """What the adversary sees."""
    relation: Relation = Relation.REPLACE_ONE
    """Which inputs are neighbors."""
    method: str = "pld"
    """How it was counted: exact, pure, pld, rdp, blanket+pld, ..."""
    assumptions: tuple[str, ...] = ()
    """What must hold, in words."""
    scope: str = ""
    """Sizes that belong to the unit, such as "650 coordinates, 30 rounds"."""
    norms: tuple[str, ...] = ()
    """The norms of whole updates that the figures rely on: clients must clip to them."""

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0.0 and 0.0 <= self.delta <= 1.0):
            raise InvalidSpecError(
                "epsilon, delta", (self.epsilon, self.delta), ", expected epsilon >= 0 and delta in [0, 1]"
            )
        if self.unit is not Unit.RECORD:
            hidden = self.view.kind in (ViewKind.MODELS, ViewKind.CENTRAL)
            check_relation(self.relation, self.view, hides_participants=hidden)

    def __str__(self) -> str:
        scope = f" ({self.scope})" if self.scope else ""
        assumed = f"; assumes {'; '.join(self.assumptions)}" if self.assumptions else ""
        return (
            f"{self.unit}{scope}, {self.view.words}, {self.relation}: {self.figures} "
            f"for {self._neighbors} [{self.method}]{assumed}"
        )

    @property
    def _neighbors(self) -> str:
        """The relation in words that fit the unit."""
        words = self.relation.words
        if self.unit is not Unit.RECORD:
            return words
        return words.replace("client's update", "record").replace("client", "record")

    @property
    def figures(self) -> str:
        """Epsilon and delta, rounded up for printing, for places that state their meaning beside them."""
        if math.isinf(self.epsilon):
            return "no privacy (ε is infinite)"
        return f"ε = {self.epsilon_cell}, δ = {self.delta_cell}"

    @property
    def brief(self) -> str:
        """The figures with unit, view and relation, to go into a sentence."""
        return f"{self.figures} ({self.meaning})"

    @property
    def meaning(self) -> str:
        """Unit, view and relation, as they stand beside figures."""
        return f"{self.unit}, {self.view.words}, {self.relation}"

    def above(self, epsilon: float, delta: float = 0.0) -> str:
        """A sentence that these figures exceed claimed ones, with the digits that small differences need."""
        claim = f"ε = {epsilon:.12g}, δ = {delta:.12g}"
        return (
            f"certified ε = {self.epsilon:.12g}, δ = {self.delta:.12g} ({self.meaning}) is "
            f"above the claimed {claim}"
        )

    @staticmethod
    def at_least(
        epsilon: float,
        unit: Unit,
        view: StatedView = LOCAL_VIEW,
        relation: Relation = Relation.REPLACE_ONE,
    ) -> str:
        """The text of a lower bound, such as an attack gives, with its unit, view and relation."""
        return f"ε >= {math.floor(epsilon * 1e4) / 1e4:.4f} ({unit}, {view.words}, {relation})"

    @property
    def epsilon_number(self) -> str:
        """Epsilon, rounded up, as a bare number: for places that state everything else about it."""
        return "∞" if math.isinf(self.epsilon) else _round_up(self.epsilon)

    @property
    def epsilon_cell(self) -> str:
        """Epsilon, rounded up: for a column under a :meth:`heading`."""
        return f"{self.epsilon_number} (not private)" if math.isinf(self.epsilon) else self.epsilon_number

    @property
    def delta_cell(self) -> str:
        """Delta, rounded up: for a column beside that of epsilon."""
        return _round_up(self.delta)

    @staticmethod
    def heading(
        unit: Unit,
        view: StatedView = LOCAL_VIEW,
        word: str = "ε",
        relation: Relation = Relation.REPLACE_ONE,
    ) -> str:
        """The heading of a column or an axis of epsilons: their unit, view and relation."""
        return f"{word}, {unit}, {view.words}, {relation}"

    def to_dict(self) -> dict[str, Any]:
        """The statement as plain values, for JSON."""
        texts = {"unit": self.unit.value, "view": str(self.view), "relation": self.relation.value}
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {**asdict(self), **texts, **lists}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PrivacyStatement:
        """The statement that :meth:`to_dict` wrote."""
        values = {
            "unit": Unit(content["unit"]),
            "view": StatedView.from_text(content["view"]),
            "relation": Relation(content["relation"]),
        }
        lists = {name: tuple(content[name]) for name in _LISTS}
        return cls(**{**content, **values, **lists})


# The fields of a statement that are lists in JSON.
_LISTS = ("assumptions", "norms")
# Below this, powers of ten are not normal floats, by which digits could be counted.
_SMALLEST = 1e-290


def _round_up(value: float) -> str:
    """The value rounded up to four significant digits."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < _SMALLEST:
        return f"{_SMALLEST:g}"
    # A float such as 1e-5 is a little above or below the decimal number that it stands for.
    exponent = math.floor(math.log10(abs(value))) - 3
    scaled = value / 10.0**exponent
    rounded = math.ceil(scaled - 1e-9 * scaled) * 10.0**exponent
    if 1e4 <= rounded < 1e12:
        # A comma, and no thin space: terminals break lines at spaces of every kind.
        return f"{rounded:,.0f}"
    return f"{rounded:.4g}"


@_validation.check_argument_names
@dataclass(frozen=True)
class View:
    """What the adversary sees: each client's codes (local), only sums of codes over clients, or only models.

    The first two are views of a server that nobody has to trust, and that knows who took part. The third is
    the view of anyone else who sees the model after each round; the server is trusted to keep secret who took
    part.

    >>> str(View.aggregate(20, corrupt=1, dropped=2)), str(LOCAL), str(View(17, sampled=0.1))
    ('aggregate of 17', 'local', 'models of 17')
    """

    num_honest: int | None = None
    """Number of honest clients whose codes are in the sum, the protected one included. Clients that collude
    with the adversary do not count, as it knows their noise, nor do those that dropped out. None stands for
    the local view, or for models that are not a function of a sum."""
    sampled: float | None = None
    """For the view of the models: the largest probability with which a client took part
    (:mod:`fl_privquant.privacy_loss.amplification`), which is 1 if the adversary may know who took part.
    None stands for the two views of the server."""

    def __post_init__(self) -> None:
        if self.num_honest is not None and self.num_honest > _MAX_HONEST:
            raise InvalidSpecError(
                "view",
                MISSING,
                f"more than {_MAX_HONEST} honest clients in the sum",
                "count fewer, which is safe",
            )
        if self.num_honest is not None and self.num_honest < 1:
            raise InvalidSpecError(
                "view",
                self.num_honest,
                "honest clients in the sum",
                "the protected client itself is one, so lower corrupt or dropped",
            )

        if self.sampled is not None and not 0.0 < self.sampled <= 1.0:
            raise InvalidSpecError("sampled", self.sampled, "is outside (0, 1]")

    @classmethod
    def aggregate(cls, num_clients: int, corrupt: int = 0, dropped: int = 0) -> View:
        """The view of an adversary who sees only the sum over ``num_clients``, some corrupt or dropped."""
        if corrupt < 0 or dropped < 0:
            raise InvalidSpecError("corrupt, dropped", (corrupt, dropped), "must not be negative")
        return cls(num_clients - corrupt - dropped)

    @property
    def is_local(self) -> bool:
        """Whether the adversary sees each client's codes, as it also does in a sum with one honest client."""
        return self.num_honest is None or self.num_honest == 1

    @property
    def honest_count(self) -> int:
        """Number of honest clients in what the adversary sees; 1 in the local view."""
        return 1 if self.num_honest is None else self.num_honest

    @property
    def stated(self) -> StatedView:
        """The view as statements have it."""
        kind = ViewKind.LOCAL if self.num_honest is None else ViewKind.AGGREGATE
        return StatedView(kind if self.sampled is None else ViewKind.MODELS, self.num_honest)

    def __str__(self) -> str:
        return str(self.stated)


LOCAL = View()
"""The local view, of an adversary who sees each client's codes: the server, without secure aggregation."""
