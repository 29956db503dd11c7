from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape
from rich.console import Console
from scipy import stats

import fl_privquant as pq
from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.cli.plots import colour_of
from fl_privquant.errors import InvalidSpecError
from simulations.report import build_report, show_report
from simulations.report.__main__ import main
from simulations.report.build import write_tidy_tables
from simulations.report.charts import (
    CERTIFIED,
    charts_of,
    dimensions_of,
    extent,
    findings_of,
    panels_of,
    shown,
)
from simulations.report.compared import verdict_of
from simulations.report.drawings import draw_chart, drawings_of
from simulations.report.html_page import render
from simulations.report.marks import mark_of, marks_of
from simulations.report.statistics import student_interval
from simulations.report.study_data import Study
from simulations.report.summary_tables import LEVELS, large_total, privacy_table, summary_table
from simulations.report.terminal import print_summary
from tests.simulations.synthetic import mechanism_of, write_run, write_study

LABELS = ("optm", "one_bit", "stochastic", "none")


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def page_of(study: Study) -> str:
    return render(study, drawings_of(study))


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


def test_everything_is_made(sweep: Path) -> None:
    names = {
        str(path.relative_to(sweep)) for path in sweep.rglob("*") if path.parent.name in ("figures", "tables")
    }
    charts = ("accuracy-rounds", "accuracy-epsilon", "accuracy-bytes", "error-rounds")
    panels = [f"{chart}--epsilon-{value}" for chart in charts if "epsilon" not in chart for value in (0.5, 1)]
    figures = ["accuracy-epsilon", "compared-1", "compared-2", *panels]  # a comparison for each epsilon
    figures += [f"laws--{name}--epsilon-{value}" for name in ("optm", "one_bit") for value in (0.5, 1)]
    expected = {f"figures/{name}.{kind}" for name in figures for kind in ("pdf", "png")}
    expected |= {f"tables/{name}.{kind}" for name in ("privacy", "summary") for kind in ("md", "tex")}
    assert names == expected
    assert all((sweep / name).stat().st_size > 0 for name in names)
    assert (sweep / "report.html").stat().st_size < 2_000_000


def test_runs_that_evaluate_nothing_stand_beside_others(tmp_path: Path) -> None:
    settings = ({"task.name": "evaluated"}, {"task.name": "not evaluated"})
    for path in write_study(tmp_path / "mixed", ("optm",), seeds=(0,), rounds=2, settings=settings):
        rows = pd.read_parquet(path / "rounds.parquet")
        if json.loads((path / "config.json").read_text())["task"]["name"] == "not evaluated":
            rows[["accuracy", "loss"]] = float("nan")
            rows.to_parquet(path / "rounds.parquet", index=False)
            summary = json.loads((path / "summary.json").read_text()) | {"accuracy": None, "loss": None}
            (path / "summary.json").write_text(json.dumps(summary))
    build_report(tmp_path / "mixed")
    assert len(list((tmp_path / "mixed" / "figures").glob("accuracy-rounds*.png"))) == 1


def test_tidy_tables_hold_each_round_and_run_once(sweep: Path) -> None:
    rounds, summary = (pd.read_parquet(sweep / f"{name}.parquet") for name in ("rounds", "summary"))
    # optm and one_bit at two epsilons, stochastic and none once, three seeds each, rounds 0 to 5.
    assert len(summary) == 18
    assert len(rounds) == 18 * 6
    assert not rounds.duplicated(["run", "round"]).any()
    assert not summary.duplicated("run").any()
    assert {"label", "epsilon", "bits", "seed", "accuracy", "bytes_up", "epsilon_client_total"} <= set(rounds)
    for name, frame in (("rounds", rounds), ("summary", summary)):
        pd.testing.assert_frame_equal(pd.read_csv(sweep / f"{name}.csv"), frame, check_dtype=False)


def test_building_again_changes_nothing(sweep: Path) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}

    before = contents()
    build_report(sweep)
    after = contents()
    assert after.keys() == before.keys()
    assert [path for path in after if after[path] != before[path]] == []


def test_page_needs_no_javascript_for_text_and_tables(sweep: Path) -> None:
    text = (sweep / "report.html").read_text()
    assert text.index('id="verdict"') < text.index('id="charts"') < text.index('id="privacy-table"')
    assert text.index('id="privacy-table"') < text.index('id="laws"')
    assert all(str(escape(sentence)) in text for sentence in verdict_of(Study.load(sweep)))
    assert text.index('id="laws"') < text.index('id="results-table"') < text.index('id="settings"')
    assert text.index('id="settings"') < text.index('id="provenance"')
    assert text.count("<table") == text.count("<thead>")
    assert "Simulated privacy." in text
    for run in Study.load(sweep).runs:
        assert all(str(escape(line)) in text for line in run.statement)
    assert "<script" not in text
    assert "http://" not in text
    assert "https://" not in text


def test_tables_name_unit_and_view(sweep: Path) -> None:
    for name in ("privacy", "summary"):
        for kind in ("md", "tex"):
            text = (sweep / "tables" / f"{name}.{kind}").read_text()
            for heading in (CERTIFIED, PrivacyStatement.heading(Unit.TOTAL)):
                assert heading.replace("ε", "$\\varepsilon$") in text or heading in text
    latex = (sweep / "tables" / "summary.tex").read_text()
    assert "one\\_bit" in latex
    assert "$\\pm$" in latex
    assert "ε" not in latex
    assert all(line.count("&") == 7 for line in latex.splitlines() if line.endswith("\\\\"))


def test_privacy_table_merges_what_does_not_matter(tmp_path: Path) -> None:
    write_study(tmp_path, ("optm", "gaussian"), bits=(1, 2), seeds=(0,), rounds=2)
    table = privacy_table(Study.load(tmp_path))
    cells = {row["mechanism"]: row for row in table.rows}
    assert len(table.rows) == 2
    assert cells["optm"]["bits"] == "1, 2"
    assert cells["gaussian"]["δ of rounds and totals"] == "0.0013"
    assert cells["optm"][CERTIFIED] == "1"
    assert cells["optm"][LEVELS["epsilon_client_round"]] == "650"
    assert cells["optm"][LEVELS["epsilon_client_total"]] == "1300"
    assert LEVELS["epsilon_client_total_sum"] not in table.headings


def test_privacy_table_has_the_aggregate_view_where_there_were_sums(tmp_path: Path) -> None:
    write_study(tmp_path, ("optm",), seeds=(0,), rounds=2, settings=({}, {"secagg.enabled": True}))
    table = privacy_table(Study.load(tmp_path))
    cells = {row["mechanism"]: row for row in table.rows}
    plain, secure = cells["optm"], cells["optm + secure aggregation"]
    assert plain[LEVELS["epsilon_client_total_sum"]] == "–"
    assert secure[LEVELS["epsilon_client_total_sum"]] == "162.5"
    assert secure[LEVELS["epsilon_client_total"]] == "1300"
    assert secure["counted by"] == "blanket+pld / pure"
    assert "at least 18 honest clients in each" in table.caption


def test_means_and_intervals_are_student(tmp_path: Path) -> None:
    values = np.array([0.90, 0.91, 0.94, 0.95])
    mean, low, high, count = student_interval(values)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (mean, low, high, count) == pytest.approx((values.mean(), expected.low, expected.high, 4))
    mean, low, high, _ = student_interval(values, logarithmic=True)
    assert mean == pytest.approx(stats.gmean(values))
    assert low * high == pytest.approx(mean**2)
    assert math.isnan(student_interval([0.9])[1])
    assert all(map(math.isnan, student_interval([0.9, math.nan, math.inf])[:3]))
    write_study(tmp_path, ("optm", "none"), seeds=(0, 1, 2), rounds=3)
    table = summary_table(Study.load(tmp_path))
    accuracies = Study.load(tmp_path).summary.query("label == 'optm'")["accuracy"]
    half = stats.t.ppf(0.975, 2) * accuracies.std() / math.sqrt(3)
    assert f"{100 * accuracies.mean():.1f} ± {100 * half:.1f}" in table.rows[0].values()
    assert "mean ± half of the 95 % interval over seeds (Student t). MB" in table.caption


def test_two_seeds_are_too_few_for_an_interval_that_can_be_read(small: Path) -> None:
    """With one degree of freedom Student's interval is 12.7 standard errors: ± 65 points of accuracy."""
    study = Study.load(small)
    table = summary_table(study)
    accuracies = study.summary.query("label == 'optm'")["accuracy"]
    assert f"{100 * accuracies.mean():.1f}" in table.rows[0].values()
    assert "±" not in "".join(table.rows[0].values())
    assert "which needs three seeds or more; with fewer the mean stands alone" in table.caption
    for chart in (*charts_of(study), *findings_of(study)):
        assert all(curve.points[["low", "high"]].isna().all(axis=None) for curve in chart.curves)
    assert all("takes three seeds or more" in chart.caption for chart in findings_of(study))


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    write_study(tmp_path, ("optm",), seeds=(0,), rounds=2)
    study = Study.load(tmp_path)
    assert "±" not in "".join(summary_table(study).rows[0].values())
    assert "95 % interval" in page_of(study)


Damage = Callable[[Path], object]
DAMAGES: dict[str, tuple[Damage, str, str]] = {
    "unfinished": (lambda run: (run / "summary.json").unlink(), "unfinished", "after round 3 of 3"),
    "not begun": (
        lambda run: [path.unlink() for path in run.iterdir() if path.name != "config.json"],
        "unfinished",
        "rounds.parquet: missing",
    ),
    "config cut": (lambda run: cut(run / "config.json"), "damaged", "config.json"),
    "config a list": (lambda run: (run / "config.json").write_text("[1]"), "damaged", "config.json"),
    "config not text": (
        lambda run: (run / "config.json").write_bytes(b"\xff\xfe\x00"),
        "damaged",
        "config.json",
    ),
    "summary cut": (lambda run: cut(run / "summary.json"), "damaged", "summary.json"),
    "provenance missing": (
        lambda run: (run / "provenance.json").unlink(),
        "damaged",
        "provenance.json: missing",
    ),
    "parquet cut": (lambda run: cut(run / "rounds.parquet"), "repaired", "rounds.csv was read instead"),
    "both cut": (
        lambda run: (cut(run / "rounds.parquet"), (run / "rounds.csv").write_text("")),
        "damaged",
        "rounds.csv: cannot be read",
    ),
    "mechanism cut": (lambda run: cut(run / "mechanism.pqm"), "repaired", "mechanism.pqm"),
    "rounds and summary differ": (
        lambda run: edit_json(run / "summary.json", round=7),
        "damaged",
        "summary.json says 7",
    ),
    "claims too much": (
        lambda run: edit_json(run / "provenance.json", certified_epsilon=0.25),
        "damaged",
        "mechanism.pqm has ε = 1, δ = 0 (coordinate release, local view)",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_bad_file_costs_one_run_and_is_named(small: Path, name: str) -> None:
    damage, kind, words = DAMAGES[name]
    run = sorted(small.glob("optm-*"))[0]
    damage(run)
    before = {path: path.read_bytes() for path in run.iterdir()}
    study = Study.load(small)
    page = page_of(study)
    write_tidy_tables(study)
    (problem,) = study.problems
    assert (problem.run, problem.kind) == (run.name, kind)
    assert words in problem.message
    assert words in page
    assert len(study.runs) == (4 if kind == "repaired" else 3)
    assert (run.name in set(pd.read_parquet(small / "summary.parquet")["run"])) == (kind == "repaired")
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_repeated_rounds_count_once_and_missing_ones_are_noticed(small: Path) -> None:
    resumed, torn = sorted(small.glob("optm-*"))
    rows = pd.read_parquet(resumed / "rounds.parquet")
    later = rows[rows["round"] == 2].assign(accuracy=0.5)
    pd.concat([rows, later]).to_parquet(resumed / "rounds.parquet", index=False)
    rows = pd.read_parquet(torn / "rounds.parquet")
    rows[rows["round"] != 2].to_parquet(torn / "rounds.parquet", index=False)
    (torn / "rounds.csv").unlink()
    study = Study.load(small)
    kept = study.rounds[study.rounds["run"] == resumed.name]
    assert kept["round"].tolist() == [0, 1, 2, 3]
    assert kept["accuracy"].tolist()[2] == 0.5
    assert "some missing" in study.problems[0].message


def test_nothing_finished_is_a_report_too(small: Path) -> None:
    for run in small.iterdir():
        (run / "summary.json").unlink()
    page = build_report(small).read_text()
    assert "No run of this study has finished yet" in page
    assert page.count("stopped after round 3 of 3") == 4
    show_report(small)


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


def test_command_prints_the_table_and_the_path(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["report", str(small)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "certified ε" in printed
    assert "coordinate release" in printed
    assert "local view" in printed
    assert f"report: {small / 'report.html'}" in printed


def test_what_varies_is_found(tmp_path: Path) -> None:
    optm = mechanism_of("optm", 1.0, 2)
    for seed in (0, 1):
        write_run(tmp_path, "optm", optm, 1.0, seed, 2, {})
        write_run(tmp_path, "optm", optm, 1.0, seed, 2, {"task.name": "cancer", "task.model": "mlp"})
        # Its own clip is a part of one_bit, and no reason for a panel of its own.
        write_run(tmp_path, "one_bit", mechanism_of("one_bit", 1.0, 1), 1.0, seed, 2, {"encoding.clip": 0.2})
    study = Study.load(tmp_path)
    assert study.varying == ("task.name",)
    assert study.settings == ("task cancer", "task digits")
    assert study.series == ("optm", "one_bit")
    assert study.varied["task.model"] == ["mlp", "softmax"]
    assert study.varied["encoding.clip"] == ["0.1", "0.2"]
    assert study.constant["federation.num_clients"] == 20
    assert [each.key for each in dimensions_of(study)] == ["setting"]
    drawn = draw_chart(charts_of(study)[0], dimensions_of(study), marks_of(study.protects))
    names = [drawing.name for drawing in drawn]
    assert names == [f"accuracy-rounds--task-{task}" for task in ("cancer", "digits")]
    write_tidy_tables(study)
    assert set(pd.read_parquet(tmp_path / "rounds.parquet")["task.name"]) == {"digits", "cancer"}


def test_bits_vary_only_within_a_setting(tmp_path: Path) -> None:
    """A mechanism with other bits in another setting has one point in each, which is nothing to draw."""
    cancer = {"task.name": "cancer"}
    write_run(tmp_path, "optm", mechanism_of("optm", 1.0, 2), 1.0, 0, 2, {})
    write_run(tmp_path, "optm", mechanism_of("optm", 1.0, 3), 1.0, 0, 2, cancer)
    assert [each.key for each in dimensions_of(Study.load(tmp_path))] == ["setting"]
    write_run(tmp_path, "optm", mechanism_of("optm", 1.0, 2), 1.0, 0, 2, cancer)
    study = Study.load(tmp_path)
    assert [each.key for each in dimensions_of(study)] == ["setting", "bits"]
    assert "accuracy-bits" in [chart.key for chart in charts_of(study)]


def test_secure_aggregation_is_a_series_of_its_own(tmp_path: Path) -> None:
    optm = mechanism_of("optm", 1.0, 2)
    write_run(tmp_path, "optm", optm, 1.0, 0, 2, {})
    write_run(tmp_path, "optm", optm, 1.0, 0, 2, {"secagg.enabled": True, "secagg.threshold": 7})
    study = Study.load(tmp_path)
    assert study.series == ("optm", "optm + secure aggregation")
    assert study.varying == ()
    plain, secure = map(mark_of, study.series)
    assert plain.color == secure.color == colour_of("optm")
    assert plain.dash != secure.dash


def test_a_number_that_varies_has_a_chart(tmp_path: Path) -> None:
    settings = [{"partition.name": "dirichlet", "partition.alpha": alpha} for alpha in (10.0, 0.1, 1.0)]
    write_study(tmp_path, ("optm",), seeds=(0, 1), rounds=2, settings=settings)
    study = Study.load(tmp_path)
    assert study.settings == tuple(f"partition.alpha {alpha:g}" for alpha in (0.1, 1, 10))
    (chart,) = (chart for chart in charts_of(study) if chart.key == "accuracy-partition.alpha")
    assert chart.curves[0].points["x"].tolist() == [0.1, 1.0, 10.0]
    assert chart.log_x


def test_panels_show_what_is_asked_and_what_has_no_epsilon(sweep: Path) -> None:
    study = Study.load(sweep)
    dimensions = dimensions_of(study)
    halves = ("all", "second half")
    assert [(each.key, each.values) for each in dimensions] == [("epsilon", (0.5, 1.0)), ("rounds", halves)]
    charts = {chart.key: chart for chart in charts_of(study)}
    panels = panels_of(charts["accuracy-rounds"], dimensions)
    places = [{"epsilon": epsilon, "rounds": half} for epsilon in (0.5, 1.0) for half in halves]
    assert [place for place, _ in panels] == places
    for place, panel in panels:
        assert [curve.series for curve in panel.curves] == list(LABELS)
        assert all(shown(curve, place) for curve in panel.curves)
        first = 0 if place["rounds"] == "all" else 3
        assert {curve.points["x"].iloc[0] for curve in panel.curves} == {first}
    assert [place for place, _ in panels_of(charts["accuracy-epsilon"], dimensions)] == [{}]
    against = charts["accuracy-epsilon"].curves
    assert [curve.flat for curve in against] == [False, False, True, True]
    assert against[0].points["x"].tolist() == pytest.approx([0.5, 1.0])
    # An exact mean has an error of some 10⁻¹⁷, which is no reason to squeeze all others.
    error = charts["error-rounds"]
    assert "Below the axis, as good as exact: none." in error.caption
    assert extent(error)[0] > 1e-7


def test_tasks_without_accuracy_show_their_loss(small: Path) -> None:
    for run in small.iterdir():
        rows = pd.read_parquet(run / "rounds.parquet").assign(accuracy=math.nan)
        rows.to_parquet(run / "rounds.parquet", index=False)
        edit_json(run / "summary.json", accuracy=math.nan)
    study = Study.load(small)
    assert "test loss" in page_of(study)
    assert charts_of(study)[0].key == "loss-rounds"
    assert "loss" in summary_table(study).headings


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    evil = "</script><b>&"
    write_study(tmp_path, ("optm",), seeds=(0,), rounds=2, settings=({"task.name": evil}, {}))
    page = page_of(Study.load(tmp_path))
    assert evil not in page
    assert "&lt;/script&gt;&lt;b&gt;&amp;" in page


def test_findings_show_errors_as_bars_and_accuracies_as_points(sweep: Path, tmp_path: Path) -> None:
    first, second = findings_of(Study.load(sweep))
    assert (first.bars, first.percent, first.log_x) == (True, False, False)
    assert [curve.name for curve in first.curves] == ["optm", "one_bit"]
    assert first.caption.startswith("At ε = 0.5 for one coordinate and one release.")
    assert second.caption.startswith("At ε = 1 for")
    write_study(tmp_path, ("optm", "rqm"), seeds=(0, 1), rounds=2, settings=({"privacy.epsilon": 8.0},))
    (accuracy,) = findings_of(Study.load(tmp_path))
    assert (accuracy.bars, accuracy.percent) == (False, True)
    best, other = (curve.points["mean"].iloc[0] for curve in accuracy.curves)
    assert best > other


def test_a_trusted_server_has_its_total_and_is_no_run_without_privacy(tmp_path: Path) -> None:
    target = {"privacy.epsilon": 8.0, "privacy.delta": 2e-5, "mechanism.name": "central_gaussian"}
    write_run(tmp_path, "central_gaussian", pq.design("none"), None, 0, 2, target)
    write_study(tmp_path, ("optm",), seeds=(0,), rounds=2, settings=({"secagg.enabled": True},))
    for run in tmp_path.glob("none-*"):
        rows = pd.read_parquet(run / "rounds.parquet").assign(mechanism="central_gaussian")
        rows.to_parquet(run / "rounds.parquet", index=False)
        edit_json(run / "summary.json", mechanism="central_gaussian")
    study = Study.load(tmp_path)
    table = privacy_table(study)
    cells = {row["mechanism"]: row for row in table.rows}
    assert study.protects["central_gaussian"]
    assert cells["central_gaussian"][LEVELS["epsilon_client_total_sum"]] == "8 (trusted server)"
    assert cells["central_gaussian"][LEVELS["epsilon_client_total"]] == "∞ (not private)"
    assert cells["central_gaussian"]["δ of rounds and totals"] == "2e-05"
    assert "where the server itself sees every update" in table.caption
    assert list(table.headings)[1] == LEVELS["epsilon_client_total_sum"]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_terminal_ends_with_the_verdict_and_cuts_no_number(sweep: Path, width: int) -> None:
    study = Study.load(sweep)
    console = Console(width=width, record=True, file=io.StringIO())
    print_summary(study, console)
    text = console.export_text()
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    said = " ".join(text.split())
    assert said.endswith(" ".join(verdict_of(study)[-1].split()))
    table = summary_table(study)
    for row in table.rows:
        assert " ".join(row["MSE of the mean"].split()) in said
        assert row["accuracy, %"] in said


def test_pictures_are_elements_of_one_page(sweep: Path) -> None:
    """Their ids are distinct, they bring no style, and each series is a group that can be hidden."""
    study = Study.load(sweep)
    drawings = drawings_of(study)
    text = "".join(drawing.svg for drawing in drawings)
    ids = [name for drawing in drawings for name in set(re.findall(r' id="([^"]+)"', drawing.svg))]
    assert len(ids) == len(set(ids)) > 0
    assert not re.search(r"<style|http:", text)
    rounds = next(drawing for drawing in drawings if drawing.key == "accuracy-rounds")
    for number, series in enumerate(study.series):
        assert f'<g data-series="{number}"><title>{series}</title>' in rounds.svg
    assert re.search(r"Where the curves end: optm [0-9.]+%; ", rounds.svg)


def test_totals_of_secure_sums_are_judged_as_sums(tmp_path: Path) -> None:
    settings = ({"secagg.enabled": True},)
    for path in write_study(tmp_path, ("optm",), seeds=(0,), rounds=2, settings=settings):
        rounds = pd.read_parquet(path / "rounds.parquet").assign(epsilon_client_total_sum=8.0)
        rounds.to_parquet(path / "rounds.parquet", index=False)
        edit_json(path / "summary.json", epsilon_client_total_sum=8.0)
    assert large_total(Study.load(tmp_path)) == ""
    for path in tmp_path.glob("optm-*"):
        edit_json(path / "summary.json", epsilon_client_total_sum=80.0)
    assert "ε = 80, δ = 0 (client total, aggregate view)" in large_total(Study.load(tmp_path))
