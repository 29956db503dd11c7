"""The spending ledger of one client: append-only, kept in a file, and counted by the accountant.

It keeps the mechanisms themselves and the view of each release, so that the accountant can compose them all;
a budget bounds that total. A release is on the disk before it may leave the client: after a crash in between,
the ledger counts too much, never too little.

The file has one JSON object per line: mechanisms by fingerprint, and releases in order. Each line carries a
hash of all lines before it, so that a line that was changed or removed is detected.

**The head.** A file whose last lines were cut off looks complete. So a second file beside it, the *head*
``<name>.head``, has the number of lines and the hash of the last one. The order of writing makes every crash
harmless: first the line is on the disk, then the head is replaced as a whole, and only then may the release
leave. After a crash in between, the ledger is longer than its head by a release that never left, which stays
counted. A ledger that is shorter than its head has lost lines, and nothing more may be spent.

**What remains possible.** Whoever can write to the folder can restore old versions of both files together,
delete both, or write others, because the files contain no secret. The head protects against crashes, full
disks, backups and other accidents, and not against somebody who controls the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TextIO

from fl_privquant import _validation
from fl_privquant._files import replace_file, sync_names
from fl_privquant.accounting.accountant import Accountant, Budget
from fl_privquant.accounting.release import Release
from fl_privquant.errors import LedgerDamagedError, describe_other_version, one_line, pluralize
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.statement import PrivacyStatement, Relation, View

_VERSION = 1
_HEAD_SUFFIX = ".head"
_NOTHING_MORE = "what was spent is not known, so nothing more may be spent"


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
                f"{_recovery_advice(ledger)}"
            ) from error

    def write(self, ledger: Path) -> None:
        """Replace the head as a whole; the caller must have locked the ledger.

        The head, and the names of both files, are on the disk when this returns.
        """
        text = json.dumps(asdict(self), sort_keys=True) + "\n"
        replace_file(_head_path(ledger), lambda file: _write_private(file, text), locked=True)


@_validation.check_argument_names
class SpendingLedger:
    """Every release of one client, and what they cost together.

    Parameters
    ----------
    path
        File that keeps the ledger over restarts. It is created with the first release, with its head beside
        it. None keeps the ledger in memory only.

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
    fl_privquant.errors.BudgetExhaustedError: round 2: one more release makes ε = 10, δ = 0 (client total, ...
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._threads = threading.RLock()
        # The complete lines that were read or written so far, and the hash that each of them carries.
        self._text = ""
        self._chain: list[str] = []
        self._mechanisms: dict[str, Mechanism] = {}
        self._rounds: list[int] = []
        self._rounds_of_runs: dict[int | None, list[int]] = {}
        self._accountant = Accountant()
        if self.path is not None:
            with _report_os_errors(self.path):
                # The head is read first: if the ledger grows in between, it is longer than its head, which
                # is fine.
                head = _Head.read(self.path)
                if head is not None or self.path.exists():
                    self._load(self.path.read_text() if self.path.exists() else "")
                    self._check_head(head)

    @classmethod
    def accept(cls, path: Path | str) -> Self:
        """Accept the file as the complete ledger, and write its head anew.

        Only the client's owner may do this, who knows that no release is missing, or counts missing ones by
        other means. The message about a damaged ledger offers it as the last resort. The remaining lines must
        be intact.
        """
        ledger = cls()
        ledger.path = Path(path)
        with _report_os_errors(ledger.path), ledger._threads, ledger._open_locked() as file:
            ledger._load(file.read())
            file.truncate(len(ledger._text.encode()))
            ledger._write_head()
        return ledger

    @property
    def rounds(self) -> tuple[int, ...]:
        """The round of each release, in order."""
        return tuple(self._rounds)

    def statement(self, delta: float, relation: Relation = Relation.REPLACE_ONE) -> PrivacyStatement:
        """What was spent so far."""
        return self._accountant.statement(delta, relation=relation)

    def spend(
        self,
        number: int,
        release: Release,
        *budgets: Budget,
        run: int | None = None,
        check: Callable[[Sequence[int], int], None] = lambda rounds, total: None,
    ) -> None:
        """Record a release, if all budgets allow it; only then may it leave the client.

        ``run`` names the run that the release belongs to. ``check`` is called with the rounds of that run's
        releases so far, and with the number of releases of all runs, each including those of other processes.
        It raises an error to forbid one more.
        """
        with self._lock_and_reload():
            check(self._rounds_of_runs.get(run, []), len(self._rounds))
            self._accountant.check(number, release, budgets, chosen=True)
            lines = self._format_lines(number, release, run)
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(lines)
                    file.flush()
                    os.fsync(file.fileno())
            self._load(lines)
            self._write_head()

    def _format_lines(self, number: int, release: Release, run: int | None) -> str:
        """The lines that a release adds to the file."""
        contents: list[dict[str, Any]] = []
        if not self._chain:
            contents.append({"version": _VERSION})
        if release.fingerprint not in self._mechanisms:
            contents.append({"mechanism": release.fingerprint, "bytes": release.mechanism.to_bytes().hex()})
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
        lines, last = "", self._last_hash
        for content in contents:
            last = _chain_hash(last, content)
            lines += json.dumps({**content, "chain": last}, sort_keys=True) + "\n"
        return lines

    @property
    def _last_hash(self) -> str:
        return self._chain[-1] if self._chain else ""

    @contextlib.contextmanager
    def _lock_and_reload(self) -> Iterator[None]:
        """Lock the ledger against other threads and processes, and read the lines that they have added."""
        if self.path is None:
            with self._threads:
                yield
            return
        with _report_os_errors(self.path), self._threads, self._open_locked() as file:
            text = file.read()
            if not text.startswith(self._text):
                raise LedgerDamagedError(
                    f"ledger {self.path}: its earlier content is gone; {_NOTHING_MORE}; put back the file "
                    f"that this process has written to"
                )
            self._load(text[len(self._text) :])
            head = _Head.read(self.path)
            if head is None and not self._chain:
                # The head is written before the first line, so that no ledger ever has lines but no head.
                self._write_head()
            else:
                self._check_head(head)
            if text != self._text:
                # A line that was cut short belongs to a release that never left, so it is removed.
                file.truncate(len(self._text.encode()))
            yield

    @contextlib.contextmanager
    def _open_locked(self) -> Iterator[TextIO]:
        assert self.path is not None
        folder = self.path.parent
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            sync_names(folder.parent)
        with open(self.path, "a+", opener=_open_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            yield file

    def _write_head(self) -> None:
        if self.path is not None:
            _Head(len(self._chain), len(self._rounds), self._last_hash).write(self.path)

    def _check_head(self, head: _Head | None) -> None:
        """Raise LedgerDamagedError if lines are missing that the head counts."""
        assert self.path is not None
        advice = _recovery_advice(self.path)
        if head is None:
            if self._chain:
                raise LedgerDamagedError(f"ledger {self.path}: its head is gone; {_NOTHING_MORE}; {advice}")
        elif head.lines > len(self._chain):
            missing = pluralize(head.releases - len(self._rounds), "release")
            raise LedgerDamagedError(
                f"ledger {self.path}: {len(self._chain)} of {head.lines} lines are left, without {missing}; "
                f"{_NOTHING_MORE}; {advice}"
            )
        elif head.chain != (self._chain[head.lines - 1] if head.lines else ""):
            raise LedgerDamagedError(
                f"ledger {self.path}: it is not the file that its head belongs to; {_NOTHING_MORE}; {advice}"
            )

    def _load(self, text: str) -> None:
        """Read further lines of the file, by this or another process; an incomplete last one is left out."""
        for line in text[: text.rfind("\n") + 1].splitlines(keepends=True):
            try:
                content = json.loads(line)
                chain = content.pop("chain")
                if chain != _chain_hash(self._last_hash, content):
                    raise ValueError("it, or a line before it, was changed")
                self._add_line(content)
            except LedgerDamagedError:
                raise
            except Exception as error:  # any error: the content of the file is not known
                raise LedgerDamagedError(
                    f"ledger {self.path}: line {len(self._chain) + 1} cannot be relied on "
                    f"({one_line(error)}); {_NOTHING_MORE}; restore the file and its head from a backup"
                ) from error
            self._text += line
            self._chain.append(chain)

    def _add_line(self, content: dict[str, Any]) -> None:
        if "version" in content:
            if content["version"] != _VERSION:
                advice = f"{_NOTHING_MORE}; install the fl-privquant that wrote it"
                raise LedgerDamagedError(
                    describe_other_version(f"ledger {self.path}", content["version"], _VERSION, advice)
                )
        elif not self._chain:
            raise ValueError("it does not say its version")
        elif "mechanism" in content:
            self._mechanisms[content["mechanism"]] = Mechanism.from_bytes(bytes.fromhex(content["bytes"]))
        else:
            release = Release(
                self._mechanisms[content["release"]],
                int(content["dimension"]),
                View(content["honest"]),
                norms=UpdateNorms(**content["norms"]),
            )
            if release.fingerprint != content["release"]:
                raise ValueError("the bytes of its mechanism do not have the fingerprint that it names")
            self._accountant.add(release)
            self._rounds.append(int(content["round"]))
            self._rounds_of_runs.setdefault(content.get("run"), []).append(int(content["round"]))


def _chain_hash(chain: str, content: dict[str, Any]) -> str:
    return hashlib.sha256((chain + json.dumps(content, sort_keys=True)).encode()).hexdigest()[:32]


def _open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, if it is new: it tells what the client did."""
    return os.open(path, flags, 0o600)


def _write_private(path: Path, text: str) -> None:
    with open(path, "w", opener=_open_private) as file:
        file.write(text)


def _head_path(ledger: Path) -> Path:
    return ledger.with_name(ledger.name + _HEAD_SUFFIX)


def _recovery_advice(ledger: Path) -> str:
    return (
        f"restore {ledger} and {_head_path(ledger).name} from the same backup or, if you know that no "
        f"release is missing, accept the file as it is by SpendingLedger.accept"
    )


@contextlib.contextmanager
def _report_os_errors(path: Path) -> Iterator[None]:
    """Report errors of the operating system as errors of the ledger."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerDamagedError(
            f"ledger {path}: cannot be read or written ({error}), so nothing more may be released; check "
            f"the disk's space and the file's permissions"
        ) from error
