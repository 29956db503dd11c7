"""Tables of a report: on the terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fl_privquant.errors import InvalidSpecError
from fl_privquant.statement import PrivacyStatement, Unit
from simulations.report import build_report, write_latex
from simulations.report.measures import ERROR
from simulations.report.study import Study
from simulations.report.tables import (
    escape_latex,
    pivot_table,
    privacy_table,
    results_caption,
    results_table,
    to_markdown,
)
from simulations.report.terminal import print_summary
from simulations.report.verdict import compare, describe
from tests.simulations.synthetic import write_study


def summary_of(study: Study, width: int = 80, **options: object) -> str:
    file = io.StringIO()
    print_summary(study, Console(file=file, width=width), **options)  # type: ignore[arg-type]
    return file.getvalue()


@pytest.fixture(scope="module")
def panels(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two questions, as the study of ``make run`` has them."""
    folder = tmp_path_factory.mktemp("panels")
    target = {"privacy.epsilon": 8.0, "secagg.enabled": True}
    second = {"panel": "B. second?", "federation.num_clients": 50, **target}
    labels = ("optm", "optm paper", "rqm", "erm", "one_bit", "optm independent")
    write_study(folder, labels, rounds=2, settings=({"panel": "A. first?"}, second))
    return Study.load(folder)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_terminal_cuts_no_number_and_shows_at_most_40_lines(panels: Study, width: int) -> None:
    shown = summary_of(panels, width)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for setting in panels.settings:
        # `make run` prints the table of one panel at a time.
        assert len(summary_of(panels, width, panels={setting}).splitlines()) + 2 <= 40
        for row in results_table(panels, setting).to_numpy():
            assert all(set(cell.split()) <= set(shown.split()) for cell in row)


def test_a_sweep_shows_its_own_panel_and_the_verdicts_of_the_others(panels: Study) -> None:
    shown = summary_of(panels, panels={"B. second?"})
    assert shown.startswith("B. second?")
    own, _, others = shown.partition("\nA. first?\n")
    assert own.count("─\n") == 1
    (answer,) = describe(panels, "A. first?").answers
    assert " ".join(others.split()) == answer
    assert summary_of(panels).count("─\n") == 2


def test_where_all_are_compared_the_best_comes_first(panels: Study, tmp_path: Path) -> None:
    for setting in panels.settings:
        shown = list(results_table(panels, setting)["mechanism"])
        (comparison,) = (each for each in compare(panels) if each.setting == setting)
        assert shown[0] == comparison.decided.best
    # Of several epsilons none is the best.
    write_study(tmp_path, ("optm", "rqm"), epsilons=(1.0, 2.0), rounds=2)
    several = results_table(Study.load(tmp_path), "")
    assert list(several["mechanism"]) == [
        f"{name}, designed for {epsilon}" for name in ("optm", "rqm") for epsilon in (1, 2)
    ]


def test_captions_say_what_an_epsilon_is_about(panels: Study) -> None:
    local, secure = (results_caption(panels, setting) for setting in panels.settings)
    assert local.startswith("ε at δ = 1e-05, client total, local view")
    assert secure.startswith("ε at δ = 1e-05, client total, aggregate view")
    assert "±: half of the 95 % interval, 3 seeds." in local


def test_the_privacy_table_states_the_largest_figures_of_every_unit_and_view(tmp_path: Path) -> None:
    setting = {"privacy.epsilon": 8.0, "secagg.enabled": True}
    runs = write_study(tmp_path, ("optm",), seeds=(0, 1), rounds=2, settings=(setting,))
    path = runs[1] / "provenance.json"
    provenance = json.loads(path.read_text())
    provenance["statements"][2] |= {"epsilon": 9.0, "delta": 2e-5}
    path.write_text(json.dumps(provenance))
    rows = privacy_table(Study.load(tmp_path))
    assert rows[["what is protected", "what is seen", "ε", "δ"]].to_numpy().tolist() == [
        ["coordinate release", "local view", "1", "0"],
        ["client total", "local view", "1300", "1e-05"],
        ["client total", "aggregate view of 18", "9", "2e-05"],
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_interval_takes_three_seeds(count: int, tmp_path: Path) -> None:
    write_study(tmp_path, ("optm",), seeds=range(count), rounds=2)
    study = Study.load(tmp_path)
    table = results_table(study, "")
    assert ("±" in table["accuracy, %"].iloc[0]) == (count == 3)
    assert ("an interval takes three or more" in results_caption(study, "")) == (count < 3)


EPSILONS = {7.4519: "7.452", 24_660.0: "24,660", 987_654_321.0: "987,700,000"}


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_table_shows_the_whole_number(epsilon: float, tmp_path: Path) -> None:
    study = tmp_path / "study"
    for run in write_study(study, ("optm",), seeds=(0, 1), rounds=2):
        provenance = json.loads((run / "provenance.json").read_text())
        provenance["statements"][1]["epsilon"] = epsilon
        (run / "provenance.json").write_text(json.dumps(provenance))
    assert f">{EPSILONS[epsilon]}<" in build_report(study).read_text()
    for name in ("results", "privacy"):
        assert f"| {EPSILONS[epsilon]} |" in (study / "tables" / f"{name}.md").read_text()
    for width in (40, 80, 140):
        assert EPSILONS[epsilon] in summary_of(Study.load(study), width).split(), width


@given(st.floats(1e-6, 1e9))
def test_epsilon_is_never_rounded_down(epsilon: float) -> None:
    shown = float(PrivacyStatement(epsilon, 0.0, Unit.TOTAL).epsilon_cell.replace(",", ""))
    assert epsilon * (1 - 1e-8) <= shown <= epsilon * 1.002


def test_latex_has_booktabs_intervals_and_bold_winners(tmp_path: Path) -> None:
    write_study(tmp_path, ("optm", "rqm", "one_bit", "none"), epsilons=(2.0, 4.0), rounds=2)
    paths = write_latex(tmp_path, ["epsilon"])
    assert [path.name for path in paths] == ["accuracy-1.tex", "loss-1.tex", "error-1.tex"]
    text = (tmp_path / "tables" / "error-1.tex").read_text()
    assert all(word in text for word in (r"\toprule", r"\midrule", r"\bottomrule", r"one\_bit", r"$\pm$"))
    assert r"$\varepsilon$ = 2 & $\varepsilon$ = 4" in text
    assert not set("εδ±%") & set(text.replace(r"\%", "").replace("% needs", ""))
    bold = [line for line in text.splitlines() if r"\textbf" in line]
    # optm errs least at both epsilons; nothing is told apart from the exact mean, which has no epsilon.
    assert [(line.split(" &")[0], line.count(r"\textbf")) for line in bold] == [("optm", 2)]


def test_a_pivot_has_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    write_study(tmp_path, ("optm", "rqm"), epsilons=(0.5, 1.0), bits=(1, 2), rounds=2)
    results = Study.load(tmp_path).results
    by_bits = pivot_table(results, ERROR, ["bits"])
    assert list(by_bits.columns) == ["mechanism", r"$\varepsilon$", "bits = 1", "bits = 2"]
    assert len(by_bits) == 4
    assert pivot_table(results, ERROR, ["epsilon", "bits"]).shape == (2, 5)
    for columns in (["rounds"], ["series", "epsilon", "bits"]):
        with pytest.raises(InvalidSpecError, match="expected some, not all, of series, epsilon, bits"):
            pivot_table(results, ERROR, columns)


def test_texts_are_escaped() -> None:
    assert to_markdown(pd.DataFrame({"a": ["x|y"]}), "C") == "C\n\n| a |\n| --- |\n| x\\|y |\n"
    assert escape_latex("ε: 50 % of one_bit") == r"$\varepsilon$: 50 \% of one\_bit"
