"""Folders of runs that somebody made to be confirmed, to hang the check, or to crash it."""

from __future__ import annotations

import hashlib
import itertools
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
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a target, whose updates have an L2 norm, stated by zero-out."""
    overrides = "mechanism=rounded_gaussian secagg=simulated privacy.epsilon=4 privacy.relation=zero-out"
    return finish_run(overrides, tmp_path_factory.mktemp("clipped"))


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


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


def _refuse_to_read(path: Path) -> None:
    _refuse(path.parent, "not a plain file")
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.mark.parametrize("name", ["ledger.json", "rounds.csv", "mechanism.pqm", "summary.json"])
def test_what_is_no_plain_file_is_refused(folder, run, name):
    """It could change after the check, or never end."""
    path = folder / name
    path.unlink()
    for target in (run / name, Path("/dev/zero")):
        path.symlink_to(target)
        _refuse_to_read(path)
    os.mkfifo(path)
    _refuse_to_read(path)
    path.mkdir()
    _refuse_to_read(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    _refuse(folder, "not a plain file of less than")


_NUMBERS = [_MANY_DIGITS, "NaN", "-Infinity", "1e999", "true", '"1"', "null", "-1", "[]", "{}"]


def _refuse_numbers(folder: Path, name: str, content: Any, numbers: list[str]) -> None:
    """Put each of them where the content says HERE."""
    text = json.dumps(content)
    for number in numbers:
        (folder / name).write_text(text.replace('"HERE"', number))
        _refuse(folder)


@pytest.mark.parametrize("key", ["epsilon", "delta"])
def test_figures_that_are_no_numbers_are_refused(folder, key):
    provenance = json.loads((folder / "provenance.json").read_text())
    provenance["statements"][-1][key] = "HERE"
    _refuse_numbers(folder, "provenance.json", provenance, _NUMBERS)


@pytest.mark.parametrize("place", ["history", "shown", "honest", "last"])
def test_counts_that_are_no_counts_are_refused(folder, place):
    ledger = json.loads((folder / "ledger.json").read_text())
    numbers = [*_NUMBERS, "0", "1.5", "281474976710656"]
    if place == "history":
        ledger["nodes"][0][0][0][1] = "HERE"
    elif place == "shown":
        ledger["shown"][0][1] = "HERE"
    elif place == "honest":
        ledger["kinds"][0][1] = "HERE"
    else:
        # It is 0.
        ledger["last"] = "HERE"
        numbers.remove("0")
    _refuse_numbers(folder, "ledger.json", ledger, numbers)


@pytest.mark.parametrize("key", ["nodes", "shown", "kinds", "rounds", "mechanisms", "last"])
def test_missing_and_empty_entries_of_the_ledger_are_refused(folder, key):
    whole = json.loads((folder / "ledger.json").read_text())
    (folder / "ledger.json").write_text(json.dumps({name: whole[name] for name in whole if name != key}))
    _refuse(folder)
    if key != "last":
        (folder / "ledger.json").write_text(json.dumps({**whole, key: type(whole[key])()}))
        _refuse(folder)


def _set_delta(delta: float) -> Callable[[Files], Any]:
    return lambda files: files["provenance"]["statements"][-1].update(delta=delta)


def _charge_larger_sums(files: Files) -> None:
    """Clients are charged with sums of a million, which no round had."""
    kind = files["ledger"]["kinds"][0]
    files["ledger"]["kinds"].append([kind[0], 10**6, *kind[2:]])
    files["ledger"]["nodes"][0][0] = [[1, 2]]
    state(files, 0.5, "client total", "aggregate")


def _share_requests(files: Files) -> None:
    """Fourteen names with one request each, in place of seven with two."""
    files["ledger"]["nodes"] = [[[[0, 1]], 2, list(range(14))]]
    state(files, 0.7, "client total", "aggregate")


def _name_fewer_honest(files: Files) -> None:
    for line in files["provenance"]["statements"]:
        line["view"] = line["view"].replace("aggregate of 6", "aggregate of 2")


def _charge_another_mechanism(files: Files) -> None:
    """Clients were asked for the run's own mechanism, and are charged for one with fifty times the noise."""
    name = _name_of(_add_mechanism(files, spacing=(200.0).hex()))
    ledger = files["ledger"]
    ledger["kinds"].append([f"{name} 37 - - - -", None, None, None])
    ledger["shown"].append([1, 2])
    ledger["nodes"][0][0], ledger["last"] = [[1, 2]], 1
    for unit, view in itertools.product(("round", "total"), ("local", "aggregate")):
        state(files, 0.1, f"client {unit}", view)


def _reply_less(replies: str) -> Callable[[Files], None]:
    """A negative number would make up for a request that is lost."""

    def change(files: Files) -> None:
        files["rows"][0]["num_replies"] = replies
        files["ledger"]["nodes"][0][0] = [[0, 1]]
        for view in ("local", "aggregate"):
            state(files, 0.7, "client total", view)

    return change


def _repeat_a_round(files: Files) -> None:
    files["rows"].append(dict(files["rows"][-1], num_replies="0"))
    files["ledger"]["nodes"][0][2].pop()


def _call_local_a_sum(files: Files) -> None:
    lines = files["provenance"]["statements"]
    for local, summed in zip(lines[1::2], lines[2::2], strict=True):
        state(files, summed["epsilon"] / local["epsilon"], local["unit"], "local")
        local["view"] = "local of 6"


def _claim_a_trusted_server(files: Files) -> None:
    files["ledger"]["central"] = {"deviation": 1e6, "l2_clip": 1.0}
    line = {"unit": "client total", "view": "central", "relation": "replace-one"}
    files["provenance"]["statements"].append({**line, "epsilon": 0.01, "delta": 1e-5})


def _promise_without_delta(delta: float) -> Callable[[Files], None]:
    """However large the stated ε is, noise is never private without a δ."""

    def change(files: Files) -> None:
        line = files["provenance"]["statements"][3]
        state(files, 1e6 / line["epsilon"], line["unit"], "local")
        line["delta"] = delta

    return change


FORGERIES: dict[str, tuple[Callable[[Files], Any], str]] = {
    **{f"a delta of {delta}": (_set_delta(delta), "δ") for delta in (0.0, 0.1, 1.0, 2.0)},
    "a statement left out": (lambda files: files["provenance"]["statements"].pop(), "is not stated"),
    "no statements": (lambda files: files["provenance"]["statements"].clear(), "."),
    "a sum that never was": (_charge_larger_sums, "never made"),
    "more names than clients": (_share_requests, "14 of 7 clients"),
    "a sum of fewer honest clients": (_name_fewer_honest, "aggregate of 2"),
    "a mechanism of enormous size": (
        lambda files: _add_mechanism(files, kind="table", levels=1 << 60, rows=1 << 60),
        "cannot be read",
    ),
    "a mechanism that was never used": (_charge_another_mechanism, "never made"),
    **{f"{replies} replies": (_reply_less(replies), ".") for replies in ("-7", "1e9", "7.0", "9999999999")},
    "a round twice": (_repeat_a_round, "twice"),
    "a local view of a sum": (_call_local_a_sum, "no such relation or view"),
    "a trusted server": (_claim_a_trusted_server, "no noise"),
    **{f"noise with δ = {delta}": (_promise_without_delta(delta), "has δ") for delta in (0.0, 1e-20)},
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_folders_are_refused(folder, name):
    change, reason = FORGERIES[name]
    _edit(folder, change)
    _refuse(folder, reason)


@pytest.mark.parametrize("text", [b"[" * 200_000, b"\xff\xfe\x00"], ids=["nested lists", "no text"])
def test_texts_that_cannot_be_read_are_refused(folder, text):
    (folder / "summary.json").write_bytes(text)
    _refuse(folder, "cannot be read")


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("provenance.json", '"epsilon":', '"epsilon": 0.1, "epsilon":', "twice"),
        # Records are not drawn where clients are the unit.
        ("ledger.json", " 37 - - - -", " 37 - - 0x1.0p-3 0x1.0p-3", "fewer coordinates or records"),
    ],
)
def test_edited_texts_are_refused(folder, file, old, new, reason):
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    _refuse(folder, reason)


def test_columns_that_are_there_twice_are_refused(folder):
    rows = (folder / "rounds.csv").read_text()
    (folder / "rounds.csv").write_text("\n".join(f"{line},{line}" for line in rows.splitlines()))
    _refuse(folder, "twice")


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
        files["provenance"]["certified_epsilon"] = math.inf
        for line in files["provenance"]["statements"]:
            line["epsilon"] = 700.0 if line["view"] == "aggregate of 6" else math.inf

    _edit(folder, change)
    _refuse(folder, "aggregate of 6")


def test_a_share_of_corrupt_clients_that_is_no_share_is_refused(folder):
    _edit(folder, lambda files: files["ledger"]["kinds"][0].__setitem__(1, 26))
    for share in (-3, -1e-3, True, "0", math.nan):
        _configure(folder, "secagg", "corrupt_fraction", share)
        _refuse(folder)


def test_more_clients_than_there_were_do_not_share_the_requests(folder):
    _configure(folder, "federation", "num_clients", 14)
    _edit(folder, lambda files: files["ledger"].update(nodes=[[[[0, 1]], 2, list(range(14))]]))
    _refuse(folder, "14 of 14 clients")


@pytest.mark.parametrize("norm", ["0x1.0p-1", "-0x1.0p+0", "nan", "inf"])
def test_a_norm_that_the_run_did_not_have_is_refused(run, clipped, tmp_path, norm):
    """Where updates have no norm, and where they have another one."""
    for honest in (run, clipped) if norm != "inf" else (run,):
        folder = Path(shutil.copytree(honest, tmp_path / honest.parent.parent.name))
        ledger = json.loads((folder / "ledger.json").read_text())
        name, dimension, old, *others = ledger["kinds"][0][0].split(" ")
        texts = [" ".join([name, dimension, bound, *others]) for bound in (old, norm)]
        (folder / "ledger.json").write_text(json.dumps(ledger).replace(*texts))
        _refuse(folder, "ledger: ")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("relation_client_total", "replace-one"),
        ("delta_client_total", "1e-12"),
        ("num_clients", "14"),
        ("epsilon_coordinate", None),
    ],
)
def test_figures_of_another_relation_delta_size_or_unit_are_refused(clipped, tmp_path, column, value):
    folder = Path(shutil.copytree(clipped, tmp_path / "run"))

    def change(files: Files) -> None:
        total = files["provenance"]["statements"][2]["epsilon"]
        for row in (files["summary"], files["rows"][-1]):
            row[column] = total if value is None else type(row[column])(value)

    _edit(folder, change)
    _refuse(folder, "epsilon_coordinate" if value is None else ".")
