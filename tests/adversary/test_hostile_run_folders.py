"""Folders of runs that somebody made to be confirmed, to hang the check, or to crash it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fl_privquant.check import DisagreementError, check
from tests.controls.claims import finish_run, read_files, state, write_files

Files = dict[str, Any]
_MANY_DIGITS = "1" * 1_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finish_run("mechanism=rounded_gaussian secagg=on", tmp_path_factory.mktemp("honest"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same task with more noise."""
    overrides = "mechanism=rounded_gaussian mechanism.epsilon=0.5 secagg=on"
    return finish_run(overrides, tmp_path_factory.mktemp("other"))


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def _replace(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def _edit(folder: Path, change: Callable[[Files], Any]) -> None:
    files = read_files(folder)
    change(files)
    write_files(folder, files)


def _refuse(folder: Path, reason: str = ".") -> None:
    with pytest.raises(DisagreementError, match=reason):
        check(folder)


def test_the_honest_folder_is_confirmed(folder):
    assert check(folder) == []
    (folder / "mechanism-2.pqm").write_bytes(b"nobody reads this")
    assert check(folder) == []


@pytest.mark.parametrize("name", ["ledger.json", "provenance.json", "rounds.csv", "mechanism.pqm"])
def test_links_are_refused(folder, run, name):
    """They could change after the check, or never end."""
    (folder / name).unlink()
    (folder / name).symlink_to(run / name)
    _refuse(folder, "not a plain file")
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    _refuse(folder, "not a plain file")


def test_pipes_and_folders_in_place_of_files_are_refused(folder):
    (folder / "summary.json").unlink()
    os.mkfifo(folder / "summary.json")
    _refuse(folder, "not a plain file")
    (folder / "summary.json").unlink()
    (folder / "summary.json").mkdir()
    _refuse(folder, "not a plain file")


def test_files_that_are_too_large_are_refused_unread(folder):
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 40)
    _refuse(folder, "not a plain file of less than")


_NUMBERS = [_MANY_DIGITS, "NaN", "-Infinity", "1e999", "true", '"1"', "null", "-1", "[]", "{}"]


@pytest.mark.parametrize("number", _NUMBERS, ids=lambda number: number[:9])
@pytest.mark.parametrize("key", ["epsilon", "delta"])
def test_figures_that_are_no_numbers_are_refused(folder, key, number):
    provenance = json.loads((folder / "provenance.json").read_text())
    provenance["statements"][-1][key] = "HERE"
    (folder / "provenance.json").write_text(json.dumps(provenance).replace('"HERE"', number))
    _refuse(folder)


@pytest.mark.parametrize("number", [*_NUMBERS, "0", "1.5", "281474976710656"], ids=lambda number: number[:9])
@pytest.mark.parametrize("place", ["history", "shown", "honest", "last"])
def test_counts_that_are_no_counts_are_refused(folder, place, number):
    ledger = json.loads((folder / "ledger.json").read_text())
    if place == "history":
        ledger["nodes"][0][0][0][1] = "HERE"
    elif place == "shown":
        ledger["shown"][0][1] = "HERE"
    elif place == "honest":
        ledger["kinds"][0][1] = "HERE"
    else:
        ledger["last"] = "HERE"
    text = json.dumps(ledger)
    (folder / "ledger.json").write_text(text.replace('"HERE"', number))
    # The last kind is 0, and no kind can have been released in more rounds than there were.
    harmless = {("last", "0"), ("shown", "281474976710656"), ("shown", "1e999")}
    if (place, number) in harmless:
        assert check(folder) == []
    else:
        _refuse(folder)


@pytest.mark.parametrize("delta", [0.0, 0.1, 1.0, 2.0])
def test_deltas_that_promise_nothing_or_everything_are_refused(folder, delta):
    _edit(folder, lambda files: files["provenance"]["statements"][-1].update(delta=delta))
    _refuse(folder, "δ")


def test_a_key_that_is_there_twice_is_refused(folder):
    _replace(folder, "provenance.json", '"epsilon":', '"epsilon": 0.1, "epsilon":')
    _refuse(folder, "twice")


@pytest.mark.parametrize("key", ["nodes", "shown", "kinds", "rounds", "mechanisms", "before", "last"])
def test_missing_and_empty_entries_of_the_ledger_are_refused(folder, key):
    whole = json.loads((folder / "ledger.json").read_text())
    (folder / "ledger.json").write_text(json.dumps({name: whole[name] for name in whole if name != key}))
    _refuse(folder)
    if key != "before":
        (folder / "ledger.json").write_text(json.dumps({**whole, key: type(whole[key])()}))
        if key != "last":
            _refuse(folder)


def test_statements_that_are_left_out_are_missed_in_the_summary(folder):
    _edit(folder, lambda files: files["provenance"]["statements"].pop())
    _refuse(folder, "is not stated")
    _edit(folder, lambda files: files["provenance"]["statements"].clear())
    _refuse(folder)


def test_the_ledger_of_a_run_with_more_noise_is_refused(folder, other):
    shutil.copy(other / "ledger.json", folder / "ledger.json")
    _edit(folder, lambda files: [state(files, 0.55, "client total", view) for view in ("local", "aggregate")])
    _refuse(folder)


def test_another_mechanism_file_is_refused(folder, other):
    shutil.copy(other / "mechanism.pqm", folder / "mechanism.pqm")
    _refuse(folder)


def test_a_kind_that_was_never_released_does_not_hide_a_client(folder):
    """Clients are charged with sums of a million, which no round had."""

    def change(files: Files) -> None:
        kind = files["ledger"]["kinds"][0]
        files["ledger"]["kinds"].append([kind[0], 10**6, *kind[2:]])
        files["ledger"]["nodes"][0][0] = [[1, 2]]
        state(files, 0.5, "client total", "aggregate")

    _edit(folder, change)
    _refuse(folder, "fewer of kind 1")


def test_clients_that_do_not_exist_do_not_share_the_requests(folder):
    """Fourteen names with one request each, in place of seven with two."""

    def change(files: Files) -> None:
        files["ledger"]["nodes"] = [[[[0, 1]], 2, list(range(14))]]
        state(files, 0.7, "client total", "aggregate")

    _edit(folder, change)
    _refuse(folder, "14 of 7 clients")


def test_a_sum_of_fewer_honest_clients_is_not_said_to_be_as_private(folder):
    def change(files: Files) -> None:
        for line in files["provenance"]["statements"]:
            line["view"] = line["view"].replace("aggregate of 6", "aggregate of 2")

    _edit(folder, change)
    _refuse(folder, "aggregate of 2")


def test_nested_lists_and_bytes_that_are_no_text_are_refused(folder):
    (folder / "summary.json").write_text("[" * 200_000)
    _refuse(folder, "cannot be read")
    (folder / "summary.json").write_bytes(b"\xff\xfe\x00")
    _refuse(folder, "cannot be read")


def test_a_mechanism_of_enormous_size_is_refused(folder):
    """Its header says so, with the right checksum and name."""
    import hashlib
    import struct

    ledger = json.loads((folder / "ledger.json").read_text())
    header = json.dumps({"kind": "table", "name": "optm", "levels": 1 << 60, "rows": 1 << 60}).encode()
    payload = struct.pack("<6sHI", b"PQMECH", 2, len(header)) + header
    blob = payload + hashlib.sha256(payload).digest()
    ledger["mechanisms"][hashlib.sha256(blob).hexdigest()[:32]] = blob.hex()
    (folder / "ledger.json").write_text(json.dumps(ledger))
    _refuse(folder, "cannot be read")
