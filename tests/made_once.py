"""What takes long to make, made once for all workers of a run of the tests: the first that asks makes it."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

__all__ = ["made_once"]


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder with what ``make`` has written into it; other processes that ask wait until it is there.

    Parameters
    ----------
    folder
        Inside a folder that all workers share, such as that of the fixture ``run_folder``.
    make
        Fills the folder that it is given. If it fails, the next that asks begins anew.
    """
    done = folder.with_name(f"{folder.name}.done")
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
