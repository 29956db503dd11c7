"""The design cache: hits, damage, races, and directories that cannot be written."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fl_privquant as pq
from fl_privquant.design.cache import DesignCache
from fl_privquant.mechanisms import registry

PARAMETERS = {"epsilon": 1.0, "bins": (-3.0, -0.5, 0.5, 3.0)}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FL_PRIVQUANT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every design that is really made."""
    made: list[object] = []
    entry = registry.entry("optm")

    def build(spec: object) -> pq.Mechanism:
        made.append(spec)
        return entry.build(spec)

    counted = registry.Entry(entry.name, entry.spec, build, entry.cached)
    monkeypatch.setitem(registry._ENTRIES, "optm", counted)
    return made


def test_the_second_design_is_read(cache: Path, built: list[object]) -> None:
    first, second = pq.design("optm", **PARAMETERS), pq.design("optm", **PARAMETERS)
    assert first.to_bytes() == second.to_bytes()
    assert len(built) == 1
    assert len(list(cache.iterdir())) == 1


def test_every_part_of_the_spec_counts(cache: Path, built: list[object]) -> None:
    pq.design("optm", **PARAMETERS)
    for change in (
        {"epsilon": 1.0001},
        {"objective": "mae"},
        {"family": "paired"},
        {"density": [0.1, 0.2]},
        {"num_knots": 9},
    ):
        pq.design("optm", **{**PARAMETERS, **change})
    assert len(built) == 6
    pq.design("optm", **PARAMETERS, cache=False)
    assert len(built) == 7


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "other", "directory"])
def test_a_damaged_file_is_rebuilt(
    cache: Path, built: list[object], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = pq.design("optm", **PARAMETERS).to_bytes()
    (file,) = cache.iterdir()
    if damage == "directory":
        file.unlink()
        file.mkdir()
    else:
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        blobs = {"truncate": whole[:-9], "flip": bytes(flipped), "empty": b"", "other": b"x" * 300}
        file.write_bytes(blobs[damage])
    with caplog.at_level(logging.WARNING):
        again = pq.design("optm", **PARAMETERS)
    assert again.to_bytes() == whole
    assert len(built) == 2
    assert "designing it anew" in caplog.text
    if damage != "directory":
        assert file.read_bytes() == whole


def test_parallel_designs_end_with_one_whole_file(cache: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        blobs = set(pool.map(lambda _: pq.design("optm", **PARAMETERS).to_bytes(), range(16)))
    assert len(blobs) == 1
    assert [file.suffix for file in cache.iterdir()] == [".pqm"]


def test_an_unwritable_directory_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("FL_PRIVQUANT_CACHE", str(blocked / "cache"))
    with caplog.at_level(logging.WARNING):
        assert pq.design("optm", **PARAMETERS).epsilon <= 1.0
    assert "used unsaved" in caplog.text


def test_the_default_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FL_PRIVQUANT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert DesignCache.default().directory == Path("/somewhere/fl_privquant")
