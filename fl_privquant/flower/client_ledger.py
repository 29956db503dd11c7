"""The client's own ledger: in Flower's client state for this run, and in a file for all runs if it has one.

Nothing in it is the server's word. Mechanisms are kept as the bytes that were certified here, by
fingerprint, so that the accountant counts exactly; whether updates were clipped to a norm is what the codec
did on this client. A release is recorded before it leaves.

**The server's copy.** A request says how many releases of its kind the server has counted for this client in
this run. If the client has made more, the server's figures would be too small: the request is refused, and
nothing leaves. Fewer are no reason for alarm: a request, or the client, was lost. The same message
delivered twice is refused too, the second time. Nothing about the client is told but in a refusal, and
then only this number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context

from fl_privquant.errors import BudgetExhaustedError, LedgerMismatchError, PrivQuantError, one_line
from fl_privquant.flower.protocol import certified
from fl_privquant.privacy.accountant import Accountant
from fl_privquant.privacy.events import UpdateRelease, release_event
from fl_privquant.privacy.ledger import Budget, Ledger, Release
from fl_privquant.privacy.spending import SpendingLedger
from fl_privquant.privacy.statement import PrivacyStatement

__all__ = ["ClientLedger", "open_spending"]

RECORD_LEDGER = "privquant-ledger"
_MECHANISM_PREFIX = "mechanism-"


class ClientLedger:
    """What one client has released.

    Parameters
    ----------
    context
        Its state keeps the releases of this run.
    spending
        Keeps the releases of all runs, and is what budgets are for; None: this run's are all there are.
    """

    def __init__(self, context: Context, spending: SpendingLedger | None = None) -> None:
        self._context = context
        self._spending = spending
        # Held here: an app may replace the whole state while it trains.
        record = context.state.get(RECORD_LEDGER)
        self._record = record if isinstance(record, ConfigRecord) else ConfigRecord()

    @property
    def ledger(self) -> Ledger:
        """The releases of this run."""
        texts = {key: value for key, value in self._record.items() if isinstance(value, str)}
        try:
            return Ledger.from_dict(texts)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise _unknown(error) from error

    @property
    def mechanisms(self) -> Mapping[str, bytes]:
        """The bytes of each mechanism of this run, by fingerprint."""
        return {
            key.removeprefix(_MECHANISM_PREFIX): value
            for key, value in self._record.items()
            if isinstance(value, bytes)
        }

    def statement(self, delta: float) -> PrivacyStatement:
        """What was spent, local view: over all runs if a file keeps them."""
        if self._spending is not None:
            return self._spending.statement(delta)
        return self._accountant().statement(delta)

    def agree(self, release: Release, server_count: int | None) -> None:
        """Raise LedgerMismatchError if the server has counted fewer releases of this kind than were made."""
        if server_count is None:
            return
        rounds = self._record.get(release.text)
        own = len(rounds.split()) if isinstance(rounds, str) else 0
        if own > server_count:
            raise LedgerMismatchError(
                f"round {release.round}: the server has counted {server_count} releases of this kind, this "
                f"client has made {own}; restore the server's checkpoint, or begin a new run"
            )

    def check(self, release: Release, mechanism: bytes, budgets: Sequence[Budget]) -> None:
        """Raise BudgetExhaustedError if one more release would exceed a budget."""
        if all(budget.unlimited for budget in budgets):
            return
        event = _event(mechanism, release.kind)
        if self._spending is not None:
            self._spending.check(release.round, event, *budgets)
        else:
            self._accountant().check(release.round, event, budgets)

    def spend(self, release: Release, mechanism: bytes, budgets: Sequence[Budget]) -> None:
        """Record a release, if all budgets allow it; only then may it leave the client."""
        if self._spending is not None:
            self._spending.spend(release.round, _event(mechanism, release.kind), *budgets)
        else:
            self.check(release, mechanism, budgets)
        record = self._record
        self._context.state[RECORD_LEDGER] = record
        # Appended to, not read: most clients have no budget, and a thousand rounds.
        rounds = record.get(release.text)
        record[release.text] = f"{rounds} {release.round}" if isinstance(rounds, str) else str(release.round)
        if _MECHANISM_PREFIX + release.mechanism not in record:
            record[_MECHANISM_PREFIX + release.mechanism] = mechanism

    def _accountant(self) -> Accountant:
        mechanisms = self.mechanisms
        accountant = Accountant()
        for kind, count in self.ledger.counts:
            try:
                accountant.add(_event(mechanisms[kind.mechanism], kind), count)
            except (KeyError, PrivQuantError) as error:
                raise _unknown(error) from error
        return accountant


@lru_cache(maxsize=64)
def _event(mechanism: bytes, kind: Release) -> UpdateRelease:
    return release_event(kind, certified(mechanism).for_dimension(kind.dimension))


def open_spending(path: Path) -> SpendingLedger:
    """The ledger of all runs in a file; BudgetExhaustedError if it cannot be relied on."""
    try:
        return SpendingLedger(path)
    except (OSError, UnicodeDecodeError) as error:
        raise _unknown(error) from error


def _unknown(error: Exception) -> BudgetExhaustedError:
    return BudgetExhaustedError(
        f"ledger: cannot be read ({one_line(error)}); what was spent is not known, so nothing more may be"
    )
