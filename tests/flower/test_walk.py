"""The page that walks through a round names files that a round runs through, and few of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.flower import CheckpointStrategy, PrivQuantMod, PrivQuantStrategy
from tests.flower.apps import client_app, fedavg, simulate

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
    strategy = PrivQuantStrategy(fedavg(), encoding, aggregation=aggregation)
    secure = isinstance(aggregation, SecureSum)
    mod = PrivQuantMod(max_epsilon=1.0, budget=1e9, secure_aggregation=secure)
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        entered.add(frame.f_code.co_filename)

    client = client_app(mods=[mod])
    sys.setprofile(note)
    try:
        done = simulate(CheckpointStrategy(strategy, folder / "checkpoint"), client)
        assert done.records[0].wall_seconds > 0.0
    finally:
        sys.setprofile(None)
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
