"""Configurations from files that were parsed before are those that Hydra composes from the files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
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
    undo_the_suites(monkeypatch)
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


def test_a_file_named_by_another_choice_is_chosen(tmp_path: Path) -> None:
    chosen = "# @package _global_\ndefaults: [{/shape: round}, {/colour: '${shape}'}]\n"
    files = {"experiment/named": chosen, "shape/round": "", "colour/round": "value: 3\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.yaml").write_text(text)
    assert composed(["experiment=named"], tmp_path).colour.value == 3


def undo_the_suites(patch: pytest.MonkeyPatch) -> None:
    """Put back the functions of Hydra, which the suite has replaced."""
    for home, name in (
        (ConfigRepository, "load_config"),
        (ConfigLoaderImpl, "_compose_config_from_defaults_list"),
        (defaults_list, "_create_interpolation_map"),
    ):
        patch.setattr(home, name, getattr(getattr(home, name), "__wrapped__", getattr(home, name)))
