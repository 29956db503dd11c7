"""Files that survive a crash: replaced as a whole, on disk when the call returns, locked by one process."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fl_privquant.errors import PrivQuantError

_NEW = ".new"


class LockedError(PrivQuantError):
    """Another process holds what only one may write to."""


def replace_file(
    path: Path, write: Callable[[Path], Any], durable: bool = True, locked: bool = False
) -> None:
    """Let ``write`` fill a temporary file beside ``path``, and move it to ``path`` when it is complete.

    Whenever the process dies, ``path`` has either its old or its new content. A failure leaves no temporary
    file; a kill does, which :func:`remove_leftovers` deletes. A ``durable`` file also survives a power
    failure after the call, which takes some milliseconds.

    ``locked`` is for callers that hold a lock on the file and rely on its being durable. As nobody else
    writes it, its temporary file always has the same name, and the next call overwrites what a kill left. If
    the file system cannot put names on disk, these callers get an error; for others the file is just not
    durable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name keeps its suffix, which writers may depend on, and is different for each thread.
    writer = "" if locked else f".{os.getpid()}-{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}{writer}{_NEW}{path.suffix}")
    try:
        write(temporary)
        if durable:
            _sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        with contextlib.nullcontext() if locked else _names_if_possible():
            sync_names(path.parent)


def sync_directory(directory: Path) -> None:
    """Put the files of a directory, and their names, on disk."""
    for path in directory.iterdir():
        if path.is_file():
            _sync(path)
    with _names_if_possible():
        sync_names(directory)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_names(directory: Path) -> None:
    """Put the names in a directory on disk: until then, a power failure could undo a replacement."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _names_if_possible() -> Iterator[None]:
    """Ignore errors of file systems that cannot put the names in a directory on disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def remove_leftovers(path: Path) -> None:
    """Delete temporary files of killed writers of ``path``. The caller must hold its lock."""
    for leftover in path.parent.glob(glob.escape(f".{path.name}.") + f"*{_NEW}{glob.escape(path.suffix)}"):
        leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def file_lock(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock file for as long as the block lasts; raise :class:`LockedError` if another process has it.

    The operating system frees the lock when the process that holds it ends, however it ends. The file names
    that process, for the error text, and is deleted at the end. ``what`` names the thing that is protected,
    in the error text.
    """
    # Imported here, because it takes a fifth of a second and few programs lock anything.
    from filelock import FileLock, Timeout

    guard = FileLock(lock, blocking=False, fallback_to_soft=False)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        guard.acquire()
    except Timeout:
        raise LockedError(
            f"{what} is in use by {_read_holder(lock)}; wait until that process ends, or stop it: the lock "
            f"({lock.name}) is then free at once"
        ) from None
    except OSError as error:
        raise LockedError(
            f"{what} cannot be locked ({error.strerror}): {lock} must be on a file system with locks, with "
            f"some space left, in a folder that can be written"
        ) from error
    try:
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T %z")}
        lock.write_text(json.dumps(holder))
        yield
    finally:
        # Deleted while still locked: whoever opened it before notices that the name is gone.
        lock.unlink(missing_ok=True)
        guard.release()


def _read_holder(lock: Path) -> str:
    try:
        holder = json.loads(lock.read_text())
        return f"process {holder['pid']} on {holder['host']} (since {holder['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
