"""The benchmarks: quick runs, the file of results, and failures."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.benchmarks.__main__ import BENCHMARKS, app
from simulations.benchmarks.harness import Ratio, median_seconds, peak_bytes

# Starting Ray is the matter of test_ray_apps. The others need packages that are not installed here.
LEFT_OUT = {"engines", "ray_workers", "pfl", "record_gradients"}


@pytest.mark.parametrize("name", sorted(set(BENCHMARKS) - LEFT_OUT))
def test_every_benchmark_returns_finite_positive_ratios(name: str) -> None:
    run, small = BENCHMARKS[name]
    ratios = run(**small)
    assert ratios
    assert all(0.0 < ratio.ratio < float("inf") for ratio in ratios)
    assert {ratio.quantity for ratio in ratios} <= {"time", "bytes", "memory"}


def test_an_unknown_name_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["speed", "--output", str(tmp_path / "results")])
    assert result.exit_code == 2
    assert not (tmp_path / "results").exists()


def test_one_that_fails_does_not_discard_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Ratio]:
        raise RuntimeError("no such machine")

    ratio = Ratio("small", "float32", 0.0625, "bytes")
    monkeypatch.setitem(BENCHMARKS, "plan", (fail, {}))
    monkeypatch.setitem(BENCHMARKS, "design", (lambda: [ratio], {}))
    result = CliRunner().invoke(app, ["plan", "design", "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert "0.0625" in result.output
    content = json.loads((tmp_path / "benchmarks.json").read_text())
    expected = {"what": "small", "baseline": "float32", "ratio": 0.0625, "quantity": "bytes"}
    assert content["ratios"] == [{"benchmark": "design", **expected}]
    assert content["machine"]["python"] == platform.python_version()
    assert platform.node() not in content["machine"].values()


def test_medians_take_turns_and_leave_the_first_out() -> None:
    order: list[str] = []
    times = median_seconds([lambda: order.append("a"), lambda: order.append("b")], turns=3)
    assert order == ["a", "b"] * 4
    assert len(times) == 2
    assert min(times) >= 0.0


def test_the_peak_is_that_of_the_call() -> None:
    assert 10**6 <= peak_bytes(lambda: bytearray(10**6)) < 1.1 * 10**6
