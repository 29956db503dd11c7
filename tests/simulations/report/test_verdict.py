"""The sentences that a report opens with, on made-up results whose answer is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fl_privquant.statement import PrivacyStatement, Unit
from simulations.report.measures import ACCURACY, ERROR, LOSS, Measure
from simulations.report.statistics import student_interval
from simulations.report.study import Study
from simulations.report.verdict import MAX_COMPARISONS, Comparison, Findings, compare, describe, verdict
from tests.simulations.synthetic import CENTRAL, write_study

BUDGET = "At ε = 8, δ = 1e-05 (client total, aggregate view of 20)"
BASELINE = "central"


def compared(
    results: dict[str, list[float]], measure: Measure = ACCURACY, errors: dict[str, list[float]] | None = None
) -> Comparison:
    """A comparison in which each series has a result for seeds 0, 1, ..."""
    rows = [
        {
            "series": series,
            "name": f"{series} with 2 bits",
            "seed": seed,
            "baseline": series == BASELINE,
            ERROR.key: errors[series][seed] if errors else math.nan,
            measure.key: value,
            "statement": PrivacyStatement(1.0, 1e-5, Unit.TOTAL),
        }
        for series, values in results.items()
        for seed, value in enumerate(values)
    ]
    return Comparison(BUDGET, measure, pd.DataFrame(rows))


def test_losses_to_a_trusted_server_are_paired_by_seed() -> None:
    central, ours, poor = [0.90, 0.80, 0.85], [0.898, 0.792, 0.847], [0.70, 0.60, 0.66]
    found = verdict([compared({BASELINE: central, "ours": ours, "poor": poor})])
    difference = 100 * (np.array(central) - np.array(ours))
    # Two intervals that hold together in 95 % of all cases: each is wrong in 2.5 % of them.
    low, high = stats.ttest_1samp(difference, 0.0).confidence_interval(0.975)
    # The seeds differ by ten points, pairs of one seed by less than one.
    interval = f"−{-low:.1f} to {high:.1f}"
    assert found.answers == (
        f"{BUDGET}, use ours with 2 bits: it loses 0.4 points of accuracy to a trusted server, within the "
        f"noise (95 % interval {interval}).",
    )
    ((budget, table),) = found.comparisons
    assert budget == BUDGET
    rows = table.set_index("mechanism")
    best, trusted = "points of accuracy below ours with 2 bits", "points of accuracy below a trusted server"
    assert list(rows.columns) == [best, trusted]
    assert rows.loc["poor", best].startswith("19.2 (")
    assert rows[trusted].to_dict() == {"poor": "19.7 (17.6 to 21.7)", "ours": f"0.4 ({interval})"}
    assert rows.loc["ours", best] == "–"


def test_accuracies_within_the_noise_leave_it_to_the_error() -> None:
    accuracies = {BASELINE: [0.8, 0.85, 0.8], "ours": [0.82, 0.81, 0.8], "poor": [0.83, 0.82, 0.8]}
    errors = {BASELINE: [1.0, 2.0, 1.5], "ours": [1.1, 2.2, 1.65], "poor": [3.0, 6.1, 4.5]}
    found = verdict([compared(accuracies, errors=errors)])
    assert found.answers == (
        f"{BUDGET}, use ours with 2 bits: the squared error of its mean update is 1.10 times that of a "
        "trusted server (95 % interval 1.10 to 1.10).",
    )
    ((_, table),) = found.comparisons
    rows = table.set_index("mechanism")
    assert rows.loc["poor", "squared error ÷ that of ours with 2 bits"].startswith("2.74 (")
    assert rows.loc["ours", "squared error ÷ that of a trusted server"] == "1.10 (1.10 to 1.10)"
    # An exact mean has no factor, and is not passed over.
    exact = {"none": [0.0] * 3, "a": [1.0] * 3, "b": [2.0] * 3}
    accuracies = {"none": [0.81, 0.7, 0.75], "a": [0.8, 0.71, 0.74], "b": [0.79, 0.7, 0.75]}
    (use,) = verdict([compared(accuracies, errors=exact)]).answers
    assert "use none with 2 bits: it has the highest accuracy; a is within the noise of it (0.3 points" in use


def test_errors_are_compared_by_factors() -> None:
    results = {"rqm": [2.0, 2.2, 2.1], "optm": [1.0, 1.1, 1.05], "one_bit": [1.5, 1.65, 1.575]}
    found = verdict([compared(results, ERROR)])
    assert found.answers == (
        f"{BUDGET}, use optm with 2 bits: its mean update has the least squared error; one_bit, the next "
        "best, has 1.50 times its error (95 % interval 1.50 to 1.50).",
    )
    ((_, table),) = found.comparisons
    assert table.to_numpy().tolist() == [["one_bit", "1.50 (1.50 to 1.50)"], ["rqm", "2.00 (2.00 to 2.00)"]]
    results["one_bit"] = [1.0, 1.3, 1.05]
    logs = np.log(np.array(results["one_bit"]) / results["optm"])
    half = stats.t.ppf(1 - 0.05 / 4, 2) * logs.std(ddof=1) / math.sqrt(3)
    mean, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    (use,) = verdict([compared(results, ERROR)]).answers
    interval = f"({mean:.2f} times its error, 95 % interval {low:.2f} to {high:.2f})"
    assert use.endswith(f"; one_bit is within the noise of it {interval}.")


@pytest.mark.parametrize(("factor", "text"), [(1.004, "1.004"), (99.5, "99.50"), (24660.0, "24,660")])
def test_factors_have_the_digits_that_matter(factor: float, text: str) -> None:
    (use,) = verdict([compared({"a": [1.0, 1.0, 1.0], "b": [factor] * 3}, ERROR)]).answers
    assert f" {text} times its error" in use


@pytest.mark.parametrize("count", [1, 2])
def test_few_seeds_have_no_interval_and_recommend_nothing_for_sure(count: int) -> None:
    """With one degree of freedom Student's interval is 12.7 standard errors."""
    found = verdict([compared({"a": [2.0, 2.3][:count], "b": [1.0, 1.1][:count]}, ERROR)])
    use, last = found.answers
    seeds = "one seed" if count == 1 else "2 seeds"
    assert "perhaps use b with 2 bits" in use
    assert use.endswith(f"times its error ({seeds}, no interval).")
    ((_, table),) = found.comparisons
    assert table.iloc[0, 1].endswith(f"({seeds}, no interval)")
    assert last.startswith(f"{seeds.capitalize()} cannot tell a difference from chance: run more")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_run_that_diverged_takes_its_series_out(bad: float) -> None:
    results = {BASELINE: [0.9, 0.8, 0.8], "ours": [0.9, bad, 0.8], "other": [0.85, 0.77, 0.8]}
    *found, last = verdict([compared(results)]).answers
    assert not any("ours" in sentence for sentence in found)
    assert last == "ours has runs without a finite result, and has been left out."


def test_one_series_is_told_alone_and_nothing_is_no_sentence() -> None:
    assert verdict([]) == Findings()
    (only,) = verdict([compared({"ours": [0.1, 0.95, 0.9]})]).answers
    assert only == (
        f"{BUDGET}, ours with 2 bits has an accuracy of 65.0 (0.0 to 100.0) % (3 seeds); there is nothing to "
        "compare it with."
    )


def test_no_interval_reaches_beyond_what_is_possible() -> None:
    wild = compared({BASELINE: [0.9, 0.1, 0.9], "ours": [0.1, 0.9, 0.2]})
    difference = wild.differences(BASELINE)["ours"]
    assert difference[1:3] == (-100.0, 100.0)
    assert not ACCURACY.is_significant(difference)


def test_many_comparisons_are_not_all_told() -> None:
    many = [compared({"a": [0.9, 0.8, 0.7], "b": [0.7, 0.65, 0.5]}, LOSS)] * (MAX_COMPARISONS + 3)
    sentences = verdict(many).answers
    assert sentences[MAX_COMPARISONS:] == ("3 more comparisons are in the table of results.",)
    assert "use b with 2 bits: it has the lowest loss; a, the next best, has 0.2 more loss" in sentences[0]


def test_intervals_are_students() -> None:
    values = [0.5, 0.7, 0.9, 0.65]
    mean, low, high, seeds = student_interval(values)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert mean == pytest.approx(np.mean(values))
    assert seeds == 4
    assert (low, high) == pytest.approx(tuple(expected))
    assert math.isnan(student_interval([0.9]).low)
    assert all(map(math.isnan, student_interval([0.9, math.nan, math.inf])[:3]))


def test_runs_are_compared_at_an_equal_epsilon_only(tmp_path: Path) -> None:
    write_study(tmp_path, ("optm", "rqm", "none"), epsilons=(0.5, 1.0), seeds=(0, 1, 2), rounds=2)
    found = compare(Study.load(tmp_path))
    assert [each.budget[: each.budget.index(",")] for each in found] == ["At ε = 0.5", "At ε = 1"]
    assert all("(coordinate release, local view" in each.budget for each in found)
    assert all(sorted(set(each.runs["series"])) == ["optm", "rqm"] for each in found)
    assert all(each.measure is ERROR for each in found)


def test_a_target_for_the_whole_run_is_compared_by_accuracy(tmp_path: Path) -> None:
    target = {"privacy.epsilon": 8.0, "secagg.enabled": True}
    write_study(tmp_path, ("optm", "rqm"), rounds=2, settings=(target,))
    write_study(tmp_path, (CENTRAL,), rounds=2, settings=({"privacy.epsilon": 8.0},))
    (found,) = compare(Study.load(tmp_path))
    assert (found.measure, found.baseline) == (ACCURACY, CENTRAL)
    assert found.budget.startswith("At ε = 8, δ = 1e-05 (client total, aggregate view of 18")


def test_each_panel_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    settings = ({"panel": "A. first"}, {"panel": "B. second", "federation.num_clients": 50})
    write_study(tmp_path, ("optm", "rqm"), rounds=2, settings=settings)
    study = Study.load(tmp_path)
    assert (study.settings, study.varying) == (("A. first", "B. second"), ("panel",))
    assert len(describe(study).answers) == 2 * len(describe(study, "A. first").answers)
