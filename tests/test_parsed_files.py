"""Configurations from files that were parsed before are those that Hydra composes from the files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra._internal.config_repository import ConfigRepository
from omegaconf import OmegaConf

from simulations.overrides import composed
from tests.parsed_files import keep_parsed_files

CHOICES = (
    ["mechanism=optm", "task=digits"],
    ["experiment=default/whole_run", "mechanism=skellam"],
    ["encoding=quantile", "secagg=on", "seed=3"],
)


def as_text(overrides: list[str], own: Path | None = None) -> str:
    return OmegaConf.to_yaml(composed(overrides, own))


@pytest.mark.parametrize("overrides", CHOICES, ids=" ".join)
def test_they_are_what_hydra_composes(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConfigRepository, "load_config", hydras_own())
    plain = as_text(overrides)
    kept = keep_parsed_files(monkeypatch)
    assert as_text(overrides) == plain
    parsed = len(kept)
    assert parsed > 10
    # Nothing that was composed has changed what is kept.
    assert as_text(overrides) == plain
    assert len(kept) == parsed


def test_a_file_that_was_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "task" / "own.yaml"
    file.parent.mkdir()
    for value in (1, 2, 33):
        file.write_text(f"_target_: my.Task\nvalue: {value}\n")
        assert composed(["task=own"], tmp_path).task.value == value


def hydras_own() -> object:
    """The function of Hydra, which the suite has replaced."""
    return getattr(ConfigRepository.load_config, "__wrapped__", ConfigRepository.load_config)
