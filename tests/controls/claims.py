"""Folders of finished runs, and mutations of them that claim more privacy than the run had."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from fl_privquant.check import DisagreementError, check
from simulations.run import execute
from simulations.runner.config import compose_run
from simulations.runner.results import RunDirectory

_TASK = "task=mean task.dimension=37 federation.num_clients=7 federation.rounds=2"
Files = dict[str, Any]
Mutation = Callable[[Files, Path, random.Random], None]


def finish_run(overrides: str, output: Path, task: str = _TASK) -> Path:
    """The folder of a small run."""
    config = compose_run(*task.split(), *overrides.split(), f"output={output}")
    execute(config)
    return RunDirectory.of(config).path


def is_refused(folder: Path, mutation: Mutation, rng: random.Random) -> bool:
    """Whether the check refuses a copy of a run's folder with that mutation."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "run"
        shutil.copytree(folder, copy)
        files = read_files(copy)
        mutation(files, copy, rng)
        write_files(copy, files)
        try:
            check(copy)
        except DisagreementError:
            return True
        return False


def read_files(folder: Path) -> Files:
    names = ("ledger", "provenance", "summary")
    files: Files = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    with (folder / "rounds.csv").open(newline="") as file:
        files["rows"] = list(csv.DictReader(file))
    return files


def write_files(folder: Path, files: Files) -> None:
    for name in ("ledger", "provenance", "summary"):
        (folder / f"{name}.json").write_text(json.dumps(files[name]))
    with (folder / "rounds.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(files["rows"][0]))
        writer.writeheader()
        writer.writerows(files["rows"])


def state(files: Files, factor: float, unit: str, view: str) -> None:
    """Multiply a stated ε, wherever it is written."""
    stated = [line for line in files["provenance"]["statements"] if math.isfinite(line["epsilon"])]
    old = [line["epsilon"] for line in stated if (line["unit"], line["view"].split()[0]) == (unit, view)]
    for line in stated:
        line["epsilon"] *= factor if line["epsilon"] in old else 1.0
    for row in (files["summary"], files["rows"][-1], files["provenance"]):
        for column, value in row.items():
            is_epsilon = column.startswith("epsilon_") or column == "certified_epsilon"
            if is_epsilon and value not in (None, "") and float(value) in old:
                row[column] = factor * float(value)


def views(files: Files, unit: str = "") -> list[tuple[str, str]]:
    """The unit and the view of each finite statement whose unit has that word."""
    lines = [line for line in files["provenance"]["statements"] if math.isfinite(line["epsilon"])]
    return [(line["unit"], line["view"].split()[0]) for line in lines if unit in line["unit"]]


def lower_epsilon(files: Files, folder: Path, rng: random.Random) -> None:
    unit, view = rng.choice(views(files))
    state(files, rng.uniform(0.3, 0.95), unit, view)


def lower_delta(files: Files, folder: Path, rng: random.Random) -> None:
    lines = [line for line in files["provenance"]["statements"] if line["delta"]]
    rng.choice(lines)["delta"] *= 10.0 ** -rng.uniform(2.0, 6.0)


def lower_only_the_summary(files: Files, folder: Path, rng: random.Random) -> None:
    finite = [name for name, value in files["summary"].items() if name.startswith("epsilon_") and value]
    column = rng.choice([name for name in finite if math.isfinite(files["summary"][name])])
    files["summary"][column] *= rng.uniform(0.3, 0.999)


def lose_a_round(files: Files, folder: Path, rng: random.Random) -> None:
    ledger = files["ledger"]
    ledger["rounds"].pop(rng.randrange(len(ledger["rounds"])))
    ledger["shown"][0][1] -= 1
    for node in ledger["nodes"]:
        node[0][0][1] -= 1
    state(files, rng.uniform(0.6, 0.7), *rng.choice(views(files, "total")))


def lose_a_request(files: Files, folder: Path, rng: random.Random) -> None:
    node = files["ledger"]["nodes"][0]
    node[2].pop(rng.randrange(len(node[2])))


def count_one_request(files: Files, folder: Path, rng: random.Random) -> None:
    for node in files["ledger"]["nodes"]:
        node[0][0][1] = 1
    state(files, rng.uniform(0.55, 0.7), *rng.choice(views(files, "total")))


def count_corrupt_clients_as_honest(files: Files, folder: Path, rng: random.Random) -> None:
    for kind in files["ledger"]["kinds"]:
        kind[1] = (kind[1] or 1) + rng.randint(1, 30)


def shorten_updates(files: Files, folder: Path, rng: random.Random) -> None:
    dimension = files["provenance"]["dimension"]
    whole, shorter = f" {dimension} ", f" {rng.randint(1, dimension - 1)} "
    files["ledger"] = json.loads(json.dumps(files["ledger"]).replace(whole, shorter))


def halve_the_relation(files: Files, folder: Path, rng: random.Random) -> None:
    """The figures of zero-out, for what is said to be replace-one."""
    factor = rng.uniform(0.45, 0.55)
    for unit, view in sorted(set(views(files))):
        if unit != "coordinate release":
            state(files, factor, unit, view)


def swap_the_mechanism(files: Files, folder: Path, rng: random.Random) -> None:
    """A mechanism with less noise, with the right checksum and name; only its ε is still the old one."""
    blob = (folder / "mechanism.pqm").read_bytes()
    length, start = struct.unpack_from("<6sHI", blob)[2], struct.calcsize("<6sHI")
    header, body = json.loads(blob[start : start + length]), bytearray(blob[start + length : -32])
    if header["kind"] == "table":
        levels, move = header["levels"], rng.choice((1 << 26, 1 << 28))
        rows = struct.unpack_from(f"<{levels * header['rows']}Q", body, 4 * levels)
        first = list(rows[:levels])
        low, high = first.index(min(first)), first.index(max(first))
        move = min(move, first[low] // 2)
        first[low], first[high] = first[low] - move, first[high] + move
        struct.pack_into(f"<{levels}Q", body, 4 * levels, *first)
    elif header["kind"] == "rounded_gaussian":
        key = rng.choice(("spacing", "deviation"))
        header[key] = (float.fromhex(header[key]) * rng.uniform(0.5, 0.9)).hex()
    elif header["kind"] == "pbm":
        header["rare"] = int(header["rare"] * rng.uniform(0.5, 0.95))
    else:
        header["noise"] = str(Fraction(header["noise"]) * rng.randint(30, 80) / 100)
    text = json.dumps(header, sort_keys=True).encode()
    payload = struct.pack("<6sHI", *struct.unpack_from("<6sH", blob), len(text)) + text + body
    changed = payload + hashlib.sha256(payload).digest()
    old, new = (hashlib.sha256(each).hexdigest()[:32] for each in (blob, changed))
    ledger = json.loads(json.dumps(files["ledger"]).replace(old, new))
    ledger["mechanisms"] = {new: changed.hex()}
    files["ledger"] = ledger
    (folder / "mechanism.pqm").write_bytes(changed)


def change_a_byte(files: Files, folder: Path, rng: random.Random) -> None:
    name, text = next(iter(files["ledger"]["mechanisms"].items()))
    blob = bytearray.fromhex(text)
    blob[rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
    files["ledger"]["mechanisms"][name] = blob.hex()


MUTATIONS: tuple[Mutation, ...] = (
    lower_epsilon,
    lower_delta,
    lower_only_the_summary,
    lose_a_round,
    lose_a_request,
    count_one_request,
    count_corrupt_clients_as_honest,
    shorten_updates,
    halve_the_relation,
    swap_the_mechanism,
    change_a_byte,
)
