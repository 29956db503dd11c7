"""The server's ledger: what it asked of which client, which sum each release was part of, and the worst cost.

A client that encoded an update has spent privacy even if its reply was lost. So the server counts whom it
*asked*, before anything is sent, and its count is never below a client's own: each request states how many
releases of its kind the server has counted for that client, and a client that counts more refuses it (see
:mod:`fl_privquant.flower.client_ledger`). By induction over the requests that were answered, every kind of
release of every client is counted at least as often here as there, whatever was lost on the way.

After a restart a client may have another name. What was asked before then is charged to every client: for
each kind of release, the most that any client was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fl_privquant.accounting.accountant import Accountant, Budget
from fl_privquant.accounting.release import Release
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.law.lattice import coarse_count
from fl_privquant.loss.norms import Norms
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import LOCAL, PrivacyStatement, Unit, View

__all__ = ["FederationLedger"]

# Clients whose histories are counted one by one; beyond, one history that is worse than all.
_MOST_HISTORIES = 4


# What releases have in common if they differ only in who sees them.
_Kind = tuple[str, int, Norms]
# How often a client was asked for what; sorted, so that equal histories are equal.
_History = tuple[tuple[int, int], ...]


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
    _kinds: list[Release] = field(default_factory=list)
    _before: dict[Release, int] = field(default_factory=dict)
    _histories: dict[int, _History] = field(default_factory=dict)
    _open: tuple[Release, tuple[int, ...]] | None = None
    _last_closed: Release | None = None
    _stated: dict[tuple[Any, ...], PrivacyStatement] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def releases(self) -> list[tuple[int, Release]]:
        """All requests in order: the round, and the release in the local view."""
        return list(self._asked)

    def ask(self, number: int, release: Release, nodes: Iterable[int]) -> None:
        """Count a release of every node, before round ``number`` asks for it.

        It counts as seen by everybody until :meth:`summed` is told otherwise.
        """
        self._close()
        local = release.seen(LOCAL)
        self._asked.append((number, local))
        self._open = (local, tuple(nodes))
        self._stated.clear()

    def summed(self, num_honest: int) -> None:
        """Note that only a sum of the last release can be seen, with so many honest clients at least."""
        if self._open is not None:
            release, nodes = self._open
            self._open = (release.seen(_in_sum(num_honest)), nodes)
            self._stated.clear()

    def cancel(self) -> None:
        """Remove the last release, of which nothing was sent to anybody."""
        if self._open is not None:
            self._open = None
            self._asked.pop()
            self._stated.clear()

    def count(self, node: int, release: Release) -> int:
        """How many releases like this one, in whatever view, are counted for a node."""
        kind = release.kind
        count = sum(number for asked, number in self._before.items() if asked.kind == kind)
        count += sum(number for at, number in self._histories.get(node, ()) if self._kinds[at].kind == kind)
        if self._open is not None and self._open[0].kind == kind and node in self._open[1]:
            count += 1
        return count

    def check(self, number: int, release: Release, nodes: Iterable[int], budget: Budget) -> None:
        """Raise BudgetExhaustedError, with what was spent, if asking these nodes would exceed a budget.

        The budget is for the view that the release is to have.
        """
        in_sum = not release.view.is_local
        planned = release.seen(_in_sum(release.view.honest_count) if in_sum else LOCAL)
        asked = set(nodes)
        histories = {node: history for node, history in self._all().items() if node in asked}
        for counts in self._worst(histories, in_sum):
            try:
                _accountant(counts).check(number, planned, [budget])
            except BudgetExhaustedError:
                # Each sum is counted like the smallest one, which costs no less. Plans count in the same way:
                # equal releases are composed on one grid, without what mixing different ones gives away.
                smallest = _smallest_sums([*counts, planned])
                floored = _accountant(_floored(counts, smallest))
                floored.check(number, _at_least(planned, smallest), [budget])

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
            costs = []
            for counts in self._worst(self._all(), in_sum):
                # As in check: both are upper bounds, and the smaller one is stated.
                ways = {frozenset(way.items()) for way in (counts, _floored(counts, _smallest_sums(counts)))}
                stated = [_accountant(dict(way)).statement(delta, Unit.TOTAL, refine) for way in ways]
                costs.append(min(stated, key=lambda statement: statement.epsilon))
            self._stated[key] = max(costs, key=lambda statement: statement.epsilon)
        return self._stated[key]

    @property
    def last_view(self) -> View:
        """The view of the last release; the local view before the first release."""
        last = self._last
        return LOCAL if last is None else last.view

    @property
    def last_release(self) -> Release | None:
        """The last release in the local view; None before the first."""
        last = self._last
        return None if last is None else last.seen(LOCAL)

    def last_statement(self, delta: float, in_sum: bool = False, refine: bool = True) -> PrivacyStatement:
        """What the last release alone has cost a client: one round, without what came before.

        Parameters as for :meth:`statement`.
        """
        last = self._last
        if last is None:
            raise InvalidSpecError("ledger: nothing was asked for yet, so that no round has a cost")
        seen = last if in_sum else last.seen(LOCAL)
        return Accountant([seen]).statement(delta, Unit.ROUND, refine)

    def to_dict(self) -> dict[str, Any]:
        """The ledger as plain values, for a checkpoint: names of clients are not kept."""
        worst = self._most(self._all().values())
        last = self._last
        known = {release.fingerprint: release.blob for release in worst}
        known |= {release.fingerprint: release.blob for _, release in self._asked}
        return {
            "mechanisms": known,
            "rounds": [[number, release.text] for number, release in self._asked],
            "asked": [
                [release.text, release.view.num_honest, count] for release, count in worst.items() if count
            ],
            "last": None if last is None else [last.text, last.view.num_honest],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> FederationLedger:
        """The ledger that :meth:`to_dict` wrote, with all of it charged to every client."""
        known = {name: Mechanism.from_bytes(blob) for name, blob in content["mechanisms"].items()}

        def read(text: str, num_honest: int | None = None) -> Release:
            return Release.from_text(text, known, View(num_honest))

        last = content["last"]
        return cls(
            _asked=[(int(number), read(text)) for number, text in content["rounds"]],
            _before={read(text, honest): int(count) for text, honest, count in content["asked"]},
            _last_closed=None if last is None else read(*last),
        )

    @property
    def _last(self) -> Release | None:
        return self._last_closed if self._open is None else self._open[0]

    def _close(self) -> None:
        """Move the open round to the histories of the clients that were asked."""
        if self._open is not None:
            histories = self._all()
            self._last_closed = self._open[0]
            self._open = None
            self._histories = histories

    def _all(self) -> dict[int, _History]:
        """The histories of all nodes, the open round included."""
        if self._open is None:
            return self._histories
        asked, nodes = self._open
        if asked not in self._kinds:
            self._kinds.append(asked)
        at = self._kinds.index(asked)
        longer: dict[_History, _History] = {}
        histories = dict(self._histories)
        for node in nodes:
            history = histories.get(node, ())
            if history not in longer:
                counts = dict(history)
                counts[at] = counts.get(at, 0) + 1
                longer[history] = tuple(sorted(counts.items()))
            histories[node] = longer[history]
        return histories

    def _most(self, histories: Iterable[_History]) -> dict[Release, int]:
        """For each kind the most that any client was asked for, and what was before a restart."""
        most: dict[Release, int] = {}
        for history in set(histories):
            for at, count in history:
                most[self._kinds[at]] = max(most.get(self._kinds[at], 0), count)
        for asked, count in self._before.items():
            most[asked] = most.get(asked, 0) + count
        return most

    def _worst(self, histories: Mapping[int, _History], in_sum: bool) -> list[dict[Release, int]]:
        """Counts of each kind such that every client's cost at most as much as one of them."""
        different = set(histories.values())
        distinct = {self._seen(history, in_sum) for history in different}
        worst = _maximal(distinct)
        if worst is None and in_sum:
            # Each sum as if it had been the smallest one: fewer honest clients are worse.
            smallest = _smallest_sums({self._kinds[at] for history in different for at, _ in history})
            distinct = {self._seen(history, in_sum, smallest) for history in different}
            worst = _maximal(distinct)
        if worst is None:
            most: dict[Release, int] = {}
            for seen in distinct:
                for asked, count in seen:
                    most[asked] = max(most.get(asked, 0), count)
            worst = [most]
        merged = []
        for counts in worst or [{}]:
            for asked, count in self._before.items():
                shown = asked if in_sum else asked.seen(LOCAL)
                counts[shown] = counts.get(shown, 0) + count
            merged.append(counts)
        return merged

    def _seen(
        self, history: _History, in_sum: bool, smallest: Mapping[_Kind, int] | None = None
    ) -> frozenset[tuple[Release, int]]:
        """A history as one of the views has it; sums with the honest clients of ``smallest``, if given."""
        counts: dict[Release, int] = {}
        for at, count in history:
            asked = self._kinds[at]
            shown = asked if in_sum else asked.seen(LOCAL)
            if smallest is not None:
                shown = _at_least(shown, smallest)
            counts[shown] = counts.get(shown, 0) + count
        return frozenset(counts.items())


def _accountant(counts: Mapping[Release, int]) -> Accountant:
    accountant = Accountant()
    for release, count in counts.items():
        accountant.add(release, count)
    return accountant


def _in_sum(num_honest: int) -> View:
    """The view of a sum, its honest clients rounded down so that few different numbers occur."""
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
    return release if release.view.num_honest is None else release.seen(View(smallest[release.kind]))


def _floored(counts: Mapping[Release, int], smallest: Mapping[_Kind, int]) -> dict[Release, int]:
    """The counts with each sum as if it had been the smallest of its kind."""
    floored: dict[Release, int] = {}
    for asked, count in counts.items():
        least = _at_least(asked, smallest)
        floored[least] = floored.get(least, 0) + count
    return floored


def _maximal(histories: Iterable[frozenset[tuple[Release, int]]]) -> list[dict[Release, int]] | None:
    """The histories that no other one contains; None if there are too many."""
    largest: list[dict[Release, int]] = []
    for history in sorted(histories, key=lambda kinds: -sum(count for _, count in kinds)):
        counts = dict(history)
        if not any(all(other.get(asked, 0) >= n for asked, n in counts.items()) for other in largest):
            largest.append(counts)
            if len(largest) > _MOST_HISTORIES:
                return None
    return largest
