"""Every line that an operator reads shows an epsilon as it is, whatever its size."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from fl_privquant.accounting import LOCAL, PrivacyStatement, StatedView, Unit, View, ViewKind
from fl_privquant.errors import InvalidSpecError
from simulations.runner.progress import format_epsilons, print_line
from tests.simulations.conftest import RunHere

SHOWN = {
    1e-3: "0.001",
    0.5: "0.5",
    7.4519: "7.452",
    999.96: "1000",
    24_660.0: "24,660",
    123_456.7: "123,500",
    1e6: "1,000,000",
    987_654_321.0: "987,700,000",
    1e9: "1,000,000,000",
}
WIDTHS = range(30, 101)


@pytest.mark.parametrize("epsilon", SHOWN)
def test_no_width_of_a_terminal_breaks_a_number(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thin space between thousands was where lines ended: "ε = 24", and "660" on the next one."""
    monkeypatch.setenv("COLUMNS", "80")
    in_sum = PrivacyStatement(epsilon / 1000, 1e-5, Unit.TOTAL, View(20).stated)
    local = PrivacyStatement(epsilon, 1e-5, Unit.TOTAL)
    short = format_epsilons([in_sum, local])
    assert short.endswith(f" (sums, replace-one), {SHOWN[epsilon]} (local, replace-one)")
    for width in WIDTHS:
        for line in (f"1/9 optm, seed 0: {short}", f"final privacy cost: {local.brief}"):
            file = io.StringIO()
            print_line(Console(file=file, width=width), line)
            assert SHOWN[epsilon] in file.getvalue(), width


def test_a_total_without_bound_stands_beside_one_with_a_bound() -> None:
    trusted = PrivacyStatement(24_660.0, 1e-5, Unit.TOTAL, StatedView(ViewKind.CENTRAL))
    none = PrivacyStatement(float("inf"), 0.0, Unit.TOTAL)
    assert format_epsilons([trusted, none]) == "ε = 24,660 (models, replace-one), ∞ (local, replace-one)"
    assert format_epsilons([none]) == "not private"


def test_a_sweep_and_a_run_end_with_whole_numbers_and_seeds(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shape = ("task=mean", "task.dimension=8000", "federation.num_clients=4", "federation.rounds=1")
    chosen = (*shape, "mechanism=one_bit", "mechanism.epsilon=4", f"output={tmp_path}", "study=large")
    code, out, err = run_here("-m", *chosen, "seed=3,4")
    assert code == 0, err
    rows = pd.read_parquet(tmp_path / "large" / "summary.parquet")
    (total,) = set(rows["total"])
    number = PrivacyStatement(total, 0.0, Unit.TOTAL).epsilon_number
    assert total > 10_000
    assert int(number.replace(",", "")) >= total
    ended = rf"\d/2 one_bit, seed (\d): loss \S+, ε = {number} \(local, replace-one\)"
    assert re.findall(ended, " ".join(err.split())) == ["3", "4"]
    assert number in out.split()
    code, _, err = run_here(*chosen, "seed=3")
    assert code == 0, err
    assert ", seed 3 (finished before): loss " in " ".join(err.split())
    assert f"final privacy cost: ε = {number}, δ = 1e-05 (client total, local view, replace-one)" in " ".join(
        err.split()
    )


@pytest.mark.parametrize(
    "view",
    [
        LOCAL.stated,
        View(54).stated,
        View(6, sampled=0.5).stated,
        StatedView(ViewKind.AGGREGATE, 6, 7),
        StatedView(ViewKind.CENTRAL),
        StatedView(ViewKind.LOCAL_OR_AGGREGATE),
    ],
    ids=str,
)
def test_views_are_read_from_files_as_they_were_written(view: StatedView) -> None:
    assert StatedView.from_text(str(view)) == view


@pytest.mark.parametrize("text", ["", "everything", "aggregate of", "aggregate of 1 to 2 to 3", "local view"])
def test_no_other_text_is_a_view(text: str) -> None:
    with pytest.raises(InvalidSpecError, match="view"):
        StatedView.from_text(text)
