"""The design cache: designs on disk, each with the spec it was made for."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from fl_privquant._files import replace_file
from fl_privquant.errors import CertificationError, one_line
from fl_privquant.mechanisms.base import Mechanism

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class DesignCache:
    """A directory of designs. A file has the spec in its first line, and then the bytes of the mechanism.

    A file is used only if it holds exactly the requested spec, whatever its name says, if the bytes of the
    mechanism fit their digest, and if it passes the caller's own checks. Otherwise it is designed anew.

    Safe under parallel runs: a file appears complete or not at all, and whoever loses a race
    overwrites it with the same bytes. A directory that cannot be written only costs time.
    """

    directory: Path

    @classmethod
    def default(cls) -> DesignCache:
        """``$FL_PRIVQUANT_CACHE``, else ``fl_privquant`` in the user's cache directory."""
        if chosen := os.environ.get("FL_PRIVQUANT_CACHE"):
            return cls(Path(chosen))
        return cls(platformdirs.user_cache_path("fl_privquant"))

    def path(self, spec: str) -> Path:
        """The file of a spec."""
        return self.directory / f"{hashlib.sha256(spec.encode()).hexdigest()}.design"

    def fetch(
        self, spec: str, build: Callable[[], Mechanism], parse: Callable[[bytes], Mechanism]
    ) -> Mechanism:
        """The design that is stored for a spec; if there is none, ``build`` makes it, and it is stored.

        Parameters
        ----------
        spec
            The whole spec in one line of text: equal texts stand for equal designs.
        build
            Makes the design.
        parse
            Reads it from bytes; raises CertificationError if they are damaged or hold another design.
        """
        path = self.path(spec)
        try:
            made_for, _, blob = path.read_bytes().partition(b"\n")
            if made_for != spec.encode():
                raise CertificationError(f"it was made for {made_for[:200]!r}, not for {spec!r}")
            return parse(blob)
        except FileNotFoundError:
            pass
        except (CertificationError, OSError) as error:
            _LOG.warning("design cache: %s is unusable (%s); designing it anew", path.name, one_line(error))
        built = build()
        try:
            content = spec.encode() + b"\n" + built.to_bytes()
            # The file need not be durable: if a power failure damages it, the design is made anew.
            replace_file(path, lambda file: file.write_bytes(content), durable=False)
        except OSError as error:
            _LOG.warning(
                "design cache: cannot write to %s (%s); the design is used unsaved", self.directory, error
            )
        return built
