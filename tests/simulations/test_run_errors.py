"""Odd overrides of ``python -m simulations.run``: one clear line and an exit code, before anything starts."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from pathlib import Path

import absl.logging
import pytest

from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.flower.simulation import Federation, RayEngine
from simulations import run
from simulations.runner import inversion
from simulations.runner.config import CONF, RunConfig, compose_run
from tests.simulations.conftest import RunHere

STARTED = "the run would start"
# The override, and what the line names.
REFUSED = {
    "mechanism.rounds=abc": "mechanism.rounds: not a parameter of 'optm'",
    "mechanism.epsilom=1": "did you mean 'epsilon'",
    "mechanism.bits=abc": "mechanism.bits: 'abc' is not a whole number",
    "mechanism.epsilon=abc": "mechanism.epsilon: 'abc' is not a number",
    "mechanism.epsilon=null": STARTED,
    "mechanism.bins=[a,b]": "mechanism.bins: 'a' is not a number",
    "mechanism.objective=3": "mechanism.objective: 3 is not a text",
    "mechanism._target_=nowhere.Spec": "mechanism._target_: nowhere.Spec cannot be imported",
    "mechanism=optm,rqm": "To sweep over it, add --multirun to your command line",
    "mechanism=optn": "did you mean 'optm'",
    "tasks=digits": "did you mean 'task'",
    "seed.x=1": "seed: Value",
    "sed=1": "sed: unknown key; did you mean 'seed'?",
    "federation.round=3": "federation.round: unknown key; did you mean 'rounds'?",
    "federation.rounds=-1": "federation.rounds: -1 is outside",
    "federation.learning_rate=nan": "federation.learning_rate: nan is not a finite number",
    "federation.optimizer.lr=3": "federation.optimizer._target_: missing",
    "federation.optimizer._target_=torch.optim.Adm": "did you mean 'Adam'",
    "seed=x": "seed: Value 'x' of type 'str' could not be converted to Integer",
    "seed=${nothing}": "nothing",
    "seed=1e400": "seed",
    "study=../x": "study",
    "study=": "study: '' is not a plain directory name",
    "task=3": "Config group override must be a string",
    "task.data=foo": "no attribute 'foo'); simulations.tasks.data has Examples, cancer",
    "task.data=mnits": "did you mean 'mnist'",
    "task.model=foo.bar": "task.model: foo.bar cannot be imported (ModuleNotFoundError: No module named",
    "task._target_=nowhere.Task": "task._target_: nowhere.Task cannot be imported",
    "task._target_=simulations.tasks.task.Nothing": "'simulations.tasks.task' has no attribute 'Nothing'",
    "task.hidden=7": "task.hidden: unknown key; parameters of digits and softmax: none",
    "+task.depth=7": "task.depth: unknown key",
    "+task.run=7": "task.run: unknown key",
    "+task.shape=7": "task.shape: unknown key",
    "engine.batch=-1": "engine.batch: -1 is outside",
    "hydra.nothing=3": "hydra.nothing",
    "=3": "Config group override must be a string",
    "seed": "seed",
    "seed=[": "no viable alternative at input",
}


@pytest.mark.parametrize("override", REFUSED)
def test_an_odd_override_is_one_line(
    override: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def started(config: RunConfig) -> None:
        raise InvalidSpecError("run", MISSING, STARTED)

    monkeypatch.setattr(run, "execute", started)
    monkeypatch.setattr(sys, "argv", ["run", f"output={tmp_path}", override])
    with pytest.raises(SystemExit) as ended:
        run.main()
    out, err = capsys.readouterr()
    assert ended.value.code == 2, err
    assert err.startswith("error: "), err
    assert err.count("\n") == 1, err
    assert REFUSED[override] in err
    assert "Traceback" not in out + err


def test_ctrl_c_in_a_sweep_says_what_is_finished_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(config: RunConfig) -> None:
        if config.seed == 1:
            raise KeyboardInterrupt
        raise InvalidSpecError("run", MISSING, STARTED)

    monkeypatch.setattr(run, "execute", interrupted)
    # Libraries for terminals set this for all processes that are started after them.
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "argv", ["run", "-m", f"output={tmp_path}", "seed=0,1,2"])
    with pytest.raises(SystemExit) as ended:
        run.main()
    opening, epsilon, first, last = capsys.readouterr().err.splitlines()
    assert ended.value.code == 130
    assert opening.startswith("sweep of 3 runs")
    assert epsilon.startswith("ε is for all updates of a client together (client total, δ =")
    assert first == f"error: run: {STARTED}"
    assert last == "interrupted: 0 of 3 runs are finished; the same command goes on where this one stopped"


def test_a_sweep_runs_each_seed_with_its_own_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_here: RunHere
) -> None:
    """Jobs that differ in their seed share what Hydra composes; a pattern stands for several mechanisms."""
    found = []

    def started(config: RunConfig) -> None:
        found.append((config.label, config.seed, config.run_name))
        raise InvalidSpecError("run", MISSING, STARTED)

    monkeypatch.setattr(run, "execute", started)
    shared, place = ("mechanism.epsilon=2", "federation.rounds=1"), f"output={tmp_path}"
    assert run_here("-m", "seed=0,1", "mechanism=glob(optm_pa*)", *shared, place)[0] == 2
    runs = itertools.product((0, 1), ("optm_paired", "optm_paper"))
    expected = [compose_run(f"mechanism={name}", f"seed={seed}", *shared) for seed, name in runs]
    assert found == [(each.label, each.seed, each.run_name) for each in expected]
    # A seed that is none is refused before the first run.
    found.clear()
    code, _, err = run_here("-m", "seed=0,x", place)
    assert (code, found) == (2, [])
    assert err.endswith("error: seed: Value 'x' of type 'str' could not be converted to Integer\n")


def test_hydra_closes_no_file_of_pytest() -> None:
    """It closes all handlers of logs; that of absl closes its stream too, unless that is stderr."""
    assert absl.logging.get_absl_handler().python_handler.stream is sys.__stderr__


def test_a_cluster_that_does_not_answer_is_refused_at_once() -> None:
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379", "host:port"):
        with pytest.raises(InvalidSpecError, match=f"{address}. has no Ray cluster that answers"):
            RayEngine(address=address).run("a:b", "a:c", Federation(num_clients=1))


def test_an_image_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for image in ("99999", "-1", "x"):
        monkeypatch.setattr(sys, "argv", ["inversion", "--image", image])
        with pytest.raises(SystemExit) as ended:
            inversion.main()
        err = capsys.readouterr().err
        assert ended.value.code == 2
        assert err.startswith("error: Invalid value for '--image'")
        assert err.count("\n") == 1


def test_every_key_has_a_meaning_and_every_choice_a_line() -> None:
    """The line below a field says what the key means; a group of keys has a docstring of its own."""
    undocumented = []
    for group in ast.parse(Path(inspect.getfile(RunConfig)).read_text()).body:
        if isinstance(group, ast.ClassDef):
            assert ast.get_docstring(group), group.name
            for key, below in itertools.pairwise(group.body):
                if isinstance(key, ast.AnnAssign) and not ast.unparse(key.annotation).endswith("Config"):
                    documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                    undocumented += [] if documented else [f"{group.name}.{ast.unparse(key.target)}"]
    assert undocumented == []
    choices = list(CONF.glob("*/**/*.yaml"))
    assert len(choices) > 80
    assert [path for path in choices if not path.read_text().startswith("# ")] == []
