"""A client answers once at each stage: copies of its state, threads and processes get no second answer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import ClientRound
from fl_privquant.secagg._answer_log import AnsweredFolder
from tests.adversary.forks import in_two_processes
from tests.secagg.driver import CONTEXT, at

VICTIM = 3


@pytest.mark.parametrize("stage", ["share", "mask", "confirm", "unmask"])
def test_three_threads_get_one_answer_at_every_stage(stage: str) -> None:
    round_ = at(stage, 20)
    close = {
        "share": round_.server.rosters,
        "mask": lambda: round_.server.mask_requests(CONTEXT),
        "confirm": round_.server.survivor_lists,
        "unmask": round_.server.unmask_requests,
    }[stage]
    request, stored = close()[VICTIM], round_.clients[VICTIM].to_bytes()
    start, answers, refusals = threading.Barrier(3), [], []

    def answer() -> None:
        client = ClientRound.from_bytes(stored, round_.policies[VICTIM])
        step = {
            "share": client.share_keys,
            "mask": lambda data: client.settle(data, CONTEXT),
            "confirm": client.confirm,
            "unmask": client.unmask,
        }[stage]
        start.wait()
        try:
            answers.append(step(request))
        except SecureAggregationError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=answer) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 1
    assert len(refusals) == 2
    assert all("answers each stage once" in refusal for refusal in refusals)


def claims(folder: Path, count: int) -> int:
    """How many of the stages of one round this process may answer."""
    record = AnsweredFolder(folder)
    return sum(record.claim(b"session", VICTIM, 1, stage) for stage in range(count))


def test_two_processes_answer_each_stage_once(tmp_path: Path) -> None:
    first, second = in_two_processes(claims, tmp_path / "answered", 200)
    # A process that is late may find that the other one has gone on to later stages.
    assert 0 < first + second <= 200
    assert claims(tmp_path / "answered", 200) == 0


def test_what_a_crash_cut_short_was_not_answered(tmp_path: Path) -> None:
    record = AnsweredFolder(tmp_path)
    assert record.claim(b"session", VICTIM, 1, 2)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + b"1 3")
    assert not record.claim(b"session", VICTIM, 1, 2)
    assert record.claim(b"session", VICTIM, 1, 3)
    assert not record.claim(b"session", VICTIM, 1, 3)
    assert record.claim(b"session", VICTIM, 2, 0)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["text", "link", "folder"])
def test_without_its_record_a_client_answers_nothing(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "answered"
    record = AnsweredFolder(folder)
    assert record.claim(b"session", VICTIM, 1, 2)
    (file,) = folder.iterdir()
    if damage == "text":
        file.write_text("nothing was answered\n")
    elif damage == "link":
        file.unlink()
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.unlink()
        file.mkdir()
    with pytest.raises(SecureAggregationError, match="nothing may be answered"):
        record.claim(b"session", VICTIM, 1, 3)
    assert not (tmp_path / "elsewhere").exists()
