"""Crashes, cuts and copies: a client's ledger never forgets a release, or says what its owner can do."""

from __future__ import annotations

import copy
import errno
import itertools
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, RecordDict

import fl_privquant as pq
from fl_privquant._files import remove_leftovers, replace_file
from fl_privquant.accounting import Budget, Release, SpendingLedger
from fl_privquant.errors import BudgetExhaustedError, LedgerDamagedError
from fl_privquant.flower import PrivQuantMod
from fl_privquant.flower.client.ledger import RECORD_LEDGER, ClientLedger, resolve_ledger_path
from tests.adversary.forks import end_fork, in_two_processes, start_fork
from tests.flower.asking import DIMENSION, RUN_IDS, ask, client, train

MECHANISM = pq.design("one_bit", epsilon=1.0)


@pytest.fixture
def release() -> Release:
    return Release(pq.design("one_bit", epsilon=0.5), 10)


@pytest.fixture
def supernode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of a SuperNode, whose home is the temporary folder."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/flwr-clientapp", "--insecure"])
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))


def written(path: Path, release: Release, count: int = 5) -> SpendingLedger:
    ledger = SpendingLedger(path)
    for number in range(count):
        ledger.spend(number, release)
    return ledger


def head(path: Path) -> Path:
    return path.with_name(path.name + ".head")


@pytest.mark.parametrize("kept", [0, 1, 2, 6])
def test_a_ledger_whose_last_lines_were_cut_off_is_refused(
    tmp_path: Path, release: Release, kept: int
) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path, release)
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 7
    path.write_text("".join(lines[:kept]))
    # Such a file was once accepted: 25 were spent, and 10 were stated.
    lost = min(7 - kept, 5)
    with pytest.raises(LedgerDamagedError, match=rf"{kept} of 7 lines.* without {lost} releases?;"):
        SpendingLedger(path)
    # The owner, and nobody else, may accept what is left.
    if kept > 0:
        accepted = SpendingLedger.accept(path)
        assert len(accepted.rounds) == len(SpendingLedger(path).rounds) == max(kept - 2, 0)
        SpendingLedger(path).spend(9, release)


@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_cut_within_a_line_is_a_cut(tmp_path: Path, release: Release, count: int) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path, release)
    data = path.read_bytes()
    path.write_bytes(data[:-count])
    with pytest.raises(LedgerDamagedError, match="without 1 release;"):
        SpendingLedger(path)
    # Nothing was done to the evidence.
    assert path.read_bytes() == data[:-count]
    with pytest.raises(LedgerDamagedError):
        SpendingLedger(path)


def test_a_process_that_is_running_notices_a_cut_too(tmp_path: Path, release: Release) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = written(path, release)
    other = SpendingLedger(path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    for each in (ledger, other):
        with pytest.raises(LedgerDamagedError):
            each.spend(9, release)


@pytest.mark.parametrize("damage", ["gone", "ledger gone", "garbage", "empty", "of another ledger", "list"])
def test_a_head_that_is_gone_or_wrong_is_noticed(tmp_path: Path, release: Release, damage: str) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path, release)
    if damage == "gone":
        head(path).unlink()
    elif damage == "ledger gone":
        path.unlink()
    elif damage == "of another ledger":
        written(tmp_path / "other", Release(pq.design("one_bit", epsilon=0.25), 3))
        shutil.copy(head(tmp_path / "other"), head(path))
    else:
        head(path).write_text({"garbage": "{]", "empty": "", "list": "[1, 2]"}[damage])
    with pytest.raises(LedgerDamagedError, match=r"nothing more may be spent; restore .* accept"):
        SpendingLedger(path)


def test_what_remains_possible_both_files_taken_back(tmp_path: Path, release: Release) -> None:
    """A limit of what is promised: whoever can put back older copies of both files is believed."""
    path = tmp_path / "ledger.jsonl"
    ledger = written(path, release, 2)
    for file in (path, head(path)):
        shutil.copy(file, tmp_path / f"backup-{file.name}")
    ledger.spend(3, release)
    for file in (path, head(path)):
        shutil.copy(tmp_path / f"backup-{file.name}", file)
    assert len(SpendingLedger(path).rounds) == 2
    # But a process that has seen more does not believe it.
    with pytest.raises(LedgerDamagedError, match="its earlier content is gone"):
        ledger.spend(4, release)


def dies_at(step: int, after: bool, path: Path, release: Release) -> tuple[bool, int]:
    """Spend three releases in a process that dies at a step: whether it survived, and how many were sent."""

    def spend(pipe: int) -> None:
        numbers = itertools.count(1)

        def dying(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **keywords: Any) -> Any:
                number = next(numbers)
                if number == step and not after:
                    os._exit(9)
                try:
                    return call(*arguments, **keywords)
                finally:
                    if number == step:
                        os._exit(9)

            return wrapped

        ledger = SpendingLedger(path)
        os.fsync = dying(os.fsync)
        for name in ("replace", "mkdir", "open"):
            setattr(Path, name, dying(getattr(Path, name)))
        for number in range(3):
            ledger.spend(number, release)
            # Only now may the release leave.
            os.write(pipe, b"x")

    code, sent = end_fork(*start_fork(spend))
    assert code in (0, 9)
    return code == 0, len(sent)


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_step_loses_no_release_and_locks_nobody_out(
    tmp_path: Path, release: Release, after: bool
) -> None:
    for step in itertools.count(1):
        path = tmp_path / f"{step}" / "ledger.jsonl"
        finished, left = dies_at(step, after, path, release)
        ledger = SpendingLedger(path)
        # What left is counted; one more may be, which was under way.
        assert left <= len(ledger.rounds) <= left + 1
        ledger.spend(9, release)
        assert len(SpendingLedger(path).rounds) >= left + 1
        assert {file.name for file in path.parent.iterdir()} == {"ledger.jsonl", "ledger.jsonl.head"}
        if finished:
            break
    assert left == 3
    assert step > 20


def test_a_full_disk_is_a_refusal_and_is_over_when_there_is_room(
    tmp_path: Path, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = written(path, release, 2)
    real = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerDamagedError, match=r"No space left.*nothing more may be released; check"):
        ledger.spend(3, release)
    monkeypatch.setattr(os, "fsync", real)
    ledger.spend(4, release)
    assert SpendingLedger(path).rounds == (0, 1, 3, 4)


def test_names_are_on_the_disk_too(tmp_path: Path, release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    SpendingLedger(tmp_path / "new" / "ledger.jsonl").spend(1, release)
    # The new folder; the head of an empty ledger; the line; the head, which comes last.
    folder = str(tmp_path / "new")
    names = [each.replace(folder, "new").replace(str(tmp_path), ".") for each in synced]
    # A head is written to a temporary file.
    temporary = "new/.ledger.jsonl.head.new.head"
    assert names == [".", temporary, "new", "new/ledger.jsonl", temporary, "new"]


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP, errno.EACCES])
def test_a_ledger_whose_name_a_power_failure_could_undo_is_refused(
    tmp_path: Path, release: Release, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    ledger = written(tmp_path / "ledger.jsonl", release, 1)
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path:
            raise OSError(error, os.strerror(error))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(LedgerDamagedError, match="nothing more may be released"):
        ledger.spend(1, release)
    # Files that no guarantee rests on are written all the same.
    replace_file(tmp_path / "report.txt", lambda file: file.write_text("whole"))
    assert (tmp_path / "report.txt").read_text() == "whole"


@pytest.mark.parametrize("path", [None, "ledger.jsonl"])
def test_threads_share_a_spending_ledger(tmp_path: Path, release: Release, path: str | None) -> None:
    ledger = SpendingLedger(None if path is None else tmp_path / path)
    budget = Budget(7.5 * 10 * 0.5)

    def spend(number: int) -> bool:
        try:
            ledger.spend(number, release, budget)
        except BudgetExhaustedError:
            return False
        return True

    with ThreadPoolExecutor(25) as pool:
        assert sum(pool.map(spend, range(25))) == 7
    assert len(ledger.rounds) == 7


def fresh(run_id: int, state: RecordDict | None = None) -> Context:
    return Context(run_id, 7, {"partition-id": 0}, copy.deepcopy(state) or RecordDict(), {})


@pytest.mark.parametrize("separate_mods", [False, True])
def test_copies_of_one_state_in_one_process_share_its_budget(separate_mods: bool) -> None:
    run_id, budget = next(RUN_IDS), 3.5 * DIMENSION
    shared = PrivQuantMod(1.0, budget)

    def answer(number: int) -> Context | None:
        context = fresh(run_id)
        mod = PrivQuantMod(1.0, budget) if separate_mods else shared
        return context if mod(ask(MECHANISM, number), context, train).has_content() else None

    with ThreadPoolExecutor(8) as pool:
        answered = [each for each in pool.map(answer, range(8)) if each is not None]
    # Eight of eight were answered, where three are allowed.
    assert len(answered) == 3
    # The copy that is stored last may know less than the process does: it is not believed.
    old = fresh(run_id, min((each.state for each in answered), key=lambda state: len(repr(state))))
    assert not shared(ask(MECHANISM, 99), old, train).has_content()
    # Another run, or another node, has a ledger of its own; the state goes with the client.
    assert shared(ask(MECHANISM, 1), client(), train).has_content()


def test_the_state_adds_what_this_process_has_not_seen() -> None:
    mod, context = PrivQuantMod(1.0, 4.5 * DIMENSION), client()
    for number in (1, 2, 3):
        assert mod(ask(MECHANISM, number), context, train).has_content()
    # The same state in a new process is a state under an id that this one does not know.
    restarted = fresh(next(RUN_IDS), context.state)
    assert mod(ask(MECHANISM, 4), restarted, train).has_content()
    assert not mod(ask(MECHANISM, 5), restarted, train).has_content()
    # Two copies that went separate ways: every release of both counts.
    record = dict(context.state[RECORD_LEDGER])
    kind = next(key for key, value in record.items() if value == "1 2 3")
    other = fresh(context.run_id)
    other.state[RECORD_LEDGER] = ConfigRecord({**record, kind: "1 2 2 7"})
    rounds = sorted(number for number, _ in ClientLedger(other).releases)
    assert rounds == [1, 2, 2, 3, 7]


def count_answers(path: Path, count: int) -> int:
    mod = PrivQuantMod(2.0, budget=5 * DIMENSION * 1.0, ledger_file=path)
    contexts = (fresh(1) for _ in range(count))
    return sum(mod(ask(MECHANISM), context, train).has_content() for context in contexts)


def test_processes_share_a_budget_by_its_file(tmp_path: Path) -> None:
    assert sum(in_two_processes(count_answers, tmp_path / "ledger", 4)) == 5


def node(**config: object) -> Context:
    return Context(1, 7, dict(config), RecordDict(), {})  # type: ignore[arg-type]


def test_elsewhere_than_on_a_supernode_the_app_says_where_budgets_are_kept() -> None:
    app = Path("app.jsonl")
    assert resolve_ledger_path(node(), None, limited=True, node_limited=True) is None
    assert resolve_ledger_path(node(), app, limited=True, node_limited=False) == app


@pytest.mark.usefixtures("supernode")
def test_a_supernode_keeps_budgets_in_a_file_by_default(tmp_path: Path) -> None:
    app, partition = Path("app.jsonl"), {"partition-id": 3}
    folder = tmp_path / "privquant"
    assert resolve_ledger_path(node(), None, limited=True, node_limited=False) == folder / "ledger.jsonl"
    default = folder / "ledger-partition-3.jsonl"
    assert resolve_ledger_path(node(**partition), None, limited=True, node_limited=False) == default
    assert resolve_ledger_path(node(**partition), None, limited=False, node_limited=False) is None
    assert resolve_ledger_path(node(**partition), app, limited=True, node_limited=False) == app
    # The app came from the server: it does not choose where the node's own budget is kept.
    assert resolve_ledger_path(node(**partition), app, limited=True, node_limited=True) == default
    named = {"privquant-ledger-file": str(tmp_path / "named")}
    assert resolve_ledger_path(node(**named), app, limited=True, node_limited=True) == tmp_path / "named"
    with pytest.raises(pq.InvalidSpecError, match="privquant-ledger-file: 3 is not the name of a file"):
        resolve_ledger_path(node(**{"privquant-ledger-file": 3}), app, limited=True, node_limited=True)


@pytest.mark.usefixtures("supernode")
@pytest.mark.parametrize("limits", [{"max_participations": 2}, {"rounds_apart": 3}, {}])
def test_a_share_of_rounds_holds_over_restarts_and_processes(limits: dict[str, int]) -> None:
    """A lying server sends to every process of a SuperNode at once, or waits until it was restarted.

    Each has an empty state: with a share that was counted there alone, all five answered.
    """
    run_id = next(RUN_IDS)

    def answers(run_id: int) -> list[bool]:
        contexts = [Context(run_id, node_id, {}, RecordDict(), {}) for node_id in range(1, 6)]
        numbered = enumerate(contexts, start=1)
        return [
            PrivQuantMod(1.0, **limits)(ask(MECHANISM, number), context, train).has_content()
            for number, context in numbered
        ]

    allowed = {"max_participations": [1, 2], "rounds_apart": [1, 4]}.get(next(iter(limits), ""), range(1, 6))
    assert answers(run_id) == [number in allowed for number in range(1, 6)]
    # The server chooses the number of a run, so that the most rounds are those of all runs. In a row stand
    # rounds of one run.
    again = [] if "max_participations" in limits else allowed
    assert answers(next(RUN_IDS)) == [number in again for number in range(1, 6)]


@pytest.mark.usefixtures("supernode")
def test_the_share_of_the_nodes_own_configuration_is_kept_in_the_nodes_file(tmp_path: Path) -> None:
    run_id = next(RUN_IDS)
    limits = {"privquant-max-participations": 1}
    contexts = [Context(run_id, node_id, limits, RecordDict(), {}) for node_id in (1, 2)]  # type: ignore[arg-type]
    # The app came from the server, and names a file that it may empty.
    mods = [PrivQuantMod(1.0, ledger_file=tmp_path / name) for name in ("one", "other")]
    answers = [
        mod(ask(MECHANISM), context, train).has_content() for mod, context in zip(mods, contexts, strict=True)
    ]
    assert answers == [True, False]


def test_leftovers_of_other_files_are_left_alone(tmp_path: Path) -> None:
    # In a pattern, the name of the first file would stand for that of the second, which is being written.
    own, other = (tmp_path / f".{name}.1-2.new.json" for name in ("results[1].json", "results1.json"))
    own.touch()
    other.touch()
    remove_leftovers(tmp_path / "results[1].json")
    assert list(tmp_path.iterdir()) == [other]


def test_ledgers_are_for_their_owner_alone(tmp_path: Path, release: Release) -> None:
    path = tmp_path / "folder" / "ledger"
    written(path, release, count=2)
    assert [file.stat().st_mode & 0o777 for file in (path, head(path))] == [0o600, 0o600]


@pytest.mark.parametrize(
    ("program", "budget", "stored"),
    [
        ("flwr-clientapp", 1e9, False),
        ("flwr-clientapp", None, False),
        ("pytest", None, False),
        ("pytest", 1e9, True),
    ],
)
def test_a_server_cannot_make_the_state_of_a_supernode_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, budget: float | None, stored: bool
) -> None:
    """The server chooses the mechanism, of up to 64 MB; a state that takes long to store is lost.

    Only where a budget is kept in the state alone, as in a simulation, the mechanism is there too.
    """
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    context = client()
    assert PrivQuantMod(1.0, budget=budget)(ask(MECHANISM), context, train).has_content()
    record = context.state[RECORD_LEDGER]
    assert (MECHANISM.to_bytes() in record.values()) is stored
    assert stored or len(repr(record)) < 200
