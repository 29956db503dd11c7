"""The schema: what is refused, with which hint; what counts in a run's name; every YAML composes."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

import fl_privquant as pq
from fl_privquant.cli.comparison import list_variants
from fl_privquant.errors import InvalidSpecError
from hydra_plugins.fl_privquant_sweeper import swept_values
from simulations.runner.config import CONF, RunConfig, compose_run
from simulations.studies._sweeps import experiment_params
from tests.task_values import mean_of, torch_task

OPTM = {"name": "optm", "epsilon": 1.0, "bits": 2}

# What is designed for a target of the whole run has no design without one: see test_targets.py.
FOR_TARGETS = ("central_gaussian",)

# Every file of every group, as on the command line.
CHOICES = [
    f"{group.name}={path.relative_to(group).with_suffix('').as_posix()}"
    for group in sorted(path for path in CONF.iterdir() if path.is_dir())
    for path in sorted(group.rglob("*.yaml"))
]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"mechanism": OPTM, "federation": {"rounds": 2.5}},
        "federation.rounds: Value '2.5' of type 'float' could not",
    ),
    (
        {"mechanism": OPTM, "federation": {"rounds": True}},
        "federation.rounds: Value 'True' of type 'bool' could not",
    ),
    ({"mechanism": OPTM, "federation": {"fraction": 1.5}}, "outside"),
    ({"mechanism": OPTM, "federation": {"momentum": 1.0}}, "momentum"),
    ({"mechanism": OPTM, "federation": {"strategy": "fedavgn"}}, "did you mean 'fedavg"),
    ({"mechanism": OPTM, "encoding": {"clip": 0}}, "encoding.clip"),
    (
        {"mechanism": OPTM, "encoding": {"clip": "wide"}},
        "encoding.clip: Value 'wide' of type 'str' could not be",
    ),
    ({"mechanism": OPTM, "encoding": 3}, "int is not a subclass of EncodingConfig"),
    ({"mechanism": OPTM, "task": {"name": "digits"}}, "task._target_: missing; choose a file"),
    ({"mechanism": OPTM, "task": torch_task("images")}, "task.dataset: missing; images needs it"),
    (
        {"mechanism": OPTM, "task": torch_task(max_examples=0)},
        "task.max_examples: 0 is not a whole",
    ),
    ({"mechanism": OPTM, "task": mean_of(0)}, "task.dimension: 0 is not a whole number"),
    ({"mechanism": OPTM, "partition": {"name": "dirichle"}}, "did you mean 'dirichlet'"),
    ({"mechanism": OPTM, "engine": {"name": "rays"}}, "did you mean 'ray'"),
    ({"mechanism": OPTM, "privacy": {"delta": 0.0}}, "privacy.delta"),
    ({"mechanism": OPTM, "encoding": {"clip_policy": {"name": "quantil"}}}, "did you mean 'quantile'"),
    (
        {"mechanism": OPTM, "encoding": {"clip_policy": {"client_quantile": 1.0}}},
        "clip_policy.client_quantile: 1.0",
    ),
    ({"mechanism": OPTM, "encoding": {"bits_policy": {"rounds": [2, 3, 4]}}}, "increase from round 1 on"),
    ({"mechanism": OPTM, "encoding": {"keep_policy": {"rounds": [1, 9, 9]}}}, "do not increase"),
    ({"mechanism": OPTM, "encoding": {"keep_policy": {"keep": [0.5, 0.2, 2.0]}}}, "keep: 2.0"),
    (
        {"mechanism": OPTM, "encoding": {"bits_policy": {"bits": [0, 1, 2]}}},
        "bits_policy.bits: 0 is outside",
    ),
    ({"mechanism": OPTM, "encoding": {"bits_policy": {"bits": 3}}}, "bits_policy.bits: Invalid value"),
    (
        {
            "mechanism": {"name": "one_bit", "epsilon": 1.0},
            "encoding": {"bits_policy": {"name": "schedule"}},
        },
        "'one_bit' has a fixed number of levels",
    ),
    ({"mechanism": {}}, "mechanism.name: missing"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
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


def test_every_mechanism_has_a_file() -> None:
    files = {path.stem for path in (CONF / "mechanism").glob("*.yaml")}
    assert set(pq.available_mechanisms()) <= files


@pytest.mark.parametrize("choice", CHOICES)
def test_every_file_composes(choice: str) -> None:
    needs_target = (*FOR_TARGETS, "pilot")
    group, _, name = choice.partition("=")
    more = ["privacy.epsilon=8", "secagg=on"] if name in needs_target else []
    if group == "experiment":
        # Some are only complete with a value of what they sweep.
        more = [f"{key}={values.split(',')[0]}" for key, values in experiment_params(name).items()]
    config = compose_run(choice, *more)
    assert RunConfig.from_mapping(config.to_mapping()) == config
    assert (CONF / group / f"{name}.yaml").read_text().splitlines()[0].startswith("# ")


def test_file_names_are_in_snake_case() -> None:
    assert len(CHOICES) > 80
    assert [choice for choice in CHOICES if not re.fullmatch(r"[a-z0-9_/]+=[a-z0-9_/]+", choice)] == []


def test_sizes_of_sweeps_are_known() -> None:
    def count_runs(overrides: list[str], params: dict[str, str]) -> int:
        return math.prod(map(len, swept_values(overrides, params).values()))

    assert count_runs([], {}) == 1
    assert count_runs(["mechanism=optm,rqm", "mechanism.epsilon=0.5,1,2", "seed=range(2)"], {}) == 12
    assert count_runs(["encoding.keep=0.1"], experiment_params("default/coordinate")) == 30
    assert count_runs(["seed=0"], experiment_params("default/whole_run")) == 5
    assert swept_values(["mechanism.bins=[1,2],[3]"], {}) == {"mechanism.bins": ["[1,2]", "[3]"]}


def test_a_label_means_the_same_design_in_runs_and_in_comparisons() -> None:
    """What a run calls "optm independent" is what ``fl-privquant compare`` calls so."""
    for label, name, variant in list_variants(("optm",)):
        config = compose_run(f"mechanism={label.replace(' ', '_')}")
        assert config.label == label
        parameters = {"epsilon": 1.0, "levels": 4, "objective": "mse"} | dict(variant.parameters)
        assert config.design().to_bytes() == pq.design(name, **parameters).to_bytes()
    assert compose_run("mechanism=optm", "mechanism.objective=mae").label == "optm"
    assert compose_run("mechanism=optm_paper", "mechanism.bins=[-4,-0.5,0.5,4]").label == "optm independent"
    assert compose_run("mechanism=rqm").label == "rqm"


def test_an_experiment_gives_each_mechanism_its_own_bits() -> None:
    names = experiment_params("default/whole_run")["mechanism"].split(",")
    runs = [compose_run("experiment=default/whole_run", f"mechanism={name}") for name in names]
    bits = {run.label: run.mechanism.get("bits") for run in runs}
    assert bits == {"rounded_gaussian": None, "pbm": 6, "skellam": 4, "optm": 2, "central_gaussian": None}


def test_files_have_only_what_differs_from_the_defaults() -> None:
    """No key is there because another file of its group has it, and none is null."""
    for path in CONF.glob("*/**/*.yaml"):
        assert ": null" not in path.read_text(), path
    assert len((CONF / "mechanism/grr.yaml").read_text().splitlines()) == 3


def test_a_key_of_the_mechanism_is_one_that_its_specification_has() -> None:
    """No file has to have a key before it can be set; baselines ignore what a sweep sets for the others."""
    assert compose_run("mechanism=skellam", "mechanism.delta=1e-7").mechanism["delta"] == 1e-7
    assert compose_run("mechanism=rqm", "+mechanism.levels=9").mechanism == {
        "name": "rqm",
        "epsilon": 1.0,
        "levels": 9,
    }
    assert compose_run("mechanism=none", "mechanism.epsilon=2", "mechanism.bits=3").mechanism == {
        "name": "none"
    }
    with pytest.raises(InvalidSpecError, match="not a parameter of 'grr', which takes bits"):
        compose_run("mechanism=grr", "mechanism.delta=1e-7")


def test_an_epsilon_that_nobody_gives_is_a_usual_one() -> None:
    assert compose_run("mechanism=grr").mechanism["epsilon"] == 1.0
    assert compose_run("mechanism=privunit").mechanism["epsilon"] == 8.0
    # Other parameters may define the design, and a target leaves epsilon to the plan.
    assert "epsilon" not in compose_run("mechanism=csgm", "mechanism.noise=2").mechanism
    assert "epsilon" not in compose_run("mechanism=grr", "privacy.epsilon=8").mechanism
