"""The independent check confirms honest runs, and refuses folders that claim more privacy than they have."""

from __future__ import annotations

import ast
import json
import math
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

import fl_privquant as pq
import fl_privquant.check
from fl_privquant.accounting import Relation, Release, UpdateNorms, View
from fl_privquant.accounting.accountant import record_statement
from fl_privquant.check import check, compose, gaussian_epsilon, sampled_profile
from tests.controls.claims import (
    MUTATIONS,
    Files,
    finish_run,
    is_refused,
    read_files,
    state,
    views,
    write_files,
)

_RUNS = {
    "table": "mechanism=optm",
    "gaussian": "mechanism=rounded_gaussian secagg=on",
    "bits": "mechanism=pbm mechanism.bits=2 secagg=on",
    "noise": "mechanism=discrete_gaussian secagg=on",
}
_MUTANTS = 200


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs."""
    output = tmp_path_factory.mktemp("checked")
    return {name: finish_run(overrides, output) for name, overrides in _RUNS.items()}


@pytest.mark.parametrize("name", _RUNS)
def test_an_honest_run_is_confirmed(folders, name):
    assert check(folders[name]) == []


def test_two_hundred_folders_that_claim_too_much_are_refused(folders):
    accepted = []
    for number in range(_MUTANTS):
        mutation = MUTATIONS[number % len(MUTATIONS)]
        name = list(_RUNS)[number // len(MUTATIONS) % len(_RUNS)]
        if not is_refused(folders[name], mutation, random.Random(number)):
            accepted.append((number, mutation.__name__, name))
    assert not accepted


@pytest.mark.parametrize("name", _RUNS)
def test_a_run_stated_by_zero_out_is_derived_and_cannot_be_called_another_relation(name, folders, tmp_path):
    """Without a target and a budget, too. Its statements in another relation claim more privacy."""
    folder = finish_run(f"{_RUNS[name]} privacy.relation=zero-out", tmp_path)
    stated = json.loads((folder / "provenance.json").read_text())["statements"]
    assert {line["relation"] for line in stated if line["unit"] != "coordinate release"} == {"zero-out"}
    assert check(folder) == []
    rounds = pd.read_parquet(folder / "rounds.parquet")
    assert set(rounds["relation_client_total"]) == {"zero-out"}
    replace_one = json.loads((folders[name] / "provenance.json").read_text())["statements"]
    for line, other in zip(stated[1:], replace_one[1:], strict=True):
        assert (line["unit"], line["view"]) == (other["unit"], other["view"])
        assert 0.0 < line["epsilon"] < 0.9 * other["epsilon"]
    assert is_refused(folder, halve_zero_out, random.Random(35))
    for relation in ("replace-one", "add-remove", "both"):
        assert is_refused(folder, partial(call_relation, relation), random.Random(35))


def halve_zero_out(files: Files, folder: Path, rng: random.Random) -> None:
    """The figures of zero-out, once more divided by two."""
    for unit, view in views(files)[1:]:
        state(files, 0.5, unit, view)


def call_relation(relation: str, files: Files, folder: Path, rng: random.Random) -> None:
    """What was stated for one relation is said to be another one's."""
    for line in files["provenance"]["statements"]:
        line["relation"] = relation


@pytest.mark.parametrize("name", _RUNS)
def test_a_claim_of_less_privacy_is_confirmed(folders, tmp_path, name):
    """The control: not every change is refused."""
    folder = tmp_path / name
    shutil.copytree(folders[name], folder)
    files = read_files(folder)
    for unit, view in views(files):
        state(files, 1.5, unit, view)
    write_files(folder, files)
    assert check(folder) == []


def test_the_command_prints_a_verdict_and_has_an_exit_code(folders, tmp_path):
    command = ["-c", "from fl_privquant.cli.main import main; main()", "check"]
    good = subprocess.run([sys.executable, *command, str(folders["table"])], capture_output=True, text=True)
    assert (good.returncode, good.stdout) == (0, "confirmed\n")
    shutil.copytree(folders["table"], tmp_path / "bad")
    files = read_files(tmp_path / "bad")
    state(files, 0.5, "client total", "local")
    write_files(tmp_path / "bad", files)
    bad = subprocess.run([sys.executable, *command, str(tmp_path / "bad")], capture_output=True, text=True)
    assert bad.returncode == 1
    assert bad.stdout.startswith("disagrees: ε, client total, local, replace-one: ")


def test_the_check_is_small_and_needs_the_standard_library_only():
    """Lines of code, without empty ones, comments and docstrings."""
    source = Path(fl_privquant.check.__file__).read_text()
    tree = ast.parse(source)
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= set(sys.stdlib_module_names)
    described = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, described) and ast.get_docstring(node):
            texts |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))  # type: ignore[operator]
    lines = enumerate(source.splitlines(), 1)
    code = [
        line for at, line in lines if at not in texts and line.strip() and not line.strip().startswith("#")
    ]
    assert len(code) <= 400


def test_gaussian_figures_are_those_of_the_field():
    """Replace-one figures of MATH 16: twice the separation of zero-out."""
    for replace_one, zero_out in ((1.0, 0.47), (4.0, 1.83), (8.0, 3.55), (10.0, 4.38)):
        low, high = 0.0, 10.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if gaussian_epsilon(middle, 1e-5) < replace_one else (low, middle)
        assert gaussian_epsilon(0.5 * high, 1e-5) == pytest.approx(zero_out, abs=0.006)


@pytest.mark.parametrize("added", [True, False])
def test_the_loss_of_a_sampled_record_is_that_of_a_numerical_integral(added):
    rate, separation = 0.2, 0.9
    points = [-12.0 + 24.0 * (at + 0.5) / 40_000 for at in range(40_000)]
    plain = [math.exp(-0.5 * y * y) / math.sqrt(2.0 * math.pi) for y in points]
    mixed = [
        (1.0 - rate) * p + rate * math.exp(-0.5 * (y - separation) ** 2) / math.sqrt(2.0 * math.pi)
        for y, p in zip(points, plain, strict=True)
    ]
    one, other = (mixed, plain) if added else (plain, mixed)
    profile, _ = sampled_profile(separation, rate, added)
    for alpha in (0.3, 0.85, 1.0, 1.1, 1.7):
        total = sum(max(p - alpha * q, 0.0) for p, q in zip(one, other, strict=True)) * 24.0 / 40_000
        assert profile([alpha])[0] == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize(("rate", "norm", "rounds"), [(0.1, 0.3, 50), (0.05, 0.5, 100), (1.0, 0.1, 10)])
def test_the_cost_of_a_record_is_derived_as_the_accountant_states_it(rate, norm, rounds):
    """The accountant counts rounding noise too, so its figures are a little smaller."""
    mechanism = pq.design("rounded_gaussian", spacing=0.05, deviation=2.0, num_clients=10)
    release = Release(mechanism, 37, View(9), norms=UpdateNorms(record=norm, record_rate=rate))
    stated = record_statement({release: rounds}, 1e-5, Relation.ADD_REMOVE).epsilon
    parts = fl_privquant.check.read_mechanism(mechanism.to_bytes())
    derived = compose([(fl_privquant.check.Release(*parts, 37, norm, 9, 1.0, rate), rounds)], 1e-5)
    assert stated <= derived <= 1.03 * stated
