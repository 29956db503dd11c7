"""The server's ledger: what each client was asked for, who could see it, and the largest privacy loss.

A client that encoded an update has spent privacy even if its reply was lost. So the server counts whom it
*asked*, before anything is sent, and its count is never below a client's own: each request states how many
releases of its kind the server has counted for that client, and a client that counts more refuses it (see
:mod:`fl_privquant.flower.client_ledger`). By induction over the requests that were answered, every kind of
release of every client is counted at least as often here as there, whatever was lost on the way.

A client is identified by its *name*, which is its node id. After a restart of the federation a client may
have another name, but no name is given twice. So clients whose names are known, because they were asked or
could have been asked (:meth:`FederationLedger.meet`), keep their own counts. Every other client is charged
with all that it could have been asked for under another name: for each kind of release, the most that any
client was asked for, as if the last time had been in the last round.

**Those who see only the models** (:attr:`~fl_privquant.statement.View.sampled`) do not know who took part
where clients are drawn in secret. Every client is then charged for every round, amplified by the sampling. If
they knew who took part, a client would be charged for its own rounds, without amplification. Both are upper
bounds, and the smaller one is stated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from fl_privquant.accounting.accountant import Accountant, Budget
from fl_privquant.accounting.release import Release
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.law.lattice import coarse_count
from fl_privquant.loss.norms import Norms
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import LOCAL, PrivacyStatement, Unit, View

# Stands for all clients whose names are not known. No node of Flower has this id.
_ANYBODY = 0
# If clients have more different histories than the first number, each sum is counted as the smallest one. If
# there are still more than the second number, one history is counted that costs more than all of them.
_MOST_HISTORIES, _MOST_FLOORED = 4, 32
# All that identifies a release except for its view.
_Kind = tuple[str, int, Norms]
# What a client was asked for: the number of each kind of request, and how often; sorted, to be comparable.
_History = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Asked:
    """A kind of request: the release in the server's view, and the view of those who see only the models."""

    release: Release
    models: View | None = None

    @property
    def local(self) -> Release:
        """The release for whoever sees all codes."""
        return self.release.seen(LOCAL)

    @property
    def shown(self) -> Release:
        """The release for those who see only the models; without a stated view, they know who took part."""
        return self.release.seen(View(sampled=1.0) if self.models is None else self.models)

    @property
    def shown_with_names(self) -> Release:
        """The release for those who see only the models and also know who took part."""
        return self.release.seen(replace(self.shown.view, sampled=1.0))


@dataclass
class FederationLedger:
    """Every request of a server, and what they cost its clients.

    Guarantee: :meth:`statement` is an upper bound for every client, in both views.
    Assumes: for the aggregate view, that sums had the honest clients that :meth:`summed` was told of.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> release = Release(pq.design("one_bit", epsilon=0.5), dimension=10)
    >>> ledger = FederationLedger()
    >>> for number, nodes in ((1, [7, 8]), (2, [8, 9])):
    ...     ledger.ask(number, release, nodes)
    >>> [ledger.count(node, release) for node in (7, 8, 9)]
    [1, 2, 1]
    >>> ledger.statement(0.0).figures
    'ε = 10, δ = 0'
    """

    _asked: list[tuple[int, Release]] = field(default_factory=list)
    _kinds: list[_Asked] = field(default_factory=list)
    # The most that clients of unknown names were asked for before a restart, and in how many rounds.
    _before: _History = ()
    _before_rounds: int = 0
    _histories: dict[int, _History] = field(default_factory=dict)
    # Names that were known before anything was charged to unknown ones.
    _met: set[int] = field(default_factory=set)
    _last_rounds: dict[int, int] = field(default_factory=dict)
    # How many rounds there were of each kind, whoever was asked.
    _shown: Counter[int] = field(default_factory=Counter)
    # The round that is being run, and the clients that it asked.
    _open: _Asked | None = None
    _open_nodes: frozenset[int] = frozenset()
    _last_closed: _Asked | None = None
    _stated: dict[tuple[Any, ...], PrivacyStatement] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def releases(self) -> list[tuple[int, Release]]:
        """All requests in order: the round, and the release in the local view."""
        return list(self._asked)

    def meet(self, nodes: Iterable[int]) -> None:
        """Note the names of clients that could be asked, which are then known after a restart."""
        if not self._before:
            self._met.update(nodes)

    def ask(self, number: int, release: Release, nodes: Iterable[int], models: View | None = None) -> None:
        """Count a release for every node, before round ``number`` asks for it.

        It counts in the local view until :meth:`summed` says that only a sum can be seen. ``models`` is the
        view of an adversary who sees only the models, until :meth:`published` gives a better one.
        """
        self._close()
        local = release.seen(LOCAL)
        self._asked.append((number, local))
        self._open, self._open_nodes = _Asked(local, models), frozenset(nodes)
        self._stated.clear()

    def summed(self, num_honest: int) -> None:
        """Note that only a sum of the last release is seen, with at least ``num_honest`` honest clients."""
        if self._open is not None:
            self._open = replace(self._open, release=self._open.release.seen(_in_sum(num_honest)))
            self._stated.clear()

    def published(self, models: View) -> None:
        """Note what those who see only the models can see of the last release."""
        if self._open is not None:
            honest = None if models.num_honest is None else coarse_count(models.num_honest)
            self._open = replace(self._open, models=replace(models, num_honest=honest))
            self._stated.clear()

    def cancel(self) -> None:
        """Remove the last release, for which no request was sent."""
        if self._open is not None:
            self._open, self._open_nodes = None, frozenset()
            self._asked.pop()
            self._stated.clear()

    def count(self, node: int, release: Release) -> int:
        """How many releases like this one, in whatever view, are counted for a node."""
        kind = release.kind
        history = self._histories.get(node, self._unasked(node))
        count = sum(number for at, number in history if self._kinds[at].release.kind == kind)
        if self._open is not None and self._open.release.kind == kind and node in self._open_nodes:
            count += 1
        return count

    def participation(self, node: int) -> tuple[int, int | None]:
        """In how many rounds a node was asked, at most, and the last of them, at the latest."""
        named = node in self._histories or node in self._met
        count = sum(number for _, number in self._histories.get(node, ())) if named else self._before_rounds
        last = self._last_rounds.get(node) if named else self._last_rounds.get(_ANYBODY)
        if node in self._open_nodes:
            return count + 1, self._asked[-1][0]
        return count, last

    def check(
        self, number: int, release: Release, nodes: Iterable[int], budget: Budget, chosen: bool = False
    ) -> None:
        """Raise BudgetExhaustedError, with what was spent, if asking these nodes would exceed a budget.

        The budget is for the view that the release will have. It holds even if kinds of releases are
        ``chosen`` by what earlier ones showed: a filter then counts several kinds (:meth:`Accountant.check`).
        """
        # The filter takes a hundredth of the delta.
        budget = replace(budget, delta=0.99 * budget.delta) if chosen else budget
        in_sum = not release.view.is_local
        planned = release.seen(_in_sum(release.view.honest_count) if in_sum else LOCAL)
        by_node = self._all()
        histories = {by_node.get(node, self._unasked(node)) for node in nodes}
        for counts in self._worst(histories, attrgetter("release" if in_sum else "local")):
            try:
                Accountant(counts).check(number, planned, [budget], chosen=chosen)
            except BudgetExhaustedError:
                # Counting each sum as the smallest one, as plans do, never costs less in truth. But equal
                # releases compose without the rounding that different ones need: the bound may be smaller.
                smallest = _smallest_sums([*counts, planned])
                floored, least = Accountant(_floored(counts, smallest)), _at_least(planned, smallest)
                # The error states what the whole run has cost, not the counts of these clients.
                floored.check(number, least, [budget], lambda delta: self.statement(delta, in_sum), chosen)

    def statement(self, delta: float, in_sum: bool = False, refine: bool = True) -> PrivacyStatement:
        """What the run has cost the worst of all clients so far.

        Parameters
        ----------
        delta
            The δ of the statement.
        in_sum
            Whether the statement is for an adversary who sees only sums, where there were sums; otherwise it
            is for one who sees all codes.
        refine
            Whether to count in full; quick bounds are good enough after each round.
        """
        key = (delta, in_sum, refine)
        if key not in self._stated:
            seen_by = attrgetter("release" if in_sum else "local")
            self._stated[key] = self._worst_statement(seen_by, delta, refine)
        return self._stated[key]

    @property
    def counts_models(self) -> bool:
        """Whether the last release has a view for those who see only the models."""
        return self._last is not None and self._last.models is not None

    def models_statement(self, delta: float, refine: bool = True) -> PrivacyStatement:
        """What the run has cost the worst of all clients, for whoever sees only the models.

        Parameters as for :meth:`statement`.
        """
        key = (delta, "models", refine)
        if key not in self._stated:
            rounds = self._shown + Counter([] if self._open is None else [self._place(self._open)])
            counts: Counter[Release] = Counter()
            for at, number in rounds.items():
                counts[self._kinds[at].shown] += number
            unnamed = _least_statement(counts, delta, refine)
            named = self._worst_statement(lambda asked: asked.shown_with_names, delta, refine)
            self._stated[key] = min(unnamed, named, key=lambda statement: statement.epsilon)
        return self._stated[key]

    def _worst_statement(
        self, seen_by: Callable[[_Asked], Release], delta: float, refine: bool
    ) -> PrivacyStatement:
        # Clients without a known name were asked under another name, whose history is among these.
        worst = self._worst(set(self._all().values()), seen_by)
        costs = [_least_statement(counts, delta, refine) for counts in worst]
        return max(costs, key=lambda statement: statement.epsilon)

    @property
    def last_view(self) -> View:
        """The view of the last release; the local view before the first release."""
        last = self._last
        return LOCAL if last is None else last.release.view

    @property
    def last_release(self) -> Release | None:
        """The last release in the local view; None before the first."""
        last = self._last
        return None if last is None else last.local

    def last_statement(self, delta: float, in_sum: bool = False, refine: bool = True) -> PrivacyStatement:
        """What the last release alone has cost a client: one round, without earlier ones.

        Parameters as for :meth:`statement`.
        """
        last = self._last
        if last is None:
            raise InvalidSpecError("ledger: no release was asked for yet, so there is no round to state")
        seen = last.release if in_sum else last.local
        return _round_statement(seen, delta, refine)

    def to_dict(self) -> dict[str, Any]:
        """The ledger as plain values, for a checkpoint."""
        if self._open is not None:
            closed = replace(
                self, _kinds=[*self._kinds], _shown=Counter(self._shown), _last_rounds=dict(self._last_rounds)
            )
            closed._close()
            return closed.to_dict()
        blobs = {asked.release.fingerprint: asked.release.blob for asked in self._kinds}
        blobs |= {release.fingerprint: release.blob for _, release in self._asked}
        nodes: dict[tuple[_History, int], list[int]] = {}
        for node, history in self._histories.items():
            nodes.setdefault((history, self._last_rounds[node]), []).append(node)
        return {
            "mechanisms": blobs,
            "rounds": [[number, release.text] for number, release in self._asked],
            "kinds": [[asked.release.text, *_views_of(asked)] for asked in self._kinds],
            "shown": sorted(self._shown.items()),
            "nodes": [[history, last, sorted(names)] for (history, last), names in nodes.items()],
            "met": sorted(self._met - self._histories.keys()),
            "before": [self._before, self._before_rounds],
            "last": None if self._last_closed is None else self._kinds.index(self._last_closed),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> FederationLedger:
        """The ledger that :meth:`to_dict` wrote; clients of other names are charged with the most."""
        mechanisms = {name: Mechanism.from_bytes(blob) for name, blob in content["mechanisms"].items()}
        requests = [(int(number), Release.from_text(text, mechanisms)) for number, text in content["rounds"]]
        kinds = [
            _Asked(Release.from_text(text, mechanisms, View(honest)), _models_view(*models))
            for text, honest, *models in content["kinds"]
        ]
        last = content["last"]
        before, before_rounds = content["before"]
        ledger = cls(
            _asked=requests,
            _kinds=kinds,
            _before=_history(before),
            _before_rounds=int(before_rounds),
            _met=set(map(int, content.get("met", ()))),
            _shown=Counter({int(at): int(count) for at, count in content["shown"]}),
            _last_closed=None if last is None else kinds[int(last)],
        )
        for history, number, names in content["nodes"]:
            for node in map(int, names):
                ledger._histories[node], ledger._last_rounds[node] = _history(history), int(number)
        ledger._charge_strangers()
        return ledger

    def _charge_strangers(self) -> None:
        """Charge clients whose names are not known with the most that any client was asked for."""
        totals = [sum(count for _, count in history) for history in self._histories.values()]
        self._before_rounds = max([self._before_rounds, *totals])
        self._before = self._most({*self._histories.values(), self._before})
        if self._asked:
            self._last_rounds[_ANYBODY] = self._asked[-1][0]

    @property
    def _last(self) -> _Asked | None:
        return self._open or self._last_closed

    def _close(self) -> None:
        """Move the open round to the histories of the clients that were asked."""
        if self._open is not None:
            self._histories = self._all()
            self._shown[self._place(self._open)] += 1
            self._last_rounds.update(dict.fromkeys(self._open_nodes, self._asked[-1][0]))
            self._last_closed, self._open, self._open_nodes = self._open, None, frozenset()

    def _all(self) -> dict[int, _History]:
        """The histories of all nodes, the open round included."""
        if self._open is None:
            return self._histories
        at = self._place(self._open)
        longer: dict[_History, _History] = {}
        histories = dict(self._histories)
        for node in self._open_nodes:
            history = histories.get(node, self._unasked(node))
            if history not in longer:
                longer[history] = _history((Counter(dict(history)) + Counter([at])).items())
            histories[node] = longer[history]
        return histories

    def _place(self, asked: _Asked) -> int:
        """The place of a kind of request in the list of kinds; a new kind is added to the list."""
        if asked not in self._kinds:
            self._kinds.append(asked)
        return self._kinds.index(asked)

    def _unasked(self, node: int) -> _History:
        """What is charged to a node that was not asked under this name."""
        return () if node in self._met else self._before

    def _most(self, histories: Iterable[_History]) -> _History:
        """A history that costs at least as much as each of these.

        For each release, whatever its view, it has the most that any client was asked for: in the views that
        occurred or, if their counts exceed that number, each time with the smallest sum.
        """
        most: Counter[int] = Counter()
        totals: dict[tuple[_Kind, bool], int] = {}
        for history in histories:
            most |= Counter(dict(history))
            own: Counter[tuple[_Kind, bool]] = Counter()
            for at, count in history:
                own[self._sort(at)] += count
            totals = {sort: max(totals.get(sort, 0), own[sort]) for sort in {*totals, *own}}
        merged: Counter[int] = Counter()
        for sort, total in totals.items():
            places = [at for at in most if self._sort(at) == sort]
            if sum(most[at] for at in places) == total:
                merged.update({at: most[at] for at in places})
                continue
            merged[self._place(self._worst_of([self._kinds[at] for at in places]))] += total
        return _history(merged.items())

    def _sort(self, at: int) -> tuple[_Kind, bool]:
        """The release of a kind without its view, and whether the server saw more than a sum."""
        release = self._kinds[at].release
        return release.kind, release.view.is_local

    @staticmethod
    def _worst_of(kinds: list[_Asked]) -> _Asked:
        """For one release in several views, the view that costs the most: that of the smallest sums."""
        smallest = min((asked.release for asked in kinds), key=lambda release: release.view.honest_count)
        honest = min(asked.shown.view.honest_count for asked in kinds)
        return _Asked(smallest, View(honest if honest > 1 else None, sampled=1.0))

    def _worst(
        self, histories: set[_History], seen_by: Callable[[_Asked], Release]
    ) -> list[dict[Release, int]]:
        """A few counts of releases, such that the history of every client costs at most as much as one."""
        # In a fixed order, so that a refusal states the same ε in every process.
        distinct = dict.fromkeys(self._seen(history, seen_by) for history in sorted(histories))
        worst = _maximal(distinct, _MOST_HISTORIES)
        if worst is None:
            # Each sum as if it had been the smallest one: fewer honest clients are worse.
            smallest = _smallest_sums({release for seen in distinct for release, _ in seen})
            distinct = dict.fromkeys(frozenset(_floored(dict(seen), smallest).items()) for seen in distinct)
            worst = _maximal(distinct, _MOST_FLOORED)
        if worst is None:
            most: dict[Release, int] = {}
            for seen in distinct:
                for asked, count in seen:
                    most[asked] = max(most.get(asked, 0), count)
            worst = [most]
        return worst or [{}]

    def _seen(
        self, history: _History, seen_by: Callable[[_Asked], Release]
    ) -> frozenset[tuple[Release, int]]:
        """The releases of a history as an adversary sees them, with how often each was made."""
        counts: Counter[Release] = Counter()
        for at, count in history:
            counts[seen_by(self._kinds[at])] += count
        return frozenset(counts.items())


def _history(counts: Iterable[Iterable[int]]) -> _History:
    return tuple(sorted((int(at), int(count)) for at, count in counts))


def _views_of(asked: _Asked) -> list[int | float | None]:
    """The views as plain values."""
    models = asked.models
    shown = [None, None] if models is None else [models.num_honest, models.sampled]
    return [asked.release.view.num_honest, *shown]


def _models_view(num_honest: int | None, sampled: float | None) -> View | None:
    return None if sampled is None else View(num_honest, sampled)


# Kept, as most rounds release the same, and the end of a run states the last one several times.
@lru_cache(maxsize=32)
def _round_statement(release: Release, delta: float, refine: bool) -> PrivacyStatement:
    return Accountant([release]).statement(delta, Unit.ROUND, refine)


def _least_statement(counts: Mapping[Release, int], delta: float, refine: bool) -> PrivacyStatement:
    """What these releases cost, either with their own sums or with the smallest sum of each kind.

    Both are upper bounds, and the smaller one is stated (see :meth:`FederationLedger.check`).
    """
    ways = {frozenset(way.items()) for way in (counts, _floored(counts, _smallest_sums(counts)))}
    stated = [Accountant(dict(way)).statement(delta, Unit.TOTAL, refine) for way in ways]
    return min(stated, key=lambda statement: statement.epsilon)


def _in_sum(num_honest: int) -> View:
    """The view of a sum; the number of honest clients is rounded down, so that few numbers occur."""
    return View(coarse_count(max(num_honest, 1)))


def _smallest_sums(releases: Iterable[Release]) -> dict[_Kind, int]:
    """For each kind of release that was summed, the fewest honest clients in such a sum."""
    smallest: dict[_Kind, int] = {}
    for release in releases:
        honest = release.view.num_honest
        if honest is not None:
            smallest[release.kind] = min(smallest.get(release.kind, honest), honest)
    return smallest


def _at_least(release: Release, smallest: Mapping[_Kind, int]) -> Release:
    """A release as if its sum had been the smallest of its kind: fewer honest clients are worse."""
    if release.view.num_honest is None:
        return release
    return release.seen(replace(release.view, num_honest=smallest[release.kind]))


def _floored(counts: Mapping[Release, int], smallest: Mapping[_Kind, int]) -> dict[Release, int]:
    """The counts with each sum as if it had been the smallest of its kind."""
    floored: dict[Release, int] = {}
    for asked, count in counts.items():
        least = _at_least(asked, smallest)
        floored[least] = floored.get(least, 0) + count
    return floored


def _maximal(
    histories: Iterable[frozenset[tuple[Release, int]]], most: int
) -> list[dict[Release, int]] | None:
    """The histories that no other one contains; None if there are more than ``most``."""
    largest: list[dict[Release, int]] = []
    for history in sorted(histories, key=lambda kinds: -sum(count for _, count in kinds)):
        counts = dict(history)
        if not any(all(other.get(asked, 0) >= n for asked, n in counts.items()) for other in largest):
            largest.append(counts)
            if len(largest) > most:
                return None
    return largest
