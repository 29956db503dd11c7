"""A mechanism from outside the repository: its spec is named by its import path, in no file of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms import registry
from simulations.run import execute
from simulations.runner.config import RunConfig, compose_run
from simulations.runner.results import RunDirectory
from tests.contract.test_entry_points import MODULE

ROOT = Path(__file__).parents[2]
SMALL = ("task=mean", "task.dimension=30", "federation.num_clients=4", "federation.rounds=2")


@pytest.fixture
def coin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The import path of a spec in a module that lies outside the repository, and is not imported yet."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    module = f"coins_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(MODULE.format(name="coin"))
    monkeypatch.syspath_prepend(tmp_path)
    return f"mechanism._target_={module}.CoinSpec"


def test_a_spec_is_named_by_its_import_path(coin: str, tmp_path: Path) -> None:
    config = compose_run(coin, "mechanism.epsilon=2", *SMALL, f"output={tmp_path}")
    assert (config.mechanism["name"], config.mechanism["epsilon"]) == ("coin", 2.0)
    assert RunConfig.from_mapping(config.to_mapping()) == config
    assert execute(config)["round"] == 2
    assert RunDirectory.of(config).path.name.startswith("coin-")


def test_its_parameters_are_checked_as_those_of_ours(coin: str) -> None:
    with pytest.raises(InvalidSpecError, match="not a parameter of 'coin', which takes epsilon"):
        compose_run(coin, "mechanism.epsilom=2")
    # The width of another mechanism's file, or of a sweep, has no effect on it.
    assert "bits" not in compose_run(coin, "mechanism.bits=3").mechanism


def test_a_target_is_planned_with_it(coin: str, tmp_path: Path) -> None:
    target = ("privacy.epsilon=30", "task=mean", "task.dimension=30", "federation.rounds=2")
    config = compose_run(coin, *target, f"output={tmp_path}")
    assert "epsilon" not in config.mechanism
    assert 10.0 < execute(config)["epsilon_client_total"] <= 30.0


def test_a_class_that_registers_nothing_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="Spec is the specification of 0 registered mechanisms"):
        compose_run("mechanism._target_=fl_privquant.mechanisms.spec.Spec")


def test_the_command_runs_it(tmp_path: Path) -> None:
    (tmp_path / "my_package.py").write_text(MODULE.format(name="my_coin"))
    command = [sys.executable, "-m", "simulations.run", "mechanism._target_=my_package.CoinSpec", *SMALL]
    environment = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, f"output={tmp_path}"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("default/my_coin-*/summary.json"))
