"""The design cache: hits, damage, races, and directories that cannot be written."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fl_privquant as pq
from fl_privquant.mechanisms import registry
from fl_privquant.mechanisms._design_cache import DesignCache

PARAMETERS = {"epsilon": 1.0, "bins": (-3.0, -0.5, 0.5, 3.0)}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FL_PRIVQUANT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every design that is really made."""
    made: list[object] = []
    entry = registry.get_entry("optm")

    def build(spec: object) -> pq.Mechanism:
        made.append(spec)
        return entry.build(spec)

    counted = dataclasses.replace(entry, build=build)
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
    design = pq.design("optm", **PARAMETERS).to_bytes()
    (file,) = cache.iterdir()
    whole = file.read_bytes()
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
    assert again.to_bytes() == design
    assert len(built) == 2
    assert "designing it anew" in caplog.text
    if damage != "directory":
        assert file.read_bytes() == whole


@pytest.fixture
def file_of(cache: Path, suite_designs: Path) -> Callable[..., Path]:
    """The file that a design is kept in; the design is searched once for all tests, and copied."""

    def copied(name: str, **parameters: Any) -> Path:
        folder = suite_designs.with_name("designs-to-copy") / str((name, sorted(parameters.items())))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FL_PRIVQUANT_CACHE", str(folder))
            pq.design(name, **parameters)
        (file,) = folder.glob("*.design")
        cache.mkdir(exist_ok=True)
        return Path(shutil.copy(file, cache))

    return copied


@pytest.mark.parametrize("keep_spec", [False, True])
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("optm", {"epsilon": 3.0, "bits": 2}),
        ("optm", {"epsilon": 1.0, "bits": 3}),
        ("mvu", {"epsilon": 1.0, "bits": 2}),
    ],
)
def test_another_design_under_the_name_is_not_believed(
    file_of: Callable[..., Path],
    name: str,
    other: dict[str, Any],
    keep_spec: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A copied file, and one whose spec was forged to fit: what it holds is compared, too."""
    file, wrong = file_of("optm", epsilon=1.0, bits=2), file_of(name, **other)
    right = file.read_bytes()
    if keep_spec:
        file.write_bytes(right.partition(b"\n")[0] + b"\n" + wrong.read_bytes().partition(b"\n")[2])
    else:
        file.write_bytes(wrong.read_bytes())
    with caplog.at_level(logging.WARNING):
        found = pq.design("optm", epsilon=1.0, bits=2)
    assert (found.name, found.num_levels) == ("optm", 4)
    assert found.epsilon <= 1.0
    assert "designing it anew" in caplog.text
    assert file.read_bytes() == right


def test_a_forged_claim_is_not_believed(file_of: Callable[..., Path]) -> None:
    """The bytes claim the parameters that are asked for; the table's certified epsilon decides."""
    file = file_of("optm", epsilon=1.0, bits=2)
    file_of("optm", epsilon=3.0, bits=2)
    loose = pq.design("optm", epsilon=3.0, bits=2)
    forged = dataclasses.replace(loose, parameters=pq.design("optm", epsilon=1.0, bits=2).parameters)
    file.write_bytes(file.read_bytes().partition(b"\n")[0] + b"\n" + forged.to_bytes())
    assert pq.design("optm", epsilon=1.0, bits=2).epsilon <= 1.0


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("biased", {"epsilon": 1.0, "levels": 5}),
        ("discrete_gaussian", {"epsilon": 2.0}),
        ("erm", {"epsilon": 1.0, "levels": 4}),
        ("imvu", {"epsilon": 1.0, "levels": 4}),
        ("mvu", {"epsilon": 1.3, "levels": 4}),
        ("optm", {"epsilon": 1.0, "bins": [-3, -1, 1, 3]}),
        ("optm", {"epsilon": 1.0, "bits": 2, "density": [0.1, -0.2, 0.7]}),
        ("pbm", {"epsilon": 2.0, "levels": 4}),
        ("rqm", {"epsilon": 1.0, "levels": 4}),
        ("skellam", {"epsilon": 2.0}),
    ],
)
def test_what_was_stored_is_what_is_asked_for(
    cache: Path, name: str, parameters: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        first, second = pq.design(name, **parameters), pq.design(name, **parameters)
    assert first.to_bytes() == second.to_bytes()
    assert not caplog.text


def test_parallel_designs_end_with_one_whole_file(cache: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        blobs = set(pool.map(lambda _: pq.design("optm", **PARAMETERS).to_bytes(), range(16)))
    assert len(blobs) == 1
    assert [file.suffix for file in cache.iterdir()] == [".design"]


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
