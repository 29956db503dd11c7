"""The examples and the template, as they are, on the inline engine."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import fl_privquant as pq
from fl_privquant.flower.simulation import Federation, InlineEngine
from simulations.examples.template.my_app.task import initial_model

pytest.importorskip("sklearn")

CONFIG = {"epsilon": 4.0, "bits": 2, "local-epochs": 5}
EXAMPLES = {
    "scikit_learn": {"num-rounds": 4, "clip": 0.2, "learning-rate": 0.05},
    "lora": {"num-rounds": 8, "clip": 0.1, "learning-rate": 0.3, "local-epochs": 10},
}
ROOT = Path(__file__).parents[2]


def run_example(name):
    package = f"simulations.examples.{name}"
    federation = Federation(10, {**CONFIG, **EXAMPLES[name]})
    return InlineEngine().run(f"{package}.server_app:app", f"{package}.client_app:app", federation)


def test_the_example_with_scikit_learn_learns():
    # Chance is 0.1; it reaches more than 0.8 with this much noise.
    assert run_example("scikit_learn").state["metrics"]["accuracy"] > 0.6


def test_lora_changes_no_other_arrays_and_helps():
    torch = pytest.importorskip("torch")
    from simulations.examples.lora.task import accuracy, make_model

    result = run_example("lora")
    # The public model has not seen such images: 0.39. Eight rounds of ten clients reach 0.92.
    assert accuracy(make_model()) < 0.5
    assert result.state["metrics"]["accuracy"] > 0.6
    trained, before = result.arrays.to_torch_state_dict(), make_model().state_dict()
    changed = {name for name in before if not torch.equal(trained[name], before[name])}
    assert changed == {name for name in before if "lora" in name}


def test_the_app_of_the_top_folder_keeps_to_its_target(caplog):
    """The README's path, with the settings that `flwr run` takes: a target, a plan, and secure sums."""
    pytest.importorskip("torch")
    from simulations.examples.pytorch.privacy import target

    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    federation = Federation(target.num_clients, app["config"])
    apps = app["components"]
    logging.getLogger("flwr").propagate = True
    result = InlineEngine().run(apps["serverapp"], apps["clientapp"], federation)
    # Chance is 0.1; six runs with secure randomness reached 0.83 to 0.86.
    assert result.state["metrics"]["accuracy"] > 0.7
    totals = [record.message for record in caplog.records if "PrivQuant: client total" in record.message]
    (seen,) = [line for line in totals if "aggregate view of 45" in line]
    assert float(re.search(r"ε = ([\d.]+), δ = 1e-05", seen)[1]) <= target.epsilon == 8.0


def test_five_hospitals_learn_and_keep_to_their_patients_target(monkeypatch, capsys):
    folder = ROOT / "simulations" / "examples" / "hospitals"
    monkeypatch.syspath_prepend(str(folder))
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    apps = app["components"]
    result = InlineEngine().run(apps["serverapp"], apps["clientapp"], Federation(5, app["config"]))
    # Always the larger class: 0.65; eight runs with secure randomness reached 0.95 to 0.98.
    assert result.state["metrics"]["accuracy"] > 0.85
    assert "A whole silo (a hospital, say) is not protected" in capsys.readouterr().out


def test_the_examples_add_two_lines():
    """What a person copies: one line on each side, besides imports and the design."""
    import inspect

    from simulations.examples.pytorch import client_app, server_app

    assert inspect.getsource(client_app).count("PrivQuantMod(") == 1
    assert inspect.getsource(server_app).count("PrivQuantStrategy(") == 1


def _instructions(text):
    """The instructions of a Dockerfile, continued lines joined."""
    joined = text.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines()]
    return [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]


def test_the_dockerfile_builds_what_is_here():
    """Not built, as that takes Docker: each instruction is one of Docker's, and what is copied is there."""
    instructions = _instructions((ROOT / "docs" / "docker" / "Dockerfile").read_text())
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in instructions} <= known
    stages = [rest.split() for word, rest in instructions if word == "FROM"]
    assert [words[2] for words in stages] == ["base", "superlink", "supernode"]
    assert [words[0] for words in stages[1:]] == ["base", "base"]
    assert ":" in stages[0][0], "a base image without a tag changes under one's feet"
    copied = [source for word, rest in instructions if word == "COPY" for source in rest.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    names = [word for word, _ in instructions]
    assert names.index("USER") < names.index("ENTRYPOINT"), "containers run as root"
    commands = [json.loads(rest) for word, rest in instructions if word == "ENTRYPOINT"]
    assert commands == [["flower-superlink"], ["fl-privquant", "supernode"]]
    programs = [program for program, *_ in commands]
    assert all(shutil.which(name, path=str(Path(sys.executable).parent)) for name in programs)


def test_the_compose_file_gives_flower_options_that_it_has():
    """Not started, as that takes Docker: files and options exist, and each client has its own ledger."""
    compose = yaml.safe_load((ROOT / "docs" / "docker" / "compose.yaml").read_text())
    services = compose["services"]
    clients = {name: service for name, service in services.items() if name.startswith("client")}
    assert services.keys() == {"server", *clients}
    programs = {"superlink": ["flower-superlink"], "supernode": ["fl-privquant", "supernode"]}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    shown = {
        target: subprocess.run([*command, "--help"], capture_output=True, text=True, env=environment).stdout
        for target, command in programs.items()
    }
    for service in services.values():
        folder = ROOT / "docs" / "docker" / service["build"]["context"]
        assert (folder / service["build"]["dockerfile"]).exists()
        options = {option.split("=")[0] for option in service["command"]}
        assert all(option in shown[service["build"]["target"]] for option in options)
    ledgers = {service["volumes"][-1].split(":")[0] for service in clients.values()}
    assert ledgers == compose["volumes"].keys() == clients.keys()
    for service in clients.values():
        assert "privquant-max-participations=" in service["command"][-1], "without a limit no ledger is kept"


def test_the_limits_of_the_compose_file_allow_the_plan_of_the_guide():
    compose = yaml.safe_load((ROOT / "docs" / "docker" / "compose.yaml").read_text())
    text = (ROOT / "docs" / "pages" / "deployment.md").read_text()
    rounds, clients = map(int, re.search(r"s/rounds=5, .*/rounds=(\d+), num_clients=(\d+)/", text).groups())
    assert clients == len(compose["services"]) - 1
    template = (ROOT / "simulations" / "examples" / "template" / "my_app" / "privacy.py").read_text()
    assert "pq.Target(epsilon=8.0, delta=1e-5, rounds=5, num_clients=20)" in template
    assert "target.plan(dimension, l2_clip=1.0)" in template
    target = pq.Target(epsilon=8.0, delta=1e-5, rounds=rounds, num_clients=clients)
    dimension = sum(array.size for array in initial_model().values())
    needed = target.plan(dimension, l2_clip=1.0).client_limits
    for name, service in compose["services"].items():
        limits = dict(re.findall(r"privquant-([\w-]+)=(\S+)", service["command"][-1]))
        if name != "server":
            assert float(limits["max-epsilon"]) >= needed["max_epsilon"]
            assert float(limits["max-delta"]) >= needed["max_delta"]
            assert int(limits["max-participations"]) >= rounds
