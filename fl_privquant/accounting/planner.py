"""The planner: which designs meet a privacy target for a whole run, and what error and traffic they have.

For each mechanism the largest epsilon of a coordinate is searched for with which the accountant's
statement, in the wanted unit and view, stays within the target. Designs are taken from a fixed geometric
grid of epsilons, so that plans share them through the design cache.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fl_privquant.accounting.accountant import Accountant
from fl_privquant.accounting.release import Release
from fl_privquant.errors import (
    CertificationError,
    CodeOverflowError,
    InfeasibleDesignError,
    InvalidSpecError,
)
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import design, entry, planned_mechanisms, scout_mechanism
from fl_privquant.mechanisms.wish import MOST_CLIENTS, Wish
from fl_privquant.statement import PrivacyStatement, Unit

__all__ = ["Advice", "PlannedDesign", "PlannedDesigns", "plan", "run_statement"]

_RATIO = 1.02
_LEAST_EPSILON, _MOST_EPSILON = 0.01, 16.0
_LOWEST = round(math.log(_LEAST_EPSILON, _RATIO))
_FAR = 1.6
# Largest epsilon on the grid: what is spent on a whole round may be that of all coordinates.
_MOST_OF_A_ROUND = 1024.0


def run_statement(wish: Wish, mechanism: Mechanism, refine: bool = True) -> PrivacyStatement:
    """What the run costs with a mechanism, in the unit of its target; see :meth:`Accountant.statement`."""
    dimension = 1 if wish.unit is Unit.COORDINATE else wish.dimension
    accountant = Accountant()
    release = Release(mechanism, dimension, wish.view, norms=wish.norms)
    accountant.add(release, wish.rounds if wish.unit is Unit.TOTAL else 1)
    return accountant.statement(wish.delta, wish.unit, refine)


@dataclass(frozen=True)
class PlannedDesign:
    """A design that was looked at, and what it does in the run.

    ``mean_squared_error`` is that of one coordinate of the mean update, in units of clip^2, for uniform
    inputs; clipping is not in it. ``bytes_per_round`` is what one client sends, without headers.
    """

    name: str
    mechanism: Mechanism
    statement: PrivacyStatement
    mean_squared_error: float
    bytes_per_round: int
    clip: str


@dataclass(frozen=True)
class Advice:
    """What would meet a target that nothing meets; None where even that would not."""

    least: PrivacyStatement
    rounds: int | None
    num_clients: int | None

    @property
    def epsilon(self) -> float:
        """The smallest target that a design meets."""
        return self.least.epsilon

    def __str__(self) -> str:
        least = f"the most private design that was tried has {_unit(_LEAST_EPSILON).brief}"
        wishes = [f"a target of {self.least.brief} or more"]
        if self.rounds is not None:
            wishes.append(f"at most {self.rounds} round{'' if self.rounds == 1 else 's'}")
        if self.num_clients is not None:
            wishes.append(f"at least {self.num_clients} clients")
        return f"no design meets the target ({least}); any one of these would: {'; '.join(wishes)}"


@dataclass(frozen=True)
class PlannedDesigns:
    """Designs that meet a target, the least error first, and why others are missing."""

    wish: Wish
    designs: tuple[PlannedDesign, ...]
    missing: dict[str, str]
    advice: Advice | None
    curves: dict[str, tuple[PlannedDesign, ...]]


def plan(
    wish: Wish,
    names: Sequence[str] | None = None,
    curve: bool = False,
    progress: Callable[[str], None] = lambda name: None,
) -> PlannedDesigns:
    """Designs that meet the target, with the largest epsilon of a coordinate that does.

    Parameters
    ----------
    wish
        The run and the target.
    names
        Mechanisms to look at; by default :func:`planned_mechanisms`.
    curve
        Whether to look at a range of targets around the wanted one, for a plot of error against epsilon.
    progress
        Called with the name of each mechanism before it is looked at.
    """
    # Instant to design and never far from the others: it tells where to look, and what would meet a target.
    scout = _Search(dataclasses.replace(wish, parameters=()), scout_mechanism())
    names = names or planned_mechanisms(wish.in_sum)
    searches = {
        name: scout if name == scout.name and not wish.parameters else _Search(wish, name) for name in names
    }
    # What is designed for a target as it is needs nobody to look where the others might be.
    scouted = any(search.unit is not Unit.TOTAL for search in searches.values())
    start = scout.largest(round(math.log(1.0, _RATIO))) if scouted else None
    designs: list[PlannedDesign] = []
    missing: dict[str, str] = {}
    curves: dict[str, tuple[PlannedDesign, ...]] = {}
    for name, search in searches.items():
        progress(name)
        if start is None and search.unit is Unit.COORDINATE:
            # What the scout cannot do no other one can that spends on each coordinate.
            missing[name] = scout.reason
            continue
        # A round of all coordinates is what a mechanism for whole updates spends at once.
        of_round = round(math.log(max(wish.epsilon / wish.rounds, _LEAST_EPSILON), _RATIO))
        index = search.largest(of_round if search.unit is Unit.ROUND or start is None else start)
        if index is None:
            missing[name] = search.reason
            continue
        designs.append(search.at(index))
        if curve:
            # Steps of about 1.5 in the epsilon of a coordinate.
            for step in (-40, -20, 20, 40):
                search.spend(min(max(index + step, _LOWEST), search.highest))
        curves[name] = search.seen()
    designs.sort(key=lambda each: each.mean_squared_error)
    return PlannedDesigns(wish, tuple(designs), missing, None if designs else _advice(wish), curves)


class _Search:
    """The designs of one mechanism on the grid of epsilons, each made once.

    An epsilon is for what the mechanism's spec says: a coordinate, a round, or a share of the whole target.
    """

    def __init__(self, wish: Wish, name: str) -> None:
        self.wish = wish
        self.name = name
        self.reason = ""
        self.unit = entry(name).spec.spends_on
        most = _MOST_OF_A_ROUND if self.unit is Unit.ROUND else _MOST_EPSILON
        self.highest = round(math.log(most, _RATIO))
        self._made: dict[int, PlannedDesign | None] = {}

    def at(self, index: int) -> PlannedDesign:
        """The design at a grid point that is known to exist."""
        found = self._made[index]
        if found is None:
            raise InfeasibleDesignError(f"{self.name}: {self.reason}")
        return found

    def seen(self) -> tuple[PlannedDesign, ...]:
        """All designs that were made, by their cost."""
        made = [each for each in self._made.values() if each is not None]
        return tuple(sorted(made, key=lambda each: each.statement.epsilon))

    def spend(self, index: int) -> float:
        """What the run costs with the design at a grid point; infinite where there is none."""
        if index not in self._made:
            self._made[index] = self._design(_RATIO**index)
        found = self._made[index]
        return math.inf if found is None else found.statement.epsilon

    def largest(self, start: int) -> int | None:
        """The largest grid point that meets the target, from a guess; None if none does."""
        if self.unit is Unit.TOTAL:
            return 0 if self.spend(0) <= self.wish.epsilon else None
        # Known to meet the target, and known to miss it: at first just outside the grid.
        low, high = _LOWEST - 1, self.highest + 1
        index, guided = min(max(start, _LOWEST), self.highest), True
        while high - low > 1:
            spent = self.spend(index)
            low, high = (index, high) if spent <= self.wish.epsilon else (low, index)
            middle = (low + high) // 2
            # The cost grows about as a power, between 1 and 2, of epsilon; every other step is a bisection.
            guess = middle
            if guided and 0.0 < spent < math.inf:
                away = math.log(self.wish.epsilon / spent, _RATIO) / 1.4
                guess = index + (math.ceil(away) if away > 0.0 else math.floor(away))
            index = guess if low < guess < high else min(max(guess, low + 1), high - 1)
            guided = not guided or high - low < 32
        return low if low >= _LOWEST else None

    def _design(self, epsilon: float) -> PlannedDesign | None:
        wish = self.wish
        try:
            asked = epsilon * wish.epsilon if self.unit is Unit.TOTAL else epsilon
            mechanism = design(self.name, **entry(self.name).spec.candidate(wish, asked))
            mechanism = mechanism.for_dimension(wish.dimension)
            width = mechanism.sum_bits(wish.survivors) if wish.in_sum else mechanism.bits_per_coordinate
        except (InfeasibleDesignError, InvalidSpecError, CertificationError, CodeOverflowError) as error:
            self.reason = str(error).removeprefix(f"{self.name}: ")
            return None
        if wish.in_sum and not mechanism.summable:
            self.reason = "its outputs cannot be added up by secure aggregation"
            return None
        try:
            statement = self._statement(mechanism)
        except InvalidSpecError as error:
            self.reason = str(error)
            return None
        self.reason = f"costs {statement.brief} even with {mechanism.statement.brief}"
        clip, radius = "coordinate", 1.0
        if mechanism.norm == "l2":
            # Its error is in units of the ball's radius: that of the norm, or of the ball around the cube.
            clip = "L2"
            radius = math.sqrt(wish.dimension) if wish.norms.l2 is None else wish.norms.l2
        elif statement.method.startswith(("l1", "l2")):
            clip = f"{statement.method[:2].upper()} and coordinate"
        return PlannedDesign(
            self.name,
            mechanism,
            statement,
            mechanism.mse() * radius**2 / wish.survivors,
            math.ceil(width * wish.dimension / 8),
            clip,
        )

    def _statement(self, mechanism: Mechanism) -> PrivacyStatement:
        """What the run costs; far from the target quick bounds will do: what they meet is met."""
        quick = run_statement(self.wish, mechanism, refine=False)
        near = 1.0 / _FAR < quick.epsilon / self.wish.epsilon < _FAR
        return run_statement(self.wish, mechanism) if near else quick


def _advice(wish: Wish) -> Advice:
    """What would meet the target with the most private design on the grid."""
    mechanism = design(scout_mechanism(), epsilon=_RATIO**_LOWEST)
    least = run_statement(wish, mechanism)

    def meets(changed: Wish) -> bool:
        return run_statement(changed, mechanism, refine=False).epsilon <= wish.epsilon

    rounds = None
    if wish.unit is Unit.TOTAL and wish.rounds > 1:
        rounds = _last(lambda number: meets(dataclasses.replace(wish, rounds=number)), wish.rounds)
    clients = None
    if wish.in_sum:
        clients = _first(
            lambda number: meets(dataclasses.replace(wish, num_clients=number)),
            wish.num_clients,
            MOST_CLIENTS,
        )
    return Advice(least, rounds, clients)


def _unit(epsilon: float) -> PrivacyStatement:
    return PrivacyStatement(epsilon, 0.0, Unit.COORDINATE)


def _last(holds: Callable[[int], bool], most: int) -> int | None:
    """The largest number from 1 to ``most`` for which it holds, if it holds up to some number."""
    if not holds(1):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _first(holds: Callable[[int], bool], least: int, most: int) -> int | None:
    """The smallest number above ``least``, to some percent, for which it holds, if there is one."""
    low, high = least, 2 * least
    while not holds(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > max(1, high // 30):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
