"""The client's own ledger: in Flower's client state for one run, and in a file for all runs.

Nothing in it relies on what the server says. It keeps the bytes of each mechanism that was certified here,
and the norm that the codec of this client clipped updates to, so that the accountant counts what was
released. A release is recorded before the client reads its data, so that the record says nothing about them.

**What is in the state.** The kinds of releases and their rounds, which are a few bytes. The bytes of the
mechanisms, which may be many and are the server's choice, are there only if a budget is checked without a
file, so never on a SuperNode: a state that takes long to store is lost.

**The server's count.** A request says how many releases of its kind the server has counted for this client in
this run. If the client has made more, the server's figures would be too small, and the client refuses. If it
has made fewer, a request or a state of the client was lost, which does no harm. A message that is delivered
twice is refused the second time. A refusal tells the server no number: the client's log has it.

**Copies of the state.** Flower hands each message a copy of the client's state, and stores the copy after the
answer was sent, so that two messages at once see the same state. Within one process all copies share one
ledger, found by run and node. Different processes share only a file. On a SuperNode each message has its own
process: there a budget, or a bound on the rounds, is kept in a file even if none was named
(:func:`resolve_ledger_path`). Elsewhere, and without a file, both hold within one process, or for messages
that come one after the other.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from flwr.app import ConfigRecord, Context, RecordDict

from fl_privquant.accounting.accountant import Accountant, Budget
from fl_privquant.accounting.ledgers.spending_ledger import SpendingLedger
from fl_privquant.accounting.release import Release
from fl_privquant.errors import (
    BudgetExhaustedError,
    InvalidSpecError,
    LedgerDamagedError,
    LedgerMismatchError,
    PrivQuantError,
    one_line,
    pluralize,
)
from fl_privquant.flower._flower_internals import unchecked_record, values_of
from fl_privquant.flower._messages.protocol import load_certified
from fl_privquant.flower.client.node import node_folder, on_supernode
from fl_privquant.statement import PrivacyStatement, Relation

RECORD_LEDGER = "privquant-ledger"
NODE_LEDGER_FILE: Final = "privquant-ledger-file"
_MECHANISM_PREFIX = "mechanism-"
# How many clients' ledgers a process keeps in memory; for others it knows only what their state says.
_MAX_REMEMBERED_CLIENTS: Final = 1 << 14


@dataclass
class _SharedReleases:
    """The releases of one client in one run, for all copies of its state in this process."""

    record: dict[str, str | bytes] = field(default_factory=dict)
    mechanisms: dict[str, bytes] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def merge(self, state: Mapping[str, object]) -> None:
        """Merge a copy of the state: each round counts as often as in the copy that has it more often."""
        for key, value in state.items():
            recorded = self.record.get(key)
            if value == recorded or not isinstance(value, str | bytes):
                continue
            if isinstance(recorded, str) and isinstance(value, str):
                value = " ".join((Counter(recorded.split()) | Counter(value.split())).elements())
            self.record[key] = value


_CLIENTS_LOCK = threading.Lock()


@lru_cache(maxsize=_MAX_REMEMBERED_CLIENTS)
def _cached_releases(run_id: int, node_id: int) -> _SharedReleases:
    return _SharedReleases()


def _shared_releases(context: Context) -> _SharedReleases:
    # With the cache alone, two threads at once could make a ledger each, and each spend the whole budget.
    with _CLIENTS_LOCK:
        return _cached_releases(context.run_id, context.node_id)


@dataclass(frozen=True)
class ParticipationLimit:
    """How often a client takes part, whatever the server asks."""

    max_rounds: float = math.inf
    """The most rounds that it takes part in: of all runs that the ledger's file knows, because the server
    chooses the number of a run; without a file, of this run."""
    rounds_apart: int = 1
    """It takes part in at most one of this many rounds of a run in a row, by the server's numbers of rounds
    and runs. These may be lies, so only ``max_rounds`` bounds the total."""

    def check(self, number: int, rounds: Sequence[int], total: int) -> None:
        """Refuse a round in which the client must not take part.

        Before it, the client took part in these rounds of the run, and in ``total`` rounds of all runs.
        """
        if total + 1 > self.max_rounds:
            raise BudgetExhaustedError(
                f"round {number}: this client has taken part in {pluralize(total, 'round')}, and takes part "
                f"in at most {self.max_rounds:g}"
            )
        if self.rounds_apart > 1 and rounds and number < max(rounds) + self.rounds_apart:
            raise LedgerMismatchError(
                f"round {number}: this client has taken part in round {max(rounds)}, and takes part in at "
                f"most one of {self.rounds_apart} rounds in a row; the server must ask other clients"
            )


class ClientLedger:
    """The releases of one client: those of this run in the state of its ``context``, all others in a file.

    ``spending`` is that file, the ledger of all runs. Budgets then apply to all runs; without it they apply
    to this run.
    """

    def __init__(self, context: Context, spending: SpendingLedger | None = None) -> None:
        self._context = context
        self.spending = spending
        self._shared = _shared_releases(context)
        record = context.state.get(RECORD_LEDGER)
        with self._shared.lock:
            self._shared.merge(record if isinstance(record, ConfigRecord) else {})

    def __len__(self) -> int:
        return len(self._rounds())

    @property
    def releases(self) -> list[tuple[int, Release]]:
        """The releases of this run, each with its round; equal releases stand together."""
        try:
            stored = {
                key.removeprefix(_MECHANISM_PREFIX): value
                for key, value in self._shared.record.items()
                if isinstance(value, bytes)
            }
            mechanisms = {
                name: load_certified(blob) for name, blob in {**stored, **self._shared.mechanisms}.items()
            }
            return [
                (int(number), release)
                for text, rounds in self._kinds()
                for release in [Release.from_text(text, mechanisms)]
                for number in rounds.split()
            ]
        except (ValueError, TypeError, AttributeError, OverflowError, PrivQuantError) as error:
            raise _damaged_error(error) from error

    def statement(self, delta: float, relation: Relation = Relation.REPLACE_ONE) -> PrivacyStatement:
        """The privacy loss so far in the local view: over all runs if a file keeps them."""
        if self.spending is not None:
            return self.spending.statement(delta, relation)
        return self._accountant.statement(delta, relation=relation)

    def spend(
        self,
        number: int,
        release: Release,
        budgets: Sequence[Budget] = (),
        server_count: int | None = None,
        limit: ParticipationLimit | None = None,
    ) -> None:
        """Record a release, if the server has counted all earlier ones and every budget allows it.

        Only then may the client read its data. Check and record are one step, so that no two copies of the
        client can spend the same part of a budget.

        Raises
        ------
        LedgerMismatchError
            The server has counted fewer releases of this kind than were made, or asks again too soon.
        BudgetExhaustedError
            One more release would exceed a budget or the client's number of rounds, or what was spent is not
            known.
        """
        with self._shared.lock:
            record = self._shared.record
            before = record.get(release.text)
            rounds = before if isinstance(before, str) else ""
            own_count = len(rounds.split())
            if server_count is not None and own_count > server_count:
                raise LedgerMismatchError(
                    f"round {number}: the server has counted {pluralize(server_count, 'release')} of this "
                    f"kind, this client has made {own_count}; restore the server's checkpoint, or begin a "
                    "new run"
                )
            if limit is not None and limit != ParticipationLimit():
                limit.check(number, own := self._rounds(), len(own))
            if self.spending is not None:
                # The file checks again: it knows the rounds of other processes, and those before a restart.
                self.spending.spend(
                    number,
                    release,
                    *budgets,
                    run=self._context.run_id,
                    check=lambda rounds, total: (limit or ParticipationLimit()).check(number, rounds, total),
                )
            elif not all(budget.unlimited for budget in budgets):
                self._accountant.check(number, release, budgets, chosen=True)
                record.setdefault(_MECHANISM_PREFIX + release.fingerprint, release.mechanism.to_bytes())
            # Appended without parsing earlier rounds, which may be thousands, often without a budget.
            record[release.text] = f"{rounds} {number}".lstrip()
            self._shared.mechanisms.setdefault(release.fingerprint, release.mechanism.to_bytes())
        self.keep()

    def keep(self) -> None:
        """Put the ledger into the client's state, which an app may have replaced since."""
        state = self._context.state
        if not isinstance(state, RecordDict):
            state = self._context.state = RecordDict()
        with self._shared.lock:
            records, record = values_of(state), self._shared.record
            kept = records.get(RECORD_LEDGER)
            if not isinstance(kept, ConfigRecord) or values_of(kept) != record:
                records[RECORD_LEDGER] = unchecked_record(ConfigRecord, dict(record))

    def _kinds(self) -> list[tuple[str, str]]:
        """The kinds of releases of this run, as text, each with its rounds."""
        return [(text, rounds) for text, rounds in self._shared.record.items() if isinstance(rounds, str)]

    def _rounds(self) -> list[int]:
        try:
            return [int(number) for _, rounds in self._kinds() for number in rounds.split()]
        except ValueError as error:
            raise _damaged_error(error) from error

    @property
    def _accountant(self) -> Accountant:
        return Accountant(release for _, release in self.releases)


def _damaged_error(error: Exception) -> LedgerDamagedError:
    return LedgerDamagedError(
        f"ledger: cannot be read ({one_line(error)}); what was spent is not known, so nothing more may be "
        f"spent"
    )


def resolve_ledger_path(
    context: Context, given: Path | None, limited: bool, node_limited: bool
) -> Path | None:
    """The file that keeps a client's ledger over runs; None if the ledger is in its state alone.

    It is the first of these that there is: the file that the node's own configuration names
    (``privquant-ledger-file``); on a SuperNode whose configuration sets a limit (a budget or a number of
    rounds), the default file; the file that the app names; on a SuperNode with any such limit, the default
    file. The default is ``privquant/ledger.jsonl`` in Flower's home (``FLWR_HOME``, or ``~/.flwr``), or
    ``ledger-partition-<n>.jsonl`` if the node has a ``partition-id``. SuperNodes without a partition that
    share a home also share this file: it counts them together, so it never counts too little for any of them.
    """
    named = context.node_config.get(NODE_LEDGER_FILE)
    if named is not None:
        if not isinstance(named, str) or not named:
            raise InvalidSpecError(
                NODE_LEDGER_FILE, named, "is not the name of a file, in the node's configuration"
            )
        return Path(named)
    if on_supernode() and (node_limited or (limited and given is None)):
        return default_ledger_path(context.node_config)
    return given


def default_ledger_path(node_config: Mapping[str, Any]) -> Path:
    """The file of a SuperNode's ledger if nobody names another."""
    partition = node_config.get("partition-id")
    return node_folder() / (
        "ledger.jsonl" if partition is None else f"ledger-partition-{int(partition)}.jsonl"
    )
