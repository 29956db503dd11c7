"""The schema: what is refused, with which hint; what counts in a run's name; every YAML composes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import fl_privquant as pq
from fl_privquant.cli.comparison import variants
from fl_privquant.errors import InvalidSpecError
from simulations.config import RunConfig
from simulations.overrides import CONF, check_overrides
from tests.task_values import mean_of, torch_task

OPTM = {"name": "optm", "epsilon": 1.0, "bits": 2}

# What is designed for a target of the whole run has no design without one: see test_targets.py.
FOR_TARGETS = ("central_gaussian",)


def composed(*overrides: str) -> RunConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        values: Any = OmegaConf.to_container(compose("config", overrides=list(overrides)), resolve=True)
    return RunConfig.from_mapping(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mechanism": OPTM, "sed": 1}, "sed: unknown key; did you mean 'seed'"),
        ({"mechanism": OPTM, "federation": {"round": 3}}, "did you mean 'rounds'"),
        ({"mechanism": OPTM, "federation": {"rounds": 0}}, "federation.rounds: 0 is below 1"),
        ({"mechanism": OPTM, "federation": {"rounds": 2.5}}, "federation.rounds: 2.5 is not int"),
        ({"mechanism": OPTM, "federation": {"rounds": True}}, "federation.rounds: True is not int"),
        ({"mechanism": OPTM, "federation": {"fraction": 1.5}}, "outside"),
        ({"mechanism": OPTM, "federation": {"momentum": 1.0}}, "momentum"),
        ({"mechanism": OPTM, "federation": {"strategy": "fedavgn"}}, "did you mean 'fedavg"),
        ({"mechanism": OPTM, "encoding": {"clip": 0}}, "encoding.clip"),
        ({"mechanism": OPTM, "encoding": {"clip": "wide"}}, "encoding.clip: 'wide' is not float"),
        ({"mechanism": OPTM, "encoding": 3}, "expected a group"),
        ({"mechanism": OPTM, "task": torch_task("digit")}, "did you mean 'digits'"),
        ({"mechanism": OPTM, "task": {"name": "digits"}}, "task._target_: missing; choose a file"),
        ({"mechanism": OPTM, "task": torch_task("images")}, "task.dataset: missing; images needs it"),
        (
            {"mechanism": OPTM, "task": torch_task(max_examples=0)},
            "task.max_examples: 0 is not a whole",
        ),
        ({"mechanism": OPTM, "task": torch_task(max_examples="few")}, "task.max_examples: 'few' is not a"),
        ({"mechanism": OPTM, "task": mean_of(0)}, "task.dimension: 0 is not a whole number"),
        ({"mechanism": OPTM, "partition": {"name": "dirichle"}}, "did you mean 'dirichlet'"),
        ({"mechanism": OPTM, "engine": {"name": "rays"}}, "did you mean 'ray'"),
        ({"mechanism": OPTM, "privacy": {"delta": 0.0}}, "privacy.delta"),
        ({"mechanism": OPTM, "study": "a/b"}, "study"),
        ({"mechanism": OPTM, "encoding": {"clip_policy": {"name": "quantil"}}}, "did you mean 'quantile'"),
        (
            {"mechanism": OPTM, "encoding": {"clip_policy": {"client_quantile": 1.0}}},
            "clip_policy.client_quantile: 1.0",
        ),
        ({"mechanism": OPTM, "encoding": {"bits_policy": {"rounds": [2, 3, 4]}}}, "from round 1 on"),
        ({"mechanism": OPTM, "encoding": {"bits_policy": {"rounds": [1, 9, 9]}}}, "do not increase"),
        ({"mechanism": OPTM, "encoding": {"keep_policy": {"rounds": [2, 3, 4]}}}, "from round 1 on"),
        ({"mechanism": OPTM, "encoding": {"keep_policy": {"rounds": [1, 9, 9]}}}, "do not increase"),
        ({"mechanism": OPTM, "encoding": {"keep_policy": {"keep": [0.5, 0.2, 2.0]}}}, "keep: 2.0"),
        (
            {"mechanism": OPTM, "encoding": {"bits_policy": {"bits": [0, 1, 2]}}},
            "bits_policy.bits: 0 is below 1",
        ),
        ({"mechanism": OPTM, "encoding": {"bits_policy": {"bits": 3}}}, "bits_policy.bits: 3 is not"),
        (
            {
                "mechanism": {"name": "one_bit", "epsilon": 1.0},
                "encoding": {"bits_policy": {"name": "doubling"}},
            },
            "'one_bit' has a fixed number of levels",
        ),
        ({"mechanism": OPTM, "codec": {"clip": 0.1}}, "codec: unknown key; it is encoding now"),
        ({"mechanism": OPTM, "clip_policy": {}}, "clip_policy: unknown key; it is encoding.clip_policy now"),
        ({"mechanism": {"name": "optn"}}, "did you mean 'optm'"),
        ({"mechanism": {**OPTM, "famly": "free"}}, "did you mean 'family'"),
        ({"mechanism": {}}, "mechanism.name: missing"),
    ],
)
def test_bad_configs_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        RunConfig.from_mapping(values)


def test_a_runs_name_depends_on_what_its_numbers_depend_on() -> None:
    base = RunConfig.from_mapping({"mechanism": OPTM})
    same = [{"study": "x"}, {"output": "y"}, {"tracker": {"name": "tensorboard"}}]
    other = [
        {"seed": 1},
        {"encoding": {"clip": 0.1}},
        {"engine": {"name": "ray"}},
        {"mechanism": {**OPTM, "epsilon": 2.0}},
    ]
    for change in same:
        assert RunConfig.from_mapping({"mechanism": OPTM, **change}).run_name == base.run_name
    names = {RunConfig.from_mapping({"mechanism": OPTM, **change}).run_name for change in other}
    assert len(names) == len(other)
    assert base.run_name not in names


def test_parameters_that_a_mechanism_ignores_do_not_multiply_runs() -> None:
    names = {
        RunConfig.from_mapping({"mechanism": {"name": "none", "epsilon": epsilon, "bits": 3}}).run_name
        for epsilon in (0.5, 1.0, 2.0)
    }
    assert len(names) == 1


def test_every_mechanism_has_a_file_that_designs() -> None:
    files = {path.stem for path in (CONF / "mechanism").glob("*.yaml")}
    assert set(pq.mechanisms()) <= files
    for name in files:
        if name not in FOR_TARGETS:
            assert composed(f"mechanism={name}").design() is not None


@pytest.mark.parametrize(
    "path", sorted(CONF.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}={path.stem}"
)
def test_every_file_composes(path: Path) -> None:
    needs_target = (*FOR_TARGETS, "keep_adaptive", "pilot")
    target = ["privacy.epsilon=8", "secagg=on"] if path.stem in needs_target else []
    config = composed(f"{path.parent.name}={path.stem}", *target)
    assert RunConfig.from_mapping(config.to_mapping()) == config
    assert path.read_text().splitlines()[0].startswith("# ")


def test_sizes_of_sweeps_are_known() -> None:
    assert check_overrides([]) == 1
    assert check_overrides(["mechanism=optm,rqm", "mechanism.epsilon=0.5,1,2", "seed=0,1"]) == 12
    assert check_overrides(["experiment=default/coordinate"]) == 30
    assert check_overrides(["experiment=default/whole_run", "seed=0"]) == 5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mechanism=optn", "did you mean 'optm'"),
        ("codec=rotated", "write encoding=rotated instead"),
        ("codec.clip=0.1", "write encoding.clip instead"),
        ("clip_policy=constant,quantile", "write encoding=plain,quantile instead"),
        ("bits_policy.window=2", "write encoding.bits_policy.window instead"),
        ("mechanism=optm,rqn", "did you mean 'rqm'"),
        ("mechanism.epsilom=1", "did you mean 'epsilon'"),
        ("tasks=digits", "did you mean 'task'"),
        ("seed.x=1", "seed.x: unknown key"),
        ("mechanism=[", "mechanism="),
    ],
)
def test_typos_on_the_command_line(override: str, message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message.replace("[", r"\[")):
        check_overrides([override])


def test_a_label_means_the_same_design_in_runs_and_in_comparisons() -> None:
    """What a run calls "optm independent" is what ``fl-privquant compare`` calls so."""
    for label, name, variant in variants(("optm",)):
        config = composed(f"mechanism={label.replace(' ', '_')}")
        assert config.label == label
        parameters = {"epsilon": 1.0, "levels": 4, "objective": "mse"} | dict(variant.parameters)
        assert config.design().to_bytes() == pq.design(name, **parameters).to_bytes()
    assert composed("mechanism=optm", "mechanism.objective=mae").label == "optm"
    assert composed("mechanism=optm_paper", "mechanism.bins=[-4,-0.5,0.5,4]").label == "optm independent"
    assert composed("mechanism=rqm").label == "rqm"


def test_an_experiment_gives_each_mechanism_its_own_bits() -> None:
    bits = {
        name: composed("experiment=default/whole_run", f"mechanism={name}").mechanism.get("bits")
        for name in ("rounded_gaussian", "pbm", "skellam", "optm", "central_gaussian")
    }
    assert bits == {"rounded_gaussian": None, "pbm": 6, "skellam": 4, "optm": 2, "central_gaussian": None}
