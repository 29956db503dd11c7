"""The accountant: the total privacy loss of a client, as a statement with unit, view, method and assumptions.

The mechanism says what a release costs. There are several ways to count releases: by coordinates (the
distribution of the privacy loss), by a theorem for this mechanism (a Rényi bound for sums), or by the norm of
the whole update; each of them in the local view or in the sum. A release to which a way does not apply is
counted by coordinates. Each way gives a valid total, and a total in the local view also holds for an
adversary who sees less. The statement gives the smallest total and names the way.

Sampling the clients of a round does not reduce the privacy loss against the server, which draws them. Against
an adversary who sees only the models and does not learn who took part, it does so for a whole round
(*amplification*, :mod:`fl_privquant.loss.subsampled`), because a client takes part with all coordinates of
its update or with none.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from itertools import product

from fl_privquant import checks
from fl_privquant.accounting.release import Release
from fl_privquant.errors import BudgetExhaustedError, counted
from fl_privquant.law.lattice import coarse_count
from fl_privquant.loss.compose import (
    Bound,
    Moments,
    NamedLoss,
    Part,
    composed_epsilon,
    epsilon_at_rate,
    pure_epsilon,
)
from fl_privquant.loss.distribution import ROUNDING, PrivacyLoss
from fl_privquant.loss.norms import NO_NORMS, Norms
from fl_privquant.loss.subsampled import Curve, curve_of, subsampled_loss
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import LOCAL, PrivacyStatement, StatedView, Unit, View, ViewKind

# How many losses and curves are kept in memory.
_CACHED = 512
# If one quick bound is this many times another, it is assumed to stay larger when both are counted in full.
_FAR = 1.5
# Updates with at least this many coordinates, most of them far inside the clip, are not counted by
# coordinates.
_MANY = 1000
_SECURE = "secure randomness on the client"
_SUM_ONLY = "the adversary sees sums only (secure aggregation)"
_HONEST = "that many honest clients in each sum (corrupt and dropped ones are not counted)"
_REALS = "exact real numbers: floats leak"
_NORMS = "updates clipped to the stated norm"
_MODELS = "the adversary sees only the models: the server is trusted, and nobody tells who took part"
_DRAWN = "clients drawn anew each round, in secret"
_NOT_CHOSEN = "which kinds of releases there were did not depend on what earlier ones showed"
_FORGETFUL = "what a client answers, and whether, does not depend on rounds that it took part in before"
# The additional delta, as a share, for releases whose kind was chosen in view of earlier releases.
_CHOSEN_SHARE = 0.01
_MOST_RATE = 1e5
# Points at which a round's privacy curve is computed before it is amplified: in full, and for quick bounds.
_CURVE_POINTS, _QUICK_POINTS = 160, 80


@checks.naming_arguments
@dataclass(frozen=True)
class Budget:
    """The most that a client may spend over all releases: their total epsilon at this delta.

    With delta 0 the largest losses add up (pure differential privacy). With a delta of 1e-5, say, the same
    epsilon lasts for many more releases.
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        checks.inside("budget", self.epsilon, "[0, inf]")
        checks.inside("budget's delta", self.delta, "[0, 1)")

    @property
    def unlimited(self) -> bool:
        """Whether any amount may be spent."""
        return math.isinf(self.epsilon)


class _By(Enum):
    """What a release is counted by: its coordinates, a theorem, or its norm."""

    NORM = auto()
    COORDINATES = auto()
    THEOREM = auto()


@dataclass(frozen=True)
class _Way:
    """A way to count releases: in the sum or in the local view, and by what."""

    in_sum: bool
    by: _By


@checks.naming_arguments
class Accountant:
    """Counts the releases of one client.

    It begins with ``releases``: single ones, or a mapping of releases to how often each was made. Adding a
    release is cheap, and so is a statement after each round: losses are cached by mechanism and view, and
    equal releases are counted together.

    Guarantee: the epsilon of a statement is never below the exact one, even if the inputs depend on all that
    was released before.
    Assumes: that every release of the client was added, and that the *kinds* of releases (mechanism,
    dimension, norms) were not chosen in view of earlier releases. The second assumption is not needed where
    delta is 0, or where all kinds are counted as pairs of normal distributions: then totals bound every
    choice. Elsewhere, an adversary who sees a large loss could continue with the kind that is worse from
    there on, and the true delta would be larger than the stated one (1.9 times in an example of two
    releases). Statements of several kinds name the assumption; :meth:`check` enforces a budget without it.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> accountant = Accountant()
    >>> accountant.add(Release(pq.design("one_bit", epsilon=0.5), dimension=100), count=3)
    >>> statement = accountant.statement(delta=1e-6)
    >>> statement.unit.value, str(statement.view), statement.method, statement.epsilon < 0.5 * 300
    ('client total', 'local', 'pld', True)
    """

    def __init__(self, releases: Mapping[Release, int] | Iterable[Release] = ()) -> None:
        self._counts: dict[Release, int] = {}
        for release, count in Counter(releases).items():
            self.add(release, count)

    def add(self, release: Release, count: int = 1) -> None:
        """Record that a release happened, ``count`` times."""
        self._counts[release] = self._counts.get(release, 0) + checks.whole("count", count, 1)

    @property
    def num_releases(self) -> int:
        """Number of releases: rounds in which the client took part."""
        return sum(self._counts.values())

    def check(
        self,
        number: int,
        release: Release,
        budgets: Iterable[Budget],
        spent_at: Callable[[float], PrivacyStatement] | None = None,
        chosen: bool = False,
    ) -> None:
        """Raise BudgetExhaustedError, with what was spent, if one more release would exceed a budget.

        This is cheap while much of the budget is left: releases are counted in full only where quick bounds
        do not decide. ``spent_at`` gives the statement at a delta that the error quotes, by default this
        accountant's total.

        ``chosen`` says that somebody who saw the earlier releases, such as the server, may have chosen this
        one. Then a budget of (epsilon, delta) bounds all releases together by epsilon and 1.01 delta,
        whatever is chosen. As long as all releases are of the kind of the first, which was chosen before
        anything was seen, they are counted as usual, at delta. From the second kind on, the moments of all
        losses, at a rate that follows from the budget alone, must stay within what (epsilon, delta / 100)
        allows. This is a Rényi filter, which bounds every adaptive choice (Feldman, Zrnic 2021). Otherwise
        the largest losses must add up to at most epsilon.
        """
        after = Accountant(self._counts)
        after.add(release)
        for budget in budgets:
            if budget.unlimited or after._quick(budget, chosen) <= budget.epsilon:
                continue
            would = after.statement(budget.delta)
            if after._is_chosen(budget, chosen):
                method = "rdp, for kinds that the server may have chosen by earlier answers"
                would = dataclasses.replace(
                    would, epsilon=after._filtered(budget), delta=budget.delta, method=method
                )
            if would.epsilon <= budget.epsilon:
                continue
            allowed = dataclasses.replace(would, epsilon=budget.epsilon, delta=budget.delta)
            spent = (spent_at or self.statement)(budget.delta)
            needs_delta = math.isinf(would.epsilon) and 0.0 == budget.delta < release.mechanism.delta
            hint = "; the mechanism has a δ, so give the budget a larger one" if needs_delta else ""
            raise BudgetExhaustedError(
                f"round {number}: one more release makes {would.brief} [{would.method}], above the "
                f"budget of {allowed.figures}{hint}. Spent: {spent}",
                spent,
            )

    def _is_chosen(self, budget: Budget, chosen: bool) -> bool:
        """Whether an adaptive choice of kinds matters; at delta 0 the largest losses add up anyway."""
        return chosen and budget.delta > 0.0 and len(self._counts) > 1

    def _quick(self, budget: Budget, chosen: bool) -> float:
        if self._is_chosen(budget, chosen):
            return self._filtered(budget)
        return self.statement(budget.delta, refine=False).epsilon

    def _filtered(self, budget: Budget) -> float:
        """The epsilon of adaptively chosen releases, by a Rényi filter at a rate that the budget sets."""
        # Half of the share of delta is for infinite losses, which no moment covers.
        log_delta = math.log(_CHOSEN_SHARE / 2.0) + math.log(budget.delta)
        root = math.sqrt(-log_delta)
        # The best rate if losses are normal and use up the budget; any other rate would be valid too.
        rate = root / max(math.sqrt(budget.epsilon - log_delta) - root, root / _MOST_RATE)
        parts = [_at_rate(release, count, budget.delta, rate) for release, count in self._counts.items()]
        largest = pure_epsilon(parts)
        if math.fsum(part.count * part.loss.infinity for part in parts) >= math.exp(log_delta):
            return largest
        # Without infinite losses a moment may be below 1, but a release must never lower the total.
        moments = math.fsum(max(part.count * part.loss.log_moment(rate), 0.0) for part in parts)
        return min(largest, epsilon_at_rate(moments * (1.0 + ROUNDING), log_delta, rate))

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
    """Statements of one coordinate, one round and all rounds, for a client with the same release in each.

    The last two are stated in the local view and, if the release has another view, in that one too.
    """
    local = release.seen(LOCAL)
    views = [local] if release.view.is_local else [local, release]
    levels = [coordinate_statement(release.mechanism)]
    levels += [round_statement(seen, delta) for seen in views]
    return levels + [Accountant({seen: rounds}).statement(delta) for seen in views]


def _smallest(
    releases: list[tuple[Release, int]], delta: float, refine: bool
) -> tuple[Bound, tuple[str, ...]]:
    """The smallest total over all ways to count, and what it assumes."""
    ways: list[tuple[float, _Way, list[Part], list[str]]] = []
    sums = [False] if all(release.view.is_local for release, _ in releases) else [True, False]
    settled = False
    for in_sum, by in product(sums, _By):
        way = _Way(in_sum, by)
        if by is not _By.NORM and (settled or (by is _By.THEOREM and not (refine and in_sum))):
            continue
        if by is not _By.COORDINATES and not any(_applies(release, way, refine) for release, _ in releases):
            continue
        if by is _By.THEOREM and _is_surely_above(
            _FAR * min(rough for rough, *_ in ways), releases, way, delta
        ):
            continue
        counted = [_part(release, count, way, delta, refine) for release, count in releases]
        parts = _merged(part for part, _ in counted)
        names = sorted({name for _, name in counted if name})
        quick = composed_epsilon(parts, delta, refine=False)
        ways.append((quick.epsilon, way, parts, names))
        tight = way == _Way(True, _By.NORM) and math.isfinite(quick.epsilon) and quick.method == "exact"
        settled = settled or (tight and _far_inside(releases))
    # Among equal totals the one of the local view is stated, because it assumes less.
    ways.sort(key=lambda counted: counted[1].in_sum)
    least = min(rough for rough, _, _, _ in ways)
    bounds: list[tuple[Bound, tuple[str, ...]]] = []
    for rough, way, parts, names in ways:
        # A quick bound that is far above another one will not fall below it when it is counted in full.
        if rough <= _FAR * least or rough == least:
            bound = composed_epsilon(parts, delta, refine)
            assumed = _assumptions(releases, way)
            if len(releases) > 1 and bound.method not in ("pure", "exact"):
                assumed += (_NOT_CHOSEN,)
            bounds.append((Bound(bound.epsilon, _method(bound, names)), assumed))
    return min(bounds, key=lambda stated: stated[0].epsilon)


def _is_surely_above(limit: float, releases: list[tuple[Release, int]], way: _Way, delta: float) -> bool:
    """Whether the quick total of releases counted in this way is known to be above the limit.

    It is then not needed, and what it would take long to compute for it is not either.
    """
    parts = []
    for release, count in releases:
        losses = _whole_losses(release, way)
        if release.view.sampled is not None or len(losses) != 1 or losses[0].at_least is None:
            return False
        parts.append(Part(losses[0].at_least, losses[0].count * count))
    return composed_epsilon(_merged(parts), delta, refine=False).epsilon > limit


def _at_rate(release: Release, count: int, delta: float, rate: float) -> Part:
    """The release counted in the way whose moment at ``rate`` is the least."""
    ways = product([False] if release.view.is_local else [False, True], (_By.NORM, _By.COORDINATES))
    parts = [_part(release, count, _Way(*way), delta, refine=False)[0] for way in ways]
    return min(parts, key=lambda part: part.count * part.loss.log_moment(rate))


def _far_inside(releases: list[tuple[Release, int]]) -> bool:
    """Whether all updates have many coordinates, of which their L2 norm allows only few to be at the clip.

    Counting by coordinates would treat two such updates as at least twice as far apart as they can be. If the
    count by norms in the sum is exact, counting by coordinates is then never better, and takes long. The same
    holds for the local view, in which two updates are easier to distinguish than in a sum.
    """
    return all(
        release.dimension >= _MANY
        and release.norms.l2 is not None
        and 4.0 * release.norms.l2**2 <= release.dimension
        and not release.view.is_local
        for release, _ in releases
    )


def _merged(parts: Iterable[Part]) -> list[Part]:
    """The parts, with those of equal losses merged: releases with about as many clients share a loss."""
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


def _applies(release: Release, way: _Way, refine: bool) -> bool:
    """Whether a way other than by coordinates applies to the release."""
    return _sampled_loss(release, refine) is not None or bool(_whole_losses(release, way))


def _view_counted(release: Release, way: _Way) -> View:
    in_sum = way.in_sum and not release.view.is_local
    return View(coarse_count(release.view.honest_count)) if in_sum else LOCAL


def _whole_losses(release: Release, way: _Way) -> list[NamedLoss]:
    """The losses of a whole update by its norm or by a theorem; empty where there are none."""
    view = _view_counted(release, way)
    if way.by is _By.NORM and release.norms != NO_NORMS:
        return _update_losses(_Known.of(release), release.dimension, release.norms, view)
    if way.by is _By.THEOREM and not view.is_local:
        return _update_losses(_Known.of(release), release.dimension, NO_NORMS, view)
    return []


def _part(release: Release, count: int, way: _Way, delta: float, refine: bool) -> tuple[Part, str]:
    """The loss to compose for a release, and the name of its bound."""
    sampled = _sampled_loss(release, refine)
    if sampled is not None:
        return Part(sampled, count), "sampling+"
    if losses := _whole_losses(release, way):
        least, units = _least(losses, count, delta, refine), 1
    else:
        known, view = _Known.of(release), _view_counted(release, way)
        least, units = _unit_loss(known, view), release.mechanism.releases(release.dimension)
    name = f"{least.name}+" if least.name else ""
    return Part(least.loss, least.count * units * count), name


def _least(losses: list[NamedLoss], count: int, delta: float, refine: bool) -> NamedLoss:
    """The bound whose total is the least; those whose quick totals are close are composed in full."""

    def total(named: NamedLoss, refine: bool) -> float:
        return composed_epsilon([Part(named.loss, named.count * count)], delta, refine).epsilon

    quick = [total(named, False) for named in losses]
    near = [named for named, epsilon in zip(losses, quick, strict=True) if epsilon <= _FAR * min(quick)]
    if refine and len(near) > 1:
        return min(near, key=lambda named: total(named, True))
    return losses[quick.index(min(quick))]


@lru_cache(maxsize=_CACHED)
def _sampled_loss(release: Release, refine: bool) -> PrivacyLoss | None:
    """The loss of a round whose clients are drawn in secret; None where there is no amplification."""
    view = release.view
    if view.sampled is None or view.sampled == 1.0:
        return None
    curve = _curve(release.seen(View(view.num_honest)), refine)
    return None if curve is None else subsampled_loss(curve, view.sampled)


@lru_cache(maxsize=_CACHED)
def _curve(release: Release, refine: bool) -> Curve | None:
    """The epsilon of the release by itself at many deltas."""

    def epsilon(delta: float) -> float:
        return _smallest([(release, 1)], delta, refine)[0].epsilon

    return curve_of(epsilon, epsilon(0.0), _CURVE_POINTS if refine else _QUICK_POINTS)


@dataclass(frozen=True)
class _Known:
    """A mechanism identified by its bytes, so that equal mechanisms compute their losses once."""

    fingerprint: str
    mechanism: Mechanism = field(compare=False)

    @classmethod
    def of(cls, release: Release) -> _Known:
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
    rates = [release.view.sampled for release in released if release.view.sampled is not None]
    if rates:
        assumed.append(_MODELS)
    if any(rate < 1.0 for rate in rates):
        rate = math.ceil(max(rates) * 1e4) / 1e4
        assumed += [f"{_DRAWN}, each that would answer with probability {rate:g} at most", _FORGETFUL]
    if any(not release.view.is_local and (way.in_sum or release.view.sampled) for release in released):
        assumed += [_HONEST] if rates else [_SUM_ONLY, _HONEST]
    if way.by is _By.NORM:
        assumed.append(_NORMS)
    if any(release.mechanism.outputs_floats for release in released):
        assumed.append(_REALS)
    return tuple(assumed)


def _view(releases: list[Release]) -> StatedView:
    views = [release.view for release in releases]
    models = any(view.sampled is not None for view in views)
    counts = sorted({view.num_honest for view in views if view.num_honest is not None})
    if not views or any(view.num_honest is None for view in views):
        kind = ViewKind.LOCAL_OR_AGGREGATE if counts else ViewKind.LOCAL
        return StatedView(ViewKind.MODELS if models else kind)
    kind = ViewKind.MODELS if models else ViewKind.AGGREGATE
    return StatedView(kind, counts[0], counts[-1] if len(counts) > 1 else None)


def _scope(releases: list[Release], rounds: int, unit: Unit) -> str:
    sizes = sorted({release.dimension for release in releases})
    if not sizes:
        return "nothing released"
    several = f"{sizes[0]} to {sizes[-1]} coordinates"
    coordinates = counted(sizes[0], "coordinate") if len(sizes) == 1 else several
    return coordinates if unit is Unit.ROUND else f"{coordinates}, {counted(rounds, 'round')}"
