"""Somebody writes into the user's cache directory: searches may be misled, what is stated never is.

One such file succeeded once: a certificate that was read from disk made a stated epsilon 5 % too small.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.accounting import Accountant, PrivacyStatement, Release, accountant
from fl_privquant.loss import kept_numbers
from fl_privquant.loss.norms import Norms
from fl_privquant.loss.two_row_sums import sum_separation
from fl_privquant.mechanisms import wish
from fl_privquant.mechanisms.sum_of_bits import loss_of_bits

TARGET = pq.Target(epsilon=4.0, rounds=5, num_clients=40)
DIMENSION = 1500
KINDS = (b"best_spread", b"estimate_bits", b"[")
"""How files begin: numbers with what they are, designs with the list that their spec is written as."""


def forget() -> None:
    """Let the process compute everything anew, as a fresh one does."""
    for known in (
        sum_separation,
        wish._estimate,
        accountant._update_losses,
        accountant._unit_loss,
    ):
        known.cache_clear()


def planned() -> pq.Plan:
    forget()
    return TARGET.plan(DIMENSION, mechanism="optm_aggregate", max_bits=2, most_error=1.6)


def certified(plan: pq.Plan) -> PrivacyStatement:
    """What a process without any file certifies for the plan's encoding."""
    forget()
    encoding, kept = plan.encoding, plan.encoding.kept(DIMENSION)
    norms = Norms(l2=(encoding.l2_bound(DIMENSION) or 0.0) / encoding.clip)
    view = plan.aggregation.view(TARGET.num_clients)
    spent = Accountant()
    spent.add(Release(encoding.mechanism.for_dimension(kept), kept, view, norms=norms), TARGET.rounds)
    return spent.statement(TARGET.delta)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache directory in which everything is kept that a plan looks for."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FL_PRIVQUANT_CACHE", str(folder))
        patch.setattr(kept_numbers, "_SECONDS", 0.0)
        planned()
        yield folder
    forget()


def sealed(spec: bytes, blob: bytes) -> bytes:
    content = spec + b"\n" + blob
    return hashlib.sha256(content).digest() + content


def scaled(factor: float) -> Callable[[bytes], bytes]:
    return lambda blob: (factor * np.frombuffer(blob, "<f8")).tobytes()


def leaning_further(blob: bytes) -> bytes:
    """The same design with less noise, which claims what it really costs a coordinate."""
    design: Any = pq.Mechanism.from_bytes(blob)
    if not hasattr(design, "rare"):
        return blob
    rare = design.rare - (2**31 - design.rare) // 10
    claim = loss_of_bits(design.trials, rare)
    return dataclasses.replace(design, rare=rare, claimed_epsilon=claim).to_bytes()


@pytest.mark.parametrize("factor", [0.5, 0.97, 1.03])
@pytest.mark.parametrize("kind", KINDS)
def test_no_file_makes_a_stated_figure_smaller(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: bytes, factor: float
) -> None:
    """Files of each kind are forged, and their digests fit: a plan states what a fresh process certifies."""
    forged = shutil.copytree(filled, tmp_path / "forged")
    changed = 0
    for path in forged.iterdir():
        spec, _, blob = path.read_bytes()[32:].partition(b"\n")
        if spec.startswith(kind):
            path.write_bytes(sealed(spec, (leaning_further if kind == b"[" else scaled(factor))(blob)))
            changed += path.read_bytes() != (filled / path.name).read_bytes()
    assert changed > 0
    assert all(path.read_bytes()[32:].startswith(KINDS) for path in forged.iterdir())
    monkeypatch.setenv("FL_PRIVQUANT_CACHE", str(forged))
    try:
        plan = planned()
    except pq.InfeasibleDesignError:
        # A design that a forger made too weak is certified, and found to cost too much.
        return
    monkeypatch.setenv("FL_PRIVQUANT_CACHE", str(tmp_path / "empty"))
    assert plan.statement.epsilon == certified(plan).epsilon <= TARGET.epsilon


def test_forged_designs_cost_more_than_the_target(filled: Path) -> None:
    """The negative control: a plan with one of them would have to be refused, or to state another figure."""
    plan = planned()
    weaker = pq.Mechanism.from_bytes(leaning_further(plan.encoding.mechanism.to_bytes()))
    encoding = dataclasses.replace(plan.encoding, mechanism=weaker)
    assert certified(dataclasses.replace(plan, encoding=encoding)).epsilon > 1.02 * TARGET.epsilon
