"""Files of settings, parsed once for a process: Hydra parses some twenty of them for each configuration.

Tests compose hundreds of configurations from the same files, which takes Hydra half of the time.
"""

from __future__ import annotations

import functools
import pickle
from pathlib import Path

import pytest
from hydra import version
from hydra._internal.config_repository import ConfigRepository
from hydra.plugins.config_source import ConfigResult, ConfigSource

__all__ = ["keep_parsed_files"]


def keep_parsed_files(patch: pytest.MonkeyPatch) -> dict[tuple[object, ...], bytes]:
    """Let Hydra parse a file again only if it was changed; what is kept, which grows with every file."""
    load, kept = ConfigRepository.load_config, dict[tuple[object, ...], bytes]()

    @functools.wraps(load)
    def load_kept(self: ConfigRepository, config_path: str) -> ConfigResult | None:
        key = (config_path, str(version.getbase()), *(_state(source, config_path) for source in self.sources))
        if key not in kept:
            kept[key] = pickle.dumps(load(self, config_path))
        # Hydra changes what it is given.
        parsed: ConfigResult | None = pickle.loads(kept[key])
        return parsed

    patch.setattr(ConfigRepository, "load_config", load_kept)
    return kept


def _state(source: ConfigSource, config_path: str) -> tuple[object, ...]:
    """What the content of a source under a path depends on: of a file, when it was written."""
    name = config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
    path = Path(source.path, name)
    described = source.provider, source.scheme(), source.path
    if source.scheme() != "file" or not path.is_file():
        return described
    status = path.stat()
    return *described, status.st_ino, status.st_mtime_ns, status.st_size
