"""Studies of any kind: kept results, interruption, the command line, and what is committed."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from fl_privquant.errors import InvalidSpecError, PrivQuantError
from simulations.results import ResultsError
from simulations.studies.__main__ import app, chosen_parts
from simulations.studies.catalogue import STUDIES
from simulations.studies.page import page_text, rounded_up, write_page
from simulations.studies.study import (
    DATA_VARIABLES,
    Computed,
    Figure,
    ReadTable,
    Scale,
    Store,
    Study,
    Tables,
    Tell,
)

EVERY_STUDY = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)


def counting(calls: list[int], fail: bool = False) -> Computed:
    def compute(scale: Scale, tell: Tell) -> Tables:
        calls.append(scale.trials)
        if fail:
            raise KeyboardInterrupt
        return {"counted": pd.DataFrame({"a": [1.23456789012, None], "b": ["x", "y"]})}

    return Computed(name="counted", title="A title", function=compute)


def silent(share: float, doing: str) -> None:
    pass


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "root", tmp_path / "kept")


def test_a_finished_part_is_kept_and_not_computed_again(store: Store) -> None:
    calls: list[int] = []
    part = counting(calls)
    first, second = (store.fetch(part, Scale(), silent) for _ in range(2))
    assert len(calls) == 1
    assert (first.kept, second.kept) == (False, True)
    pd.testing.assert_frame_equal(first.tables["counted"], second.tables["counted"])
    assert first.seconds == second.seconds
    elsewhere = dataclasses.replace(Scale(), mnist=Path("elsewhere"), output=Path("elsewhere"))
    store.fetch(part, elsewhere, silent)
    assert len(calls) == 1
    store.fetch(part, Scale(trials=7), silent)
    store.fetch(part, Scale(), silent, fresh=True)
    assert calls == [10_000, 7, 10_000]


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"seconds": 1}', '{"seconds": 1, "tables": {"a": ""}}'])
def test_a_damaged_file_of_a_part_is_computed_again(store: Store, damaged: str) -> None:
    calls: list[int] = []
    whole = store.fetch(counting(calls), Scale(), silent)
    (path,) = store.kept.iterdir()
    path.write_text(damaged)
    again = store.fetch(counting(calls), Scale(), silent)
    assert len(calls) == 2
    assert not again.kept
    pd.testing.assert_frame_equal(whole.tables["counted"], again.tables["counted"])
    assert store.fetch(counting(calls), Scale(), silent).kept


def test_an_interrupted_part_leaves_nothing_behind(store: Store) -> None:
    calls: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        store.fetch(counting(calls, fail=True), Scale(), silent)
    assert not list(store.root.parent.rglob("counted*"))
    store.fetch(counting(calls), Scale(), silent)
    assert len(calls) == 2


def test_tables_are_read_as_written(store: Store) -> None:
    part = counting([])
    assert not store.has(part.tables)
    with pytest.raises(ResultsError, match=r"counted\.csv is missing"):
        store.read("counted")
    outcome = store.fetch(part, Scale(), silent)
    assert store.write(part, outcome) == [store.root / "tables" / "counted.csv"]
    pd.testing.assert_frame_equal(store.read("counted"), outcome.tables["counted"])
    assert store.seconds() == {"counted": round(outcome.seconds, 1)}


def test_a_study_is_drawn_and_written_from_its_tables(store: Store, tmp_path: Path) -> None:
    def draw(read: ReadTable) -> object:
        from fl_privquant.cli.plots import pyplot

        figure, axes = pyplot().subplots()
        axes.plot(read("counted")["a"])
        return figure

    home = tmp_path / "tiny"
    home.mkdir()
    (home / "page.md.jinja").write_text("{{ missing | join }}{{ numbers }}: {{ command('counted') }}\n")
    part = counting([])
    figures = (Figure("curve", draw, ("counted",)), Figure("never", draw, ("another",)))
    study = Study(home, (part,), figures, lambda read: 7)
    assert store.draw(study) == []
    assert write_page(study, store).read_text() == "counted7: `python -m simulations.studies counted`\n"
    store.write(part, store.fetch(part, Scale(), silent))
    assert store.draw(study) == [store.root / "figures" / "curve.png"]
    assert write_page(study, store).read_text().startswith("7: ")


@EVERY_STUDY
def test_the_committed_page_is_what_the_committed_tables_give(study: Study) -> None:
    store = Store(study.home)
    assert store.page.read_text(encoding="utf-8") == page_text(study, store.read, store.seconds())


@EVERY_STUDY
def test_everything_a_page_points_to_is_there(study: Study) -> None:
    text = Store(study.home).page.read_text(encoding="utf-8")
    targets = set(re.findall(r"\]\(([^)#:]+)\)", text))
    assert {f"figures/{figure.name}.png" for figure in study.figures} <= targets
    for target in targets:
        assert (study.home / target).exists(), target
    drawn = {f"{figure.name}.png" for figure in study.figures}
    assert drawn == {path.name for path in (study.home / "figures").iterdir()}
    tables = {f"{name}.csv" for part in study.parts for name in part.tables} | {"seconds.csv"}
    assert {path.name for path in (study.home / "tables").iterdir()} <= tables


def test_names_of_studies_and_parts_are_distinct() -> None:
    names = [name for study in STUDIES for name in (study.name, *(part.name for part in study.parts))]
    assert len(names) == len(set(names))
    for study in STUDIES:
        assert chosen_parts([study.name]) == {study: list(study.parts)}
        assert chosen_parts([study.parts[-1].name]) == {study: [study.parts[-1]]}
    with pytest.raises(InvalidSpecError, match="did you mean 'bits-mnist'"):
        chosen_parts(["bit-mnist"])


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(DATA_VARIABLES["mnist"], raising=False)
    runner = CliRunner()
    one = runner.invoke(app, ["figure-law", "--quick"])
    assert one.exit_code == 0, one.output
    assert "one coordinate, one release, local view" in one.output
    root = tmp_path / "outputs" / "quick" / "paper"
    assert (root / "figures" / "law.png").exists()
    few = runner.invoke(app, ["figure-law", "dpsgd-mnist", "--quick"])
    assert few.exit_code == 0, few.output
    assert "kept from before" in few.output
    reason = f"no directory given; pass --mnist DIRECTORY or set {DATA_VARIABLES['mnist']}"
    assert f"dpsgd-mnist: skipped (mnist: {reason}" in few.output
    page = (root / "README.md").read_text(encoding="utf-8")
    assert "`python -m simulations.studies dpsgd-mnist --mnist DIRECTORY`" in page
    assert "Not computed yet." in page
    assert "![Figure: an example" in page
    # The program prints these as one line, with exit code 2: see fl_privquant.cli.program.
    for refused in (["dpsgd-mnist", "--quick"], ["table9"]):
        with pytest.raises(InvalidSpecError):
            runner.invoke(app, refused, catch_exceptions=False)


def test_a_check_that_does_not_confirm_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(scale: Scale, tell: Tell) -> Tables:
        return {"claims": pd.DataFrame({"claim": ["a", "b"], "confirmed": [True, False]})}

    home = tmp_path / "tiny"
    home.mkdir()
    (home / "page.md.jinja").write_text("{{ read('claims') | length }} claims\n")
    part = Computed(name="claims", title="Claims", function=compute)
    study = Study(home, (part,), (), lambda read: None)
    monkeypatch.setattr("simulations.studies.__main__.STUDIES", (study,))
    done = CliRunner().invoke(app, ["tiny", "--output", str(tmp_path / "outputs")])
    assert isinstance(done.exception, PrivQuantError)
    assert "claims: a check did not confirm" in str(done.exception)
    assert (home / "README.md").read_text() == "2 claims\n"


def test_numbers_on_a_page_are_never_rounded_to_more_privacy() -> None:
    assert rounded_up(0.99995, 4) == "1.0000"
    assert rounded_up(1.00001, 4) == "1.0001"
    assert rounded_up(1.0, 4) == "1.0000"
    assert rounded_up(float("inf")) == "∞"
