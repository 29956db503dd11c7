"""A run's directory: its config, provenance, rows and summary, each written atomically."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from fl_privquant._files import file_lock, remove_leftovers, replace_file, sync_directory
from fl_privquant.accounting import PrivacyStatement
from fl_privquant.errors import PrivQuantError, one_line
from simulations.runner.config import RunConfig

_PACKAGES = ("fl-privquant", "flwr", "torch", "numpy", "scipy", "pulp", "highspy", "numba", "cryptography")
_FILES = (
    "config.json",
    "ledger.json",
    "mechanism.pqm",
    "provenance.json",
    "rounds.csv",
    "rounds.parquet",
    "summary.json",
)


class ResultsError(PrivQuantError):
    """Results cannot be written, or files of earlier results are damaged."""


@dataclass(frozen=True)
class RunDirectory:
    """The directory with the results of one run."""

    path: Path

    @classmethod
    def of(cls, config: RunConfig) -> RunDirectory:
        """The directory of a run, which is made if it is not there."""
        path = Path(config.output) / config.study / config.run_name
        with _explain_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process out of the directory while the block lasts.

        Two processes with the same run would each overwrite what the other counts.
        """
        with contextlib.ExitStack() as stack:
            with _explain_disk_errors(self.path):
                stack.enter_context(file_lock(self.path / "run.lock", f"run {self.path}"))
                for name in _FILES:
                    remove_leftovers(self.path / name)
            yield

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's file."""
        return self.path / "run.checkpoint"

    @property
    def probe(self) -> Path:
        """The folder in which clients leave their true updates during a round."""
        return self.path / "probe"

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None if it is not finished."""
        path = self.path / "summary.json"
        if not path.exists():
            return None
        try:
            summary = json.loads(path.read_text())
            return summary if summary["finished"] else None
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(
                f"{path} is damaged ({one_line(error)}); nothing was overwritten: delete it to run again, "
                "or restore it"
            ) from error

    def finish(self, summary: Mapping[str, Any], durable: bool = True) -> None:
        """Write the summary, which says that the run is finished, after all other files.

        All are on disk then if it must be ``durable``, as what a run has released cannot be repeated.
        """
        with _explain_disk_errors(self.path):
            if durable:
                sync_directory(self.path)
            text = _to_json(summary)
            replace_file(self.path / "summary.json", lambda path: path.write_text(text), durable)

    def clean_up(self) -> None:
        """Delete what only an unfinished run needs; for after :meth:`finish`."""
        with contextlib.suppress(OSError):
            self.checkpoint.unlink(missing_ok=True)
        shutil.rmtree(self.probe, ignore_errors=True)

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file."""
        text = _to_json(content)
        self._replace(name, lambda path: path.write_text(text))

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file."""
        self._replace(name, lambda path: path.write_bytes(content))

    def write_rows(self, rows: list[dict[str, Any]], final: bool = False) -> None:
        """Write the rows so far as CSV, and those of a finished run also as parquet."""
        frame = pd.DataFrame(rows)
        self._replace("rounds.csv", lambda path: frame.to_csv(path, index=False))
        if final:
            self._replace("rounds.parquet", lambda path: frame.to_parquet(path, index=False))

    def _replace(self, name: str, write: Callable[[Path], Any]) -> None:
        with _explain_disk_errors(self.path):
            # It need not be durable: until the run is finished, its checkpoint holds all of it (see finish).
            replace_file(self.path / name, write, durable=False)


def provenance(
    config: RunConfig,
    mechanism: Any,
    dimension: int,
    l2_clip: float | None,
    statements: list[PrivacyStatement],
    lines: list[str],
    model: Mapping[str, Any],
) -> dict[str, Any]:
    """What a result depends on besides its config, what it costs, and a hash of the final model."""
    digest = hashlib.sha256()
    for name in sorted(model):
        digest.update(f"{name} {model[name].dtype} {model[name].shape} ".encode() + model[name].tobytes())
    return {
        "versions": {
            "python": sys.version.split()[0],
            **{name: installed_version(name) for name in _PACKAGES},
        },
        "git_commit": _git_commit(),
        "solver": f"HiGHS {installed_version('highspy')} through PuLP {installed_version('pulp')}",
        "seed": config.seed,
        "mechanism_label": config.label,
        "certified_epsilon": mechanism.epsilon,
        "delta": mechanism.delta,
        "dimension": dimension,
        "l2_clip": l2_clip,
        "statements": [statement.to_dict() for statement in statements],
        "statement": lines,
        "model_sha256": digest.hexdigest(),
        "simulated": config.privacy.randomness == "seeded",
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _to_json(content: Any) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


# Cached, as the packages that a process has loaded do not change during a sweep.
@cache
def installed_version(package: str) -> str:
    """The installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@cache
def _git_commit() -> str:
    root = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


@contextlib.contextmanager
def _explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk into messages: what was written stays, and the run can be resumed."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResultsError(
                f"{path}: the disk is full ({error.strerror}); free some space and start the same run again: "
                f"it goes on from its last checkpoint"
            ) from error
        raise ResultsError(
            f"output: {path} cannot be written ({error.strerror or error}); set output=DIRECTORY"
        ) from error
