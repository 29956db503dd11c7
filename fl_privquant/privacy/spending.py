"""The spending ledger of one client: append-only, kept in a file, and counted by the accountant.

It keeps the mechanisms themselves and the view of each release, so that the accountant can state what they
come to together, and a budget means that. A release is written, and on the disk, before it may leave the
client: after a crash in between the ledger counts too much, never too little.

The file has one JSON object a line: mechanisms by fingerprint, releases in order. Each line carries a hash of
all lines before it, so that a line that was changed or taken out is found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fl_privquant.errors import BudgetExhaustedError, one_line
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.privacy.accountant import Accountant
from fl_privquant.privacy.events import Sampling, UpdateRelease
from fl_privquant.privacy.ledger import Budget
from fl_privquant.privacy.norm import Norms
from fl_privquant.privacy.statement import PrivacyStatement, View

__all__ = ["SpendingLedger"]

_VERSION = 1


@dataclass(frozen=True)
class _Entry:
    """One line: what it says, and the hash of it and all before."""

    content: dict[str, Any]
    chain: str

    def line(self) -> str:
        return json.dumps({**self.content, "chain": self.chain}, sort_keys=True) + "\n"


class SpendingLedger:
    """Every release of one client, and what they cost together.

    Parameters
    ----------
    path
        File that keeps it over restarts, created with the first release. None: in memory, see
        :meth:`to_text`.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> ledger = SpendingLedger()
    >>> release = UpdateRelease(pq.design("one_bit", epsilon=0.5), dimension=10)
    >>> ledger.spend(1, release, Budget(epsilon=8.0))
    >>> ledger.spend(2, release, Budget(epsilon=8.0))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fl_privquant.errors.BudgetExhaustedError: round 2: one more release makes ε = 10, δ = 0 [pure], ...
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._reset()
        if self.path is not None and self.path.exists():
            self._load(self.path.read_text())

    def to_text(self) -> str:
        """The whole ledger as lines of JSON, for a checkpoint."""
        return "".join(entry.line() for entry in self._entries)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The round of each release, in order."""
        return tuple(self._rounds)

    def statement(self, delta: float) -> PrivacyStatement:
        """What was spent so far."""
        return self._accountant.statement(delta)

    def check(self, number: int, release: UpdateRelease, *budgets: Budget) -> None:
        """Raise BudgetExhaustedError if one more release would exceed a budget."""
        with self._locked():
            self._accountant.check(number, release, budgets)

    def spend(self, number: int, release: UpdateRelease, *budgets: Budget) -> None:
        """Record a release, if all budgets allow it; only then may it leave the client."""
        with self._locked():
            self._accountant.check(number, release, budgets)
            contents: list[dict[str, Any]] = []
            if not self._entries:
                contents.append({"version": _VERSION})
            if release.fingerprint not in self._mechanisms:
                blob = release.mechanism.to_bytes().hex()
                contents.append({"mechanism": release.fingerprint, "bytes": blob})
            contents.append(
                {
                    "round": number,
                    "release": release.fingerprint,
                    "dimension": release.dimension,
                    "honest": release.view.num_honest,
                    "sampling": asdict(release.sampling),
                    "norms": asdict(release.norms),
                }
            )
            entries: list[_Entry] = []
            chain = self._chain
            for content in contents:
                chain = _hash(chain, content)
                entries.append(_Entry(content, chain))
            self._write(entries)
            for entry in entries:
                self._take(entry)

    def _reset(self) -> None:
        self._entries: list[_Entry] = []
        self._mechanisms: dict[str, Mechanism] = {}
        self._rounds: list[int] = []
        self._accountant = Accountant()
        self._chain = ""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the file against other processes, and read what they have added."""
        if self.path is None:
            yield
            return
        # Not on every system, and needed for files only.
        import fcntl

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            known = self.to_text()
            if not text.startswith(known):
                raise BudgetExhaustedError(
                    f"ledger {self.path}: what was in it is gone; what was spent is not known, so nothing "
                    "more may be"
                )
            if text != known:
                self._reset()
                self._load(text)
                # A line that was cut short belongs to a release that never left: it is taken off.
                file.truncate(len(self.to_text().encode()))
            yield

    def _write(self, entries: list[_Entry]) -> None:
        if self.path is None:
            return
        with self.path.open("a") as file:
            file.write("".join(entry.line() for entry in entries))
            file.flush()
            os.fsync(file.fileno())

    def _load(self, text: str) -> None:
        complete = text[: text.rfind("\n") + 1]
        for number, line in enumerate(complete.splitlines(), start=1):
            try:
                content = json.loads(line)
                chain = content.pop("chain")
                if chain != _hash(self._chain, content):
                    raise ValueError("it, or a line before it, was changed")
                self._take(_Entry(content, chain))
            except Exception as error:  # of whatever kind: what is in the file is not known
                raise BudgetExhaustedError(
                    f"ledger {self.path or ''}: line {number} cannot be relied on ({one_line(error)}); what "
                    "was spent is not known, so nothing more may be"
                ) from error

    def _take(self, entry: _Entry) -> None:
        content = entry.content
        if "version" in content:
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']}, expected {_VERSION}")
        elif "mechanism" in content:
            self._mechanisms[content["mechanism"]] = Mechanism.from_bytes(bytes.fromhex(content["bytes"]))
        else:
            release = UpdateRelease(
                self._mechanisms[content["release"]],
                int(content["dimension"]),
                View(content["honest"]),
                Sampling(**content["sampling"]),
                Norms(**content["norms"]),
            )
            if release.fingerprint != content["release"]:
                raise ValueError("the mechanism is not the one that its fingerprint says")
            self._accountant.add(release)
            self._rounds.append(int(content["round"]))
        self._entries.append(entry)
        self._chain = entry.chain


def _hash(chain: str, content: dict[str, Any]) -> str:
    return hashlib.sha256((chain + json.dumps(content, sort_keys=True)).encode()).hexdigest()[:32]
