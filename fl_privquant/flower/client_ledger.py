"""Where a client keeps its ledger: in Flower's client state, or in a file that outlives it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from flwr.app import ConfigRecord, Context

from fl_privquant.errors import BudgetExhaustedError
from fl_privquant.privacy.ledger import Budget, Ledger, Release

__all__ = ["ClientLedger", "append_release", "open_ledger"]

RECORD_LEDGER = "privquant-ledger"
_MECHANISM_PREFIX = "mechanism-"


class ClientLedger:
    """The releases of one client, and the bytes of each mechanism, for an accountant to count again."""

    def __init__(self, ledger: Ledger, mechanisms: dict[str, bytes]) -> None:
        self.ledger = ledger
        self.mechanisms = mechanisms
        self.changed = False

    def check(self, release: Release, budget: Budget) -> None:
        """Raise BudgetExhaustedError if one more release would exceed the budget."""
        self.ledger.check(release, budget)

    def add(self, release: Release, mechanism: bytes) -> None:
        """Record a release."""
        self.ledger.add(release)
        self.mechanisms.setdefault(release.mechanism, mechanism)
        self.changed = True


@contextlib.contextmanager
def open_ledger(path: Path | None, context: Context) -> Iterator[ClientLedger]:
    """The client's ledger; what is added to it is kept when the block ends without an error."""
    if path is None:
        found = _from_record(context)
        yield found
        if found.changed:
            _update_record(context, found)
        return
    # Not on every system, and needed for files only.
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    # A lock of its own file, because the ledger itself is replaced.
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _from_file(path)
        yield found
        if found.changed:
            _to_file(path, found)
    if found.changed:
        _update_record(context, found)


def append_release(context: Context, release: Release, mechanism: bytes) -> None:
    """Record a release in the client's state without reading what is there: for clients without a budget."""
    record = context.state.get(RECORD_LEDGER)
    if not isinstance(record, ConfigRecord):
        record = context.state[RECORD_LEDGER] = ConfigRecord()
    rounds = record.get(release.text)
    record[release.text] = f"{rounds} {release.round}" if isinstance(rounds, str) else str(release.round)
    if _MECHANISM_PREFIX + release.mechanism not in record:
        record[_MECHANISM_PREFIX + release.mechanism] = mechanism


def _from_record(context: Context) -> ClientLedger:
    record = context.state.get(RECORD_LEDGER)
    if not isinstance(record, ConfigRecord):
        return ClientLedger(Ledger(), {})
    mechanisms = {
        key.removeprefix(_MECHANISM_PREFIX): value
        for key, value in record.items()
        if isinstance(value, bytes)
    }
    return ClientLedger(
        _from_dict({key: value for key, value in record.items() if isinstance(value, str)}), mechanisms
    )


def _update_record(context: Context, found: ClientLedger) -> None:
    record = context.state.get(RECORD_LEDGER)
    if not isinstance(record, ConfigRecord):
        record = context.state[RECORD_LEDGER] = ConfigRecord()
    mechanisms = {_MECHANISM_PREFIX + name: blob for name, blob in found.mechanisms.items()}
    for key, value in (found.ledger.to_dict() | mechanisms).items():
        # Records check what is put into them, at some cost: most entries stay as they are.
        if record.get(key) != value:
            record[key] = value


def _from_file(path: Path) -> ClientLedger:
    if not path.exists():
        return ClientLedger(Ledger(), {})
    try:
        content = json.loads(path.read_text())
        mechanisms = {name: bytes.fromhex(blob) for name, blob in content["mechanisms"].items()}
        return ClientLedger(_from_dict(content["releases"]), mechanisms)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise BudgetExhaustedError(
            f"ledger_file {path}: cannot be read ({error}); what was spent is not known, so nothing "
            f"more may be"
        ) from error


def _to_file(path: Path, found: ClientLedger) -> None:
    content = {
        "releases": found.ledger.to_dict(),
        "mechanisms": {name: blob.hex() for name, blob in found.mechanisms.items()},
    }
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _from_dict(content: Mapping[str, str]) -> Ledger:
    try:
        return Ledger.from_dict(content)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise BudgetExhaustedError(
            f"ledger: cannot be read ({error}); what was spent is not known, so nothing more may be"
        ) from error
