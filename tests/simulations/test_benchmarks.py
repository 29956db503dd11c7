"""The benchmarks' collection: quick runs, tables that come back, and a page that is what the tables say."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from simulations.benchmarks import __main__ as command
from simulations.benchmarks import machine, results_page
from simulations.benchmarks.growth import Point
from simulations.benchmarks.measure import Row, median_seconds
from simulations.benchmarks.results_page import CATALOGUE

ROWS = [Row("twice as fast", 2.5, 2.0), Row("small | enough", 70.0, 64.0, at_least=False)]
POINTS = [Point("clients", "a line", n, 0.5 * n) for n in (10, 100)]


@pytest.mark.parametrize("name", CATALOGUE)
def test_quick_sizes_are_sizes_of_the_benchmark(name: str) -> None:
    module = importlib.import_module(f"simulations.benchmarks.{name}")
    for constant, small in CATALOGUE[name]["quick"].items():
        assert isinstance(getattr(module, constant), tuple if isinstance(small, list) else type(small))


def test_every_benchmark_has_quick_sizes_and_a_title() -> None:
    folder = Path(results_page.__file__).parent
    runs = {path.stem for path in folder.glob("*.py") if re.search(r"^def run\(", path.read_text(), re.M)}
    assert runs == set(CATALOGUE)
    assert all(benchmark["title"] and benchmark["quick"] for benchmark in CATALOGUE.values())


def test_a_quick_run_prints_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packing = importlib.import_module("simulations.benchmarks.packing_speed")
    for constant in CATALOGUE["packing_speed"]["quick"]:
        monkeypatch.setattr(packing, constant, getattr(packing, constant))
    monkeypatch.setattr(results_page, "write_rows", lambda *_: pytest.fail("written"))
    monkeypatch.setattr(results_page, "write_page", lambda *_: pytest.fail("written"))
    # Times of a short run may miss their targets; the exit status says so, and nothing else is expected.
    assert command.main(["packing_speed", "--quick", "--write"]) in (0, 1)
    assert "bytes against float32" in capsys.readouterr().out


def test_a_missed_target_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = importlib.import_module("simulations.benchmarks.packing_speed")
    monkeypatch.setattr(packing, "run", lambda: ROWS[:1])
    assert command.main(["packing_speed"]) == 0
    monkeypatch.setattr(packing, "run", lambda: ROWS)
    assert command.main(["packing_speed"]) == 1


def test_one_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(results_page, "write_rows", lambda name, rows: kept.append(name))
    monkeypatch.setattr(results_page, "write_page", lambda: kept.append("page"))
    for name, run in (("sweep_overhead", lambda: 1 / 0), ("packing_speed", lambda: ROWS[:1])):
        monkeypatch.setattr(importlib.import_module(f"simulations.benchmarks.{name}"), "run", run)
    assert command.main(["sweep_overhead", "packing_speed", "--write"]) == 1
    assert kept == ["packing_speed", "page"]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_tables_and_page(tmp_path: Path) -> None:
    results_page.write_rows("packing_speed", [Row("old", 1.0, 1.0)], tmp_path)
    results_page.write_rows("encode", ROWS[:1], tmp_path)
    results_page.write_rows("packing_speed", ROWS, tmp_path)
    results_page.write_points(POINTS, tmp_path)
    assert results_page.read_rows(tmp_path) == {"encode": ROWS[:1], "packing_speed": ROWS}
    assert results_page.read_points(tmp_path) == POINTS
    results_page.write_page(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "**2 of 3 targets are met.**" in text
    assert "| twice as fast | 2.5 | ≥ 2 | met |" in text
    assert "**missed**" in text
    assert (tmp_path / "figures" / "growth-clients.png").stat().st_size > 5_000
    assert "figures/growth-clients.png" in text
    assert "growth-levels" not in text


def test_the_committed_page_is_what_the_tables_say() -> None:
    folder = results_page.FOLDER
    assert (folder / "README.md").read_text() == results_page.page_text(folder)
    for name in re.findall(r"\((figures/[^)]+)\)", results_page.page_text(folder)):
        assert (folder / name).exists()


def test_the_machine_is_described_and_not_named() -> None:
    import platform

    described = machine.describe()
    assert int(described["cores"]) >= 1
    assert described["Python"] == platform.python_version()
    assert platform.node() not in described.values()


def test_medians_take_turns_and_leave_the_first_out() -> None:
    order: list[str] = []
    times = median_seconds([lambda: order.append("a"), lambda: order.append("b")], rounds=3)
    assert order == ["a", "b"] * 4
    assert len(times) == 2
    assert min(times) >= 0.0
