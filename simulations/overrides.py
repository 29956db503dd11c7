"""Overrides on the command line, checked before Hydra composes them: a typo gets the nearest valid word."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError
from simulations.keys.app_keys import FEDERATION_KEYS
from simulations.keys.encodings import renamed_key

# Inside the package where that is installed, beside it in the repository.
_INSTALLED_CONF = Path(__file__).parent / "conf"
CONF = _INSTALLED_CONF if _INSTALLED_CONF.is_dir() else Path(__file__).parents[1] / "conf"
"""The configuration's directory."""


class AskedRuns(NamedTuple):
    """What a command line asks for: how many runs, and the configuration of the first."""

    total: int
    first: DictConfig


def check_overrides(arguments: list[str], sweep: bool = True, own: Path | None = None) -> int:
    """The number of runs of a sweep with these overrides; see :func:`asked_runs`."""
    return asked_runs(arguments, sweep, own).total


def asked_runs(arguments: list[str], sweep: bool = True, own: Path | None = None) -> AskedRuns:
    """The runs of a sweep with these overrides; ``own`` is the user's own configuration directory.

    An unknown group, file or key raises InvalidSpecError with the nearest word, and so does what Hydra cannot
    compose, or several values without ``sweep``.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(arguments)
    except HydraException as error:
        raise InvalidSpecError(f"{' '.join(arguments)}: {str(error).splitlines()[0]}") from error
    groups: dict[str, list[str]] = {}
    for path in (path for folder in _folders(own) for path in folder.iterdir() if path.is_dir()):
        files = (file.relative_to(path).with_suffix("").as_posix() for file in path.rglob("*.yaml"))
        groups[path.name] = sorted({*groups.get(path.name, ()), *files})
    chosen: list[str] = []
    for override in parsed:
        if override.is_sweep_override() and not sweep:
            raise InvalidSpecError(
                f"{override.key_or_group}: {','.join(choices_of(override))} are several values, which is a "
                "sweep; put -m before all KEY=VALUE"
            )
        renamed = renamed_key(override.key_or_group, ",".join(choices_of(override)))
        if renamed is not None:
            raise InvalidSpecError(f"{override.key_or_group}: unknown key; write {renamed} instead")
        if override.key_or_group in groups and not override.is_delete():
            for choice in choices_of(override):
                _check_choice(override.key_or_group, choice, groups[override.key_or_group])
            chosen.append(f"{override.key_or_group}={choices_of(override)[0]}")
    if any(override.key_or_group == "app" and override.value() is not None for override in parsed):
        _refuse_keys_of_tasks([override.key_or_group for override in parsed])
    try:
        config = composed([_first(override) for override in parsed], own)
    except InvalidSpecError:
        # Hydra only names the unknown key. The files without these overrides have the key that was meant.
        _check_keys(composed(chosen, own), parsed, list(groups))
        raise
    # The sizes of the experiment's own sweep, unless the command line overrides it.
    sizes = {str(key): len(str(text).split(",")) for key, text in (config.hydra.sweeper.params or {}).items()}
    sizes |= {override.key_or_group: len(choices_of(override)) for override in parsed}
    return AskedRuns(math.prod(sizes.values()), config)


def _refuse_keys_of_tasks(keys: list[str]) -> None:
    """Refuse what has no effect on an app."""
    for key in keys:
        group, _, name = key.partition(".")
        if group in ("task", "partition") or (group == "federation" and name not in ("", *FEDERATION_KEYS)):
            raise InvalidSpecError(
                f"{key}: for tasks, but app runs a Flower app with its own data and training; leave one out, "
                f"or set app_config.KEY"
            )


def _folders(own: Path | None) -> list[Path]:
    """The folders of configuration groups: ours and the user's."""
    if own is None:
        return [CONF]
    if not own.is_dir():
        raise InvalidSpecError(f"--config-dir: {own} is not a directory")
    return [CONF, own]


def composed(overrides: list[str], own: Path | None = None) -> DictConfig:
    """The configuration that Hydra composes from the overrides of one run and the user's own files."""
    if own is not None:
        overrides = [*overrides, f"hydra.searchpath=['file://{own.resolve()}']"]
    try:
        with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
            return compose("config", overrides=overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        # Hydra raises a plain ValueError where a key is empty.
        raise InvalidSpecError(str(error).strip().splitlines()[0]) from error


def _first(override: Override) -> str:
    """The override with the first of its values."""
    line = str(override.input_line)
    if not override.is_sweep_override():
        return line
    return f"{line.partition('=')[0]}={next(iter(override.sweep_string_iterator()))}"


def choices_of(override: Override) -> list[str]:
    """The values that an override gives its key: several, if it is a sweep."""
    if override.is_sweep_override():
        return [str(value) for value in override.sweep_string_iterator()]
    value = override.value()
    return ["null" if value is None else str(value)]


def _check_choice(group: str, choice: str, known: list[str]) -> None:
    if choice not in known and choice not in ("None", "null"):
        raise InvalidSpecError(
            f"{group}: {choice!r} is not one of {', '.join(known)}{checks.nearest(choice, known)}"
        )


def _check_keys(config: DictConfig, parsed: list[Override], groups: list[str]) -> None:
    for override in parsed:
        key = override.key_or_group
        added = override.is_add() or override.is_force_add()
        if not (key in groups or key.startswith("hydra") or added or override.is_delete()):
            _check_key(config, key, groups)


def _check_key(config: DictConfig, key: str, groups: list[str]) -> None:
    node = config
    path = ""
    for part in key.split("."):
        if not OmegaConf.is_dict(node) or part not in node:
            valid = [str(key) for key in node] if OmegaConf.is_dict(node) else []
            valid += groups if not path else []
            raise InvalidSpecError(f"{path}{part}: unknown key{checks.nearest(part, valid)}")
        node = node[part]
        path += f"{part}."
