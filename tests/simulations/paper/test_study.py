"""Studies, their store and the page: kept results, interruption, the command line, and what is committed."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from simulations.paper.__main__ import app
from simulations.paper.page import page_text
from simulations.paper.page.markdown import rounded_up, table
from simulations.paper.studies import STUDIES
from simulations.paper.study import HOME, MNIST_VARIABLE, Scale, Store, Study, Tables, Tell


def counting(calls: list[int], fail: bool = False) -> Study:
    def compute(scale: Scale, tell: Tell) -> Tables:
        calls.append(scale.trials)
        if fail:
            raise KeyboardInterrupt
        return {"counted": pd.DataFrame({"a": [1.23456789012, None], "b": ["x", "y"]})}

    return Study("counted", "A title", compute)


def silent(share: float, doing: str) -> None:
    pass


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "root", tmp_path / "kept")


def test_a_finished_study_is_kept_and_not_computed_again(store: Store) -> None:
    calls: list[int] = []
    study = counting(calls)
    first, second = (store.fetch(study, Scale(), silent) for _ in range(2))
    assert len(calls) == 1
    pd.testing.assert_frame_equal(first.tables["counted"], second.tables["counted"])
    assert first.seconds == second.seconds
    store.fetch(study, dataclasses.replace(Scale(), mnist=Path("elsewhere")), silent)
    assert len(calls) == 1
    store.fetch(study, Scale(trials=7), silent)
    store.fetch(study, Scale(), silent, fresh=True)
    assert calls == [10_000, 7, 10_000]


def test_an_interrupted_study_leaves_nothing_behind(store: Store) -> None:
    calls: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        store.fetch(counting(calls, fail=True), Scale(), silent)
    assert not list(store.root.parent.rglob("counted*"))
    store.fetch(counting(calls), Scale(), silent)
    assert len(calls) == 2


def test_tables_are_read_as_written(store: Store) -> None:
    study = counting([])
    assert store.read(study) is None
    outcome = store.fetch(study, Scale(), silent)
    assert store.write(study, outcome) == [store.root / "tables" / "counted.csv"]
    read = store.read(study)
    assert read is not None
    pd.testing.assert_frame_equal(read["counted"], outcome.tables["counted"])
    assert store.seconds() == {"counted": round(outcome.seconds, 1)}


def test_the_committed_page_is_what_the_committed_tables_give() -> None:
    assert Store().page.read_text(encoding="utf-8") == page_text(Store())


def test_everything_the_page_points_to_is_there() -> None:
    text = Store().page.read_text(encoding="utf-8")
    targets = set(re.findall(r"\]\(((?:tables|figures)[^)]*)\)", text))
    assert {f"tables/{name}.csv" for study in STUDIES for name in study.tables} <= targets
    assert {f"figures/{study.figure}" for study in STUDIES if study.draw} <= targets
    for target in targets:
        assert (HOME / target).exists(), target
    assert "Not run" not in text
    assert set(Store().seconds()) == {study.name for study in STUDIES}
    assert sum(Store().seconds().values()) < 15 * 60


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(MNIST_VARIABLE, raising=False)
    runner = CliRunner()
    one = runner.invoke(app, ["figure-law", "--quick"])
    assert one.exit_code == 0, one.output
    assert "one coordinate, one release, local view" in one.output
    root = tmp_path / "outputs" / "paper" / "quick"
    assert (root / "figures" / "law.png").exists()
    few = runner.invoke(app, ["all", "--quick", "--only", "figure-law", "--only", "dpsgd-mnist"])
    assert few.exit_code == 0, few.output
    assert (
        f"dpsgd-mnist: skipped (mnist: no directory given; pass --mnist DIRECTORY or set {MNIST_VARIABLE}"
        in few.output
    )
    page = (root / "README.md").read_text(encoding="utf-8")
    assert "Not run: `python -m simulations.paper dpsgd-mnist`" in page
    assert "![Figure: an example" in page
    alone = runner.invoke(app, ["dpsgd-mnist", "--quick"])
    assert alone.exit_code != 0
    wrong = runner.invoke(app, ["all", "--only", "table9"])
    assert wrong.exit_code != 0
    assert not (HOME / "outputs").exists()


def test_numbers_on_the_page_are_never_rounded_to_more_privacy() -> None:
    assert rounded_up(0.99995, 4) == "1.0000"
    assert rounded_up(1.00001, 4) == "1.0001"
    assert rounded_up(1.0, 4) == "1.0000"
    assert rounded_up(float("inf")) == "∞"
    assert (
        table(("a", "b"), [["1.5", "x|y"], ["", "z"]])
        == "| a | b |\n| ---: | --- |\n| 1.5 | x\\|y |\n|  | z |\n"
    )
