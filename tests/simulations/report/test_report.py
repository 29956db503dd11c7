"""The files of a report: what is read, what is written, and what a damaged run costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape

import fl_privquant as pq
from fl_privquant.errors import InvalidSpecError
from fl_privquant.plotting import color_of
from simulations.report import build_report, show_report
from simulations.report.__main__ import main
from simulations.report.build import render_page
from simulations.report.figures import Drawing, draw_study
from simulations.report.study import Study, describe_repeated
from simulations.report.verdict import describe
from tests.simulations.synthetic import CENTRAL, mechanism_of, write_run, write_study

LABELS = ("optm", "one_bit", "stochastic", "none")


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep over two epsilons, reported on once."""
    directory = tmp_path_factory.mktemp("outputs") / "sweep"
    write_study(directory, LABELS, epsilons=(0.5, 1.0), rounds=5)
    build_report(directory)
    return directory


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two mechanisms, two seeds."""
    write_study(tmp_path / "small", ("optm", "none"), seeds=(0, 1), rounds=3)
    return tmp_path / "small"


def answer_of(study: Path) -> Drawing:
    """The only figure of a question."""
    (answer,) = (drawing for drawing in draw_study(Study.load(study)) if drawing.kind == "answer")
    return answer


def test_everything_is_made_and_made_again_alike(sweep: Path) -> None:
    contents = {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}
    courses = [f"{name}-rounds-{number}" for name in ("accuracy", "error") for number in (1, 2)]
    figures = {f"figures/{name}.{kind}" for name in ("answer-1", *courses) for kind in ("pdf", "png")}
    made = {str(path.relative_to(sweep)) for path in contents if path.parent.name in ("figures", "tables")}
    assert made == figures | {"tables/results.md", "tables/privacy.md"}
    assert (sweep / "report.html").stat().st_size < 2_000_000
    build_report(sweep)
    assert {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()} == contents


def test_tidy_tables_hold_each_round_and_run_once(sweep: Path) -> None:
    rounds, summary = (pd.read_parquet(sweep / f"{name}.parquet") for name in ("rounds", "summary"))
    # optm and one_bit at two epsilons, stochastic and none once, three seeds each, rounds 0 to 5.
    assert (len(summary), len(rounds)) == (18, 18 * 6)
    assert not rounds.duplicated(["run", "round"]).any()
    assert not summary.duplicated("run").any()
    assert {"series", "epsilon", "bits", "seed", "accuracy", "error", "total", "kilobytes"} <= set(summary)
    for name, frame in (("rounds", rounds), ("summary", summary)):
        numbers = {"epsilon": ["", "inf"]}
        written = pd.read_csv(sweep / f"{name}.csv", keep_default_na=False, na_values=numbers)
        assert list(written) == list(frame)
        assert written[["run", "series"]].to_numpy().tolist() == frame[["run", "series"]].to_numpy().tolist()
        assert np.allclose(written["epsilon"].astype(float), frame["epsilon"], equal_nan=True)


def test_the_page_begins_with_the_verdict_and_loads_nothing(sweep: Path) -> None:
    text, study = (sweep / "report.html").read_text(), Study.load(sweep)
    places = [text.index(str(escape(sentence))) for sentence in describe(study).answers]
    assert places == sorted(places)
    assert places[-1] < text.index("<img") < text.index("<table") < text.index("<details>")
    for run in study.runs:
        assert all(str(escape(line)) in text for line in run.lines)
    assert "Simulated privacy." in text
    assert all(word not in text for word in ("<script", "http://", "https://"))


@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_runs_that_evaluate_nothing_stand_beside_others(measure: str, tmp_path: Path) -> None:
    settings = ({"task.name": "evaluated"}, {"task.name": "not evaluated"})
    for path in write_study(tmp_path / "mixed", ("optm",), seeds=(0,), rounds=2, settings=settings):
        rows = pd.read_csv(path / "rounds.csv")
        missing = json.loads((path / "config.json").read_text())["task"]["name"] == "not evaluated"
        columns = ["accuracy", "loss"] if missing else ["accuracy"] if measure == "loss" else []
        rows[columns] = np.nan
        rows.to_csv(path / "rounds.csv", index=False)
    build_report(tmp_path / "mixed")
    assert len(list((tmp_path / "mixed" / "figures").glob(f"{measure}-rounds*.png"))) == 1


def cut(name: str) -> Callable[[Path], object]:
    """Damage a file by cutting it in half."""
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[: (run / name).stat().st_size // 2])


def claim_too_much(run: Path) -> None:
    stated = json.loads((run / "provenance.json").read_text())["statements"]
    edit_json(run / "provenance.json", statements=[{**each, "epsilon": 0.25} for each in stated])


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "unfinished": (lambda run: (run / "summary.json").unlink(), "unfinished", "after round 3 of 3"),
    "not begun": (
        lambda run: [path.replace(run.parent / "gone") for path in run.iterdir() if path.stem != "config"],
        "unfinished",
        "rounds.csv: missing",
    ),
    "config cut": (cut("config.json"), "damaged", "config.json: cannot be read"),
    "config a list": (lambda run: (run / "config.json").write_text("[1]"), "damaged", "holds a list"),
    "summary not text": (
        lambda run: (run / "summary.json").write_bytes(b"\xff\xfe\x00"),
        "damaged",
        "summary.json: cannot be read",
    ),
    "provenance missing": (lambda run: (run / "provenance.json").unlink(), "damaged", "json: missing"),
    "rounds empty": (lambda run: (run / "rounds.csv").write_text(""), "damaged", "rounds.csv: cannot"),
    "mechanism cut": (cut("mechanism.pqm"), "", ""),
    "accuracy a word": (
        lambda run: pd.read_csv(run / "rounds.csv").assign(accuracy="good").to_csv(run / "rounds.csv"),
        "damaged",
        "rounds.csv: cannot be read",
    ),
    "a round is missing": (
        lambda run: pd.read_csv(run / "rounds.csv").query("round != 2").to_csv(run / "rounds.csv"),
        "damaged",
        "some missing",
    ),
    "a target that is no number": (
        lambda run: edit_json(run / "config.json", privacy={"epsilon": "much"}),
        "damaged",
        "cannot be used",
    ),
    "rounds and summary differ": (
        lambda run: edit_json(run / "summary.json", round=7),
        "damaged",
        "summary.json says 7",
    ),
    "claims too much": (
        claim_too_much,
        "damaged",
        "mechanism.pqm has ε = 1, δ = 0 (coordinate release, local view",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_bad_file_costs_one_run_and_is_named(small: Path, name: str) -> None:
    damage, kind, words = DAMAGES[name]
    run = sorted(small.glob("optm-*"))[0]
    damage(run)
    before = {path: path.read_bytes() for path in run.iterdir()}
    study = Study.load(small)
    assert [problem.kind for problem in study.problems] == ([kind] if kind else [])
    assert words in render_page(study, [])
    assert (run.name in set(study.results["run"])) == (not kind)
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_a_word_in_a_column_that_is_not_read_spoils_no_table(small: Path) -> None:
    for path in small.glob("optm-*/rounds.csv"):
        path.write_text(path.read_text().replace("0.02", "much"))
    build_report(small)
    assert "much" in set(pd.read_parquet(small / "rounds.parquet")["share_clipped"])


def test_of_a_repeated_round_the_later_one_counts(small: Path) -> None:
    resumed = sorted(small.glob("optm-*"))[0]
    rows = pd.read_csv(resumed / "rounds.csv")
    later = rows[rows["round"] == 2].assign(accuracy=0.5)
    pd.concat([rows, later]).to_csv(resumed / "rounds.csv", index=False)
    rounds = Study.load(small).rounds
    kept = rounds[rounds["run"] == resumed.name]
    assert kept["round"].tolist() == [0, 1, 2, 3]
    assert kept["accuracy"].tolist()[2] == 0.5


def test_nothing_finished_is_a_report_too(small: Path) -> None:
    for run in small.iterdir():
        (run / "summary.json").unlink()
    page = show_report(small).read_text()
    assert "No run of this study has finished yet" in page
    assert page.count("stopped after round 3 of 3") == 4


def test_errors_of_the_user_are_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    for name, words in (("absent", "no such directory"), ("empty", "no runs in it")):
        with pytest.raises(InvalidSpecError, match=words):
            build_report(tmp_path / name)
        monkeypatch.setattr(sys, "argv", ["report", str(tmp_path / name)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err


def test_the_command_writes_latex_in_the_style_of_the_user(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    style = tmp_path / "paper.mplstyle"
    style.write_text("axes.facecolor: ffdddd\n")
    monkeypatch.setattr(sys, "argv", ["report", str(small), "--latex", "--style", str(style)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert f"report: {small / 'report.html'}" in printed
    assert f"LaTeX: {small / 'tables' / 'accuracy-1.tex'}" in printed
    faces = {drawing.figure.axes[0].get_facecolor() for drawing in draw_study(Study.load(small), str(style))}
    assert faces == {(1.0, 221 / 255, 221 / 255, 1.0)}


def test_what_varies_is_found(tmp_path: Path) -> None:
    optm = mechanism_of("optm", 1.0, 2)
    for seed in (0, 1):
        write_run(tmp_path, "optm", optm, 1.0, seed, 2, {})
        write_run(tmp_path, "optm", optm, 1.0, seed, 2, {"task.name": "cancer", "task.model": "mlp"})
        # Its own clip is a part of one_bit, and no reason for a setting of its own.
        write_run(tmp_path, "one_bit", mechanism_of("one_bit", 1.0, 1), 1.0, seed, 2, {"encoding.clip": 0.2})
    study = Study.load(tmp_path)
    assert study.varying == ("task.name",)
    assert study.settings == ("task cancer", "task digits")
    assert study.series == ("optm", "one_bit")
    assert study.constant["federation.num_clients"] == 20
    build_report(tmp_path)
    assert set(pd.read_parquet(tmp_path / "summary.parquet")["task.name"]) == {"digits", "cancer"}


def test_levels_of_one_width_are_settings_of_their_own(tmp_path: Path) -> None:
    """Nine and sixteen levels both take four bits, and are two mechanisms."""
    for levels in (9, 16):
        mechanism = pq.design("rqm", epsilon=1.0, levels=levels)
        setting = {"mechanism.bits": None, "mechanism.levels": levels}
        for seed in range(3):
            write_run(tmp_path, "rqm", mechanism, 1.0, seed, 2, setting)
    study = Study.load(tmp_path)
    assert study.varying == ("mechanism.levels",)
    assert study.results.groupby("setting").size().tolist() == [3, 3]


@pytest.mark.parametrize("swept", ["epsilon", "bits"])
def test_what_was_swept_is_the_axis_of_the_answer(swept: str, tmp_path: Path) -> None:
    values = {"epsilons": (0.5, 1.0)} if swept == "epsilon" else {"bits": (1, 2)}
    write_study(tmp_path, ("optm", "rqm"), seeds=(0, 1, 2), rounds=2, **values)
    (axes,) = answer_of(tmp_path).figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["optm"].get_xdata().tolist() == list(next(iter(values.values())))
    assert lines["optm"].get_color() == color_of("optm")
    words = "ε, coordinate release, local view" if swept == "epsilon" else "bits per coordinate"
    assert axes.get_xlabel().startswith(words)


@pytest.mark.parametrize("seeds", [2, 3])
def test_marks_of_an_interval_are_drawn_only_where_there_is_one(seeds: int, tmp_path: Path) -> None:
    write_study(tmp_path, ("optm", "rqm"), seeds=range(seeds), rounds=2)
    (axes,) = answer_of(tmp_path).figure.axes
    assert any(line.get_marker() == "|" for line in axes.lines) == (seeds == 3)
    assert axes.get_xlim()[0] == 0.0
    assert axes.get_yticklabels()[0].get_text() == "optm with 2 bits"


def test_repetitions_are_no_further_seeds(tmp_path: Path) -> None:
    for folder in write_study(tmp_path, ("optm",), rounds=2):
        twin = tmp_path / f"optm-twin-{folder.name}"
        twin.mkdir()
        for path in folder.iterdir():
            (twin / path.name).write_bytes(path.read_bytes())
        config = json.loads((twin / "config.json").read_text())
        config["mechanism"]["tuning"] = "without effect"
        (twin / "config.json").write_text(json.dumps(config))
    study = Study.load(tmp_path)
    assert (len(study.runs), study.repeated, study.varying) == (3, 3, ())
    assert str(escape(describe_repeated(study))) in render_page(study, [])


def test_runs_without_a_panel_are_other_runs(tmp_path: Path) -> None:
    write_study(tmp_path, ("optm",), rounds=2, settings=({"panel": "A. first?"}, {"panel": None}))
    assert set(Study.load(tmp_path).settings) == {"A. first?", "other runs"}


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    evil = "</script><b>&"
    write_study(tmp_path, ("optm",), seeds=(0,), rounds=2, settings=({"task.name": evil}, {}))
    page = render_page(Study.load(tmp_path), [])
    assert evil not in page
    assert "&lt;/script&gt;&lt;b&gt;&amp;" in page


def test_a_trusted_server_is_a_baseline_and_no_run_without_privacy(tmp_path: Path) -> None:
    target = {"privacy.epsilon": 8.0, "secagg.enabled": True}
    central = {"privacy.epsilon": 8.0, "mechanism.name": CENTRAL}
    write_study(tmp_path, ("optm", "rqm"), rounds=2, settings=(target,))
    write_study(tmp_path, (CENTRAL,), rounds=2, settings=(central,))
    study = Study.load(tmp_path)
    rows = study.results[study.results["baseline"]]
    assert set(rows["series"]) == {CENTRAL}
    assert rows["private"].all()
    assert set(rows["total"]) == {8.0}
    assert study.settings == ("",)
    assert f"for {CENTRAL}: ε at δ = 1e-05, client total, central view" in render_page(study, [])
