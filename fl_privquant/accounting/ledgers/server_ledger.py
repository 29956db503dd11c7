"""The server's ledger: what each client was asked for, who could see it, and the largest privacy loss.

A client that encoded an update has spent privacy even if its reply was lost. So the server counts whom it
*asked*, before anything is sent, and its count is never below a client's own: each request states how many
releases of its kind the server has counted for that client, and a client that counts more refuses it (see
:mod:`fl_privquant.flower.client.ledger`). By induction over the requests that were answered, every kind of
release of every client is counted at least as often here as there, whatever was lost on the way.

A client is identified by its *name*, which is its node id. After a restart of the federation a client may
have another name, but no name is given twice. So clients whose names are known, because they were asked or
could have been asked (:meth:`FederationLedger.register_clients`), keep their own counts. Every other client
is charged with all that it could have been asked for under another name: for each kind of release, the most
that any client was asked for, as if the last time had been in the last round.

**Those who see only the models** (:attr:`~fl_privquant.statement.View.sampled`) do not know who took part
where clients are drawn in secret. Every client is then charged for every round, amplified by the sampling. If
they knew who took part, a client would be charged for its own rounds, without amplification. Both are upper
bounds, and the smaller one is stated.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from fl_privquant.accounting.accountant import Accountant, Budget
from fl_privquant.accounting.records import record_statement
from fl_privquant.accounting.release import Release
from fl_privquant.distributions.integer_distribution import round_count_down
from fl_privquant.errors import MISSING, BudgetExhaustedError, InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.statement import LOCAL, PrivacyStatement, Relation, Unit, View

# Stands for all clients whose names are not known. No node of Flower has this id.
_UNKNOWN_CLIENT = 0
# If clients have more different histories than the first number, each sum is counted as the smallest one. If
# there are still more than the second number, one history is counted that costs more than all of them.
_MAX_HISTORIES, _MAX_FLOORED_HISTORIES = 4, 32
# All that identifies a release except for its view.
_Kind = tuple[str, int, UpdateNorms]
# What a client was asked for: the number of each kind of request, and how often; sorted, to be comparable.
_History = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _RequestKind:
    """A kind of request: the release in the server's view, and the view of those who see only the models."""

    release: Release
    models: View | None = None

    @property
    def local(self) -> Release:
        """The release for whoever sees all codes."""
        return self.release.with_view(LOCAL)

    @property
    def models_release(self) -> Release:
        """The release for those who see only the models; without a stated view, they know who took part."""
        return self.release.with_view(View(sampled=1.0) if self.models is None else self.models)

    @property
    def models_release_with_names(self) -> Release:
        """The release for those who see only the models and also know who took part."""
        return self.release.with_view(replace(self.models_release.view, sampled=1.0))


@dataclass
class FederationLedger:
    """Every request of a server, and what they cost its clients.

    Guarantee: :meth:`statement` is an upper bound for every client, in both views.
    Assumes: for the aggregate view, that sums had the honest clients that :meth:`mark_summed` was told of.

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

    _requests: list[tuple[int, Release]] = field(default_factory=list)
    _kinds: list[_RequestKind] = field(default_factory=list)
    # The most that clients of unknown names were asked for before a restart, and in how many rounds.
    _unknown_client_history: _History = ()
    _unknown_client_rounds: int = 0
    _histories: dict[int, _History] = field(default_factory=dict)
    # How many nodes have each history, so that a round need not look at clients that it does not ask.
    _num_nodes: Counter[_History] = field(default_factory=Counter)
    # Names that were known before anything was charged to unknown ones.
    _known_nodes: set[int] = field(default_factory=set)
    _last_rounds: dict[int, int] = field(default_factory=dict)
    # How many rounds there were of each kind, whoever was asked.
    _shown: Counter[int] = field(default_factory=Counter)
    # The round that is being run, and the clients that it asked.
    _open: _RequestKind | None = None
    _open_nodes: frozenset[int] = frozenset()
    _last_closed: _RequestKind | None = None
    _statement_cache: dict[tuple[Any, ...], PrivacyStatement] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def releases(self) -> list[tuple[int, Release]]:
        """All requests in order: the round, and the release in the local view."""
        return list(self._requests)

    def register_clients(self, nodes: Iterable[int]) -> None:
        """Note the names of clients that could be asked, which are then known after a restart."""
        if not self._unknown_client_history:
            self._known_nodes.update(nodes)

    def ask(self, number: int, release: Release, nodes: Iterable[int], models: View | None = None) -> None:
        """Count a release for every node, before round ``number`` asks for it.

        It counts in the local view until :meth:`mark_summed` says that only a sum can be seen. ``models`` is
        the view of an adversary who sees only the models, until :meth:`mark_published` gives a better one.
        """
        self._close()
        local = release.with_view(LOCAL)
        self._requests.append((number, local))
        self._open, self._open_nodes = _RequestKind(local, models), frozenset(nodes)
        self._statement_cache.clear()

    def mark_summed(self, num_honest: int) -> None:
        """Note that only a sum of the last release is seen, with at least ``num_honest`` honest clients."""
        if self._open is not None:
            self._open = replace(self._open, release=self._open.release.with_view(_sum_view(num_honest)))
            self._statement_cache.clear()

    def mark_published(self, models: View) -> None:
        """Note what those who see only the models can see of the last release."""
        if self._open is not None:
            honest = None if models.num_honest is None else round_count_down(models.num_honest)
            self._open = replace(self._open, models=replace(models, num_honest=honest))
            self._statement_cache.clear()

    def cancel(self) -> None:
        """Remove the last release, for which no request was sent."""
        if self._open is not None:
            self._open, self._open_nodes = None, frozenset()
            self._requests.pop()
            self._statement_cache.clear()

    def count(self, node: int, release: Release) -> int:
        """How many releases like this one, in whatever view, are counted for a node."""
        kind = release.kind
        history = self._closed_history(node)
        count = sum(number for at, number in history if self._kinds[at].release.kind == kind)
        if self._open is not None and self._open.release.kind == kind and node in self._open_nodes:
            count += 1
        return count

    def participation(self, node: int) -> tuple[int, int | None]:
        """In how many rounds a node was asked, at most, and the last of them, at the latest."""
        named = node in self._histories or node in self._known_nodes
        count = (
            sum(number for _, number in self._histories.get(node, ()))
            if named
            else self._unknown_client_rounds
        )
        last = self._last_rounds.get(node) if named else self._last_rounds.get(_UNKNOWN_CLIENT)
        if node in self._open_nodes:
            return count + 1, self._requests[-1][0]
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
        planned = release.with_view(_sum_view(release.view.honest_count) if in_sum else LOCAL)
        asked = set(nodes)
        histories = {*map(self._closed_history, asked - self._open_nodes)}
        histories |= {*map(self._with_open_round, map(self._closed_history, asked & self._open_nodes))}
        for counts in self._worst_counts(histories, attrgetter("release" if in_sum else "local")):
            try:
                Accountant(counts).check(number, planned, [budget], chosen=chosen)
            except BudgetExhaustedError:
                # Counting each sum as the smallest one, as plans do, never costs less in truth. But equal
                # releases compose without the rounding that different ones need: the bound may be smaller.
                smallest = _min_honest_by_kind([*counts, planned])
                floored, least = (
                    Accountant(_floor_sums(counts, smallest)),
                    _with_smallest_sum(planned, smallest),
                )

                # The error states what the whole run has cost, not the counts of these clients.
                def spent(delta: float) -> PrivacyStatement:
                    if budget.unit is Unit.RECORD:
                        return self.record_statement(delta, in_sum, budget.relation)
                    return self.statement(delta, in_sum, relation=budget.relation)

                floored.check(number, least, [budget], spent, chosen)

    def statement(
        self,
        delta: float,
        in_sum: bool = False,
        refine: bool = True,
        relation: Relation = Relation.REPLACE_ONE,
    ) -> PrivacyStatement:
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
        relation
            The neighboring relation to state.
        """
        key = (delta, in_sum, refine, relation)
        if key not in self._statement_cache:
            seen_by = attrgetter("release" if in_sum else "local")
            self._statement_cache[key] = self._worst_statement(seen_by, delta, refine, relation)
        return self._statement_cache[key]

    def record_statement(
        self,
        delta: float,
        in_sum: bool = False,
        relation: Relation = Relation.ADD_REMOVE,
        refine: bool = True,
    ) -> PrivacyStatement:
        """What the run has cost any one record of any client; parameters as for :meth:`statement`."""
        key = (delta, in_sum, relation, refine)
        if key not in self._statement_cache:
            seen_by = attrgetter("release" if in_sum else "local")
            worst = self._worst_counts(self._current_histories(), seen_by)
            costs = [record_statement(counts, delta, relation, refine) for counts in worst]
            self._statement_cache[key] = max(costs, key=lambda statement: statement.epsilon)
        return self._statement_cache[key]

    @property
    def has_models_view(self) -> bool:
        """Whether the last release has a view for those who see only the models."""
        return self._last is not None and self._last.models is not None

    def models_statement(
        self, delta: float, refine: bool = True, relation: Relation = Relation.REPLACE_ONE
    ) -> PrivacyStatement:
        """What the run has cost the worst of all clients, for whoever sees only the models.

        Parameters as for :meth:`statement`.
        """
        key = (delta, "models", refine, relation)
        if key not in self._statement_cache:
            rounds = self._shown + Counter([] if self._open is None else [self._kind_index(self._open)])
            counts: Counter[Release] = Counter()
            for at, number in rounds.items():
                counts[self._kinds[at].models_release] += number
            stated = [_smallest_statement(counts, delta, refine, relation)]
            if relation is not Relation.ADD_REMOVE:
                with_names = attrgetter("models_release_with_names")
                stated.append(self._worst_statement(with_names, delta, refine, relation))
            self._statement_cache[key] = min(stated, key=lambda statement: statement.epsilon)
        return self._statement_cache[key]

    def _worst_statement(
        self, seen_by: Callable[[_RequestKind], Release], delta: float, refine: bool, relation: Relation
    ) -> PrivacyStatement:
        # Clients without a known name were asked under another name, whose history is among these.
        worst = self._worst_counts(self._current_histories(), seen_by)
        costs = [_smallest_statement(counts, delta, refine, relation) for counts in worst]
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

    def last_statement(
        self,
        delta: float,
        in_sum: bool = False,
        refine: bool = True,
        relation: Relation = Relation.REPLACE_ONE,
    ) -> PrivacyStatement:
        """What the last release alone has cost a client: one round, without earlier ones.

        Parameters as for :meth:`statement`.
        """
        last = self._last
        if last is None:
            raise InvalidSpecError(
                "ledger", MISSING, "no release was asked for yet, so there is no round to state"
            )
        seen = last.release if in_sum else last.local
        return _round_statement(seen.with_relation(relation), delta, refine)

    def to_dict(self) -> dict[str, Any]:
        """The ledger as plain values, for a checkpoint."""
        if self._open is not None:
            closed = replace(
                self,
                _kinds=[*self._kinds],
                _shown=Counter(self._shown),
                _last_rounds=dict(self._last_rounds),
                _histories=dict(self._histories),
                _num_nodes=Counter(self._num_nodes),
            )
            closed._close()
            return closed.to_dict()
        blobs = {kind.release.fingerprint: kind.release.mechanism.to_bytes() for kind in self._kinds}
        blobs |= {release.fingerprint: release.mechanism.to_bytes() for _, release in self._requests}
        nodes: dict[tuple[_History, int], list[int]] = {}
        for node, history in self._histories.items():
            nodes.setdefault((history, self._last_rounds[node]), []).append(node)
        return {
            "mechanisms": blobs,
            "rounds": [[number, release.text] for number, release in self._requests],
            "kinds": [[kind.release.text, *_dump_views(kind)] for kind in self._kinds],
            "shown": sorted(self._shown.items()),
            "nodes": [[history, last, sorted(names)] for (history, last), names in nodes.items()],
            "met": sorted(self._known_nodes - self._histories.keys()),
            "before": [self._unknown_client_history, self._unknown_client_rounds],
            "last": None if self._last_closed is None else self._kinds.index(self._last_closed),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> FederationLedger:
        """The ledger that :meth:`to_dict` wrote; clients of other names are charged with the most."""
        mechanisms = {name: Mechanism.from_bytes(blob) for name, blob in content["mechanisms"].items()}
        requests = [(int(number), Release.from_text(text, mechanisms)) for number, text in content["rounds"]]
        kinds = [
            _RequestKind(Release.from_text(text, mechanisms, View(honest)), _load_models_view(*models))
            for text, honest, *models in content["kinds"]
        ]
        last = content["last"]
        before, before_rounds = content["before"]
        ledger = cls(
            _requests=requests,
            _kinds=kinds,
            _unknown_client_history=_make_history(before),
            _unknown_client_rounds=int(before_rounds),
            _known_nodes=set(map(int, content["met"])),
            _shown=Counter({int(at): int(count) for at, count in content["shown"]}),
            _last_closed=None if last is None else kinds[int(last)],
        )
        for history, number, names in content["nodes"]:
            for node in map(int, names):
                ledger._histories[node], ledger._last_rounds[node] = _make_history(history), int(number)
        ledger._num_nodes = Counter(ledger._histories.values())
        ledger._charge_unknown_clients()
        return ledger

    def _charge_unknown_clients(self) -> None:
        """Charge clients whose names are not known with the most that any client was asked for."""
        totals = [sum(count for _, count in history) for history in self._num_nodes]
        self._unknown_client_rounds = max([self._unknown_client_rounds, *totals])
        histories = {*self._num_nodes, self._unknown_client_history}
        self._unknown_client_history = self._upper_bound_history(histories)
        if self._requests:
            self._last_rounds[_UNKNOWN_CLIENT] = self._requests[-1][0]

    @property
    def _last(self) -> _RequestKind | None:
        return self._open or self._last_closed

    def _close(self) -> None:
        """Move the open round to the histories of the clients that were asked."""
        if self._open is not None:
            longer = functools.cache(self._with_open_round)
            for node in self._open_nodes:
                before, after = self._histories.get(node), longer(self._closed_history(node))
                if before is not None:
                    self._num_nodes[before] -= 1
                self._histories[node] = after
                self._num_nodes[after] += 1
            self._num_nodes = +self._num_nodes
            self._shown[self._kind_index(self._open)] += 1
            self._last_rounds.update(dict.fromkeys(self._open_nodes, self._requests[-1][0]))
            self._last_closed, self._open, self._open_nodes = self._open, None, frozenset()

    def _current_histories(self) -> set[_History]:
        """The histories of all nodes, the open round included."""
        begun = Counter(self._histories[node] for node in self._open_nodes if node in self._histories)
        before = {*map(self._closed_history, self._open_nodes)}
        return {*(self._num_nodes - begun), *map(self._with_open_round, before)}

    def _closed_history(self, node: int) -> _History:
        """The history of a node, without the open round."""
        return self._histories.get(node, self._initial_history(node))

    def _with_open_round(self, history: _History) -> _History:
        """The history of a node that the open round asks."""
        if self._open is None:
            return history
        return _make_history((Counter(dict(history)) + Counter([self._kind_index(self._open)])).items())

    def _kind_index(self, kind: _RequestKind) -> int:
        """The place of a kind of request in the list of kinds; a new kind is added to the list."""
        if kind not in self._kinds:
            self._kinds.append(kind)
        return self._kinds.index(kind)

    def _initial_history(self, node: int) -> _History:
        """What is charged to a node that was not asked under this name."""
        return () if node in self._known_nodes else self._unknown_client_history

    def _upper_bound_history(self, histories: Iterable[_History]) -> _History:
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
                own[self._group_key(at)] += count
            totals = {sort: max(totals.get(sort, 0), own[sort]) for sort in {*totals, *own}}
        merged: Counter[int] = Counter()
        for sort, total in totals.items():
            places = [at for at in most if self._group_key(at) == sort]
            if sum(most[at] for at in places) == total:
                merged.update({at: most[at] for at in places})
                continue
            merged[self._kind_index(self._worst_view([self._kinds[at] for at in places]))] += total
        return _make_history(merged.items())

    def _group_key(self, at: int) -> tuple[_Kind, bool]:
        """The release of a kind without its view, and whether the server saw more than a sum."""
        release = self._kinds[at].release
        return release.kind, release.view.is_local

    @staticmethod
    def _worst_view(kinds: list[_RequestKind]) -> _RequestKind:
        """For one release in several views, the view that costs the most: that of the smallest sums."""
        smallest = min((kind.release for kind in kinds), key=lambda release: release.view.honest_count)
        honest = min(kind.models_release.view.honest_count for kind in kinds)
        return _RequestKind(smallest, View(honest if honest > 1 else None, sampled=1.0))

    def _worst_counts(
        self, histories: set[_History], seen_by: Callable[[_RequestKind], Release]
    ) -> list[dict[Release, int]]:
        """A few counts of releases, such that the history of every client costs at most as much as one."""
        # In a fixed order, so that a refusal states the same ε in every process.
        distinct = dict.fromkeys(self._count_releases(history, seen_by) for history in sorted(histories))
        worst = _drop_dominated(distinct, _MAX_HISTORIES)
        if worst is None:
            # Each sum as if it had been the smallest one: fewer honest clients are worse.
            smallest = _min_honest_by_kind({release for seen in distinct for release, _ in seen})
            distinct = dict.fromkeys(
                frozenset(_floor_sums(dict(seen), smallest).items()) for seen in distinct
            )
            worst = _drop_dominated(distinct, _MAX_FLOORED_HISTORIES)
        if worst is None:
            most: dict[Release, int] = {}
            for seen in distinct:
                for release, count in seen:
                    most[release] = max(most.get(release, 0), count)
            worst = [most]
        return worst or [{}]

    def _count_releases(
        self, history: _History, seen_by: Callable[[_RequestKind], Release]
    ) -> frozenset[tuple[Release, int]]:
        """The releases of a history as an adversary sees them, with how often each was made."""
        counts: Counter[Release] = Counter()
        for at, count in history:
            counts[seen_by(self._kinds[at])] += count
        return frozenset(counts.items())


def _make_history(counts: Iterable[Iterable[int]]) -> _History:
    return tuple(sorted((int(at), int(count)) for at, count in counts))


def _dump_views(kind: _RequestKind) -> list[int | float | None]:
    """The views as plain values."""
    models = kind.models
    shown = [None, None] if models is None else [models.num_honest, models.sampled]
    return [kind.release.view.num_honest, *shown]


def _load_models_view(num_honest: int | None, sampled: float | None) -> View | None:
    return None if sampled is None else View(num_honest, sampled)


# Kept, as most rounds release the same, and the end of a run states the last one several times.
@functools.lru_cache(maxsize=32)
def _round_statement(release: Release, delta: float, refine: bool) -> PrivacyStatement:
    return Accountant([release]).statement(delta, Unit.ROUND, refine)


def _smallest_statement(
    counts: Mapping[Release, int], delta: float, refine: bool, relation: Relation
) -> PrivacyStatement:
    """What these releases cost, either with their own sums or with the smallest sum of each kind.

    Both are upper bounds, and the smaller one is stated (see :meth:`FederationLedger.check`).
    """
    ways = {frozenset(way.items()) for way in (counts, _floor_sums(counts, _min_honest_by_kind(counts)))}
    stated = [Accountant(dict(way)).statement(delta, Unit.TOTAL, refine, relation) for way in ways]
    return min(stated, key=lambda statement: statement.epsilon)


def _sum_view(num_honest: int) -> View:
    """The view of a sum; the number of honest clients is rounded down, so that few numbers occur."""
    return View(round_count_down(max(num_honest, 1)))


def _min_honest_by_kind(releases: Iterable[Release]) -> dict[_Kind, int]:
    """For each kind of release that was summed, the fewest honest clients in such a sum."""
    smallest: dict[_Kind, int] = {}
    for release in releases:
        honest = release.view.num_honest
        if honest is not None:
            smallest[release.kind] = min(smallest.get(release.kind, honest), honest)
    return smallest


def _with_smallest_sum(release: Release, smallest: Mapping[_Kind, int]) -> Release:
    """A release as if its sum had been the smallest of its kind: fewer honest clients are worse."""
    if release.view.num_honest is None:
        return release
    return release.with_view(replace(release.view, num_honest=smallest[release.kind]))


def _floor_sums(counts: Mapping[Release, int], smallest: Mapping[_Kind, int]) -> dict[Release, int]:
    """The counts with each sum as if it had been the smallest of its kind."""
    floored: dict[Release, int] = {}
    for release, count in counts.items():
        least = _with_smallest_sum(release, smallest)
        floored[least] = floored.get(least, 0) + count
    return floored


def _drop_dominated(
    histories: Iterable[frozenset[tuple[Release, int]]], most: int
) -> list[dict[Release, int]] | None:
    """The histories that no other one contains; None if there are more than ``most``."""
    largest: list[dict[Release, int]] = []
    for history in sorted(histories, key=lambda kinds: -sum(count for _, count in kinds)):
        counts = dict(history)
        if not any(all(other.get(release, 0) >= n for release, n in counts.items()) for other in largest):
            largest.append(counts)
            if len(largest) > most:
                return None
    return largest
