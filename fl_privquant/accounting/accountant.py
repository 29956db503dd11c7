"""The accountant: the total privacy loss of a client, as a statement with unit, view, method and assumptions.

The mechanism says what a release costs. There are several ways to count releases: by coordinates (the
distribution of the privacy loss), by a theorem for this mechanism (a Rényi bound for sums), or by the norm of
the whole update; each of them in the local view or in the sum. A release to which a way does not apply is
counted by coordinates. Each way gives a valid total, and a total in the local view also holds for an
adversary who sees less. The statement gives the smallest total and names the way.

Sampling the clients of a round does not reduce the privacy loss against the server, which draws them. Against
an adversary who sees only the models and does not learn who took part, it does so for a whole round
(*amplification*, :mod:`fl_privquant.privacy_loss.amplification`), because a client takes part with all
coordinates of its update or with none.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from fl_privquant import _validation
from fl_privquant.accounting.records import record_parts, record_statement
from fl_privquant.accounting.release import Release
from fl_privquant.distributions.integer_distribution import round_count_down
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError, pluralize
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.privacy_loss.amplification import Curve, curve_of, subsampled_loss
from fl_privquant.privacy_loss.composition.compose import (
    Bound,
    Composition,
    Moments,
    NamedLoss,
    Part,
    UpdateNorm,
    compose_epsilon,
    epsilon_at_rate,
    pure_epsilon,
)
from fl_privquant.privacy_loss.composition.loss_distribution import ROUNDING, PrivacyLoss
from fl_privquant.privacy_loss.update_bounds import NO_NORMS, WholeUpdate
from fl_privquant.statement import LOCAL, PrivacyStatement, Relation, StatedView, Unit, View, ViewKind

# How many losses and curves are kept in memory.
_CACHE_SIZE = 512
# If one quick bound is this many times another, it is assumed to stay larger when both are counted in full.
_FAR_FACTOR = 1.5
# Updates with at least this many coordinates, most of them far inside the clip, are not counted by
# coordinates.
_MANY_COORDINATES = 1000
_ASSUMES_SECURE_RANDOMNESS = "secure randomness on the client"
_ASSUMES_SUMS_ONLY = "the adversary sees sums only (secure aggregation)"
_ASSUMES_HONEST_CLIENTS = "that many honest clients in each sum (corrupt and dropped ones are not counted)"
_ASSUMES_EXACT_REALS = "exact real numbers: floats leak"
_ASSUMES_CLIPPED_NORMS = "updates clipped to the stated norm"
_ASSUMES_MODELS_ONLY = (
    "the adversary sees only the models: the server is trusted, and nobody tells who took part"
)
_ASSUMES_FIXED_NUMBER = "each round draws the same number of clients, with or without the client"
_SAMPLING_ASSUMPTION = "clients drawn anew each round, in secret"
_ASSUMES_NONADAPTIVE_KINDS = "which kinds of releases there were did not depend on what earlier ones showed"
_ASSUMES_MEMORYLESS_CLIENTS = (
    "what a client answers, and whether, does not depend on rounds that it took part in before"
)
# In the name of a bound for zero-out that is the one for replace-one, which is never smaller.
_BY_REPLACE_ONE = "replace-one bound"
# The additional delta, as a share, for releases whose kind was chosen in view of earlier releases.
_FILTER_DELTA_FRACTION = 0.01
_MAX_RATE = 1e5
# Points at which a round's privacy curve is computed before it is amplified: in full, and for quick bounds.
_CURVE_POINTS, _QUICK_POINTS = 160, 80


@_validation.check_argument_names
@dataclass(frozen=True)
class Budget:
    """The most that a client may spend over all releases: their total epsilon at this delta.

    With delta 0 the largest losses add up (pure differential privacy). With a delta of 1e-5, say, the same
    epsilon lasts for many more releases.
    """

    epsilon: float
    delta: float = 0.0
    unit: Unit = Unit.TOTAL
    """What may cost that much: a client's whole run, or one record's (``Unit.RECORD``)."""
    relation: Relation = Relation.REPLACE_ONE
    """Which inputs are neighbors: updates of a client or, for a budget of a record, records."""

    def __post_init__(self) -> None:
        if self.unit not in (Unit.TOTAL, Unit.RECORD):
            raise InvalidSpecError("unit", self.unit.value, "is not 'client total' or 'record total'")
        if self.unit is Unit.TOTAL and self.relation is Relation.ADD_REMOVE:
            raise InvalidSpecError(
                "relation",
                self.relation.value,
                "would hide whether a client takes part, but whoever keeps a budget of clients knows it",
                f"give {Relation.ZERO_OUT}",
            )
        _validation.check_in_interval("budget", self.epsilon, "[0, inf]")
        _validation.check_in_interval("budget's delta", self.delta, "[0, 1)")

    @property
    def unlimited(self) -> bool:
        """Whether any amount may be spent."""
        return math.isinf(self.epsilon)


class _Basis(Enum):
    """What a release is counted by: its coordinates, a theorem, or its norm."""

    NORM = auto()
    COORDINATES = auto()
    THEOREM = auto()


@dataclass(frozen=True)
class _CountingMethod:
    """A way to count releases: in the sum or in the local view, and by what."""

    in_sum: bool
    by: _Basis


@_validation.check_argument_names
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
        self._counts[release] = self._counts.get(release, 0) + _validation.check_integer("count", count, 1)

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
            if budget.unlimited or after._quick_epsilon(budget, chosen) <= budget.epsilon:
                continue
            would = after.budget_statement(budget)
            if after._needs_filter(budget, chosen):
                method = "rdp, for kinds that the server may have chosen by earlier answers"
                would = dataclasses.replace(
                    would, epsilon=after._filter_epsilon(budget), delta=budget.delta, method=method
                )
            if would.epsilon <= budget.epsilon:
                continue
            allowed = dataclasses.replace(would, epsilon=budget.epsilon, delta=budget.delta)
            spent = self.budget_statement(budget) if spent_at is None else spent_at(budget.delta)
            needs_delta = math.isinf(would.epsilon) and 0.0 == budget.delta < release.mechanism.delta
            hint = "; the mechanism has a δ, so give the budget a larger one" if needs_delta else ""
            raise BudgetExhaustedError(
                f"round {number}: one more release makes {would.brief} [{would.method}], above the "
                f"budget of {allowed.figures}{hint}. Spent: {spent}",
                spent,
            )

    def _needs_filter(self, budget: Budget, chosen: bool) -> bool:
        """Whether an adaptive choice of kinds matters; at delta 0 the largest losses add up anyway."""
        return chosen and budget.delta > 0.0 and len(self._counts) > 1

    def _quick_epsilon(self, budget: Budget, chosen: bool) -> float:
        if self._needs_filter(budget, chosen):
            return self._filter_epsilon(budget)
        return self.budget_statement(budget, refine=False).epsilon

    def _filter_epsilon(self, budget: Budget) -> float:
        """The epsilon of adaptively chosen releases, by a Rényi filter at a rate that the budget sets."""
        # Half of the share of delta is for infinite losses, which no moment covers.
        log_delta = math.log(_FILTER_DELTA_FRACTION / 2.0) + math.log(budget.delta)
        root = math.sqrt(-log_delta)
        # The best rate if losses are normal and use up the budget; any other rate would be valid too.
        rate = root / max(math.sqrt(budget.epsilon - log_delta) - root, root / _MAX_RATE)
        if budget.unit is Unit.RECORD:
            ways = record_parts(self._counts, budget.relation)
            totals = [max(_filter_parts(parts, log_delta, rate) for parts in orders) for orders in ways]
            return min(totals, default=math.inf)
        parts = [
            _best_part_at_rate(release.with_relation(budget.relation), count, budget.delta, rate)
            for release, count in self._counts.items()
        ]
        return _filter_parts(parts, log_delta, rate)

    def budget_statement(self, budget: Budget, refine: bool = True) -> PrivacyStatement:
        """What was spent of a budget: at its delta, in its unit and for its relation."""
        if budget.unit is Unit.RECORD:
            return record_statement(self._counts, budget.delta, budget.relation, refine)
        return self.statement(budget.delta, refine=refine, relation=budget.relation)

    def statement(
        self,
        delta: float,
        unit: Unit = Unit.TOTAL,
        refine: bool = True,
        relation: Relation | None = None,
    ) -> PrivacyStatement:
        """What all releases together cost the client at ``delta``; without ``refine`` by quick bounds.

        The relation is that of the releases, unless another one is given.
        """
        releases = [
            (release if relation is None else release.with_relation(relation), count)
            for release, count in self._counts.items()
        ]
        relations = {release.relation for release, _ in releases}
        if len(relations) > 1:
            raise InvalidSpecError(
                "relation", " and ".join(sorted(relations)), "are mixed", "give the one to state"
            )
        stated = relations.pop() if relations else relation or Relation.REPLACE_ONE
        least = _find_smallest_bound(releases, delta, refine)
        return PrivacyStatement(
            epsilon=least.epsilon,
            delta=0.0 if least.composition in (Composition.PURE, Composition.NONE) else delta,
            unit=unit,
            view=_stated_view([release for release, _ in releases]),
            relation=stated,
            method=least.method,
            assumptions=least.assumptions,
            scope=_scope_text([release for release, _ in releases], self.num_releases, unit),
            norms=least.norms,
        )


def coordinate_statement(mechanism: Mechanism) -> PrivacyStatement:
    """What one release of one coordinate costs in the local view: certified when the mechanism was made.

    Parameters
    ----------
    mechanism
        The mechanism that encodes the coordinate.

    Returns
    -------
    PrivacyStatement
        The statement, with what it assumes.
    """
    assumptions = (
        (_ASSUMES_SECURE_RANDOMNESS, _ASSUMES_EXACT_REALS)
        if mechanism.outputs_floats
        else (_ASSUMES_SECURE_RANDOMNESS,)
    )
    return dataclasses.replace(mechanism.statement, assumptions=assumptions)


def unit_statement(
    mechanism: Mechanism, relation: Relation = Relation.REPLACE_ONE, dimension: int = 1
) -> PrivacyStatement:
    """What one coordinate costs (the whole update, if that is encoded at once), at the mechanism's delta.

    Parameters
    ----------
    mechanism
        The mechanism that encodes the coordinate or the update.
    relation
        The neighboring relation to state.
    dimension
        Coordinates of the update, for mechanisms that encode it at once.

    Returns
    -------
    PrivacyStatement
        The statement, in the mechanism's unit and the local view.
    """
    if relation is Relation.REPLACE_ONE or math.isinf(mechanism.epsilon):
        return dataclasses.replace(coordinate_statement(mechanism), relation=relation)
    units = dimension if mechanism.encodes_whole_updates else 1
    release = Release(mechanism, units, relation=relation)
    return Accountant([release]).statement(mechanism.delta, mechanism.unit)


def round_statement(release: Release, delta: float) -> PrivacyStatement:
    """What one release of a whole update costs, at ``delta``.

    Parameters
    ----------
    release
        The update that is released, and who sees what of it.
    delta
        The delta at which epsilon is stated.

    Returns
    -------
    PrivacyStatement
        The statement, for one round of a client.
    """
    return Accountant([release]).statement(delta, Unit.ROUND)


def statement_levels(release: Release, rounds: int, delta: float) -> list[PrivacyStatement]:
    """Statements of one coordinate, one round and all rounds, for a client with the same release in each.

    The last two are stated in the local view and, if the release has another view, in that one too.

    Parameters
    ----------
    release
        The release of each round.
    rounds
        How many rounds there are.
    delta
        The delta at which epsilon is stated, except for one coordinate.

    Returns
    -------
    list[PrivacyStatement]
        Three statements for a release in the local view, otherwise five.
    """
    local = release.with_view(LOCAL)
    views = [local] if release.view.is_local else [local, release]
    levels = [unit_statement(release.mechanism, release.relation, release.dimension)]
    levels += [round_statement(seen, delta) for seen in views]
    return levels + [Accountant({seen: rounds}).statement(delta) for seen in views]


class _Total(NamedTuple):
    """A total over all releases, and how it was counted."""

    epsilon: float
    composition: Composition
    method: str
    norms: tuple[UpdateNorm, ...]
    assumptions: tuple[str, ...]

    @classmethod
    def of(cls, bound: Bound, losses: list[NamedLoss], assumptions: tuple[str, ...]) -> _Total:
        """The total of these losses, with the names of their bounds before that of the composition."""
        composition = Composition.NONE if math.isinf(bound.epsilon) else bound.method
        if composition in (Composition.PURE, Composition.NONE):
            method = str(composition)
        else:
            names = sorted({loss.name for loss in losses if loss.name})
            method = "".join(f"{name}+" for name in names) + composition
        norms = sorted({loss.norm for loss in losses if loss.norm is not None})
        return cls(bound.epsilon, composition, method, tuple(norms), assumptions)


def _find_smallest_bound(releases: list[tuple[Release, int]], delta: float, refine: bool) -> _Total:
    """The smallest total over all ways to count."""
    ways: list[tuple[float, _CountingMethod, list[Part], list[NamedLoss]]] = []
    sums = [False] if all(release.view.is_local for release, _ in releases) else [True, False]
    settled = False
    for in_sum, by in product(sums, _Basis):
        way = _CountingMethod(in_sum, by)
        if by is not _Basis.NORM and (settled or (by is _Basis.THEOREM and not (refine and in_sum))):
            continue
        if by is not _Basis.COORDINATES and not any(
            _applies(release, way, refine) for release, _ in releases
        ):
            continue
        counted = [_make_part(release, count, way, delta, refine) for release, count in releases]
        parts = _merge_parts(part for part, _ in counted)
        quick = compose_epsilon(parts, delta, refine=False)
        ways.append((quick.epsilon, way, parts, [loss for _, loss in counted]))
        tight = (
            way == _CountingMethod(True, _Basis.NORM)
            and math.isfinite(quick.epsilon)
            and quick.method is Composition.EXACT
        )
        settled = settled or (tight and _is_far_inside_clip(releases))
    # Among equal totals the one of the local view is stated, because it assumes less.
    ways.sort(key=lambda counted: counted[1].in_sum)
    least = min(rough for rough, _, _, _ in ways)
    totals: list[_Total] = []
    for rough, way, parts, losses in ways:
        # A quick bound that is far above another one will not fall below it when it is counted in full.
        if rough <= _FAR_FACTOR * least or rough == least:
            bound = compose_epsilon(parts, delta, refine)
            assumed = _list_assumptions(releases, way)
            if len(releases) > 1 and bound.method not in (Composition.PURE, Composition.EXACT):
                assumed += (_ASSUMES_NONADAPTIVE_KINDS,)
            totals.append(_Total.of(bound, losses, assumed))
    return min(totals, key=lambda total: total.epsilon)


def _filter_parts(parts: list[Part], log_delta: float, rate: float) -> float:
    """The epsilon of parts whose kinds were chosen adaptively, by their moments at a rate set before."""
    largest = pure_epsilon(parts)
    if math.fsum(part.count * part.loss.infinity for part in parts) >= math.exp(log_delta):
        return largest
    # Without infinite losses a moment may be below 1, but a release must never lower the total.
    moments = math.fsum(max(part.count * part.loss.log_moment(rate), 0.0) for part in parts)
    return min(largest, epsilon_at_rate(moments * (1.0 + ROUNDING), log_delta, rate))


def _best_part_at_rate(release: Release, count: int, delta: float, rate: float) -> Part:
    """The release counted in the way whose moment at ``rate`` is the least."""
    ways = product([False] if release.view.is_local else [False, True], (_Basis.NORM, _Basis.COORDINATES))
    parts = [_make_part(release, count, _CountingMethod(*way), delta, refine=False)[0] for way in ways]
    return min(parts, key=lambda part: part.count * part.loss.log_moment(rate))


def _is_far_inside_clip(releases: list[tuple[Release, int]]) -> bool:
    """Whether all updates have many coordinates, of which their L2 norm allows only few to be at the clip.

    Counting by coordinates would treat two such updates as at least twice as far apart as they can be. If the
    count by norms in the sum is exact, counting by coordinates is then never better, and takes long. The same
    holds for the local view, in which two updates are easier to distinguish than in a sum.
    """
    return all(
        release.dimension >= _MANY_COORDINATES
        and release.norms.l2 is not None
        and 4.0 * release.norms.l2**2 <= release.dimension
        and not release.view.is_local
        for release, _ in releases
    )


def _merge_parts(parts: Iterable[Part]) -> list[Part]:
    """The parts, with those of equal losses merged: releases with about as many clients share a loss."""
    counts: dict[int, tuple[Moments, int]] = {}
    for part in parts:
        _, before = counts.get(id(part.loss), (part.loss, 0))
        counts[id(part.loss)] = (part.loss, before + part.count)
    return [Part(loss, count) for loss, count in counts.values()]


def _applies(release: Release, way: _CountingMethod, refine: bool) -> bool:
    """Whether a way other than by coordinates applies to the release."""
    return _sampled_loss(release, refine) is not None or bool(_whole_losses(release, way))


def _counted_view(release: Release, way: _CountingMethod) -> View:
    in_sum = way.in_sum and not release.view.is_local
    return View(round_count_down(release.view.honest_count)) if in_sum else LOCAL


def _whole_losses(release: Release, way: _CountingMethod) -> list[NamedLoss]:
    """The losses of a whole update by its norm or by a theorem; empty where there are none."""
    view = _counted_view(release, way)
    if way.by is _Basis.NORM and release.norms != NO_NORMS:
        norms = release.norms
    elif way.by is _Basis.THEOREM and not view.is_local:
        norms = NO_NORMS
    else:
        return []
    return _update_losses(release.mechanism, WholeUpdate(norms, release.dimension, view, release.relation))


def _make_part(
    release: Release, count: int, way: _CountingMethod, delta: float, refine: bool
) -> tuple[Part, NamedLoss]:
    """The loss to compose for a release, and the bound that it comes from."""
    sampled = _sampled_loss(release, refine)
    if sampled is not None:
        return Part(sampled, count), _say_what_is_counted(NamedLoss(sampled, "sampling"), release)
    if losses := _whole_losses(release, way):
        least, units = _choose_best_loss(losses, count, delta, refine), 1
    else:
        least = _unit_loss(release.mechanism, _counted_view(release, way), release.relation)
        units = release.mechanism.releases(release.dimension)
    return Part(least.loss, least.count * units * count), _say_what_is_counted(least, release)


def _say_what_is_counted(loss: NamedLoss, release: Release) -> NamedLoss:
    """The bound with a name that says so if it is the one for replace-one, although zero-out is wanted."""
    if release.relation is not Relation.ZERO_OUT or loss.relation is not Relation.REPLACE_ONE:
        return loss
    return dataclasses.replace(loss, name="+".join(filter(None, [loss.name, _BY_REPLACE_ONE])))


def _choose_best_loss(losses: list[NamedLoss], count: int, delta: float, refine: bool) -> NamedLoss:
    """The bound whose total is the least; those whose quick totals are close are composed in full."""

    def total(named: NamedLoss, refine: bool) -> float:
        return compose_epsilon([Part(named.loss, named.count * count)], delta, refine).epsilon

    quick = [total(named, False) for named in losses]
    near = [
        named for named, epsilon in zip(losses, quick, strict=True) if epsilon <= _FAR_FACTOR * min(quick)
    ]
    if refine and len(near) > 1:
        return min(near, key=lambda named: total(named, True))
    return losses[quick.index(min(quick))]


@lru_cache(maxsize=_CACHE_SIZE)
def _sampled_loss(release: Release, refine: bool) -> PrivacyLoss | None:
    """The loss of a round whose clients are drawn in secret; None where there is no amplification."""
    view = release.view
    if view.sampled is None or view.sampled == 1.0:
        return None
    # The theorem needs the curve for replace-one, whatever the relation is: a client that was not drawn is
    # replaced by another one.
    certain = release.with_relation(Relation.REPLACE_ONE).with_view(View(view.num_honest))
    curve = _epsilon_curve(certain, refine)
    # Noise that is correlated ties a round to later ones, so that rounds are not amplified one by one.
    rate = view.sampled if release.mechanism.handed is None else 1.0
    return None if curve is None else subsampled_loss(curve, rate)


@lru_cache(maxsize=_CACHE_SIZE)
def _epsilon_curve(release: Release, refine: bool) -> Curve | None:
    """The epsilon of the release by itself at many deltas."""

    def epsilon(delta: float) -> float:
        return _find_smallest_bound([(release, 1)], delta, refine).epsilon

    return curve_of(epsilon, epsilon(0.0), _CURVE_POINTS if refine else _QUICK_POINTS)


@lru_cache(maxsize=_CACHE_SIZE)
def _unit_loss(mechanism: Mechanism, view: View, relation: Relation) -> NamedLoss:
    return mechanism.loss(view, relation)


@lru_cache(maxsize=_CACHE_SIZE)
def _update_losses(mechanism: Mechanism, update: WholeUpdate) -> list[NamedLoss]:
    return mechanism.update_losses(update)


def _list_assumptions(releases: list[tuple[Release, int]], way: _CountingMethod) -> tuple[str, ...]:
    released = [release for release, _ in releases]
    assumed = [_ASSUMES_SECURE_RANDOMNESS]
    rates = [release.view.sampled for release in released if release.view.sampled is not None]
    if rates:
        assumed.append(_ASSUMES_MODELS_ONLY)
    if any(rate < 1.0 for rate in rates):
        rate = math.ceil(max(rates) * 1e4) / 1e4
        assumed += [
            f"{_SAMPLING_ASSUMPTION}, each that would answer with probability {rate:g} at most",
            _ASSUMES_MEMORYLESS_CLIENTS,
        ]
    if any(release.relation is Relation.ADD_REMOVE for release in released):
        assumed.append(_ASSUMES_FIXED_NUMBER)
    if any(not release.view.is_local and (way.in_sum or release.view.sampled) for release in released):
        assumed += [_ASSUMES_HONEST_CLIENTS] if rates else [_ASSUMES_SUMS_ONLY, _ASSUMES_HONEST_CLIENTS]
    if way.by is _Basis.NORM:
        assumed.append(_ASSUMES_CLIPPED_NORMS)
    if any(release.mechanism.outputs_floats for release in released):
        assumed.append(_ASSUMES_EXACT_REALS)
    return tuple(assumed)


def _stated_view(releases: list[Release]) -> StatedView:
    views = [release.view for release in releases]
    models = any(view.sampled is not None for view in views)
    counts = sorted({view.num_honest for view in views if view.num_honest is not None})
    if not views or any(view.num_honest is None for view in views):
        kind = ViewKind.LOCAL_OR_AGGREGATE if counts else ViewKind.LOCAL
        return StatedView(ViewKind.MODELS if models else kind)
    kind = ViewKind.MODELS if models else ViewKind.AGGREGATE
    return StatedView(kind, counts[0], counts[-1] if len(counts) > 1 else None)


def _scope_text(releases: list[Release], rounds: int, unit: Unit) -> str:
    sizes = sorted({release.dimension for release in releases})
    if not sizes:
        return "nothing released"
    several = f"{sizes[0]} to {sizes[-1]} coordinates"
    coordinates = pluralize(sizes[0], "coordinate") if len(sizes) == 1 else several
    return coordinates if unit is Unit.ROUND else f"{coordinates}, {pluralize(rounds, 'round')}"
