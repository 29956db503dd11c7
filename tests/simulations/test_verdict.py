"""The sentences that a report opens with, on made-up results whose answer is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from simulations.report.compared import comparisons_of, verdict_of
from simulations.report.study_data import Study
from simulations.report.verdict import (
    ACCURACY,
    ERROR,
    HANDSHAKE,
    LOSS,
    MOST_FINDINGS,
    NAME,
    TOTAL,
    Comparison,
    verdict,
)
from tests.simulations.synthetic import write_study

BUDGET = "At ε = 8, δ = 1e-05 for a client's whole run"


def compared(
    results: dict[str, list[float]], measure: str = ACCURACY, baseline: str | None = "central"
) -> Comparison:
    """A comparison in which each series has a result for seeds 0, 1, ..."""
    rows = [
        {"series": series, "seed": seed, measure: value}
        for series, values in results.items()
        for seed, value in enumerate(values)
    ]
    return Comparison(BUDGET, measure, pd.DataFrame(rows), baseline, "a trusted server")


def test_losses_to_the_baseline_are_paired_by_seed() -> None:
    central, ours, poor = [0.90, 0.80, 0.85], [0.898, 0.792, 0.847], [0.70, 0.60, 0.66]
    answer, first, last = verdict([compared({"central": central, "ours": ours, "poor": poor})])
    assert answer == f"{BUDGET}, the best mechanism is ours: it has the highest accuracy."
    lost = 100 * (np.array(central) - np.array(ours))
    # Two intervals that hold together in 95 % of all cases: each is wrong in 2.5 % of them.
    low, high = stats.ttest_1samp(lost, 0.0).confidence_interval(0.975)
    assert first == (
        "Compared with a trusted server, ours loses 0.4 points of accuracy (simultaneous 95 % interval "
        f"−{-low:.1f} to {high:.1f}) and poor loses 19.7 points of accuracy (17.6 to 21.7)."
    )
    # The seeds differ by ten points, pairs of one seed by less than one.
    assert last == (
        "With 3 seeds, ours does not differ significantly from a trusted server, which would take more than "
        f"{(high - low) / 2:.2g} points of accuracy, while poor does."
    )
    assert "1.2 points" in last


def test_a_sentence_about_errors_says_what_is_sent() -> None:
    comparison = compared({"central": [0.90, 0.80], "ours": [0.89, 0.79], "noisy": [0.88, 0.78]})
    sizes = {"central": 2.6, "ours": 0.8, "noisy": 1.07}
    runs = comparison.runs.assign(
        error=[1.0, 1.0, 1.1, 1.1, 1.2, 1.2],
        kilobytes=comparison.runs["series"].map(sizes),
        **{HANDSHAKE: 0.0},
    )
    _, _, second, _ = verdict([replace(comparison, runs=runs)])
    assert second.endswith(
        ". An encoded update takes 0.8 kB with ours and 1.07 with noisy (2.6 without encoding)."
    )
    masked = replace(comparison, runs=runs.assign(**{HANDSHAKE: 3.14}))
    besides = ", and the keys of secure aggregation take 3.14 kB besides, whatever the model."
    assert verdict([masked])[2] == second.removesuffix(".") + besides
    unknown = replace(comparison, runs=runs.assign(**{HANDSHAKE: math.nan}))
    assert verdict([unknown])[2] == second


@pytest.mark.parametrize(("error", "chance"), [(1.1, True), (0.9, False)])
def test_a_gain_without_a_smaller_error_may_be_chance(error: float, chance: bool) -> None:
    comparison = compared({"central": [0.5, 0.6, 0.55], "ours": [0.6, 0.705, 0.653]})
    runs = comparison.runs.assign(error=[1.0, 1.0, 1.0, error, error * 1.01, error * 0.99])
    _, first, *_ = verdict([replace(comparison, runs=runs)])
    words = (
        " Smaller errors do not explain what ours gained over a trusted server, as its mean updates err no "
        "less; it may be chance."
    )
    assert first.endswith(words) == chance
    assert "ours gains 10.3 points" in first


def test_a_gain_is_called_one() -> None:
    answer, first, *_ = verdict([compared({"central": [0.5, 0.6, 0.7], "ours": [0.6, 0.71, 0.81]})])
    assert answer == f"{BUDGET}, ours is the only mechanism without a trusted server."
    assert first == (
        "Compared with a trusted server, ours gains 10.7 points of accuracy (95 % interval 9.2 to 12.1)."
    )


def test_without_a_baseline_the_best_is_the_reference() -> None:
    results = {"a": [0.80, 0.82, 0.81], "b": [0.90, 0.92, 0.91]}
    answer, first, last = verdict([compared(results, baseline="central")])
    assert answer == f"{BUDGET}, the best mechanism is b: it has the highest accuracy."
    assert first.startswith("Compared with b, a loses 10.0 points of accuracy (95 % interval")
    assert last == "With 3 seeds, all of these differences are significant."
    losses = compared({"a": [2.0, 2.5, 2.2], "b": [1.0, 1.4, 1.3]}, LOSS, None)
    answer, first, _ = verdict([losses])
    assert answer == f"{BUDGET}, the best mechanism is b: it has the lowest loss."
    assert first.startswith("Compared with b, a loses 1 of loss")


@pytest.mark.parametrize(("seeds", "doubt"), [(1, "one seed"), (2, "2 seeds")])
def test_with_few_seeds_the_error_of_the_mean_decides(seeds: int, doubt: str) -> None:
    """Intervals of two seeds reached from −358.9 to 364.5 points, and the question went unanswered."""
    results = {"central": [0.80, 0.85], "a": [0.72, 0.81], "b": [0.79, 0.70]}
    comparison = compared({series: values[:seeds] for series, values in results.items()})
    errors = {"central": 1.0, "a": 1.5, "b": 1.2}
    names = {"central": "central", "a": "a with 4 bits", "b": "b with 1 bit"}
    runs = comparison.runs.assign(
        error=comparison.runs["series"].map(errors), **{NAME: comparison.runs["series"].map(names)}
    )
    answer, first, _, last = verdict([replace(comparison, runs=runs)])
    assert answer == (
        f"{BUDGET}, the best mechanism is b with 1 bit, by its mean update, which has the least squared "
        f"error: that of a is 1.25 times as large ({doubt}, no interval). Accuracy does not decide it: "
        f"{doubt} cannot tell accuracies from chance."
    )
    assert "interval" not in first.replace(f"({doubt}, no interval)", "")
    assert last == (
        f"{doubt.capitalize()} cannot tell a difference from chance: run more, for example seed=0,1,2,3,4."
    )
    # Where errors are not known, the accuracy is all there is.
    answer, *_ = verdict([replace(comparison, runs=runs.drop(columns="error"))])
    best = "b with 1 bit" if seeds == 1 else "a with 4 bits"
    assert answer.startswith(f"{BUDGET}, the best mechanism is perhaps {best}, by its accuracy; {doubt}")


def test_accuracies_that_do_not_differ_significantly_leave_it_to_the_error() -> None:
    comparison = compared({"a": [0.80, 0.70, 0.75], "b": [0.79, 0.72, 0.73]}, baseline=None)
    runs = comparison.runs.assign(error=[2.0, 2.1, 2.2, 1.0, 1.05, 1.1])
    answer, *_ = verdict([replace(comparison, runs=runs)])
    assert answer == (
        f"{BUDGET}, the best mechanism is b, by its mean update, which has the least squared error: that of "
        "a is 2.00 times as large (95 % interval 2.00 to 2.00). Accuracy does not decide it: that of a is "
        "the highest, but not by a significant difference."
    )


def test_an_exact_mean_is_not_passed_over() -> None:
    """Its error of zero has no part in factors; the least of the other errors is not the least of all."""
    comparison = compared({"none": [0.80, 0.70], "qsgd": [0.79, 0.69], "terngrad": [0.7, 0.6]}, baseline=None)
    runs = comparison.runs.assign(error=[0.0, 0.0, 1.0, 1.0, 2.0, 2.0])
    answer, *_ = verdict([replace(comparison, runs=runs)])
    assert answer == (
        f"{BUDGET}, the best mechanism is perhaps none, by its accuracy; 2 seeds cannot tell accuracies from "
        "chance."
    )


def test_no_interval_reaches_beyond_what_is_possible() -> None:
    wild = compared({"central": [0.9, 0.1, 0.9], "ours": [0.1, 0.9, 0.2]})
    _, first, last = verdict([wild])
    assert "(95 % interval −100.0 to 100.0)" in first
    assert "more than 1" in last
    (difference,) = wild.differences()
    assert (difference.low, difference.high) == (-100.0, 100.0)
    only, *_ = verdict([compared({"ours": [0.1, 0.95, 0.9]})])
    assert "(95 % interval 0.0 to 100.0, 3 seeds)" in only


@pytest.mark.parametrize(
    ("factor", "text"), [(1.004, "1.004"), (1.5, "1.50"), (99.5, "99.50"), (24660.0, "24,660")]
)
def test_factors_have_the_digits_that_matter(factor: float, text: str) -> None:
    first, *_ = verdict([compared({"a": [1.0, 1.0, 1.0], "b": [factor] * 3}, ERROR, None)])
    assert f"that of b is {text} times as large" in first


def test_whole_runs_that_are_not_equally_private_are_named() -> None:
    comparison = compared({"optm": [1.0, 1.1], "pbm": [1.8, 1.9]}, ERROR, None)
    first, _ = verdict([comparison])
    assert "equally private" not in first
    comparison.runs[TOTAL] = comparison.runs["series"].map({"optm": 640.0, "pbm": 301.07})
    first, _ = verdict([comparison])
    assert first.endswith(
        " Whole runs are not equally private: all updates of a client together (client total, local view) "
        "have ε from 301.1 with pbm to 640 with optm."
    )
    comparison.runs[TOTAL] = comparison.runs["series"].map({"optm": 24_660.0, "pbm": 24_600.3})
    first, _ = verdict([comparison])
    assert first.endswith("have ε from 24,610 with pbm to 24,660 with optm.")
    comparison.runs[TOTAL] = 640.0
    first, _ = verdict([comparison])
    assert "equally private" not in first


def test_errors_are_compared_by_factors() -> None:
    results = {"rqm": [2.0, 2.2, 2.1], "optm": [1.0, 1.1, 1.05], "one_bit": [1.5, 1.65, 1.575]}
    first, last = verdict([compared(results, ERROR, None)])
    assert first == (
        f"{BUDGET}, optm has the least squared error of the mean update; that of one_bit is 1.50 times as "
        "large (simultaneous 95 % interval 1.50 to 1.50) and that of rqm 2.00 times (2.00 to 2.00)."
    )
    assert last == "With 3 seeds, all of these differences are significant."
    results["one_bit"] = [0.9, 1.3, 1.05]
    factor = math.exp(stats.t.ppf(1 - 0.05 / 4, 2) * np.log([0.9, 1.3 / 1.1, 1.0]).std(ddof=1) / math.sqrt(3))
    *_, last = verdict([compared(results, ERROR, None)])
    assert last == (
        "With 3 seeds, one_bit does not differ significantly from optm, which would take a factor of more "
        f"than {factor:.3g}, while rqm does."
    )


def test_errors_stand_beside_accuracies_that_cannot_be_told_apart() -> None:
    accuracies = compared(
        {"central": [0.80, 0.85, 0.8], "ours": [0.82, 0.81, 0.8], "poor": [0.78, 0.84, 0.8]}
    )
    errors = {"central": [1.0, 2.0, 1.5], "ours": [1.1, 2.2, 1.65], "poor": [3.0, 6.0, 4.5]}
    column = [value for values in errors.values() for value in values]
    both = Comparison(BUDGET, ACCURACY, accuracies.runs.assign(error=column), "central", "a trusted server")
    _, first, second, last = verdict([both])
    assert first == verdict([accuracies])[1]
    assert second == (
        "The squared error of the mean update is 1.10 times that of a trusted server with ours "
        "(1.10 to 1.10) and 3.00 times with poor (3.00 to 3.00)."
    )
    assert last == verdict([accuracies])[2]
    # Without noise there is no factor over the baseline's error, and nothing is said of it.
    exact = accuracies.runs.assign(error=[0.0, 0.0, 0.0, *column[3:]])
    silent = Comparison(BUDGET, ACCURACY, exact, "central", "a trusted server")
    assert "times that of a trusted server" not in " ".join(verdict([silent]))


def test_many_series_are_not_all_named() -> None:
    results = {name: [0.9 - 0.01 * place, 0.91 - 0.01 * place] for place, name in enumerate("abcdefgh")}
    _, first, *_ = verdict([compared(results, baseline="a")])
    assert "with 4 others in between." in first
    assert ", c loses" in first.replace(" and", ",")
    assert "h loses 7.0" in first
    assert "e loses" not in first


def test_one_seed_has_no_interval_and_says_so() -> None:
    _, first, last = verdict([compared({"central": [0.9], "ours": [0.8]})])
    assert (
        first == "Compared with a trusted server, ours loses 10.0 points of accuracy (one seed, no interval)."
    )
    assert last.startswith("One seed cannot tell a difference from chance")


def test_a_large_difference_with_a_wide_interval_is_not_called_close() -> None:
    runs = {"central": [0.80, 0.80, 0.80], "near": [0.79, 0.80, 0.80], "wild": [0.60, 0.85, 0.80]}
    *_, last = verdict([compared(runs)])
    # Each pair has its own interval: what would be clear for one mechanism is not for the other.
    assert last == (
        "With 3 seeds, near and wild do not differ significantly from a trusted server, which would "
        "take more than 2.1 and 47 points of accuracy."
    )


def test_each_comparison_has_its_own_thresholds() -> None:
    """One threshold stood for all comparisons, although their intervals differ by multiples."""
    close = {"central": [0.80, 0.80, 0.80], "near": [0.79, 0.80, 0.80], "poor": [0.60, 0.61, 0.60]}
    wild = {"central": [0.80, 0.80, 0.80], "near": [0.60, 0.85, 0.80], "poor": [0.10, 0.11, 0.10]}
    second = replace(compared(wild), budget="At ε = 1, δ = 1e-05 for a client's whole run")
    *_, last = verdict([compared(close), second])
    assert last == (
        "With 3 seeds, at ε = 8, δ = 1e-05 for a client's whole run, near does not differ significantly from "
        "a trusted server, which would take more than 2.1 points of accuracy, while poor does; at ε = 1, "
        "δ = 1e-05 for a client's whole run, near does not differ significantly from a trusted server, which "
        "would take more than 47 points of accuracy, while poor does."
    )
    clear = compared({"central": [0.80, 0.80, 0.80], "poor": [0.60, 0.61, 0.60]})
    *_, last = verdict([compared(close), clear])
    assert last.endswith(
        "while poor does; at ε = 8, δ = 1e-05 for a client's whole run, all differences are significant."
    )
    # One seed says nothing, and is not taken for a significant difference.
    single = compared({"central": [0.80, 0.80, 0.80], "near": [0.79, 0.80, 0.80], "once": [0.1]})
    assert "once" not in verdict([single])[-1]


def test_ties_are_no_difference() -> None:
    _, first, last = verdict([compared({"central": [0.9, 0.8, 0.7], "ours": [0.9, 0.8, 0.7]})])
    assert "a trusted server, ours loses 0.0 points of accuracy (95 % interval 0 to 0)" in first
    assert last.startswith("With 3 seeds, ours does not differ significantly from a trusted server")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_run_that_diverged_takes_its_series_out(bad: float) -> None:
    results = {"central": [0.9, 0.8], "ours": [0.9, bad], "other": [0.85, 0.77]}
    *found, last = verdict([compared(results)])
    assert not any("ours" in sentence for sentence in found)
    assert last == "ours has runs without a finite result, and no part in this."
    # Also the baseline: then the best of the others is what they are compared with.
    _, first, *_ = verdict([compared({"central": [bad, 0.8], "ours": [0.9, 0.8], "other": [0.8, 0.7]})])
    assert "Compared with ours, other loses 10.0 points" in first


def test_an_exact_mean_has_no_part_in_factors() -> None:
    *_, last = verdict([compared({"none": [0.0, 0.0], "a": [1.0, 1.1], "b": [2.0, 2.3]}, ERROR, None)])
    assert last.startswith("none has runs without")


def test_nothing_at_all_is_no_sentence_and_one_series_is_one() -> None:
    assert verdict([]) == []
    (only,) = verdict([compared({"ours": [math.nan]})])
    assert only.startswith("ours has runs without")
    (first,) = verdict([compared({"ours": [0.9, 0.8]})])
    assert first == (
        f"{BUDGET}, ours has an accuracy of 85.0 % (2 seeds); there is nothing to compare it with."
    )


def test_series_that_share_no_seed_are_not_compared() -> None:
    rows = [{"series": "a", "seed": 0, ACCURACY: 0.9}, {"series": "b", "seed": 1, ACCURACY: 0.1}]
    (first,) = verdict([Comparison(BUDGET, ACCURACY, pd.DataFrame(rows))])
    assert "nothing to compare it with" in first


def test_many_comparisons_are_counted() -> None:
    many = [compared({"a": [0.9, 0.8], "b": [0.7, 0.65]}) for _ in range(MOST_FINDINGS + 3)]
    sentences = verdict(many)
    assert len(sentences) == 2 * MOST_FINDINGS + 2
    assert sentences[2 * MOST_FINDINGS] == "3 more comparisons are in the table of results."


def test_runs_are_compared_at_an_equal_budget_only(tmp_path: Path) -> None:
    write_study(tmp_path, ("optm", "rqm", "none"), epsilons=(0.5, 1.0), seeds=(0, 1), rounds=2)
    study = Study.load(tmp_path)
    found = comparisons_of(study)
    assert [each.budget for each in found] == [
        f"At ε = {epsilon} for one coordinate and one release" for epsilon in ("0.5", "1")
    ]
    assert all(sorted(set(each.runs["series"])) == ["optm", "rqm"] for each in found)
    assert all(each.measure == ERROR for each in found)
    assert len(verdict_of(study)) == 3


def test_a_target_for_the_whole_run_is_compared_by_accuracy(tmp_path: Path) -> None:
    target = {"privacy.epsilon": 8.0, "secagg.enabled": True}
    write_study(tmp_path, ("optm", "rqm"), seeds=(0, 1, 2), rounds=2, settings=(target,))
    (found,) = comparisons_of(Study.load(tmp_path))
    assert found.measure == ACCURACY
    assert found.baseline == "central_gaussian"
    assert found.budget == BUDGET


def test_panels_are_settings_of_their_own(tmp_path: Path) -> None:
    asked = {"panel": "B. second", "federation.num_clients": 50}
    write_study(tmp_path, ("optm", "rqm"), seeds=(0, 1), rounds=2, settings=({"panel": "A. first"}, asked))
    study = Study.load(tmp_path)
    assert study.settings == ("A. first", "B. second")
    assert study.varying == ("panel",)
    assert len(comparisons_of(study)) == 2
