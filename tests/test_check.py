"""The independent check confirms honest runs, and refuses folders that claim more privacy than they have."""

from __future__ import annotations

import ast
import itertools
import json
import math
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy

import fl_privquant as pq
import fl_privquant.check
from fl_privquant.accounting import Relation, Release, UpdateNorms, View
from fl_privquant.accounting.accountant import record_statement
from fl_privquant.check import check, compose, delta_of, normal_noise, read_mechanism, sampled_pairs
from tests.controls.claims import (
    MUTATIONS,
    Files,
    finish_run,
    halve_the_relation,
    is_refused,
    read_files,
    state,
    views,
    write_files,
)

_RUNS = {
    "table": ("mechanism=optm",),
    "gaussian": ("mechanism=rounded_gaussian secagg=on",),
    "fine table": ("mechanism=rqm",),
    "records": (
        "mechanism=rounded_gaussian secagg=simulated secagg.dropout_fraction=0",
        "privacy.unit=record privacy.records=1437 privacy.sampling_rate=0.2 privacy.epsilon=4",
    ),
}
_SILOS = "task=digits federation.num_clients=3 federation.rounds=2"
_MUTANTS = 200


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs."""
    output = tmp_path_factory.mktemp("checked")
    tasks = {"records": {"task": _SILOS}}
    return {name: finish_run(" ".join(run), output, **tasks.get(name, {})) for name, run in _RUNS.items()}


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


@pytest.mark.parametrize("name", ["table", "gaussian"])
def test_a_run_stated_by_zero_out_cannot_be_called_another_relation(name, folders, tmp_path):
    """Without a target and a budget, too. Rows of a table are only compared for replace-one."""
    folder = finish_run(f"{_RUNS[name][0]} privacy.relation=zero-out", tmp_path)
    stated = json.loads((folder / "provenance.json").read_text())["statements"]
    assert {line["relation"] for line in stated if line["unit"] != "coordinate release"} == {"zero-out"}
    assert (check(folder) == []) == (name == "gaussian")
    rounds = pd.read_parquet(folder / "rounds.parquet")
    assert set(rounds["relation_client_total"]) == {"zero-out"}
    replace_one = json.loads((folders[name] / "provenance.json").read_text())["statements"]
    for line, other in zip(stated[1:], replace_one[1:], strict=True):
        assert (line["unit"], line["view"]) == (other["unit"], other["view"])
        assert 0.0 < line["epsilon"] < 0.9 * other["epsilon"]
    assert is_refused(folder, halve_the_relation, random.Random(35)) == (name == "gaussian")
    for relation in ("replace-one", "add-remove", "both"):
        assert is_refused(folder, partial(call_relation, relation), random.Random(35))


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
    for unit, view in sorted(set(views(files))):
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


def test_the_command_says_what_it_cannot_check(tmp_path):
    folder = finish_run("mechanism=optm secagg=on", tmp_path)
    command = ["-c", "from fl_privquant.cli.main import main; main()", "check", str(folder)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 3
    assert [line.split(":")[0] for line in lines] == [
        f"cannot check ε, client {unit}, aggregate of 6, replace-one" for unit in ("round", "total")
    ]


def test_the_check_is_small_and_needs_the_standard_library_only():
    """All of its lines are counted."""
    source = Path(fl_privquant.check.__file__).read_text()
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module))
    assert {name.split(".")[0] for name in imported} <= set(sys.stdlib_module_names)
    assert len(source.splitlines()) <= 300


def _normal(**bounds: Any) -> dict[str, Any]:
    """A release with normal noise of deviation 1."""
    return {"kind": "gaussian", "scale": (1.0).hex(), "dimension": 1, "honest": 1, "rate": 1.0, **bounds}


def _epsilon(parts: list[tuple[dict[str, Any], int]], relation: str, delta: float, near: float) -> float:
    """The ε at which releases have that δ, from half to twice the given one."""
    low, high = 0.5 * near, 2.0 * near
    for _ in range(12):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if delta_of(parts, relation, middle) <= delta else (middle, high)
    return high


def test_gaussian_figures_are_those_of_the_field():
    """Replace-one figures of MATH 16: twice the separation of zero-out."""
    for replace_one, zero_out in ((1.0, 0.47), (4.0, 1.83), (8.0, 3.55), (10.0, 4.38)):
        low, high = 0.0, 5.0
        for _ in range(30):
            middle = 0.5 * (low + high)
            delta = delta_of([(_normal(norm=middle), 1)], "replace-one", replace_one)
            low, high = (middle, high) if delta <= 1e-5 else (low, middle)
        found = _epsilon([(_normal(norm=low), 1)], "zero-out", 1e-5, zero_out)
        assert found == pytest.approx(zero_out, abs=0.006)


@pytest.mark.parametrize(("epsilon", "count", "target"), [(1.0, 74, 45.0), (1.0, 1, 0.9), (0.1, 1000, 8.0)])
def test_compositions_of_randomized_response_have_the_delta_of_binomials(epsilon, count, target):
    rare = 1.0 / (1.0 + math.exp(epsilon))
    exact = sum(
        math.comb(count, k)
        * rare**k
        * (1.0 - rare) ** (count - k)
        * max(-math.expm1(target - (count - 2 * k) * epsilon), 0.0)
        for k in range(count + 1)
    )
    pair = [[(1.0 - rare, rare), (rare, 1.0 - rare)]]
    assert exact * (1.0 - 1e-9) <= compose([pair], [count], target) <= 1.01 * exact


@pytest.mark.parametrize(("shift", "rounds", "epsilon"), [(0.3, 10, 4.0), (1.0, 1, 4.0), (0.05, 50, 1.0)])
def test_records_that_are_always_drawn_cost_what_normal_noise_costs(shift, rounds, epsilon):
    """The composition of cells is above the closed form, and close to it."""
    exact = delta_of([(_normal(norm=shift), rounds)], "zero-out", epsilon)
    for ends in ((1.0, 0.0), (0.0, 1.0)):
        derived = compose([sampled_pairs(1.0, shift, *ends)], [rounds], epsilon)
        assert exact * (1.0 - 1e-9) <= derived <= 1.05 * exact


@pytest.mark.parametrize("ends", [(1.0, 0.0), (0.0, 1.0), (1.0, -1.0)])
def test_the_cells_of_a_sampled_record_have_the_divergence_of_an_integral(ends):
    rate, shift = 0.2, 0.9
    one, other = (
        [
            (1.0 - rate) * math.exp(-0.5 * y * y) + rate * math.exp(-0.5 * (y - end * shift) ** 2)
            for y in (-12.0 + 24.0 * (at + 0.5) / 40_000 for at in range(40_000))
        ]
        for end in ends
    )
    weight = 24.0 / 40_000 / math.sqrt(2.0 * math.pi)
    (cells,) = sampled_pairs(rate, shift, *ends)
    for alpha in (0.85, 1.0, 1.1, 1.7):
        exact = weight * sum(max(p - alpha * q, 0.0) for p, q in zip(one, other, strict=True))
        derived = sum(max(p - alpha * q, 0.0) for p, q in cells)
        assert exact - 1e-9 <= derived <= exact + 1e-3


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
@pytest.mark.parametrize(("rate", "norm", "rounds"), [(0.1, 0.3, 50), (0.05, 0.5, 100)])
def test_the_cost_of_a_record_is_derived_as_the_accountant_states_it(rate, norm, rounds, relation):
    """The accountant has a bound of its own for what rounding hides."""
    mechanism = pq.design("rounded_gaussian", spacing=0.05, deviation=2.0, num_clients=10)
    release = Release(mechanism, 37, View(9), norms=UpdateNorms(record=norm, record_rate=rate))
    stated = record_statement({release: rounds}, 1e-5, relation).epsilon
    bounds = {"dimension": 37, "norm": norm, "honest": 9, "rate": rate}
    part = read_mechanism(mechanism.fingerprint, mechanism.to_bytes()) | bounds
    derived = _epsilon([(part, rounds)], relation.value, 1e-5, stated)
    assert 0.975 * stated <= derived <= 1.02 * stated


def _rounded(norm: float, deviation: float, honest: int) -> dict[str, Any]:
    """A release of one coordinate on the lattice of integers."""
    noise = {"kind": "rounded_gaussian", "spacing": (1.0).hex(), "deviation": deviation.hex()}
    return {**noise, "dimension": 1, "norm": norm, "honest": honest, "rate": 1.0}


@pytest.mark.parametrize(
    ("honest", "deviation"), [(2, 1.25), (2, 3.0), (3, 1.21), (5, 1.5), (10, 1.21), (30, 1.3)]
)
def test_sums_of_rounded_noise_are_no_easier_to_tell_apart_than_the_normal_pairs(honest, deviation):
    """Exact distributions of the sum, for shifts of its center from anywhere between two integers."""
    edges = np.arange(honest + 1) - 0.5 * honest
    bump = scipy.interpolate.BSpline.basis_element(edges, extrapolate=False)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    places = np.concatenate([edge + 0.5 * (nodes + 1.0) for edge in edges[:-1]])
    masses = np.tile(0.5 * weights, honest) * np.nan_to_num(bump(places))
    spread = math.sqrt(honest) * deviation
    outputs = np.arange(-math.ceil(10.0 * spread), math.ceil(10.0 * spread) + 9)
    for shift in (0.1, 0.7, 2.0, 4.5, 8.0):
        separation, _ = normal_noise(_rounded(shift, deviation, honest))
        for center in (0.0, 0.3, 0.5, 0.9):
            pair = [
                np.exp(-0.5 * ((outputs[:, None] - middle - places) / spread) ** 2) @ masses
                for middle in (center, center + shift)
            ]
            one, other = (values / (spread * math.sqrt(2.0 * math.pi)) for values in pair)
            for epsilon in np.linspace(0.0, 4.0 * separation + 0.5 * separation**2, 12):
                exact = max(
                    np.maximum(p - math.exp(epsilon) * q, 0.0).sum() for p, q in ((one, other), (other, one))
                )
                ends = epsilon / separation + 0.5 * separation * np.array([-1.0, 1.0])
                low, high = scipy.stats.norm.sf(ends)
                assert exact <= (low - math.exp(epsilon) * high) * (1.0 + 1e-9) + 1e-13


@pytest.mark.parametrize(
    ("honest", "deviation"), [(2, 0.55), (2, 1.2), (3, 0.6), (3, 0.9), (4, 0.6), (4, 0.8)]
)
def test_what_rounding_adds_is_above_the_sum_over_the_dual_lattice(honest, deviation):
    """MATH 13: η is a sum over the nonzero integer vectors of one number less than there are clients."""
    vectors = np.array(list(itertools.product(range(-6, 7), repeat=honest - 1)))
    lengths = (vectors**2).sum(axis=1) - vectors.sum(axis=1) ** 2 / honest
    gap = np.exp(-2.0 * (math.pi * deviation) ** 2 * lengths).sum() - 1.0
    _, added = normal_noise(_rounded(1.0, deviation, honest))
    assert math.log((1.0 + gap) / (1.0 - gap)) <= added <= 9.0 * gap


def test_noise_that_rounding_swallows_does_not_count():
    """With a twentieth of the spacing nothing is left but the client's own noise."""
    assert normal_noise(_rounded(0.2, 0.05, 100)) == (pytest.approx(4.0), 0.0)
