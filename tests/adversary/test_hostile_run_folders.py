"""Folders of runs that somebody made to be confirmed, to hang the check, or to crash it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import struct
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


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a target, whose updates have an L2 norm, stated by zero-out."""
    overrides = "mechanism=rounded_gaussian secagg=simulated privacy.epsilon=4 privacy.relation=zero-out"
    return finish_run(overrides, tmp_path_factory.mktemp("clipped"))


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def clipped_folder(clipped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clipped, tmp_path / "clipped"))


def _configure(folder: Path, section: str, key: str, value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config[section][key] = value
    (folder / "config.json").write_text(json.dumps(config))


def _add_mechanism(files: Files, **changes: Any) -> bytes:
    """A mechanism like that of the run but for some parameters, with a right checksum and name."""
    blob = bytes.fromhex(next(iter(files["ledger"]["mechanisms"].values())))
    length = struct.unpack_from("<6sHI", blob)[2]
    header = json.dumps(json.loads(blob[12 : 12 + length]) | changes, sort_keys=True).encode()
    payload = struct.pack("<6sHI", *struct.unpack_from("<6sH", blob), len(header)) + header
    changed = payload + hashlib.sha256(payload).digest()
    files["ledger"]["mechanisms"][_name_of(changed)] = changed.hex()
    return changed


def _name_of(mechanism: bytes) -> str:
    return hashlib.sha256(mechanism).hexdigest()[:32]


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
    if (place, number) == ("last", "0"):  # as it is
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


@pytest.mark.parametrize("key", ["nodes", "shown", "kinds", "rounds", "mechanisms", "last"])
def test_missing_and_empty_entries_of_the_ledger_are_refused(folder, key):
    whole = json.loads((folder / "ledger.json").read_text())
    (folder / "ledger.json").write_text(json.dumps({name: whole[name] for name in whole if name != key}))
    _refuse(folder)
    if key != "last":
        (folder / "ledger.json").write_text(json.dumps({**whole, key: type(whole[key])()}))
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
    _refuse(folder, "never made")


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

    def change(files: Files) -> None:
        _add_mechanism(files, kind="table", levels=1 << 60, rows=1 << 60)

    _edit(folder, change)
    _refuse(folder, "cannot be read")


def test_a_mechanism_that_was_never_used_is_not_charged(folder):
    """Clients were asked for the run's own mechanism, and are charged for one with fifty times the noise."""

    def change(files: Files) -> None:
        name = _name_of(_add_mechanism(files, spacing=(200.0).hex()))
        ledger = files["ledger"]
        ledger["kinds"].append([f"{name} 37 - - - -", None, None, None])
        ledger["shown"].append([1, 2])
        ledger["nodes"][0][0], ledger["last"] = [[1, 2]], 1
        for unit, view in (
            ("round", "local"),
            ("round", "aggregate"),
            ("total", "local"),
            ("total", "aggregate"),
        ):
            state(files, 0.1, f"client {unit}", view)

    _edit(folder, change)
    _refuse(folder, "never made")


def test_a_coordinate_of_a_mechanism_that_was_never_used_is_not_stated(folder):
    def change(files: Files) -> None:
        (folder / "mechanism.pqm").write_bytes(_add_mechanism(files, spacing=(200.0).hex()))
        state(files, 0.1, "coordinate release", "local")

    _edit(folder, change)
    _refuse(folder, "not used")


def test_a_lattice_so_coarse_that_rounding_does_not_hide_is_refused(folder):
    """Each client's noise is a twentieth of the spacing, so that others' noise is lost in the rounding."""

    def change(files: Files) -> None:
        old = next(iter(files["ledger"]["mechanisms"]))
        mechanism = _add_mechanism(files, deviation=(0.05).hex())
        (folder / "mechanism.pqm").write_bytes(mechanism)
        del files["ledger"]["mechanisms"][old]
        files["ledger"] = json.loads(json.dumps(files["ledger"]).replace(old, _name_of(mechanism)))
        # So that only the sum's statements are refused.
        for line in files["provenance"]["statements"]:
            line["epsilon"] = 700.0 if line["view"] == "aggregate of 6" else math.inf

    _edit(folder, change)
    provenance = json.loads((folder / "provenance.json").read_text())
    provenance["certified_epsilon"] = math.inf
    (folder / "provenance.json").write_text(json.dumps(provenance))
    _refuse(folder, "aggregate of 6")


@pytest.mark.parametrize("replies", ["-7", "1e9", "7.0", "9999999999"])
def test_replies_that_are_no_count_are_refused(folder, replies):
    """A negative one would make up for a request that is lost."""

    def change(files: Files) -> None:
        files["rows"][0]["num_replies"] = replies
        files["ledger"]["nodes"][0][0] = [[0, 1]]
        for view in ("local", "aggregate"):
            state(files, 0.7, "client total", view)

    _edit(folder, change)
    _refuse(folder)


def test_rounds_and_columns_that_are_there_twice_are_refused(folder):
    def change(files: Files) -> None:
        files["rows"].append(dict(files["rows"][-1], num_replies="0"))
        files["ledger"]["nodes"][0][2].pop()

    rows = (folder / "rounds.csv").read_text()
    _edit(folder, change)
    _refuse(folder, "twice")
    (folder / "rounds.csv").write_text("\n".join(f"{line},{line}" for line in rows.splitlines()))
    _refuse(folder, "twice")


def test_a_local_view_is_not_that_of_a_sum(folder):
    def change(files: Files) -> None:
        lines = files["provenance"]["statements"]
        for local, summed in zip(lines[1::2], lines[2::2], strict=True):
            state(files, summed["epsilon"] / local["epsilon"], local["unit"], "local")
            local["view"] = "local of 6"

    _edit(folder, change)
    _refuse(folder, "no such relation or view")


@pytest.mark.parametrize("share", [-3, -1e-3, True, "0", math.nan])
def test_a_share_of_corrupt_clients_that_is_no_share_is_refused(folder, share):
    _configure(folder, "secagg", "corrupt_fraction", share)
    _edit(folder, lambda files: files["ledger"]["kinds"][0].__setitem__(1, 26))
    _refuse(folder)


@pytest.mark.parametrize("norm", ["0x1.0p-1", "-0x1.0p+0", "nan", "inf"])
def test_a_norm_that_the_run_did_not_have_is_refused(folder, clipped_folder, norm):
    """Where updates have no norm, and where they have another one."""
    for each in (folder, clipped_folder):
        ledger = json.loads((each / "ledger.json").read_text())
        name, dimension, old, *others = ledger["kinds"][0][0].split(" ")
        texts = [" ".join([name, dimension, bound, *others]) for bound in (old, norm)]
        (each / "ledger.json").write_text(json.dumps(ledger).replace(*texts))
        if (each, norm) != (clipped_folder, "inf"):
            _refuse(each, "ledger: ")


def test_records_are_not_drawn_where_clients_are_the_unit(folder):
    ledger = (folder / "ledger.json").read_text()
    (folder / "ledger.json").write_text(ledger.replace(" 37 - - - -", " 37 - - 0x1.0p-3 0x1.0p-3"))
    _refuse(folder, "fewer coordinates or records")


@pytest.mark.parametrize(
    ("column", "value"),
    [("relation_client_total", "replace-one"), ("delta_client_total", "1e-12"), ("num_clients", "14")],
)
def test_figures_of_another_relation_delta_or_size_are_refused(clipped_folder, column, value):
    def change(files: Files) -> None:
        for row in (files["summary"], files["rows"][-1]):
            row[column] = type(row[column])(value)

    _edit(clipped_folder, change)
    _refuse(clipped_folder)


@pytest.mark.parametrize(("key", "value"), [("certified_epsilon", 0.01), ("delta", 0.0), ("statements", [])])
def test_what_the_provenance_says_beside_its_statements_is_compared(folder, key, value):
    _edit(folder, lambda files: files["provenance"].update({key: value}))
    _refuse(folder)


def test_the_figure_of_a_coordinate_is_its_own(clipped_folder):
    def change(files: Files) -> None:
        for row in (files["summary"], files["rows"][-1]):
            row["epsilon_coordinate"] = files["provenance"]["statements"][2]["epsilon"]

    _edit(clipped_folder, change)
    _refuse(clipped_folder, "epsilon_coordinate")


def test_a_trusted_server_that_was_not_there_adds_no_noise(folder):
    def change(files: Files) -> None:
        files["ledger"]["central"] = {"deviation": 1e6, "l2_clip": 1.0}
        line = {"unit": "client total", "view": "central", "relation": "replace-one"}
        files["provenance"]["statements"].append({**line, "epsilon": 0.01, "delta": 1e-5})

    _edit(folder, change)
    _refuse(folder, "no noise")


def test_more_clients_than_there_were_do_not_share_the_requests(folder):
    _configure(folder, "federation", "num_clients", 14)
    _edit(folder, lambda files: files["ledger"].update(nodes=[[[[0, 1]], 2, list(range(14))]]))
    _refuse(folder, "14 of 14 clients")


@pytest.mark.parametrize("delta", [0.0, 1e-20])
def test_noise_is_never_private_without_a_delta(folder, delta):
    """However large the stated ε is."""

    def change(files: Files) -> None:
        line = files["provenance"]["statements"][3]
        state(files, 1e6 / line["epsilon"], line["unit"], "local")
        line["delta"] = delta

    _edit(folder, change)
    _refuse(folder, "has δ")
