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
from fl_privquant.errors import (
    CertificationError,
    CodeOverflowError,
    InfeasibleDesignError,
    InvalidSpecError,
    pluralize,
)
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.mechanisms.registry import default_mechanisms_for, design, get_entry, pilot_mechanism
from fl_privquant.optimize.requirements import MAX_CLIENTS, RunRequirements
from fl_privquant.optimize.sums.coordinate_clip import error_of_mean
from fl_privquant.privacy_loss.composition.compose import UpdateNorm
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.statement import PrivacyStatement, Relation, Unit

# The grid of epsilons: powers of the ratio, between the least and the most.
_GRID_RATIO = 1.02
_MIN_EPSILON, _MAX_EPSILON = 0.01, 16.0
_MIN_INDEX = round(math.log(_MIN_EPSILON, _GRID_RATIO))
# A quick bound that differs from the target by more than this factor need not be counted in full.
_FAR_FACTOR = 1.6
# How many steps of the grid are tried for a converted target.
_MAX_STEPS = 5
# Largest epsilon on the grid: a mechanism for whole updates may spend as much as all coordinates together.
_MAX_ROUND_EPSILON = 1024.0


def run_statement(
    requirements: RunRequirements, mechanism: Mechanism, refine: bool = True
) -> PrivacyStatement:
    """What the run costs with a mechanism, in the unit of its target; see :meth:`Accountant.statement`.

    Parameters
    ----------
    requirements
        The run and its target.
    mechanism
        What encodes the updates.
    refine
        Whether to take the time for the tightest bounds.

    Returns
    -------
    PrivacyStatement
        The statement, at the delta of the target.
    """
    dimension = 1 if requirements.unit is Unit.COORDINATE else requirements.dimension
    release = Release(mechanism, dimension, requirements.view, requirements.norms, requirements.relation)
    rounds = requirements.rounds if requirements.unit is Unit.TOTAL else 1
    return Accountant({release: rounds}).statement(requirements.delta, requirements.unit, refine)


@dataclass(frozen=True)
class PlannedDesign:
    """A design that was considered, and its cost and error in the run."""

    name: str
    mechanism: Mechanism
    statement: PrivacyStatement
    mean_squared_error: float
    """The error of one coordinate of the mean update, in units of clip^2. With an L2 clip, it is for rotated
    updates at the norm bound and at unit gain (:mod:`fl_privquant.optimize.sums.coordinate_clip`), so that
    signal lost by clipping counts as error; otherwise for inputs uniform on [-clip, clip]."""
    bytes_per_round: int
    """Bytes that one client sends in a round, without headers."""
    clip: str
    """How updates are clipped, in words."""
    norm_ratio: float | None
    """L2 clip divided by coordinate clip, if there is an L2 clip."""
    ratio_to_central: float | None
    """The error divided by that of a central Gaussian, that is of a trusted server that adds noise once; for
    secure sums of updates of bounded L2 norm."""

    requirements: RunRequirements
    """The run and the target, with the norms that the mechanism chose."""

    def statement_for(self, relation: Relation) -> PrivacyStatement:
        """What the run costs for a neighboring relation."""
        if relation is self.requirements.relation:
            return self.statement
        return run_statement(dataclasses.replace(self.requirements, relation=relation), self.mechanism)

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

    def __str__(self) -> str:
        tried = PrivacyStatement(_MIN_EPSILON, 0.0, Unit.COORDINATE)
        least = f"the most private design that was tried has {tried.brief}"
        remedies = [f"a target of {self.least.brief} or more"]
        if self.rounds is not None:
            remedies.append(f"at most {pluralize(self.rounds, 'round')}")
        if self.num_clients is not None:
            remedies.append(f"at least {pluralize(self.num_clients, 'client')}")
        return f"no design meets the target ({least}); any one of these would: {'; '.join(remedies)}"


@dataclass(frozen=True)
class PlannedDesigns:
    """Designs that meet a target, the least error first, and why others are missing."""

    requirements: RunRequirements
    designs: tuple[PlannedDesign, ...]
    missing: dict[str, str]
    advice: Advice | None


def plan(
    requirements: RunRequirements,
    names: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> PlannedDesigns:
    """Designs that meet the target, the least error first.

    Parameters
    ----------
    requirements
        The run and the target.
    names
        Mechanisms to consider; by default :func:`default_mechanisms_for` the requirements.
    progress
        Called with the name of each mechanism before it is considered.

    Returns
    -------
    PlannedDesigns
        The designs, and why other mechanisms have none.
    """

    @lru_cache(maxsize=1)
    def pilot() -> _GridSearch:
        # A mechanism that is designed in no time and costs about as much as others: searches start from it.
        return _GridSearch(
            dataclasses.replace(requirements, parameters=()), pilot_mechanism(), by_epsilon=True
        )

    designs: list[PlannedDesign] = []
    missing: dict[str, str] = {}
    for name in names or default_mechanisms_for(requirements):
        progress(name)
        search = _GridSearch(requirements, name)
        index = search.find_index(pilot)
        if index is None and search.unit is Unit.TOTAL and requirements.schedule is None:
            # There is no proposal, but some epsilon of a coordinate may still meet the target.
            search = _GridSearch(requirements, name, by_epsilon=True)
            index = search.find_index(pilot)
        if index is None:
            missing[name] = search.reason
            continue
        designs.append(search.at(index))
    designs.sort(key=lambda planned: planned.rank)
    advice = None if designs else _make_advice(pilot().requirements)
    return PlannedDesigns(requirements, tuple(designs), missing, advice)


class _GridSearch:
    """The designs of one mechanism on the grid of epsilons, each made once.

    An epsilon of the grid is the one that the mechanism's spec takes. Where the mechanism proposes a design
    for the whole target and is not searched ``by_epsilon``, it is a share of that target.
    """

    def __init__(self, requirements: RunRequirements, name: str, by_epsilon: bool = False) -> None:
        self.name = name
        self.reason = ""
        self.spec = get_entry(name).spec
        if requirements.own_clips:
            requirements = dataclasses.replace(
                requirements, norms=UpdateNorms(l2=self.spec.choose_norm_ratio(requirements))
            )
        self.requirements = requirements
        self.unit = (
            Unit.TOTAL if self.spec.can_propose(requirements) and not by_epsilon else self.spec.spends_on
        )
        most = _MAX_ROUND_EPSILON if self.unit is Unit.ROUND else _MAX_EPSILON
        self.highest = round(math.log(most, _GRID_RATIO))
        self._designs_by_index: dict[int, PlannedDesign | None] = {}

    def find_index(self, pilot: Callable[[], _GridSearch]) -> int | None:
        """The grid point of the design that meets the target; the pilot's is a starting point if it helps."""
        if self.unit is Unit.TOTAL:
            # A target for another relation was converted, and may be missed by a little.
            steps = 1 if self.requirements.relation is Relation.REPLACE_ONE else _MAX_STEPS
            tried = range(0, -steps, -1)
            return next((index for index in tried if self.spend(index) <= self.requirements.epsilon), None)
        if self.unit is Unit.ROUND:
            # A mechanism for whole updates spends the epsilon of all coordinates at once.
            share = max(self.requirements.epsilon / self.requirements.rounds, _MIN_EPSILON)
            return self.find_max_index(round(math.log(share, _GRID_RATIO)))
        start = pilot().own_max_index
        if start is None:
            # A target that the pilot cannot meet, no other mechanism for coordinates can meet.
            self.reason = pilot().reason
            return None
        return self.find_max_index(start)

    @cached_property
    def own_max_index(self) -> int | None:
        """The largest grid point that meets the target, searched from epsilon 1."""
        return self.find_max_index(round(math.log(1.0, _GRID_RATIO)))

    def at(self, index: int) -> PlannedDesign:
        """The design at a grid point that is known to exist."""
        design = self._designs_by_index[index]
        if design is None:
            raise InfeasibleDesignError(f"{self.name}: {self.reason}")
        return design

    def spend(self, index: int) -> float:
        """What the run costs with the design at a grid point; infinite where there is none."""
        if index not in self._designs_by_index:
            self._designs_by_index[index] = self._design(_GRID_RATIO**index)
        design = self._designs_by_index[index]
        return math.inf if design is None else design.statement.epsilon

    def find_max_index(self, start: int) -> int | None:
        """The largest grid point that meets the target, from a guess; None if none does."""
        # The grid point ``low`` meets the target and ``high`` misses it; both start just outside the grid.
        low, high = _MIN_INDEX - 1, self.highest + 1
        index, guided = min(max(start, _MIN_INDEX), self.highest), True
        while high - low > 1:
            spent = self.spend(index)
            low, high = (index, high) if spent <= self.requirements.epsilon else (low, index)
            middle = (low + high) // 2
            # The cost grows about as a power, between 1 and 2, of epsilon; every other step is a bisection.
            guess = middle
            if guided and 0.0 < spent < math.inf:
                away = math.log(self.requirements.epsilon / spent, _GRID_RATIO) / 1.4
                guess = index + (math.ceil(away) if away > 0.0 else math.floor(away))
            index = guess if low < guess < high else min(max(guess, low + 1), high - 1)
            guided = not guided or high - low < 32
        return low if low >= _MIN_INDEX else None

    def _design(self, epsilon: float) -> PlannedDesign | None:
        requirements = self.requirements
        try:
            if self.unit is Unit.TOTAL:
                parameters = self.spec.propose(requirements, epsilon * requirements.replace_one_epsilon)
            else:
                parameters = self.spec.candidate(requirements, epsilon)
            mechanism = design(self.name, **parameters)
            mechanism = mechanism.for_dimension(requirements.dimension)
            width = _bits_sent(mechanism, requirements)
        except (InfeasibleDesignError, InvalidSpecError, CertificationError, CodeOverflowError) as error:
            self.reason = str(error).removeprefix(f"{self.name}: ")
            return None
        if requirements.in_sum and not mechanism.summable:
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
        if mechanism.norm is UpdateNorm.L2:
            clip = "L2"
        elif statement.norms:
            clip = f"{statement.norms[0].upper()} and coordinate"
        of_mean = _error_of_mean(mechanism, requirements)
        return PlannedDesign(
            self.name,
            mechanism,
            statement,
            of_mean,
            math.ceil(width * requirements.dimension / 8),
            clip,
            requirements.norms.l2,
            of_mean / _central_error(requirements) if requirements.counts_norms else None,
            requirements,
        )

    def _statement(self, mechanism: Mechanism) -> PrivacyStatement:
        """What the run costs. Far from the target, quick upper bounds are good enough."""
        if self.unit is not Unit.TOTAL:
            quick = run_statement(self.requirements, mechanism, refine=False)
            if not 1.0 / _FAR_FACTOR < quick.epsilon / self.requirements.epsilon < _FAR_FACTOR:
                return quick
        return run_statement(self.requirements, mechanism)


def _bits_sent(mechanism: Mechanism, requirements: RunRequirements) -> float:
    """Bits per coordinate on the wire: in a secure sum, the width of the sum of all clients asked."""
    if not requirements.in_sum:
        return mechanism.bits_per_coordinate
    if requirements.exact_sums:
        return mechanism.sum_bits(requirements.num_clients)
    return mechanism.sum_ring(requirements.num_clients, requirements.dimension).bits


def _error_of_mean(mechanism: Mechanism, requirements: RunRequirements) -> float:
    """The error of one coordinate of the mean update, in units of clip^2; see :class:`PlannedDesign`."""
    if mechanism.norm is UpdateNorm.L2:
        # Its error is in units of the ball's radius: the norm bound, or that of the ball around the cube.
        radius = math.sqrt(requirements.dimension) if requirements.norms.l2 is None else requirements.norms.l2
        return mechanism.mse() * radius**2 / requirements.survivors
    if requirements.spread is None:
        return mechanism.mse() / requirements.survivors
    return error_of_mean(mechanism.mse, requirements.spread, requirements.survivors) / requirements.spread**2


def _central_error(requirements: RunRequirements) -> float:
    """The error of the mean for a central Gaussian, which adds noise to the sum of all updates."""
    l2 = requirements.norms.l2 or math.inf
    return (2.0 * l2 / (requirements.separation * requirements.survivors)) ** 2


def _make_advice(requirements: RunRequirements) -> Advice | None:
    """The changes that would let the most private design on the grid meet the target; None if it does."""
    mechanism = design(pilot_mechanism(), epsilon=_GRID_RATIO**_MIN_INDEX)
    least = run_statement(requirements, mechanism)
    if least.epsilon <= requirements.epsilon:
        return None

    def meets(changed: RunRequirements) -> bool:
        return run_statement(changed, mechanism, refine=False).epsilon <= requirements.epsilon

    def too_many(rounds: int) -> bool:
        return not meets(dataclasses.replace(requirements, rounds=rounds))

    rounds = None
    if requirements.unit is Unit.TOTAL and requirements.rounds > 1:
        # The number of entries of 1, 2, ..., rounds that come before the first that is too large.
        rounds = bisect_left(range(1, requirements.rounds + 1), True, key=too_many) or None
    clients = None
    if requirements.in_sum:
        clients = _find_first(
            lambda number: meets(dataclasses.replace(requirements, num_clients=number)),
            requirements.num_clients,
            MAX_CLIENTS,
        )
    return Advice(least, rounds, clients)


def _find_first(holds: Callable[[int], bool], least: int, most: int) -> int | None:
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
