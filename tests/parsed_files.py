"""Files of settings, parsed and merged once for a process: Hydra does both for each configuration.

Tests compose hundreds of configurations from some twenty files each, most of them with the same choices of
files and different values. Parsing and merging takes Hydra three quarters of the time.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest
from hydra import version
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository, IConfigRepository
from hydra._internal.defaults_list import Overrides
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

__all__ = ["keep_parsed_files"]

_Kept = dict[tuple[object, ...], bytes]


def keep_parsed_files(patch: pytest.MonkeyPatch) -> _Kept:
    """Let Hydra parse and merge files again only if one was changed; what is kept, which grows with them."""
    kept: _Kept = {}
    _keep_parsed(patch, kept)
    _keep_merged(patch, kept)
    _skip_unused_maps(patch)
    return kept


def _keep_parsed(patch: pytest.MonkeyPatch, kept: _Kept) -> None:
    """Keep the content of each file."""
    load = ConfigRepository.load_config

    @functools.wraps(load)
    def load_kept(self: ConfigRepository, config_path: str) -> ConfigResult | None:
        key = (config_path, str(version.getbase()), *_states(self.sources, config_path))
        if key not in kept:
            kept[key] = pickle.dumps(load(self, config_path))
        # Hydra changes what it is given.
        parsed: ConfigResult | None = pickle.loads(kept[key])
        return parsed

    patch.setattr(ConfigRepository, "load_config", load_kept)


def _keep_merged(patch: pytest.MonkeyPatch, kept: _Kept) -> None:
    """Keep what the chosen files are merged to, before the values of the command line are set in it."""
    name = "_compose_config_from_defaults_list"
    merge = getattr(ConfigLoaderImpl, name)

    @functools.wraps(merge)
    def merge_kept(
        self: ConfigLoaderImpl, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        files = tuple(
            (file.config_path, file.package, file.primary, *_states(repo.get_sources(), file.config_path))
            for file in defaults
        )
        key = ("merged", str(version.getbase()), files)
        if key not in kept:
            kept[key] = pickle.dumps(merge(self, defaults, repo))
        merged: DictConfig = pickle.loads(kept[key])
        return merged

    patch.setattr(ConfigLoaderImpl, name, merge_kept)


def _skip_unused_maps(patch: pytest.MonkeyPatch) -> None:
    """Make the map of choices only for a list of files that names one of them by another choice."""
    name = "_create_interpolation_map"
    make = getattr(defaults_list, name)

    @functools.wraps(make)
    def make_if_used(overrides: Overrides, listed: list[InputDefault], self_added: bool) -> DictConfig:
        if any(default.is_interpolation() for default in listed):
            made: DictConfig = make(overrides, listed, self_added)
            return made
        return OmegaConf.create()

    patch.setattr(defaults_list, name, make_if_used)


def _states(sources: Iterable[ConfigSource], config_path: str | None) -> list[tuple[object, ...]]:
    """What the contents of all sources under a path depend on."""
    return [_state(source, str(config_path)) for source in sources]


def _state(source: ConfigSource, config_path: str) -> tuple[object, ...]:
    """What the content of a source under a path depends on: of a file, when it was written."""
    described = source.provider, source.scheme(), source.path
    if source.scheme() != "file":
        return described
    name = config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
    path = Path(source.path, name)
    if not path.is_file():
        return described
    status = path.stat()
    return *described, status.st_ino, status.st_mtime_ns, status.st_size
