"""What one worker of the tests has made, the others find."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.made_once import made_once


def test_the_first_makes_it_and_all_others_wait_for_it(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "text").write_text("whole")

    with ThreadPoolExecutor(4) as threads:
        folders = list(threads.map(lambda _: made_once(tmp_path / "shared", make), range(8)))
    assert made == [tmp_path / "shared"]
    assert {(folder / "text").read_text() for folder in folders} == {"whole"}


def test_after_a_failure_the_next_begins_anew(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        made_once(tmp_path / "shared", fails)
    folder = made_once(tmp_path / "shared", lambda empty: (empty / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
