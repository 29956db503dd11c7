"""Designs on disk: keyed by the whole spec, written atomically, certified whenever they are read."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from fl_privquant.errors import CertificationError, one_line

__all__ = ["DesignCache"]

_LOG = logging.getLogger(__name__)


class _Storable(Protocol):
    def to_bytes(self) -> bytes: ...


StorableT = TypeVar("StorableT", bound=_Storable)


@dataclass(frozen=True)
class DesignCache:
    """A directory of designed mechanisms, one file each.

    Safe under parallel runs: a file appears complete or not at all, and whoever loses a race
    overwrites it with the same bytes. A file that is damaged is designed anew, never believed; a
    directory that cannot be written only costs time.
    """

    directory: Path

    @classmethod
    def default(cls) -> DesignCache:
        """``$FL_PRIVQUANT_CACHE``, else ``fl_privquant`` in the user's cache directory."""
        if chosen := os.environ.get("FL_PRIVQUANT_CACHE"):
            return cls(Path(chosen))
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(root) / "fl_privquant")

    def fetch(
        self, key: str, build: Callable[[], StorableT], parse: Callable[[bytes], StorableT]
    ) -> StorableT:
        """What is stored under ``key``, as ``parse`` reads it, else what ``build`` returns, then stored."""
        path = self.directory / f"{key}.pqm"
        try:
            return parse(path.read_bytes())
        except FileNotFoundError:
            pass
        except (CertificationError, OSError) as error:
            _LOG.warning("design cache: %s is unusable (%s); designing it anew", path.name, one_line(error))
        built = build()
        self._write(path, built.to_bytes())
        return built

    def _write(self, path: Path, blob: bytes) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.directory, prefix=".new-", delete=False) as handle:
                temporary = Path(handle.name)
                try:
                    handle.write(blob)
                    handle.close()
                    temporary.replace(path)
                except BaseException:
                    temporary.unlink(missing_ok=True)
                    raise
        except OSError as error:
            _LOG.warning(
                "design cache: cannot write to %s (%s); the design is used unsaved", self.directory, error
            )
