"""Odd overrides of ``python -m simulations.run``: one clear line and an exit code, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import absl.logging
import pytest

from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower.engines import Federation, RayEngine
from simulations import inversion, run
from simulations.config import RunConfig
from simulations.run_help import choices, meanings

STARTED = "the run would start"
# The override, and what the line names.
REFUSED = {
    "mechanism.rounds=abc": "mechanism.rounds: unknown key",
    "mechanism.bits=abc": "mechanism.bits: 'abc' is not a whole number",
    "mechanism.epsilon=abc": "mechanism.epsilon: 'abc' is not a number",
    "mechanism.epsilon=null": STARTED,
    "+mechanism.bins=[a,b]": "mechanism.bins: 'a' is not a number",
    "mechanism.objective=3": "mechanism.objective: 3 is not a text",
    "mechanism=optm,rqm": "put -m before all KEY=VALUE",
    "mechanism=optn": "did you mean 'optm'",
    "federation.rounds=0": "federation.rounds: 0 is below 1",
    "federation.learning_rate=nan": "federation.learning_rate: nan is not a finite number",
    "seed=x": "seed: 'x' is not int",
    "seed=${nothing}": "nothing",
    "seed=1e400": "seed",
    "study=../x": "study",
    "study=": "study: '' is not a plain directory name",
    "output=": "output: '' is not a directory",
    "task=3": "task",
    "task.data=foo": "task.data: there is no 'foo' in simulations.data, which has Examples, cancer",
    "task.data=mnits": "did you mean 'mnist'",
    "task.model=foo.bar": "task.model: foo.bar cannot be imported (ModuleNotFoundError: No module named",
    "task._target_=nowhere.Task": "task._target_: nowhere.Task cannot be imported",
    "task._target_=simulations.tasks.Nothing": "task._target_: there is no 'Nothing' in simulations.tasks",
    "task.hidden=7": "task.hidden: unknown key; parameters of digits and softmax: none",
    "+task.depth=7": "task.depth: unknown key",
    "+task.run=7": "task.run: unknown key",
    "+task.shape=7": "task.shape: unknown key",
    "engine.threads=-1": "engine.threads: -1 is below 1",
    "hydra.nothing=3": "hydra.nothing",
    "=3": "unknown key",
    "seed": "seed",
    "seed=[": "seed",
    "--nothing": "unrecognized arguments",
    "--cfg": "argument --cfg",
}


@pytest.mark.parametrize("override", REFUSED)
def test_an_odd_override_is_one_line(
    override: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def started(config: RunConfig) -> None:
        raise InvalidSpecError(STARTED)

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
        raise InvalidSpecError(STARTED)

    monkeypatch.setattr(run, "execute", interrupted)
    # Libraries for terminals set this for all processes that are started after them.
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(
        sys, "argv", ["run", "-m", f"output={tmp_path}", f"hydra.sweep.dir={tmp_path}", "seed=0,1,2"]
    )
    with pytest.raises(SystemExit) as ended:
        run.main()
    opening, epsilon, first, last = capsys.readouterr().err.splitlines()
    assert ended.value.code == 130
    assert opening.startswith("sweep of 3 runs")
    assert epsilon.startswith("ε is for all updates of a client together (client total, δ = 1e-05)")
    assert first == f"error: {STARTED}"
    assert last == "interrupted: 0 of 3 runs are finished; the same command goes on where this one stopped"


def test_hydra_closes_no_file_of_pytest() -> None:
    """It closes all handlers of logs; that of absl closes its stream too, unless that is stderr."""
    assert absl.logging.get_absl_handler().python_handler.stream is sys.__stderr__


def test_a_cluster_that_does_not_answer_is_refused_at_once() -> None:
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379", "host:port"):
        with pytest.raises(InvalidSpecError, match=f"no Ray cluster answers at {address}"):
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


def test_help_says_what_every_key_and_choice_means(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["run", "--help", "mechanism=rqm"])
    run.main()
    shown = " ".join(capsys.readouterr().out.split())
    assert "federation.rounds=30 Rounds of the run." in shown
    assert "* rqm RQM: randomized quantization" in shown
    assert "encoding.clip_policy.rate=0.2 How fast the clip follows the quantile." in shown
    assert "mechanism.epsilon=1.0" in shown


def test_every_key_has_a_meaning_and_every_choice_a_line() -> None:
    import dataclasses
    import typing

    from simulations.overrides import CONF

    def undocumented(kind: type) -> list[str]:
        hints, said = typing.get_type_hints(kind), meanings(kind)
        missing = [
            f"{kind.__name__}.{each.name}" for each in dataclasses.fields(kind) if not said.get(each.name)
        ]
        nested = [hint for hint in hints.values() if dataclasses.is_dataclass(hint)]
        return missing + [name for hint in nested for name in undocumented(typing.cast(type, hint))]

    assert undocumented(RunConfig) == []
    groups = [path for path in CONF.iterdir() if path.is_dir()]
    assert [
        f"{group.name}/{name}" for group in groups for name, line in choices(group).items() if not line
    ] == []
