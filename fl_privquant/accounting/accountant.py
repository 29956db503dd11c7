"""The accountant: what a client has spent, as a statement with its unit, view, method and assumptions.

The mechanism answers what a release costs. There are several ways to count it: by coordinates (the law of
the loss), by a theorem of its own (a Rényi bound for sums), or by the norm of the whole update; seen locally
or in the sum. Where a way does not apply to a release, that one is counted by coordinates. Each way gives a
valid total, and so does the local view for whoever sees less than that; the smallest is stated, with its
name.

No amplification by sampling of clients is counted: the server draws the sample, so that against it nothing is
amplified, and outsiders who see only the models would have to be kept from learning who took part.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from itertools import product

from fl_privquant import checks
from fl_privquant.accounting.release import Release
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.law.lattice import coarse_count
from fl_privquant.loss.compose import Bound, Moments, NamedLoss, Part, composed_epsilon
from fl_privquant.loss.norms import NO_NORMS, Norms
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import LOCAL, PrivacyStatement, Unit, View

__all__ = ["Accountant", "Budget", "coordinate_statement", "round_statement", "statement_levels"]

_CACHED = 512
_FAR = 1.5
_MANY = 1000
_SECURE = "secure randomness on the client"
_SUM_ONLY = "the adversary sees sums only (secure aggregation)"
_HONEST = "that many honest clients in each sum (corrupt and dropped ones are not counted)"
_REALS = "exact real numbers: floats leak"
_NORMS = "updates clipped to the stated norm"


@dataclass(frozen=True)
class Budget:
    """What a client may spend at most over all releases: their total epsilon at this delta.

    With delta 0 losses add up without an allowance (pure differential privacy); at 1e-5, say, the same
    epsilon lasts for many more releases.
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        epsilon, delta = checks.number("budget", self.epsilon), checks.number("delta", self.delta)
        if not (epsilon >= 0.0 and 0.0 <= delta < 1.0):
            raise InvalidSpecError(
                f"budget: epsilon {self.epsilon}, delta {self.delta}; expected epsilon >= 0, delta in [0, 1)"
            )

    @property
    def unlimited(self) -> bool:
        """Whether anything may be spent."""
        return math.isinf(self.epsilon)


class _By(Enum):
    """By what a release is counted."""

    NORM = auto()
    COORDINATES = auto()
    THEOREM = auto()


@dataclass(frozen=True)
class _Way:
    """How releases are counted: in the sum, or locally; and by what."""

    in_sum: bool
    by: _By


class Accountant:
    """Counts the releases of one client.

    Adding is cheap, and so is stating again after each round: losses are kept by mechanism and view, and
    equal releases are counted together.

    Guarantee: the epsilon of a statement is never below the exact one, for adaptively chosen releases.
    Assumes: that every release of the client was added.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> accountant = Accountant()
    >>> accountant.add(Release(pq.design("one_bit", epsilon=0.5), dimension=100), count=3)
    >>> statement = accountant.statement(delta=1e-6)
    >>> statement.unit.value, statement.view, statement.method, statement.epsilon < 0.5 * 300
    ('client total', 'local', 'pld', True)
    """

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        self._counts: dict[Release, int] = {}
        for release in releases:
            self.add(release)

    def add(self, release: Release, count: int = 1) -> None:
        """Record that a release happened, ``count`` times."""
        if count < 1:
            raise InvalidSpecError(f"count: {count} is below 1")
        self._counts[release] = self._counts.get(release, 0) + count

    def copy(self) -> Accountant:
        """Another accountant with the same releases, to ask what one more would cost."""
        other = Accountant()
        other._counts = dict(self._counts)
        return other

    @property
    def num_releases(self) -> int:
        """Number of releases: rounds in which the client took part."""
        return sum(self._counts.values())

    def check(self, number: int, release: Release, budgets: Iterable[Budget]) -> None:
        """Raise BudgetExhaustedError, with what was spent, if one more release would exceed a budget.

        Cheap while there is room: only what quick bounds do not settle is counted in full.
        """
        after = self.copy()
        after.add(release)
        for budget in budgets:
            if budget.unlimited or after.statement(budget.delta, refine=False).epsilon <= budget.epsilon:
                continue
            would = after.statement(budget.delta)
            if would.epsilon <= budget.epsilon:
                continue
            allowed = dataclasses.replace(would, epsilon=budget.epsilon, delta=budget.delta)
            spent = self.statement(budget.delta)
            raise BudgetExhaustedError(
                f"round {number}: one more release makes {would.figures} [{would.method}], above the budget "
                f"of {allowed.figures}. Spent: {spent}",
                spent,
            )

    def statement(self, delta: float, unit: Unit = Unit.TOTAL, refine: bool = True) -> PrivacyStatement:
        """What all releases together cost the client at ``delta``; without ``refine`` by quick bounds."""
        releases = list(self._counts.items())
        bound, assumptions = _smallest(releases, delta, refine)
        return PrivacyStatement(
            epsilon=bound.epsilon,
            delta=0.0 if bound.method == "pure" or math.isinf(bound.epsilon) else delta,
            unit=unit,
            view=_view([release for release, _ in releases]),
            method=bound.method,
            assumptions=assumptions,
            scope=_scope([release for release, _ in releases], self.num_releases, unit),
        )


def coordinate_statement(mechanism: Mechanism) -> PrivacyStatement:
    """What one release of one coordinate costs in the local view: certified when the mechanism was made."""
    assumptions = (_SECURE, _REALS) if mechanism.outputs_floats else (_SECURE,)
    return dataclasses.replace(mechanism.statement, assumptions=assumptions)


def round_statement(release: Release, delta: float) -> PrivacyStatement:
    """What one release of a whole update costs, at ``delta``."""
    return Accountant([release]).statement(delta, Unit.ROUND)


def statement_levels(release: Release, rounds: int, delta: float) -> list[PrivacyStatement]:
    """The levels of what an epsilon can mean, for a client that releases alike in all rounds.

    One coordinate and release, one round, and all rounds; the last two in the local view and, if the release
    has another one, in that view too.
    """
    local = release.seen(LOCAL)
    views = [local] if release.view.is_local else [local, release]
    levels = [coordinate_statement(release.mechanism)]
    levels += [round_statement(seen, delta) for seen in views]
    for seen in views:
        accountant = Accountant()
        accountant.add(seen, rounds)
        levels.append(accountant.statement(delta))
    return levels


def _smallest(
    releases: list[tuple[Release, int]], delta: float, refine: bool
) -> tuple[Bound, tuple[str, ...]]:
    """The smallest of the totals, over the ways to count, and what it assumes."""
    ways: list[tuple[float, _Way, list[Part], list[str]]] = []
    sums = [False] if all(release.view.is_local for release, _ in releases) else [False, True]
    for in_sum, by in product(sums, _By):
        if by is _By.THEOREM and not (refine and in_sum):
            continue
        way = _Way(in_sum, by)
        counted = [_part(release, count, way, delta, refine) for release, count in releases]
        if by is not _By.COORDINATES and not any(applies for _, _, applies in counted):
            continue
        parts = _merged(part for part, _, _ in counted)
        names = sorted({name for _, name, _ in counted if name})
        quick = composed_epsilon(parts, delta, refine=False)
        ways.append((quick.epsilon, way, parts, names))
        tight = way == _Way(True, _By.NORM) and math.isfinite(quick.epsilon) and quick.method == "exact"
        if tight and _far_inside(releases):
            # The ways that are left are about single coordinates.
            break
    least = min(rough for rough, _, _, _ in ways)
    bounds: list[tuple[Bound, tuple[str, ...]]] = []
    for rough, way, parts, names in ways:
        # A rough figure that is far above another's will not fall below it.
        if rough <= _FAR * least or rough == least:
            bound = composed_epsilon(parts, delta, refine)
            bounds.append((Bound(bound.epsilon, _method(bound, names)), _assumptions(releases, way)))
    return min(bounds, key=lambda stated: stated[0].epsilon)


def _far_inside(releases: list[tuple[Release, int]]) -> bool:
    """Whether all updates are many coordinates, of which few can be at their clip, by their L2 norm.

    Counted by single coordinates, two such updates would be twice as far apart as they can be, or more. Where
    the count by norms is exact, that is never better, and takes long to find out.
    """
    return all(
        release.dimension >= _MANY
        and release.norms.l2 is not None
        and 4.0 * release.norms.l2**2 <= release.dimension
        and not release.view.is_local
        for release, _ in releases
    )


def _merged(parts: Iterable[Part]) -> list[Part]:
    """The parts with equal losses counted together: releases of about as many clients share one."""
    counts: dict[int, tuple[Moments, int]] = {}
    for part in parts:
        _, before = counts.get(id(part.loss), (part.loss, 0))
        counts[id(part.loss)] = (part.loss, before + part.count)
    return [Part(loss, count) for loss, count in counts.values()]


def _method(bound: Bound, names: list[str]) -> str:
    if math.isinf(bound.epsilon):
        return "not private"
    if bound.method == "pure":
        return "pure"
    return "".join(names) + bound.method


def _part(release: Release, count: int, way: _Way, delta: float, refine: bool) -> tuple[Part, str, bool]:
    """What is composed for a release, what its bound is called, and whether the way applies to it."""
    in_sum = way.in_sum and not release.view.is_local
    view = View(coarse_count(release.view.honest_count)) if in_sum else LOCAL
    losses: list[NamedLoss] = []
    if way.by is _By.NORM and release.norms != NO_NORMS:
        losses = _update_losses(_Known.of(release), release.dimension, release.norms, view)
    elif way.by is _By.THEOREM and in_sum:
        losses = _update_losses(_Known.of(release), release.dimension, NO_NORMS, view)
    if losses:
        least, units = _least(losses, count, delta, refine), 1
    else:
        least, units = _unit_loss(_Known.of(release), view), release.mechanism.releases(release.dimension)
    name = f"{least.name}+" if least.name else ""
    return Part(least.loss, least.count * units * count), name, bool(losses)


def _least(losses: list[NamedLoss], count: int, delta: float, refine: bool) -> NamedLoss:
    """The bound whose total is the least; those whose quick totals are close are composed in full."""

    def total(named: NamedLoss, refine: bool) -> float:
        return composed_epsilon([Part(named.loss, named.count * count)], delta, refine).epsilon

    quick = [total(named, False) for named in losses]
    near = [named for named, epsilon in zip(losses, quick, strict=True) if epsilon <= _FAR * min(quick)]
    if refine and len(near) > 1:
        return min(near, key=lambda named: total(named, True))
    return losses[quick.index(min(quick))]


@dataclass(frozen=True)
class _Known:
    """A mechanism that is known by its bytes: of equal ones only the first is asked."""

    fingerprint: str
    mechanism: Mechanism = field(compare=False)

    @classmethod
    def of(cls, release: Release) -> _Known:
        """The mechanism of a release."""
        return cls(release.fingerprint, release.mechanism)


@lru_cache(maxsize=_CACHED)
def _unit_loss(known: _Known, view: View) -> NamedLoss:
    return known.mechanism.loss(view)


@lru_cache(maxsize=_CACHED)
def _update_losses(known: _Known, dimension: int, norms: Norms, view: View) -> list[NamedLoss]:
    return known.mechanism.update_losses(norms, dimension, view)


def _assumptions(releases: list[tuple[Release, int]], way: _Way) -> tuple[str, ...]:
    released = [release for release, _ in releases]
    assumed = [_SECURE]
    if way.in_sum and any(not release.view.is_local for release in released):
        assumed += [_SUM_ONLY, _HONEST]
    if way.by is _By.NORM:
        assumed.append(_NORMS)
    if any(release.mechanism.outputs_floats for release in released):
        assumed.append(_REALS)
    return tuple(assumed)


def _view(releases: list[Release]) -> str:
    counts = sorted({release.view.num_honest for release in releases if release.view.num_honest is not None})
    if not releases or any(release.view.num_honest is None for release in releases):
        return "local" if not counts else "local or aggregate"
    return f"aggregate of {counts[0]}" if len(counts) == 1 else f"aggregate of {counts[0]} to {counts[-1]}"


def _scope(releases: list[Release], rounds: int, unit: Unit) -> str:
    sizes = sorted({release.dimension for release in releases})
    if not sizes:
        return "nothing released"
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    coordinates = f"{size} coordinate{'' if sizes[-1] == 1 else 's'}"
    return coordinates if unit is Unit.ROUND else f"{coordinates}, {rounds} round{'' if rounds == 1 else 's'}"
