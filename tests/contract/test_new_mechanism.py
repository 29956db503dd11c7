"""A new mechanism touches its own file and nothing else: nothing outside knows names or classes of any."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.accounting import (
    LOCAL,
    Release,
    RunRequirements,
    SecureSum,
    UpdateNorms,
    View,
    coordinate_statement,
    round_statement,
)
from fl_privquant.cli.comparison import compare
from fl_privquant.errors import CertificationError
from fl_privquant.mechanisms import registry
from fl_privquant.mechanisms.spec import Spec
from fl_privquant.planning import Target, plan
from tests.contract.toy_mechanism import ToyMechanism, register_toy
from tests.exact import hockey_stick, sums_of
from tests.flower.test_secure_aggregation import run

PACKAGE = Path(pq.__file__).parent
SIMULATIONS = PACKAGE.parent / "simulations"
# What is about single mechanisms, and may name them.
EXAMPLES = {"studies", "benchmarks", "examples", "tutorial.py", "inversion.py", "sum_grid.py"}
# The check of finished runs derives the loss of each mechanism by itself, from the bytes in its folder.
ABOUT_MECHANISMS = {"mechanisms", "check.py"}
# An English word too: it is a mechanism where one is looked up, or where a name is compared with it.
WORD = "none"
LOOKED_UP_BY = {"design", "get_entry", "plan"}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    register_toy()
    return pq.design("toy", epsilon=1.0)


def test_it_is_certified(toy: Any) -> None:
    again = pq.Mechanism.from_bytes(toy.to_bytes())
    assert again.to_bytes() == toy.to_bytes()
    assert 0.999 < again.epsilon <= 1.0
    with pytest.raises(CertificationError, match="above the claimed"):
        ToyMechanism("toy", toy.rare - 1000, toy.epsilon)


def test_a_summable_mechanism_without_codes_is_no_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pq.Mechanism, "_kinds", dict(pq.Mechanism._kinds))
    with pytest.raises(TypeError, match=r"Unfinished: .* must define to_codes, sum_bits, decode_sum; set"):
        type("Unfinished", (pq.Mechanism,), {}, kind="unfinished")
    assert "unfinished" not in pq.Mechanism._kinds
    type("NotAdded", (pq.Mechanism,), {"summable": False}, kind="not added")
    assert "not added" in pq.Mechanism._kinds


def test_it_is_encoded_by_its_own_distribution(toy: Any) -> None:
    for x in (-1.0, -0.3, 0.7):
        inputs = np.full(100_000, 0.1 * x)
        codes = toy.encode(inputs, clip=0.1, rng=pq.RandomStream.seeded(3))
        expected = toy.pmf(x)[0] * inputs.size
        # Six standard deviations of each count.
        assert np.all(np.abs(np.bincount(codes, minlength=3) - expected) < 6.0 * np.sqrt(expected))
        assert float(toy.pmf(x)[0] @ toy.values) == pytest.approx(x, abs=1e-8)


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_its_own_loss_covers_every_input_of_all_clients(toy: Any, clients: int) -> None:
    loss = toy.loss(View(clients)).loss
    distributions = toy.pmf([-1.0, -0.4, 1.0])
    for noise in sums_of(distributions, clients - 1):
        for first, second in itertools.permutations(distributions, 2):
            pair = np.convolve(first, noise), np.convolve(second, noise)
            for epsilon in (0.0, 0.1, 0.5, 0.9):
                assert hockey_stick(*pair, epsilon) <= loss.delta(epsilon) + 1e-12


def test_it_is_accounted_by_its_own_loss_in_all_views(toy: Any) -> None:
    stated = {
        (view, norms): round_statement(Release(toy, 200, view, norms=norms), 1e-5)
        for view in (LOCAL, View(1), View(50), View(1000))
        for norms in (UpdateNorms(), UpdateNorms(l2=1e-3))
    }
    assert stated[LOCAL, UpdateNorms()].method == stated[View(1), UpdateNorms()].method == "toy+pld"
    assert stated[View(50), UpdateNorms()].method == "toy sum+pld"
    assert all(
        stated[view, UpdateNorms(l2=1e-3)].method.startswith("toy norm+") for view in (LOCAL, View(50))
    )
    spent = [stated[view, UpdateNorms()].epsilon for view in (LOCAL, View(50), View(1000))]
    assert spent == sorted(spent, reverse=True)
    assert spent[2] < 0.3 * spent[0]
    # Half of its answers say nothing: cheaper than the worst distribution with the same epsilon.
    one_bit = pq.design("one_bit", epsilon=toy.epsilon)
    assert spent[0] < 0.8 * round_statement(Release(one_bit, 200), 1e-5).epsilon
    assert "local view, replace-one: ε = 1, δ = 0" in str(coordinate_statement(toy))


@pytest.mark.parametrize("in_sum", [True, False])
def test_it_is_planned_and_compared(toy: Any, in_sum: bool) -> None:
    requirements = RunRequirements(num_clients=100, dimension=50, rounds=2, epsilon=20.0, in_sum=in_sum)
    assert "toy" in registry.default_mechanisms(in_sum)
    (found,) = plan(requirements, ["toy"]).designs
    assert found.name == "toy"
    assert 15.0 < found.statement.epsilon <= 20.0
    (row,) = compare(1.0, 4, names=("toy",))
    assert row.mechanism is not None
    assert registry.mechanism_colors()["toy"] == "#123456"


def test_a_target_is_planned_with_it_and_secure_aggregation_runs_it(toy: Any) -> None:
    planned = Target(epsilon=8.0, rounds=3, num_clients=100).plan(
        341, mechanism="toy", aggregation=SecureSum(corrupt_fraction=0.1, dropout_fraction=0.1)
    )
    assert str(planned.statement.view) == "aggregate of 80"
    assert planned.statement.epsilon <= 8.0
    encoder = planned.encoding.mechanism
    assert np.array_equal(run(True, encoder=encoder).vector, run(False, encoder=encoder).vector)


def subclasses(cls: type) -> Iterator[str]:
    for each in cls.__subclasses__():
        yield each.__name__
        yield from subclasses(each)


def known_mechanisms(source: str, classes: set[str], names: set[str]) -> list[str]:
    """What a module says of single mechanisms: their classes, and their names outside of docstrings."""
    tree = ast.parse(source)
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    words = {id(node) for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value == WORD}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in LOOKED_UP_BY:
            words -= {id(argument) for argument in node.args}
        if isinstance(node, ast.Compare) and any(
            isinstance(side, ast.Attribute) and side.attr == "name" for side in (node.left, *node.comparators)
        ):
            words -= {id(side) for side in (node.left, *node.comparators)}
    said = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in prose | words and node.value in names:
            said.append(f"line {node.lineno}: the name {node.value!r}")
        if isinstance(node, ast.alias) and node.name in classes:
            said.append(f"line {node.lineno}: imports {node.name}")
        if isinstance(node, ast.Name | ast.Attribute):
            word = node.id if isinstance(node, ast.Name) else node.attr
            said += [f"line {node.lineno}: {word}"] if word in classes else []
    return said


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def test_nothing_outside_of_the_mechanisms_knows_one() -> None:
    classes = {*subclasses(pq.Mechanism), *subclasses(Spec)}
    names = set(pq.available_mechanisms())
    assert {"TableMechanism", "PbmMechanism", "OptmSpec"} <= classes
    said = {
        f"{room.name}/{path.relative_to(room)}": said
        for room, about_mechanisms in ((PACKAGE, ABOUT_MECHANISMS), (SIMULATIONS, EXAMPLES))
        for path in sorted(room.rglob("*.py"))
        if not about_mechanisms & set(path.relative_to(room).parts)
        and (said := known_mechanisms(path.read_text(), classes, names))
    }
    # The central baseline trusts its server: its clients encode without noise.
    central = said.pop("simulations/runner/config.py")
    assert [line.partition(": ")[2] for line in central] == ["the name 'none'"]
    assert said == {}


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(mechanism, TableMechanism)",
        "from fl_privquant.mechanisms.tables.pbm import PbmMechanism",
        "match mechanism:\n    case pbm.PbmMechanism():\n        pass",
        "_DEFAULTS = ('optm', 'one_bit')",
        "fast = mechanism.name == 'none'",
        "pq.design('none')",
    ],
)
def test_the_walk_notices_what_knows_a_mechanism(source: str) -> None:
    assert known_mechanisms(source, {"TableMechanism", "PbmMechanism"}, set(pq.available_mechanisms()))


def test_the_walk_lets_words_be() -> None:
    source = '"""As optm does."""\nrotation = "none"\nisinstance(mechanism, Mechanism)\n'
    assert known_mechanisms(source, {"TableMechanism"}, set(pq.available_mechanisms())) == []
