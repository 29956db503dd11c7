"""The planner: which designs meet a privacy target for a whole run, and what error and traffic they have.

For each mechanism the largest epsilon of a coordinate is searched for with which the accountant's
statement, in the wanted unit and view, stays within the target. Designs are taken from a fixed geometric
grid of epsilons, so that plans share them through the design cache.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fl_privquant.accounting.accountant import Accountant
from fl_privquant.accounting.norm import Norms
from fl_privquant.accounting.release import UpdateRelease
from fl_privquant.errors import (
    CertificationError,
    CodeOverflowError,
    InfeasibleDesignError,
    InvalidSpecError,
)
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.optm_aggregate import usual_norm_ratio
from fl_privquant.mechanisms.registry import design, entry, mechanisms
from fl_privquant.mechanisms.vector import PrivateVectorSpec, VectorMechanism
from fl_privquant.statement import PrivacyStatement, Unit, View

__all__ = ["Advice", "PlannedDesign", "PlannedDesigns", "Wish", "default_mechanisms", "plan"]

_RATIO = 1.02
_LEAST_EPSILON, _MOST_EPSILON = 0.01, 16.0
_LOWEST = round(math.log(_LEAST_EPSILON, _RATIO))
_MOST_CLIENTS = 10_000_000
_FAR = 1.6
# Instant to design and never far from the others: it tells where to look, and what would meet a target.
_SCOUT = "one_bit"
# What a plan looks at unless told otherwise; others take longer to design.
_DEFAULTS = ("optm_aggregate", "optm", "one_bit", "pbm", "discrete_gaussian", "skellam", "discrete_laplace")
_LOCAL_ONLY = ("gaussian", "laplace", "cldp_linf", "cldp_l2", "vqsgd_private")
# What a vector mechanism spends is for a whole round: it may be that of all coordinates.
_MOST_OF_A_ROUND = 1024.0
_MOST_REPEATS = 1024
_MOST = {"num_clients": _MOST_CLIENTS, "dimension": 1 << 31, "rounds": 10**9, "bits": 16}


@dataclass(frozen=True)
class Wish:
    """What a run should be like.

    Parameters
    ----------
    num_clients
        Clients whose updates are averaged in a round.
    dimension
        Number of coordinates.
    rounds
        Number of rounds that a client takes part in.
    epsilon, delta
        The target.
    unit
        What the target is for: one coordinate and release, one round of a client, or all its rounds.
    in_sum
        Whether the target is for the aggregate view (secure aggregation), or for the local one.
    bits
        2^bits output values, or lattice points for additive mechanisms.
    corrupt, dropped
        Clients of each round that collude with the adversary, and that drop out.
    norms
        Norms that updates are clipped to, in units of the coordinate clip.
    parameters
        Further parameters of designs, each a name and its value.
    """

    num_clients: int
    dimension: int
    rounds: int
    epsilon: float
    delta: float = 1e-5
    unit: Unit = Unit.TOTAL
    in_sum: bool = True
    bits: int = 2
    corrupt: int = 0
    dropped: int = 0
    norms: Norms = field(default_factory=Norms)
    parameters: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_clients", "dimension", "rounds", "bits"):
            if getattr(self, name) < 1:
                raise InvalidSpecError(f"{name}: {getattr(self, name)} is below 1")
        if not (0.0 < self.epsilon < math.inf and 0.0 <= self.delta < 1.0):
            raise InvalidSpecError(
                f"target: epsilon {self.epsilon}, delta {self.delta}; expected a finite epsilon above 0, and "
                "delta in [0, 1)"
            )
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise InvalidSpecError(f"{name}: {getattr(self, name)} is above {most}, the most planned for")
        if self.num_clients - self.corrupt - self.dropped < 1 or self.corrupt < 0 or self.dropped < 0:
            raise InvalidSpecError(
                f"{self.num_clients} clients less {self.corrupt} corrupt, {self.dropped} dropped leave none"
            )

    @property
    def view(self) -> View:
        """What the adversary sees."""
        return View.aggregate(self.num_clients, self.corrupt, self.dropped) if self.in_sum else View()

    @property
    def survivors(self) -> int:
        """Clients whose updates are averaged."""
        return self.num_clients - self.dropped

    def statement(self, mechanism: Mechanism, refine: bool = True) -> PrivacyStatement:
        """What the run costs with a mechanism; see :meth:`Accountant.statement`."""
        dimension = 1 if self.unit is Unit.COORDINATE else self.dimension
        accountant = Accountant()
        release = UpdateRelease(mechanism, dimension, self.view, norms=self.norms)
        accountant.add(release, self.rounds if self.unit is Unit.TOTAL else 1)
        return accountant.statement(self.delta, self.unit, refine)


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


def default_mechanisms(in_sum: bool) -> tuple[str, ...]:
    """The mechanisms that a plan looks at unless told otherwise; for sums, those whose codes can be added."""
    names = _DEFAULTS if in_sum else (*_DEFAULTS[1:], *_LOCAL_ONLY)
    return tuple(name for name in names if name in mechanisms())


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
        Mechanisms to look at; by default :func:`default_mechanisms`.
    curve
        Whether to look at a range of targets around the wanted one, for a plot of error against epsilon.
    progress
        Called with the name of each mechanism before it is looked at.
    """
    scout = _Search(dataclasses.replace(wish, parameters=()), _SCOUT)
    names = names or default_mechanisms(wish.in_sum)
    searches = {
        name: scout if name == _SCOUT and not wish.parameters else _search(wish, name) for name in names
    }
    # What is designed for a target as it is needs nobody to look where the others might be.
    scouted = any(not isinstance(search, _TargetSearch) for search in searches.values())
    start = scout.largest(round(math.log(1.0, _RATIO))) if scouted else None
    designs: list[PlannedDesign] = []
    missing: dict[str, str] = {}
    curves: dict[str, tuple[PlannedDesign, ...]] = {}
    for name, search in searches.items():
        progress(name)
        if start is None and not (search.of_vectors or isinstance(search, _TargetSearch)):
            # What the scout cannot do no other one can that spends on each coordinate.
            missing[name] = scout.reason
            continue
        # A round of all coordinates is what a vector mechanism spends at once.
        of_round = round(math.log(max(wish.epsilon / wish.rounds, _LEAST_EPSILON), _RATIO))
        index = search.largest(of_round if search.of_vectors or start is None else start)
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
    """The designs of one mechanism on the grid of epsilons, each made once."""

    def __init__(self, wish: Wish, name: str) -> None:
        self.wish = wish
        self.name = name
        self.reason = ""
        self.of_vectors = issubclass(entry(name).spec, PrivateVectorSpec)
        most = _MOST_OF_A_ROUND if self.of_vectors else _MOST_EPSILON
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
            mechanism = design(self.name, **self._parameters(epsilon))
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
        if isinstance(mechanism, VectorMechanism) and mechanism.norm == "l2":
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
        quick = self.wish.statement(mechanism, refine=False)
        near = 1.0 / _FAR < quick.epsilon / self.wish.epsilon < _FAR
        return self.wish.statement(mechanism) if near else quick

    def _parameters(self, epsilon: float) -> dict[str, Any]:
        wish = self.wish
        known = {each.name for each in dataclasses.fields(entry(self.name).spec)}
        wanted: dict[str, Any] = {"epsilon": epsilon, "levels": 2**wish.bits, "num_clients": wish.survivors}
        if self.name == _SCOUT:
            del wanted["levels"]
        if self.of_vectors:
            # One draw tells at most a bit or a coordinate: a large epsilon is better spent on several.
            wanted["repeats"] = min(max(round(epsilon), 1), _MOST_REPEATS)
        return {key: value for key, value in wanted.items() if key in known} | dict(wish.parameters)


class _TargetSearch(_Search):
    """The designs of a mechanism that is specified by a target for the run; grid points are shares of it."""

    def largest(self, start: int) -> int | None:
        """The design for the target itself, if there is one."""
        return 0 if self.spend(0) <= self.wish.epsilon else None

    def _parameters(self, epsilon: float) -> dict[str, Any]:
        wish = self.wish
        if not wish.in_sum:
            raise InvalidSpecError(
                "is made for secure sums with two or more honest clients; use secure aggregation, with more "
                "clients or with lower fractions of them that may be corrupt or lost"
            )
        if wish.norms.l2 is None or wish.unit is Unit.COORDINATE:
            raise InvalidSpecError(
                "counts whole updates in the secure sum, by their L2 norm; give that, in units of the "
                f"coordinate clip: {usual_norm_ratio(wish.dimension):.3g} suits rotated updates"
            )
        return {
            "run_epsilon": epsilon * wish.epsilon,
            "run_delta": wish.delta,
            "rounds": wish.rounds if wish.unit is Unit.TOTAL else 1,
            "levels": 2**wish.bits,
            "num_clients": wish.num_clients,
            "dimension": wish.dimension,
            "norm_ratio": wish.norms.l2,
            "corrupt_fraction": wish.corrupt / wish.num_clients,
            "dropout_fraction": wish.dropped / wish.num_clients,
            **dict(wish.parameters),
        }


def _search(wish: Wish, name: str) -> _Search:
    fields = {each.name for each in dataclasses.fields(entry(name).spec)}
    return _TargetSearch(wish, name) if "run_epsilon" in fields else _Search(wish, name)


def _advice(wish: Wish) -> Advice:
    """What would meet the target with the most private design on the grid."""
    mechanism = design(_SCOUT, epsilon=_RATIO**_LOWEST)
    least = wish.statement(mechanism)

    def meets(changed: Wish) -> bool:
        return changed.statement(mechanism, refine=False).epsilon <= wish.epsilon

    rounds = None
    if wish.unit is Unit.TOTAL and wish.rounds > 1:
        rounds = _last(lambda number: meets(dataclasses.replace(wish, rounds=number)), wish.rounds)
    clients = None
    if wish.in_sum:
        clients = _first(
            lambda number: meets(dataclasses.replace(wish, num_clients=number)),
            wish.num_clients,
            _MOST_CLIENTS,
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
