"""The page that walks through a round names files that a round runs through, and few of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.flower import CheckpointStrategy, PrivQuantMod, PrivQuantStrategy, RoundRecord
from fl_privquant.flower.simulation import Federation, InlineEngine
from tests.flower.apps import client_app, fedavg, server_app

PAGE = Path(__file__).parents[2] / "docs" / "pages" / "walk.md"
PACKAGE = Path(pq.__file__).parent


def list_named_files() -> tuple[set[str], int]:
    """The files of the package that the page names, and how many of all files it names."""
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE.read_text()))
    assert all(
        ((PACKAGE if "simulations/" not in name else PACKAGE.parent) / name).is_file() for name in named
    )
    return {name for name in named if not name.startswith("simulations/")}, len(named)


def trace_round(aggregation: Any, folder: Path) -> set[str]:
    """The files of the package in which a function is called while one round runs."""
    mechanism = pq.design("one_bit", epsilon=1.0)
    encoding = pq.Encoding(mechanism, clip=0.1, l2_clip=0.5, rotate=True)
    seconds: list[float] = []

    def note_seconds(record: RoundRecord) -> None:
        seconds.append(record.wall_seconds)

    strategy = PrivQuantStrategy(fedavg(), encoding, aggregation=aggregation, on_round=note_seconds)
    secure = isinstance(aggregation, SecureSum)
    mod = PrivQuantMod(max_epsilon=1.0, budget=1e9, secure_aggregation=secure)
    server = server_app(lambda: CheckpointStrategy(strategy, folder / "checkpoint"), num_rounds=1)
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        entered.add(frame.f_code.co_filename)

    client = client_app(mods=[mod])
    sys.setprofile(note)
    try:
        InlineEngine().run(server, client, Federation(num_clients=4))
    finally:
        sys.setprofile(None)
    assert seconds
    return {name.removeprefix(f"{PACKAGE}/") for name in entered if name.startswith(f"{PACKAGE}/")}


def test_a_round_runs_through_every_file_of_the_walk(tmp_path: Path) -> None:
    named, count = list_named_files()
    assert count <= 25
    assert len(re.findall(r"^\d+\. ", PAGE.read_text(), re.M)) == 12
    masked = trace_round(SecureSum(), tmp_path / "masked")
    clear = trace_round(pq.PerClient(), tmp_path / "clear")
    assert named - masked - clear == set()
    # Negative control: masks are nothing that a round without them needs.
    assert not any(name.startswith("secagg/") for name in clear)
