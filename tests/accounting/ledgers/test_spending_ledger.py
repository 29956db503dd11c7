"""The spending ledger: append-only, kept over restarts, and strict about its budget."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fl_privquant as pq
from fl_privquant.accounting import Budget, Release, SpendingLedger, View
from fl_privquant.errors import BudgetExhaustedError


@pytest.fixture
def release() -> Release:
    return Release(pq.design("one_bit", epsilon=0.5), 100, View.aggregate(20))


def test_survives_a_restart(tmp_path: Path, release: Release) -> None:
    path = tmp_path / "client" / "spending.jsonl"
    first = SpendingLedger(path)
    for number in (1, 2):
        first.spend(number, release)
    first.spend(3, Release(pq.design("optm", epsilon=1.0, bits=2), 50))
    again = SpendingLedger(path)
    assert again.rounds == (1, 2, 3)
    assert again.statement(1e-5) == first.statement(1e-5)
    assert again._text == first._text == path.read_text()
    # Only ever appended to, and each mechanism is written once.
    before = path.read_text()
    again.spend(4, release)
    assert path.read_text().startswith(before)
    assert path.read_text().count('"bytes"') == 2


def test_stops_with_what_was_spent(tmp_path: Path, release: Release) -> None:
    ledger = SpendingLedger(tmp_path / "spending.jsonl")
    budget = Budget(epsilon=12.0, delta=1e-5)
    done = 0
    error: BudgetExhaustedError | None = None
    while error is None:
        try:
            ledger.spend(done + 1, release, budget)
            done += 1
        except BudgetExhaustedError as raised:
            error = raised
    assert re.match(
        r"round \d+: one more release makes ε = [^(]* \(client total, aggregate view of 20, replace-one\) "
        r".*, above the budget of ε = 12, .*Spent: ",
        str(error),
    )
    assert len(ledger.rounds) == done
    assert ledger.statement(1e-5).epsilon <= 12.0
    assert f"client total (100 coordinates, {done} rounds)" in str(error)
    assert len(SpendingLedger(tmp_path / "spending.jsonl").rounds) == done
    with pytest.raises(BudgetExhaustedError):
        SpendingLedger().spend(1, Release(pq.design("none"), 10), Budget(1e6, 0.5))


def test_two_processes_see_each_other(tmp_path: Path, release: Release) -> None:
    path = tmp_path / "spending.jsonl"
    one, other = SpendingLedger(path), SpendingLedger(path)
    one.spend(1, release)
    other.spend(2, release)
    one.spend(3, release)
    assert one.rounds == (1, 2, 3) == SpendingLedger(path).rounds


def test_a_line_that_was_cut_short_never_left(tmp_path: Path, release: Release) -> None:
    path = tmp_path / "spending.jsonl"
    ledger = SpendingLedger(path)
    ledger.spend(1, release)
    with path.open("a") as file:
        file.write('{"round": 2, "rel')
    reopened = SpendingLedger(path)
    assert reopened.rounds == (1,)
    reopened.spend(3, release)
    assert SpendingLedger(path).rounds == (1, 3)


@pytest.mark.parametrize("forgery", ["drop", "edit", "version", "garbage"])
def test_forged_lines_are_found(tmp_path: Path, release: Release, forgery: str) -> None:
    path = tmp_path / "spending.jsonl"
    ledger = SpendingLedger(path)
    for number in (1, 2):
        ledger.spend(number, release)
    lines = path.read_text().splitlines(keepends=True)
    if forgery == "drop":
        del lines[2]
    elif forgery == "edit":
        lines[2] = lines[2].replace('"dimension": 100', '"dimension": 1')
    elif forgery == "version":
        lines[0] = lines[0].replace("1", "2", 1)
    else:
        lines[1] = "[]\n"
    path.write_text("".join(lines))
    with pytest.raises(BudgetExhaustedError, match="nothing more may be"):
        SpendingLedger(path)
