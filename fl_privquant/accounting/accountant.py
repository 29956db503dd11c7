"""The accountant: what a client has spent, as a statement with its unit, view, method and assumptions.

For each release there are several ways to count it: by coordinates (the law of the loss), by a theorem of
its own (a Rényi bound for sums), or by the norm of the whole update; seen locally or in the sum. Where a way
does not apply to a release, that one is counted by coordinates. Each way gives a valid total, and so does the
local view for whoever sees less than that; the smallest is stated, with its name.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import product

from fl_privquant.accounting.ledger import Budget
from fl_privquant.accounting.noise import noise_loss
from fl_privquant.accounting.norm import NO_NORMS, norm_losses
from fl_privquant.accounting.pbm import pbm_loss
from fl_privquant.accounting.release import ALL_CLIENTS, UpdateRelease
from fl_privquant.accounting.theorems import theorem_losses
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.law.lattice import coarse_count
from fl_privquant.loss.blanket import blanket_loss
from fl_privquant.loss.compose import Bound, Moments, Part, composed_epsilon, total_loss
from fl_privquant.loss.distribution import PrivacyLoss
from fl_privquant.loss.dominating import dominating_loss
from fl_privquant.loss.response import gaussian_loss, laplace_loss, response_loss
from fl_privquant.mechanisms.additive import AdditiveMechanism
from fl_privquant.mechanisms.base import Mechanism, TableMechanism
from fl_privquant.mechanisms.continuous import FloatMechanism
from fl_privquant.mechanisms.gaussian import GaussianMechanism
from fl_privquant.mechanisms.laplace import LaplaceMechanism
from fl_privquant.mechanisms.sum_of_bits import SumOfBits
from fl_privquant.statement import LOCAL, PrivacyStatement, Unit

__all__ = ["Accountant", "coordinate_statement", "round_statement", "statement_levels", "unit_loss"]

_CACHED = 512
_SAMPLED = "sampled+"
_FAR = 1.5
_SECURE = "secure randomness on the client"
_SUM_ONLY = "the adversary sees sums only (secure aggregation)"
_HONEST = "that many honest clients in each sum (corrupt and dropped ones are not counted)"
_HIDDEN = "a secret uniform sample of clients each round"
_REALS = "exact real numbers: floats leak"
_NORMS = "updates clipped to the stated norm"


class _By(Enum):
    """By what a release is counted."""

    COORDINATES = auto()
    THEOREM = auto()
    NORM = auto()


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
    >>> accountant.add(UpdateRelease(pq.design("one_bit", epsilon=0.5), dimension=100), count=3)
    >>> statement = accountant.statement(delta=1e-6)
    >>> statement.unit.value, statement.view, statement.method, statement.epsilon < 0.5 * 300
    ('client total', 'local', 'pld', True)
    """

    def __init__(self, releases: Iterable[UpdateRelease] = ()) -> None:
        self._counts: dict[tuple[object, ...], tuple[UpdateRelease, int]] = {}
        for release in releases:
            self.add(release)

    def add(self, release: UpdateRelease, count: int = 1) -> None:
        """Record that a release happened, ``count`` times."""
        if count < 1:
            raise InvalidSpecError(f"count: {count} is below 1")
        _, before = self._counts.get(release.key, (release, 0))
        self._counts[release.key] = (release, before + count)

    def copy(self) -> Accountant:
        """Another accountant with the same releases, to ask what one more would cost."""
        other = Accountant()
        other._counts = dict(self._counts)
        return other

    @property
    def num_releases(self) -> int:
        """Number of releases: rounds in which the client took part."""
        return sum(count for _, count in self._counts.values())

    def check(self, number: int, release: UpdateRelease, budgets: Iterable[Budget]) -> None:
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
        releases = list(self._counts.values())
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
    assumptions = (_SECURE, _REALS) if isinstance(mechanism, FloatMechanism) else (_SECURE,)
    return dataclasses.replace(mechanism.statement, assumptions=assumptions)


def round_statement(release: UpdateRelease, delta: float) -> PrivacyStatement:
    """What one release of a whole update costs, at ``delta``."""
    return Accountant([release]).statement(delta, Unit.ROUND)


def statement_levels(release: UpdateRelease, rounds: int, delta: float) -> list[PrivacyStatement]:
    """The levels of what an epsilon can mean, for a client that releases alike in all rounds.

    One coordinate and release, one round, and all rounds; the last two in the local view and, if the release
    has another one, in that view too.
    """
    local = dataclasses.replace(release, view=LOCAL, sampling=ALL_CLIENTS)
    views = [local] if release.view.is_local else [local, release]
    levels = [coordinate_statement(release.mechanism)]
    levels += [round_statement(each, delta) for each in views]
    for each in views:
        accountant = Accountant()
        accountant.add(each, rounds)
        levels.append(accountant.statement(delta))
    return levels


def unit_loss(mechanism: Mechanism, num_honest: int = 1) -> tuple[PrivacyLoss, str]:
    """The loss of one unit of a mechanism in a sum of honest clients, and what the bound is called.

    The unit is one coordinate, or the whole update where the mechanism encodes that at once.
    """
    if math.isinf(mechanism.epsilon):
        return response_loss(math.inf), ""
    if num_honest > 1 and mechanism.summable:
        if isinstance(mechanism, TableMechanism):
            return blanket_loss(mechanism.table, num_honest), "blanket+"
        if isinstance(mechanism, SumOfBits):
            return pbm_loss(mechanism, num_honest), "blanket+"
        if isinstance(mechanism, AdditiveMechanism):
            return noise_loss(mechanism, num_honest), "noise sum+"
    if isinstance(mechanism, TableMechanism):
        return dominating_loss(mechanism.table), ""
    if isinstance(mechanism, SumOfBits):
        return pbm_loss(mechanism), ""
    if isinstance(mechanism, AdditiveMechanism):
        return noise_loss(mechanism), ""
    if isinstance(mechanism, GaussianMechanism):
        return gaussian_loss(2.0 / mechanism.scale), ""
    if isinstance(mechanism, LaplaceMechanism):
        return laplace_loss(2.0 / mechanism.scale), ""
    # Of any other mechanism only its certified figures are known: the worst law that has them.
    return response_loss(mechanism.epsilon, mechanism.delta), "worst law+"


def _smallest(
    releases: list[tuple[UpdateRelease, int]], delta: float, refine: bool
) -> tuple[Bound, tuple[str, ...]]:
    """The smallest of the totals, over the ways to count, and what it assumes."""
    ways: list[tuple[float, _Way, list[Part], list[str]]] = []
    sums = [False] if all(release.view.is_local for release, _ in releases) else [False, True]
    for in_sum, by in product(sums, _By):
        if by is _By.THEOREM and not (refine and in_sum):
            continue
        way = _Way(in_sum, by)
        counted = [_parts(release, count, way, delta, refine) for release, count in releases]
        if by is not _By.COORDINATES and not any(applies for _, _, applies in counted):
            continue
        parts = _merged(part for each, _, _ in counted for part in each)
        names = sorted({name for _, name, _ in counted if name})
        ways.append((composed_epsilon(parts, delta, refine=False).epsilon, way, parts, names))
    least = min(rough for rough, _, _, _ in ways)
    found: list[tuple[Bound, tuple[str, ...]]] = []
    for rough, way, parts, names in ways:
        # A rough figure that is far above another's will not fall below it.
        if rough <= _FAR * least or rough == least:
            bound = composed_epsilon(parts, delta, refine)
            found.append((Bound(bound.epsilon, _method(bound, names)), _assumptions(releases, way)))
    return min(found, key=lambda each: each[0].epsilon)


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
    # A sample of a round is one release to the composition, but not an exact one.
    sampled = any(name.startswith(_SAMPLED) for name in names)
    return "".join(names) + ("pld" if sampled and bound.method == "exact" else bound.method)


def _parts(
    release: UpdateRelease, count: int, way: _Way, delta: float, refine: bool
) -> tuple[list[Part], str, bool]:
    """What is composed for a release, what its bound is called, and whether the way applies to it."""
    in_sum = way.in_sum and not release.view.is_local
    honest = coarse_count(release.view.num_honest or 1) if in_sum else 1
    found: list[tuple[Part, str]] = []
    if way.by is _By.NORM and release.norms != NO_NORMS:
        found = [(Part(loss, 1), name) for loss, name in _cached_norm_losses(release, honest)]
    elif way.by is _By.THEOREM and in_sum:
        units = release.mechanism.releases(release.dimension)
        found = [(Part(loss, units), name) for loss, name in _cached_theorem_losses(release, honest)]
    applies = bool(found)
    if applies:
        part, name = _least(found, count, delta, refine)
        name = f"{name}+"
    else:
        unit, name = _cached_loss(release, honest)
        part = Part(unit, release.mechanism.releases(release.dimension))
    loss = part.loss
    if in_sum and release.sampling.amplifies and isinstance(loss, PrivacyLoss) and loss.infinity < 1.0:
        part = Part(total_loss([part]).amplified(release.sampling.rate), 1)
        name = f"{_SAMPLED}{name}"
    return [Part(part.loss, part.count * count)], name, applies


def _least(found: list[tuple[Part, str]], count: int, delta: float, refine: bool) -> tuple[Part, str]:
    """The bound whose total is the least; those whose quick totals are close are composed in full."""

    def total(part: Part, refine: bool) -> float:
        return composed_epsilon([Part(part.loss, part.count * count)], delta, refine).epsilon

    quick = [total(part, False) for part, _ in found]
    near = [each for each, epsilon in zip(found, quick, strict=True) if epsilon <= _FAR * min(quick)]
    if refine and len(near) > 1:
        return min(near, key=lambda each: total(each[0], True))
    return found[quick.index(min(quick))]


_Losses = list[tuple[Moments, str]]
_losses: OrderedDict[tuple[object, ...], _Losses] = OrderedDict()


def _cached(key: tuple[object, ...], losses: Callable[[], _Losses]) -> _Losses:
    if key not in _losses:
        _losses[key] = losses()
        if len(_losses) > _CACHED:
            _losses.popitem(last=False)
    _losses.move_to_end(key)
    return _losses[key]


def _cached_loss(release: UpdateRelease, honest: int) -> tuple[Moments, str]:
    key = ("unit", release.fingerprint, honest)
    return _cached(key, lambda: [unit_loss(release.mechanism, honest)])[0]


def _cached_theorem_losses(release: UpdateRelease, honest: int) -> _Losses:
    key = ("theorem", release.fingerprint, honest)
    return _cached(key, lambda: theorem_losses(release.mechanism, honest))


def _cached_norm_losses(release: UpdateRelease, honest: int) -> _Losses:
    key = ("norm", release.fingerprint, honest, release.dimension, release.norms)
    return _cached(key, lambda: norm_losses(release.mechanism, release.norms, release.dimension, honest))


def _assumptions(releases: list[tuple[UpdateRelease, int]], way: _Way) -> tuple[str, ...]:
    each = [release for release, _ in releases]
    assumed = [_SECURE]
    if way.in_sum and any(not release.view.is_local for release in each):
        assumed += [_SUM_ONLY, _HONEST]
        if any(release.sampling.amplifies for release in each):
            assumed.append(_HIDDEN)
    if way.by is _By.NORM:
        assumed.append(_NORMS)
    if any(isinstance(release.mechanism, FloatMechanism) for release in each):
        assumed.append(_REALS)
    return tuple(assumed)


def _view(releases: list[UpdateRelease]) -> str:
    counts = sorted({release.view.num_honest for release in releases if release.view.num_honest is not None})
    if not releases or any(release.view.num_honest is None for release in releases):
        return "local" if not counts else "local or aggregate"
    return f"aggregate of {counts[0]}" if len(counts) == 1 else f"aggregate of {counts[0]} to {counts[-1]}"


def _scope(releases: list[UpdateRelease], rounds: int, unit: Unit) -> str:
    sizes = sorted({release.dimension for release in releases})
    if not sizes:
        return "nothing released"
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    coordinates = f"{size} coordinate{'' if sizes[-1] == 1 else 's'}"
    return coordinates if unit is Unit.ROUND else f"{coordinates}, {rounds} round{'' if rounds == 1 else 's'}"
