"""The planner: which designs meet a privacy target for a whole run, and what error and traffic they have.

Some mechanisms can design themselves for a target, such as those for secure sums of updates of bounded L2
norm. They propose their best design, and choose the coordinate clip unless one is given. For the others, the
planner searches for the largest epsilon of a coordinate with which the accountant's statement, in the wanted
unit and view, stays within the target. These designs are taken from a fixed geometric grid of epsilons, so
that plans share them through the design cache.

Designs are ranked by their error. Updates that are clipped to an L2 norm are rotated. Errors are then stated
for updates that are at the L2 clip and the same for all clients, and include the distortion by the coordinate
clip.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from fl_privquant.accounting.accountant import Accountant
from fl_privquant.accounting.release import Release
from fl_privquant.design.spread import error_of_mean
from fl_privquant.errors import (
    CertificationError,
    CodeOverflowError,
    InfeasibleDesignError,
    InvalidSpecError,
    counted,
)
from fl_privquant.loss.norms import Norms
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import design, entry, planned_for, scout_mechanism
from fl_privquant.mechanisms.wish import MOST_CLIENTS, Wish
from fl_privquant.statement import PrivacyStatement, Unit

# The grid of epsilons: powers of the ratio, between the least and the most.
_RATIO = 1.02
_LEAST_EPSILON, _MOST_EPSILON = 0.01, 16.0
_LOWEST = round(math.log(_LEAST_EPSILON, _RATIO))
# A quick bound that differs from the target by more than this factor need not be counted in full.
_FAR = 1.6
# Largest epsilon on the grid: a mechanism for whole updates may spend as much as all coordinates together.
_MOST_OF_A_ROUND = 1024.0


def run_statement(wish: Wish, mechanism: Mechanism, refine: bool = True) -> PrivacyStatement:
    """What the run costs with a mechanism, in the unit of its target; see :meth:`Accountant.statement`."""
    dimension = 1 if wish.unit is Unit.COORDINATE else wish.dimension
    release = Release(mechanism, dimension, wish.view, norms=wish.norms)
    rounds = wish.rounds if wish.unit is Unit.TOTAL else 1
    return Accountant({release: rounds}).statement(wish.delta, wish.unit, refine)


@dataclass(frozen=True)
class PlannedDesign:
    """A design that was considered, and its cost and error in the run."""

    name: str
    mechanism: Mechanism
    statement: PrivacyStatement
    mean_squared_error: float
    """The error of one coordinate of the mean update, in units of clip^2. With an L2 clip, it is for rotated
    updates at the norm bound and at unit gain (:mod:`fl_privquant.design.spread`), so that signal lost by
    clipping counts as error; otherwise for inputs uniform on [-clip, clip]."""
    bytes_per_round: int
    """Bytes that one client sends in a round, without headers."""
    clip: str
    """How updates are clipped, in words."""
    norm_ratio: float | None = None
    """L2 clip divided by coordinate clip, if there is an L2 clip."""
    ratio_to_central: float | None = None
    """The error divided by that of a central Gaussian, that is of a trusted server that adds noise once; for
    secure sums of updates of bounded L2 norm."""

    @property
    def rank(self) -> float:
        """The error in a unit that all designs of a plan share, whatever their coordinate clips."""
        return self.mean_squared_error / (self.norm_ratio or 1.0) ** 2


@dataclass(frozen=True)
class Advice:
    """What to change if no design meets the target; None for a change that would not help."""

    least: PrivacyStatement
    rounds: int | None
    num_clients: int | None

    @property
    def epsilon(self) -> float:
        """The smallest target that a design meets."""
        return self.least.epsilon

    def __str__(self) -> str:
        tried = PrivacyStatement(_LEAST_EPSILON, 0.0, Unit.COORDINATE)
        least = f"the most private design that was tried has {tried.brief}"
        wishes = [f"a target of {self.least.brief} or more"]
        if self.rounds is not None:
            wishes.append(f"at most {counted(self.rounds, 'round')}")
        if self.num_clients is not None:
            wishes.append(f"at least {counted(self.num_clients, 'client')}")
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
    """Designs that meet the target, the least error first.

    Parameters
    ----------
    wish
        The run and the target.
    names
        Mechanisms to consider; by default :func:`planned_for` the wish.
    curve
        Whether to consider a range of targets around the wanted one, for a plot of error against epsilon.
    progress
        Called with the name of each mechanism before it is considered.
    """

    @lru_cache(maxsize=1)
    def scout() -> _Search:
        # A mechanism that is designed in no time and costs about as much as others: searches start from it.
        return _Search(dataclasses.replace(wish, parameters=()), scout_mechanism(), by_epsilon=True)

    designs: list[PlannedDesign] = []
    missing: dict[str, str] = {}
    curves: dict[str, tuple[PlannedDesign, ...]] = {}
    for name in names or planned_for(wish):
        progress(name)
        search = _Search(wish, name)
        index = search.met(scout)
        if index is None and search.unit is Unit.TOTAL:
            # There is no proposal, but some epsilon of a coordinate may still meet the target.
            search = _Search(wish, name, by_epsilon=True)
            index = search.met(scout)
        if index is None:
            missing[name] = search.reason
            continue
        designs.append(search.at(index))
        if curve:
            # Steps of about 1.5 in the epsilon of a coordinate.
            for step in (-40, -20, 20, 40):
                search.spend(min(max(index + step, _LOWEST), search.highest))
        curves[name] = search.seen()
    designs.sort(key=lambda planned: planned.rank)
    return PlannedDesigns(wish, tuple(designs), missing, None if designs else _advice(scout().wish), curves)


class _Search:
    """The designs of one mechanism on the grid of epsilons, each made once.

    An epsilon of the grid is the one that the mechanism's spec takes. Where the mechanism proposes a design
    for the whole target and is not searched ``by_epsilon``, it is a share of that target.
    """

    def __init__(self, wish: Wish, name: str, by_epsilon: bool = False) -> None:
        self.name = name
        self.reason = ""
        self.spec = entry(name).spec
        if wish.own_clips:
            wish = dataclasses.replace(wish, norms=Norms(l2=self.spec.planned_ratio(wish)))
        self.wish = wish
        self.unit = Unit.TOTAL if self.spec.proposes(wish) and not by_epsilon else self.spec.spends_on
        most = _MOST_OF_A_ROUND if self.unit is Unit.ROUND else _MOST_EPSILON
        self.highest = round(math.log(most, _RATIO))
        self._made: dict[int, PlannedDesign | None] = {}

    def met(self, scout: Callable[[], _Search]) -> int | None:
        """The grid point of the design that meets the target; the scout's is a starting point if it helps."""
        if self.unit is Unit.TOTAL:
            return 0 if self.spend(0) <= self.wish.epsilon else None
        if self.unit is Unit.ROUND:
            # A mechanism for whole updates spends the epsilon of all coordinates at once.
            share = max(self.wish.epsilon / self.wish.rounds, _LEAST_EPSILON)
            return self.largest(round(math.log(share, _RATIO)))
        start = scout().own_largest
        if start is None:
            # A target that the scout cannot meet, no other mechanism for coordinates can meet.
            self.reason = scout().reason
            return None
        return self.largest(start)

    @cached_property
    def own_largest(self) -> int | None:
        """The largest grid point that meets the target, searched from epsilon 1."""
        return self.largest(round(math.log(1.0, _RATIO)))

    def at(self, index: int) -> PlannedDesign:
        """The design at a grid point that is known to exist."""
        design = self._made[index]
        if design is None:
            raise InfeasibleDesignError(f"{self.name}: {self.reason}")
        return design

    def seen(self) -> tuple[PlannedDesign, ...]:
        """All designs that were made, ordered by their cost."""
        made = [design for design in self._made.values() if design is not None]
        return tuple(sorted(made, key=lambda design: design.statement.epsilon))

    def spend(self, index: int) -> float:
        """What the run costs with the design at a grid point; infinite where there is none."""
        if index not in self._made:
            self._made[index] = self._design(_RATIO**index)
        design = self._made[index]
        return math.inf if design is None else design.statement.epsilon

    def largest(self, start: int) -> int | None:
        """The largest grid point that meets the target, from a guess; None if none does."""
        # The grid point ``low`` meets the target and ``high`` misses it; both start just outside the grid.
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
            if self.unit is Unit.TOTAL:
                parameters = self.spec.proposal(wish, epsilon * wish.epsilon)
            else:
                parameters = self.spec.candidate(wish, epsilon)
            mechanism = design(self.name, **parameters)
            mechanism = mechanism.for_dimension(wish.dimension)
            width = _bits_sent(mechanism, wish)
        except (InfeasibleDesignError, InvalidSpecError, CertificationError, CodeOverflowError) as error:
            self.reason = str(error).removeprefix(f"{self.name}: ")
            return None
        if wish.in_sum and not mechanism.summable:
            self.reason = "its outputs cannot be added up by secure aggregation"
            return None
        if mechanism.outputs_floats:
            self.reason = (
                "its outputs are floats, and its ε holds for exact real numbers only, so that it meets no "
                "target; use a mechanism with integer outputs, such as discrete_laplace or discrete_gaussian"
            )
            return None
        try:
            statement = self._statement(mechanism)
        except InvalidSpecError as error:
            self.reason = str(error)
            return None
        self.reason = f"costs {statement.brief} even with {mechanism.statement.brief}"
        clip = "coordinate"
        if mechanism.norm == "l2":
            clip = "L2"
        elif statement.method.startswith(("l1", "l2")):
            clip = f"{statement.method[:2].upper()} and coordinate"
        of_mean = _error_of_mean(mechanism, wish)
        return PlannedDesign(
            self.name,
            mechanism,
            statement,
            of_mean,
            math.ceil(width * wish.dimension / 8),
            clip,
            wish.norms.l2,
            of_mean / _central_error(wish) if wish.counts_norms else None,
        )

    def _statement(self, mechanism: Mechanism) -> PrivacyStatement:
        """What the run costs. Far from the target, quick upper bounds are good enough."""
        if self.unit is not Unit.TOTAL:
            quick = run_statement(self.wish, mechanism, refine=False)
            if not 1.0 / _FAR < quick.epsilon / self.wish.epsilon < _FAR:
                return quick
        return run_statement(self.wish, mechanism)


def _bits_sent(mechanism: Mechanism, wish: Wish) -> float:
    """Bits per coordinate on the wire: in a secure sum, the width of the sum of all clients asked."""
    if not wish.in_sum:
        return mechanism.bits_per_coordinate
    if wish.exact_sums:
        return mechanism.sum_bits(wish.num_clients)
    return mechanism.sum_ring(wish.num_clients, wish.dimension).bits


def _error_of_mean(mechanism: Mechanism, wish: Wish) -> float:
    """The error of one coordinate of the mean update, in units of clip^2; see :class:`PlannedDesign`."""
    if mechanism.norm == "l2":
        # Its error is in units of the ball's radius: the norm bound, or that of the ball around the cube.
        radius = math.sqrt(wish.dimension) if wish.norms.l2 is None else wish.norms.l2
        return mechanism.mse() * radius**2 / wish.survivors
    if wish.spread is None:
        return mechanism.mse() / wish.survivors
    return error_of_mean(mechanism.mse, wish.spread, wish.survivors) / wish.spread**2


def _central_error(wish: Wish) -> float:
    """The error of the mean for a central Gaussian, which adds noise to the sum of all updates."""
    l2 = wish.norms.l2 or math.inf
    return (2.0 * l2 / (wish.run_target.separation * wish.survivors)) ** 2


def _advice(wish: Wish) -> Advice | None:
    """The changes that would let the most private design on the grid meet the target; None if it does."""
    mechanism = design(scout_mechanism(), epsilon=_RATIO**_LOWEST)
    least = run_statement(wish, mechanism)
    if least.epsilon <= wish.epsilon:
        return None

    def meets(changed: Wish) -> bool:
        return run_statement(changed, mechanism, refine=False).epsilon <= wish.epsilon

    def too_many(rounds: int) -> bool:
        return not meets(dataclasses.replace(wish, rounds=rounds))

    rounds = None
    if wish.unit is Unit.TOTAL and wish.rounds > 1:
        # The number of entries of 1, 2, ..., rounds that come before the first that is too large.
        rounds = bisect_left(range(1, wish.rounds + 1), True, key=too_many) or None
    clients = None
    if wish.in_sum:
        clients = _first(
            lambda number: meets(dataclasses.replace(wish, num_clients=number)),
            wish.num_clients,
            MOST_CLIENTS,
        )
    return Advice(least, rounds, clients)


def _first(holds: Callable[[int], bool], least: int, most: int) -> int | None:
    """The smallest number above ``least`` for which ``holds``, to within some percent; None if none does."""
    low, high = least, 2 * least
    while not holds(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > max(1, high // 30):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
