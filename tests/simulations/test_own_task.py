"""A task, a model and data from outside the repository: named by their import path, in no file of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fl_privquant.errors import InvalidSpecError
from simulations.run import execute
from simulations.runner.config import RunConfig
from simulations.runner.results import RunDirectory
from simulations.tasks.data import Examples
from simulations.tasks.task import TorchTask, get_task
from tests.finished_runs import provenance_of
from tests.simulations.conftest import RunHere
from tests.task_values import torch_task

ROOT = Path(__file__).parents[2]
SMALL = {"federation": {"num_clients": 3, "rounds": 2}, "mechanism": {"name": "one_bit", "epsilon": 2.0}}

MODULE = '''
import numpy as np
import torch
from torch import nn

from simulations.tasks.data import Examples


class Halving:
    """Every client halves every number; written without a base class."""

    def __init__(self, run, *, size: int = 5):
        self.clients, self.size = run.federation.num_clients, size

    def initial_arrays(self):
        return {"numbers": np.ones(self.size, np.float32)}

    def train(self, arrays, client, server_round):
        return {"numbers": arrays["numbers"] / 2}

    def evaluate(self, arrays):
        return float("nan"), float(np.square(arrays["numbers"]).mean())

    def num_examples(self, client):
        return 1 + client


class Unfinished:
    def __init__(self, run):
        pass

    initial_arrays = evaluate = num_examples = print


def line(slope: float = 2.0):
    x = np.linspace(-1, 1, 60)[:, None]
    return Examples(x, slope * x, x[:10], slope * x[:10])


def one_weight():
    return nn.Linear(1, 1)


def squared(outputs, labels):
    return (outputs - labels).square().mean()


def frozen(shape, classes):
    first = nn.Linear(64, 8)
    for parameter in first.parameters():
        parameter.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), first, nn.Linear(8, classes))


def not_examples():
    return [1, 2]


def users():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    return Examples(x, y, x[:9], y[:9], users=np.repeat([3, 1, 7, 5], 15))
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that lies outside the repository."""
    name = f"outside_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def run_of(tmp_path: Path, task: dict[str, object], **changes: object) -> RunConfig:
    return RunConfig.from_mapping({**SMALL, "task": task, "output": str(tmp_path), **changes})


def test_a_class_with_five_methods_is_a_task(outside: str, tmp_path: Path) -> None:
    config = run_of(tmp_path, {"_target_": f"{outside}.Halving", "size": 300}, encoding={"clip": 0.5})
    summary = execute(config)
    assert config.task_name == "Halving"
    assert RunDirectory.of(config).summary() is not None
    assert summary["loss"] < 0.5
    # What the file of the default task says of that task is not for this one.
    kept = run_of(tmp_path, torch_task() | {"_target_": f"{outside}.Halving"})
    assert kept.task == {"_target_": f"{outside}.Halving"}


def test_a_model_a_loss_and_data_are_a_task(outside: str, tmp_path: Path) -> None:
    task = {
        "_target_": "simulations.tasks.task.TorchTask",
        "data": f"{outside}.line",
        "model": f"{outside}.one_weight",
        "loss": f"{outside}.squared",
        "slope": -3.0,
    }
    federation = {"num_clients": 3, "rounds": 30, "learning_rate": 0.5}
    mechanism = {"name": "none"}
    config = run_of(tmp_path, task, federation=federation, mechanism=mechanism)
    summary = execute(config)
    assert summary["accuracy"] is None
    assert summary["loss"] < 0.01
    with pytest.raises(InvalidSpecError, match="'dirichlet' deals by labels, which these data do not have"):
        get_task(run_of(tmp_path, task, partition={"name": "dirichlet"}))


def test_parameters_that_are_frozen_stay_as_they_are(outside: str, tmp_path: Path) -> None:
    task = get_task(run_of(tmp_path, torch_task(model=f"{outside}.frozen")))
    before = task.initial_arrays()
    after = task.train(before, 0, 1)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"2.weight", "2.bias"}


def test_users_of_the_data_are_clients(outside: str, tmp_path: Path) -> None:
    data = torch_task(f"{outside}.users")
    task = get_task(run_of(tmp_path, data, partition={"name": "natural"}, federation={"num_clients": 4}))
    assert isinstance(task, TorchTask)
    assert [list(part) for part in task.parts] == [list(range(k, k + 15)) for k in (15, 0, 45, 30)]
    one = [
        get_task(
            run_of(tmp_path, data, partition={"name": "natural"}, federation={"num_clients": 1}, seed=seed)
        )
        for seed in range(8)
    ]
    # A client alone is any of the users, by the seed.
    assert len({task.parts[0][0] for task in one if isinstance(task, TorchTask)}) > 1
    with pytest.raises(InvalidSpecError, match="5 clients, but the data have 4 users"):
        get_task(run_of(tmp_path, data, partition={"name": "natural"}, federation={"num_clients": 5}))
    with pytest.raises(InvalidSpecError, match="do not say which user an example belongs to"):
        get_task(run_of(tmp_path, torch_task(), partition={"name": "natural"}))


def test_what_is_no_task_is_refused(outside: str, tmp_path: Path) -> None:
    for task, reason in (
        (
            {"_target_": f"{outside}.Halving", "sise": 3},
            "task.sise: unknown key; parameters of Halving: size; ",
        ),
        ({"_target_": f"{outside}.Nothing"}, f"'{outside}' has no attribute 'Nothing'"),
        ({"_target_": f"{outside}.Unfinished"}, "Unfinished' has no train()"),
        (torch_task(f"{outside}.not_examples"), "gives list, expected simulations.tasks.data.Examples"),
        (torch_task(f"{outside}.line", slop=1.0), "task.slop: unknown key"),
        (torch_task(f"{outside}.line", loss="no_loss"), "'torch.nn.functional' has no attribute 'no_loss'"),
    ):
        with pytest.raises(InvalidSpecError) as refused:
            get_task(run_of(tmp_path, task))
        assert reason in str(refused.value)


@pytest.mark.slow
def test_a_file_of_ones_own(outside: str, tmp_path: Path, run_here: RunHere) -> None:
    """By the command, with a configuration's folder outside the repository."""
    folder = tmp_path / "my conf" / "task"
    folder.mkdir(parents=True)
    (folder / "halving.yaml").write_text(f"# Halves.\n_target_: {outside}.Halving\nsize: 20\n")
    small = ["federation.num_clients=3", "federation.rounds=1", f"output={tmp_path / 'outputs'}"]
    arguments = ["--config-dir", str(folder.parent), *small]
    done = subprocess.run(
        [sys.executable, "-m", "simulations.run", *arguments, "task=halving", "task.size=30"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "after round 1" in done.stderr
    code, _, err = run_here(*arguments, f"task._target_={outside}.Halving")
    assert code == 0, err
    assert "after round 1" in err
    assert "did you mean 'halving'" in run_here(*arguments, "task=halvin")[2]


def test_patterns_choose_the_arrays_of_a_task_and_their_scales(outside: str, tmp_path: Path) -> None:
    task = {
        "_target_": "simulations.tasks.task.TorchTask",
        "data": f"{outside}.users",
        "model": "mlp",
        "hidden": 4,
    }

    def run(**encoding: object) -> RunConfig:
        return run_of(tmp_path, task, encoding=encoding)

    for chosen, dimension in (({"include": ["3.*"]}, 15), ({"clip_scales": {"3.*": 1.0, "*": 0.5}}, 35)):
        config = run(**chosen)
        execute(config)
        written = provenance_of(config)
        assert written["dimension"] == dimension
    # The first match counts, so the order of patterns is a part of the run.
    other = run(clip_scales={"*": 0.5, "3.*": 1.0})
    assert other.run_name != config.run_name
    for config, reason in (
        (other, "clip_scales: '3.*' is the first match of no array"),
        (run(exclude=["nothing"]), "exclude: 'nothing' matches no array"),
    ):
        with pytest.raises(InvalidSpecError) as refused:
            execute(config)
        assert reason in str(refused.value)


def test_validation_examples_come_from_the_training_data_and_nobody_trains_on_them(tmp_path: Path) -> None:
    def examples_of(**options: int) -> Examples:
        values = {**SMALL, "task": torch_task(**options), "output": str(tmp_path)}
        task = get_task(RunConfig.from_mapping(values))
        assert isinstance(task, TorchTask)
        return task.examples

    whole, tuned = examples_of(), examples_of(validation_examples=300, max_examples=1000)
    assert len(whole.train_y) == 1438
    np.testing.assert_array_equal(tuned.test_x, whole.train_x[1138:])
    np.testing.assert_array_equal(tuned.test_y, whole.train_y[1138:])
    np.testing.assert_array_equal(tuned.train_x, whole.train_x[:1000])
    for refused, reason in ((1438, "leaves none to train on"), (0, "is not a whole number")):
        with pytest.raises(InvalidSpecError, match=rf"task.validation_examples: {refused}.*{reason}"):
            examples_of(validation_examples=refused)
