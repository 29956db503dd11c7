"""Studies of any kind: rows that are kept, interruption, the command line, and what is committed."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from fl_privquant.errors import InvalidSpecError, PrivQuantError
from fl_privquant.plotting import STYLE, import_pyplot, save_figure
from simulations.studies.__main__ import STUDIES, app, choose_parts, load_study, study_folder
from simulations.studies._pages import (
    DATA_VARIABLES,
    compute_part,
    compute_rows,
    forget_rows,
    page_text,
    read_table,
    round_up,
    tune_by_twos,
    write_table,
)
from simulations.studies.paper import corrections

CALLS = Path("calls.txt")


def square_row(number: int) -> dict[str, Any] | list[dict[str, Any]] | None:
    """One row, two rows for 2, none for 3; interrupted at 4, the first time."""
    calls = CALLS.read_text() if CALLS.exists() else ""
    CALLS.write_text(f"{calls}{number}")
    if number == 4 and "4" not in calls:
        raise KeyboardInterrupt
    row = {"number": number, "square": number**2 / 3.0}
    return None if number == 3 else [row, row] if number == 2 else row


def test_an_interrupted_table_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [(number,) for number in (1, 2, 3, 4, 5)]
    with pytest.raises(KeyboardInterrupt):
        compute_rows(square_row, cells)
    table = compute_rows(square_row, cells)
    assert CALLS.read_text() == "123445"
    assert table["number"].tolist() == [1, 2, 2, 4, 5]
    pd.testing.assert_frame_equal(table, compute_rows(square_row, cells))
    assert CALLS.read_text() == "123445"
    forget_rows()
    compute_rows(square_row, cells[:1])
    assert CALLS.read_text() == "1234451"


@pytest.mark.parametrize(("peak", "tried"), [(0.1, 3), (0.05, 4), (0.2, 4), (0.025, 5), (1.6, 6), (1e-6, 6)])
def test_tuning_goes_to_where_it_gets_no_better_within_its_budget(peak: float, tried: int) -> None:
    def run(value: float) -> dict[str, Any]:
        return {"value": value, "score": -abs(math.log(value / peak))}

    trials = tune_by_twos(run, 0.1, 6, lambda row: float(row["score"]))
    assert len({trial["value"] for trial in trials}) == len(trials) == tried
    if tried < 6:
        assert max(trials, key=lambda trial: trial["score"])["value"] == pytest.approx(peak)


def test_tables_are_read_as_written(tmp_path: Path) -> None:
    with pytest.raises(PrivQuantError, match=r"counted\.csv is missing"):
        read_table(tmp_path, "counted")
    frame = pd.DataFrame({"a": [1.5, None], "b": ["x", "y"]})
    compute_part(tmp_path, "counted", lambda: frame)
    pd.testing.assert_frame_equal(read_table(tmp_path, "counted"), frame)
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["counted.csv"]
    compute_part(tmp_path, "several", lambda: {"one": frame, "other": frame})
    pd.testing.assert_frame_equal(read_table(tmp_path, "other"), frame)


@pytest.mark.parametrize("study", STUDIES)
def test_the_committed_page_is_what_the_committed_tables_give(study: str) -> None:
    folder = study_folder(study)
    read = partial(read_table, folder)
    page = page_text(folder, load_study(study).page_numbers(read), read)
    assert (folder / "README.md").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("study", STUDIES)
def test_everything_a_page_points_to_is_there(study: str) -> None:
    folder, module = study_folder(study), load_study(study)
    text = (folder / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"\]\(([^)#:]+)\)", text))
    figures = {f"{name}.png" for name in module.FIGURES}
    assert {f"figures/{name}" for name in figures} <= targets
    for target in targets:
        assert (folder / target).exists(), target
    assert figures == {path.name for path in folder.glob("figures/*")}
    for path in (folder / "tables").iterdir():
        assert any(path.stem.startswith(part) for part in module.PARTS), path
    # Commands on a page name studies and parts that exist.
    for command in re.findall(r"python -m simulations\.studies ([\w-]+)", text):
        assert choose_parts([command])


@pytest.mark.parametrize(
    ("study", "name"), [(study, name) for study in STUDIES for name in load_study(study).FIGURES]
)
def test_figures_are_drawn_from_the_tables(study: str, name: str, tmp_path: Path) -> None:
    read = partial(read_table, study_folder(study))
    with import_pyplot().rc_context(STYLE):
        path = save_figure(load_study(study).FIGURES[name](read), tmp_path / "figure.png")
    assert path.stat().st_size > 10_000


def test_names_of_studies_and_parts_are_distinct() -> None:
    names = [name for study in STUDIES for name in (study, *load_study(study).PARTS)]
    assert len(names) == len(set(names))
    for study in STUDIES:
        parts = list(load_study(study).PARTS)
        assert choose_parts([study]) == {study: parts}
        assert choose_parts([parts[-1]]) == {study: [parts[-1]]}
    with pytest.raises(InvalidSpecError, match="did you mean 'dpsgd-mnist'"):
        choose_parts(["dpsg-mnist"])


def test_the_command_computes_what_it_can_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy of the study's folder: the tables of other parts stay as they are."""
    committed = study_folder("paper")
    for path in (committed / "tables").iterdir():
        write_table(tmp_path, path.stem, read_table(committed, path.stem))
    (tmp_path / "page.md.jinja").write_text((committed / "page.md.jinja").read_text(encoding="utf-8"))
    (tmp_path / "tables" / "figure-distribution.csv").unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(DATA_VARIABLES["mnist"], raising=False)
    monkeypatch.setattr("simulations.studies.__main__.study_folder", lambda study: tmp_path)
    done = CliRunner().invoke(app, ["figure-distribution", "dpsgd-mnist"])
    assert done.exit_code == 0, done.output
    assert "dpsgd-mnist: skipped (mnist: no directory given; pass --mnist DIRECTORY or set" in done.output
    assert (tmp_path / "figures" / "distribution.png").exists()
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page == (committed / "README.md").read_text(encoding="utf-8")
    # The program prints these as one line, with exit code 2: see fl_privquant.cli.program.
    for refused in (["dpsgd-mnist"], ["table9"]):
        with pytest.raises(InvalidSpecError):
            CliRunner().invoke(app, refused, catch_exceptions=False)


def test_a_check_that_does_not_confirm_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    measured = {"exact": 1.0, "claimed": 1.0, "broken": 0, "corrected": 0}
    monkeypatch.setattr(corrections, "CHECKS", {"erm-privacy": lambda count: (False, measured)})
    with pytest.raises(PrivQuantError, match="erm-privacy did not confirm"):
        corrections.compute_corrections()


def test_numbers_on_a_page_are_never_rounded_to_more_privacy() -> None:
    assert round_up(0.99995, 4) == "1.0000"
    assert round_up(1.00001, 4) == "1.0001"
    assert round_up(1.0, 4) == "1.0000"
    assert round_up(float("inf")) == "∞"
