"""What is shown while a run runs: bars on a terminal, lines elsewhere, whole numbers at 80 columns."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fl_privquant.accounting import PrivacyStatement, Unit
from simulations.runner.config import RunConfig
from simulations.runner.progress import RoundsDisplay
from tests.task_values import mean_of

CONFIG = RunConfig.from_mapping(
    {
        "mechanism": {"name": "one_bit", "epsilon": 1.0},
        "task": mean_of(5),
        "federation": {"num_clients": 5, "rounds": 4},
    }
)
SPENT = PrivacyStatement(926.123, 1e-5, Unit.TOTAL)


def shown(console: Console, position: str = "") -> str:
    file = console.file = io.StringIO()
    with RoundsDisplay(CONFIG, console, position) as rounds:
        for number in range(5):
            rounds.update({"round": number, "accuracy": 0.625, "loss": 1.5}, SPENT)
        rounds._progress.refresh()
        return file.getvalue()


def test_bars_and_what_is_spent_fit_80_columns() -> None:
    console = Console(width=80, force_terminal=True, _environ={"TERM": "xterm", "NO_COLOR": "1"})
    text = shown(console, "2/3")
    assert "sweep" in text
    assert "1/3" in text
    assert "4/4" in text
    # The ε is whole, wherever lines are broken.
    assert "ε = 926.2, δ = 1e-05 (client total, local view, replace-one)" in " ".join(text.split())
    assert "…" not in text


@pytest.mark.parametrize(
    "console",
    [Console(width=80), Console(width=80, force_terminal=True, _environ={"TERM": "dumb"})],
    ids=["pipe", "dumb terminal"],
)
def test_where_no_bar_can_be_drawn_there_are_lines(console: Console) -> None:
    lines = shown(console, "2/3").splitlines()
    assert [re.search(r"round (\d/\d),", line)[1] for line in lines] == ["1/4", "2/4", "3/4", "4/4"]
    assert all(line.startswith("2/3 one_bit, seed 0: ") and "ε = 926.2" in line for line in lines)


@pytest.mark.parametrize("position", ["", "2/3", "quiet"])
def test_a_run_that_was_interrupted_says_after_which_round_it_goes_on(position: str) -> None:
    file = io.StringIO()
    with RoundsDisplay(CONFIG, Console(file=file, width=80), position) as rounds:
        rounds.report_resume(2)
    name = f"{CONFIG.run_name}, seed 0"
    name = f"{position} {name}" if "/" in position else name
    assert file.getvalue() == f"{name}: was interrupted; resumes after round 2 of 4\n"


def test_parallel_sweeps_draw_nothing() -> None:
    assert shown(Console(width=80, force_terminal=True), "quiet") == ""
