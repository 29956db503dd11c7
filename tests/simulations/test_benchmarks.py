"""The harness of the benchmarks: quick runs, the files of results, and failures."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from simulations.benchmarks.__main__ import BENCHMARKS, app
from simulations.benchmarks.harness import (
    Benchmark,
    Ratio,
    describe_machine,
    median_seconds,
    peak_bytes,
    write_results,
)

RATIOS = [Ratio("twice as slow", "a copy", 2.0), Ratio("small", "float32", 0.0625, "bytes")]


# Not `engines` and `ray_workers`: starting Ray is the matter of test_ray_apps. Not `pfl` and
# `record_gradients`: they need packages that are not installed here.
@pytest.mark.parametrize(
    "name", sorted(set(BENCHMARKS) - {"engines", "ray_workers", "pfl", "record_gradients"})
)
def test_every_benchmark_returns_finite_positive_ratios(name: str) -> None:
    benchmark = BENCHMARKS[name]
    ratios = benchmark.run(**benchmark.quick)
    assert ratios
    assert all(0.0 < ratio.ratio < float("inf") for ratio in ratios)
    assert {ratio.quantity for ratio in ratios} <= {"time", "bytes", "memory"}


def test_a_quick_run_prints_a_table_and_writes_files(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["pack", "--quick", "--output", str(tmp_path)])
    assert result.exit_code == 0
    assert "unpack indices of 3 levels" in result.output
    rows = pd.read_csv(tmp_path / "benchmarks.csv")
    assert set(rows["benchmark"]) == {"pack"}
    assert len(json.loads((tmp_path / "benchmarks.json").read_text())["ratios"]) == len(rows)


def test_an_unknown_name_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["speed", "--output", str(tmp_path / "results")])
    assert result.exit_code == 2
    assert not (tmp_path / "results").exists()


def test_one_that_fails_does_not_discard_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Ratio]:
        raise RuntimeError("no such machine")

    monkeypatch.setitem(BENCHMARKS, "plan", Benchmark(fail, {}))
    monkeypatch.setitem(BENCHMARKS, "pack", Benchmark(lambda: RATIOS, {}))
    result = CliRunner().invoke(app, ["plan", "pack", "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert pd.read_csv(tmp_path / "benchmarks.csv")["benchmark"].tolist() == ["pack", "pack"]


def test_results_come_back(tmp_path: Path) -> None:
    write_results({"pack": RATIOS}, tmp_path)
    content = json.loads((tmp_path / "benchmarks.json").read_text())
    assert [
        Ratio(row["what"], row["baseline"], row["ratio"], row["quantity"]) for row in content["ratios"]
    ] == RATIOS
    assert content["machine"] == describe_machine()


def test_the_machine_is_described_and_not_named() -> None:
    described = describe_machine()
    assert int(described["cores"]) >= 1
    assert described["Python"] == platform.python_version()
    assert platform.node() not in described.values()


def test_medians_take_turns_and_leave_the_first_out() -> None:
    order: list[str] = []
    times = median_seconds([lambda: order.append("a"), lambda: order.append("b")], turns=3)
    assert order == ["a", "b"] * 4
    assert len(times) == 2
    assert min(times) >= 0.0


def test_the_peak_is_that_of_the_call() -> None:
    assert 10**6 <= peak_bytes(lambda: bytearray(10**6)) < 1.1 * 10**6
