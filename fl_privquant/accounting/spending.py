"""The spending ledger of one client: append-only, kept in a file, and counted by the accountant.

It keeps the mechanisms themselves and the view of each release, so that the accountant can compose them all;
a budget bounds that total. A release is on the disk before it may leave the client: after a crash in between,
the ledger counts too much, never too little.

The file has one JSON object a line: mechanisms by fingerprint, releases in order. Each line carries a hash of
all lines before it, so that a line that was changed or taken out is found.

**The head.** A file whose last lines were cut off looks complete. So a second file beside it,
``<name>.head``, says how many lines there are, and the hash of the last. The order of writing makes every
crash harmless: first the line is on the disk, then the head is replaced as a whole, and only then may the
release leave. After a crash in between, the ledger is longer than its head by a release that never left, and
that stays counted. A ledger shorter than its head has lost lines, and nothing more is spent.

**What remains possible.** Whoever can write to the folder can restore old versions of both files together,
delete both, or write others, because the files contain no secret. The head protects against crashes, full
disks, backups and other accidents, and not against somebody who controls the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TextIO

from fl_privquant.accounting.accountant import Accountant, Budget
from fl_privquant.accounting.release import Release
from fl_privquant.errors import LedgerDamagedError, one_line, other_version
from fl_privquant.loss.norms import Norms
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.statement import PrivacyStatement, View

_VERSION = 1
_HEAD_SUFFIX = ".head"
_NOTHING_MORE = "what was spent is not known, so nothing more may be"


@dataclass(frozen=True)
class _Entry:
    """One line of the file: its content, and the hash of it and of all lines before."""

    content: dict[str, Any]
    chain: str

    def line(self) -> str:
        return json.dumps({**self.content, "chain": self.chain}, sort_keys=True) + "\n"


@dataclass(frozen=True)
class _Head:
    """The length of the ledger, and its last hash, when a release last left the client."""

    lines: int
    releases: int
    chain: str

    @classmethod
    def read(cls, ledger: Path) -> _Head | None:
        """The head of a ledger's file; None if there is none."""
        path = _head_path(ledger)
        try:
            content = json.loads(path.read_text())
            return cls(int(content["lines"]), int(content["releases"]), str(content["chain"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerDamagedError(
                f"ledger {ledger}: its head {path.name} cannot be read ({error}); {_NOTHING_MORE}; "
                f"{_advice(ledger)}"
            ) from error

    def write(self, ledger: Path) -> None:
        """Replace the head as a whole, and have it on the disk when this returns."""
        path = _head_path(ledger)
        new = path.with_name(path.name + ".new")
        with new.open("w") as file:
            file.write(json.dumps(asdict(self), sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        # The names of both files, too, must survive a loss of power.
        _sync(ledger.parent)


class SpendingLedger:
    """Every release of one client, and what they cost together.

    Parameters
    ----------
    path
        File that keeps it over restarts, created with the first release, with its head beside it. None: in
        memory.

    Raises
    ------
    LedgerDamagedError
        The files cannot be relied on; the message says what to do.

    Examples
    --------
    >>> import fl_privquant as pq
    >>> ledger = SpendingLedger()
    >>> release = Release(pq.design("one_bit", epsilon=0.5), dimension=10)
    >>> ledger.spend(1, release, Budget(epsilon=8.0))
    >>> ledger.spend(2, release, Budget(epsilon=8.0))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fl_privquant.errors.BudgetExhaustedError: round 2: one more release makes ε = 10, δ = 0 [pure], ...
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._threads = threading.RLock()
        self._reset()
        if self.path is not None:
            with _reported(self.path):
                # The head first: a ledger that grows in between is longer than it, which is fine.
                head = _Head.read(self.path)
                if head is not None or self.path.exists():
                    self._load(self.path.read_text() if self.path.exists() else "")
                    self._check_head(head)

    @classmethod
    def accept(cls, path: Path | str) -> Self:
        """Accept the file as the complete ledger, and write its head anew.

        Only the client's owner may do this, who knows that nothing is missing or counts what is missing by
        other means. The message about a damaged ledger offers it as the last resort. The lines that are
        there must still be intact.
        """
        ledger = cls()
        ledger.path = Path(path)
        with _reported(ledger.path), ledger._threads, ledger._open_locked() as file:
            ledger._load(file.read())
            file.truncate(len(ledger._text.encode()))
            ledger._write_head()
        return ledger

    @property
    def rounds(self) -> tuple[int, ...]:
        """The round of each release, in order."""
        return tuple(self._rounds)

    def statement(self, delta: float) -> PrivacyStatement:
        """What was spent so far."""
        return self._accountant.statement(delta)

    def spend(
        self,
        number: int,
        release: Release,
        *budgets: Budget,
        run: int | None = None,
        check: Callable[[Sequence[int]], None] = lambda rounds: None,
    ) -> None:
        """Record a release, if all budgets allow it; only then may it leave the client.

        ``run`` names the run that it belongs to. ``check`` is called with the rounds of that run's releases
        so far, also those of other processes, and raises what forbids one more.
        """
        with self._locked():
            check(self._rounds_of_runs.get(run, []))
            self._accountant.check(number, release, budgets, chosen=True)
            entries = self._entries_of(number, release, run)
            self._write(entries)
            for entry in entries:
                self._take(entry)
            self._write_head()

    def _entries_of(self, number: int, release: Release, run: int | None) -> list[_Entry]:
        """The lines that a release adds."""
        contents: list[dict[str, Any]] = []
        if not self._entries:
            contents.append({"version": _VERSION})
        if release.fingerprint not in self._mechanisms:
            blob = release.blob.hex()
            contents.append({"mechanism": release.fingerprint, "bytes": blob})
        contents.append(
            {
                "round": number,
                "release": release.fingerprint,
                "dimension": release.dimension,
                "honest": release.view.num_honest,
                "norms": asdict(release.norms),
            }
            | ({} if run is None else {"run": run})
        )
        entries: list[_Entry] = []
        chain = self._chain
        for content in contents:
            chain = _hash(chain, content)
            entries.append(_Entry(content, chain))
        return entries

    def _reset(self) -> None:
        self._entries: list[_Entry] = []
        self._text = ""
        self._mechanisms: dict[str, Mechanism] = {}
        self._rounds: list[int] = []
        self._rounds_of_runs: dict[int | None, list[int]] = {}
        self._accountant = Accountant()
        self._chain = ""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the ledger against other threads and processes, and read what they have added."""
        if self.path is None:
            with self._threads:
                yield
            return
        with _reported(self.path), self._threads, self._open_locked() as file:
            text = file.read()
            known = self._text
            if not text.startswith(known):
                raise LedgerDamagedError(
                    f"ledger {self.path}: what was in it is gone; {_NOTHING_MORE}; put back the file that "
                    f"this process has written to"
                )
            if text != known:
                self._reset()
                self._load(text)
            head = _Head.read(self.path)
            if head is None and not self._entries:
                # Before the first line, so that no ledger ever has lines and no head.
                self._write_head()
            else:
                self._check_head(head)
            if text != self._text:
                # A line that was cut short belongs to a release that never left: it is taken off.
                file.truncate(len(self._text.encode()))
            yield

    @contextlib.contextmanager
    def _open_locked(self) -> Iterator[TextIO]:
        # Not on every system, and needed for files only.
        import fcntl

        assert self.path is not None
        folder = self.path.parent
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _sync(folder.parent)
        with self.path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            yield file

    def _write(self, entries: list[_Entry]) -> None:
        if self.path is None:
            return
        with self.path.open("a") as file:
            file.write("".join(entry.line() for entry in entries))
            file.flush()
            os.fsync(file.fileno())

    def _write_head(self) -> None:
        if self.path is not None:
            _Head(len(self._entries), len(self._rounds), self._chain).write(self.path)

    def _check_head(self, head: _Head | None) -> None:
        """Raise LedgerDamagedError if lines are missing that the head knows of."""
        assert self.path is not None
        advice = _advice(self.path)
        if head is None:
            if self._entries:
                raise LedgerDamagedError(f"ledger {self.path}: its head is gone; {_NOTHING_MORE}; {advice}")
        elif head.lines > len(self._entries):
            missing = head.releases - len(self._rounds)
            raise LedgerDamagedError(
                f"ledger {self.path}: {len(self._entries)} of {head.lines} lines are left, {missing} "
                f"releases are missing; {_NOTHING_MORE}; {advice}"
            )
        elif head.chain != (self._entries[head.lines - 1].chain if head.lines else ""):
            raise LedgerDamagedError(
                f"ledger {self.path}: it is not the file that its head belongs to; {_NOTHING_MORE}; {advice}"
            )

    def _load(self, text: str) -> None:
        complete = text[: text.rfind("\n") + 1]
        for number, line in enumerate(complete.splitlines(), start=1):
            try:
                content = json.loads(line)
                chain = content.pop("chain")
                if chain != _hash(self._chain, content):
                    raise ValueError("it, or a line before it, was changed")
                self._take(_Entry(content, chain))
            except LedgerDamagedError:
                raise
            except Exception as error:  # any error: the content of the file is not known
                raise LedgerDamagedError(
                    f"ledger {self.path}: line {number} cannot be relied on ({one_line(error)}); "
                    f"{_NOTHING_MORE}; restore it and its head from a backup"
                ) from error

    def _take(self, entry: _Entry) -> None:
        content = entry.content
        if "version" in content:
            if content["version"] != _VERSION:
                advice = f"{_NOTHING_MORE}; install the fl-privquant that wrote it"
                raise LedgerDamagedError(
                    other_version(f"ledger {self.path}", content["version"], _VERSION, advice)
                )
        elif not self._entries:
            raise ValueError("it does not say its version")
        elif "mechanism" in content:
            self._mechanisms[content["mechanism"]] = Mechanism.from_bytes(bytes.fromhex(content["bytes"]))
        else:
            # Earlier files also say how clients were drawn, which lowers no figure.
            release = Release(
                self._mechanisms[content["release"]],
                int(content["dimension"]),
                View(content["honest"]),
                norms=Norms(**content["norms"]),
            )
            if release.fingerprint != content["release"]:
                raise ValueError("the mechanism is not the one that its fingerprint says")
            self._accountant.add(release)
            self._rounds.append(int(content["round"]))
            self._rounds_of_runs.setdefault(content.get("run"), []).append(int(content["round"]))
        self._entries.append(entry)
        self._text += entry.line()
        self._chain = entry.chain


def _hash(chain: str, content: dict[str, Any]) -> str:
    return hashlib.sha256((chain + json.dumps(content, sort_keys=True)).encode()).hexdigest()[:32]


def _head_path(ledger: Path) -> Path:
    return ledger.with_name(ledger.name + _HEAD_SUFFIX)


def _advice(ledger: Path) -> str:
    return (
        f"restore {ledger} and {_head_path(ledger).name} from the same backup or, if you know that no "
        f"release is missing, accept the file as it is by SpendingLedger.accept"
    )


def _sync(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Report errors of the operating system as errors of the ledger."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerDamagedError(
            f"ledger {path}: cannot be read or written ({error}), so nothing more may be released; look at "
            f"the disk's space and the file's permissions"
        ) from error
