"""What a study found, in sentences that are derived from its numbers.

Runs are compared where they solve the same problem at the same epsilon (:class:`Comparison`). With a target
for the whole run the question is who learns best; where the seeds cannot tell accuracies apart, the error of
the mean update decides, which is averaged over coordinates and rounds. With an epsilon for one message the
question is whose mean update errs least.

Differences are taken between runs of the same seed, which share data, clients and the initial model.
Intervals are Student's, and those of one comparison hold together in 95 % of all cases (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from fl_privquant.statement import PrivacyStatement
from simulations.report.statistics import MIN_SEEDS, Interval, shown_interval
from simulations.report.study import Study, join_words

ACCURACY, LOSS, ERROR = "accuracy", "loss", "error"
MAX_COMPARISONS = 4
"""Comparisons that a verdict speaks of at most; all are in the tables."""

TRUSTED = "a trusted server"


@dataclass(frozen=True)
class Difference:
    """How far a series falls behind a reference, over the seeds that both have; positive is worse.

    Parameters
    ----------
    series
        The series that is compared with the reference.
    interval
        Points of accuracy, a difference of losses, or the factor by which an error is larger.
    level
        The value that means no difference: 0, or a factor of 1.
    """

    series: str
    interval: Interval
    level: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes no difference; never with too few seeds."""
        return not (math.isnan(self.interval.low) or self.interval.low <= self.level <= self.interval.high)

    @property
    def ends(self) -> str:
        """The interval in words, or how few seeds there are."""
        _, low, high, count = self.interval
        if math.isnan(low):
            return f"{_count_seeds(count)}, no interval"
        shape = f".{2 if self.level or high - low < 0.2 else 1}f"
        return f"{low:z{shape}} to {high:z{shape}}".replace("-", "−")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs that solve one problem at one epsilon.

    Parameters
    ----------
    budget
        How a sentence about it begins, such as "At ε = 1 (coordinate release, local view)".
    measure
        What they are compared by: ``accuracy``, ``loss`` or ``error`` (of the decoded mean update).
    runs
        One row per run, with ``series``, ``name`` (the series with its bits), ``seed``, ``baseline``, and the
        measures.
    setting
        The setting of the runs, in words.
    """

    budget: str
    measure: str
    runs: pd.DataFrame
    setting: str = ""

    @cached_property
    def complete(self) -> list[str]:
        """The series whose every run has a finite result (a positive one, for errors)."""
        values = self.runs[self.measure].astype(float)
        usable = np.isfinite(values) & ((values > 0.0) if self.measure == ERROR else True)
        by_series = usable.groupby(self.runs["series"], sort=False).all()
        return list(by_series.index[by_series])

    @property
    def incomplete(self) -> list[str]:
        """The series of which some run diverged, or has no such result."""
        return [series for series in dict.fromkeys(self.runs["series"]) if series not in self.complete]

    @property
    def baseline(self) -> str | None:
        """The series with a trusted server, if there is one with results."""
        names = dict.fromkeys(self.runs.loc[self.runs["baseline"], "series"])
        return next((name for name in names if name in self.complete), None)

    @property
    def candidates(self) -> Comparison:
        """The comparison without its baseline."""
        return replace(self, runs=self.runs[~self.runs["baseline"]])

    @property
    def best(self) -> str | None:
        """The series with the best mean; None if no series has results."""
        return str(self._results.mean().idxmin()) if self.complete else None

    def name(self, series: str) -> str:
        """A series with its bits, where they are known."""
        return str(self.runs.loc[self.runs["series"] == series, "name"].iloc[0])

    def by(self, measure: str) -> Comparison:
        """The same runs, compared by another measure."""
        return replace(self, measure=measure)

    @property
    def decided(self) -> Comparison:
        """The same runs by the measure that the verdict goes by: the error, where accuracy cannot tell."""
        return self.by(_choose_measure(self.candidates).measure)

    def differences(self, reference: str) -> list[Difference]:
        """Every other series against the reference, the closest first; without those that share no seed."""
        factor = self.measure == ERROR
        differences = []
        for series in self.complete:
            pairs = (self._results[series] - self._results[reference]).dropna()
            if series != reference and len(pairs):
                mean, low, high, count = shown_interval(pairs, intervals=len(self.complete) - 1)
                if factor:
                    mean, low, high = (float(np.exp(end)) for end in (mean, low, high))
                elif self.measure == ACCURACY:
                    # No two accuracies differ by more than 100 points.
                    mean, low, high = (float(np.clip(100.0 * end, -100, 100)) for end in (mean, low, high))
                differences.append(
                    Difference(series, Interval(mean, low, high, count), 1.0 if factor else 0.0)
                )
        return sorted(differences, key=lambda difference: difference.interval.mean)

    @cached_property
    def _results(self) -> pd.DataFrame:
        """Results by seed and complete series, on the scale of the differences; smaller is better."""
        runs = self.runs[self.runs["series"].isin(self.complete)]
        values = runs.groupby(["seed", "series"])[self.measure].mean().astype(float).unstack()
        return -values if self.measure == ACCURACY else np.log(values) if self.measure == ERROR else values


def compare(study: Study) -> list[Comparison]:
    """The comparisons of a study, by setting and then by epsilon.

    Runs without privacy are compared with each other only if a setting has no private runs.
    """
    comparisons = []
    for setting in study.settings if study.runs else ():
        here = study.results[study.results["setting"] == setting]
        private = here[here["private"]]
        words = "" if study.has_panels or not setting else f" ({setting})"
        if private.empty:
            comparisons.append(
                Comparison(f"Without privacy{words}", _quality(here), _with_names(here), setting)
            )
        for (whole_run, *_), rows in private.groupby(["whole_run", "relation", "budget_delta", "epsilon"]):
            budget = f"At {describe_budget(rows)}{words}"
            comparisons.append(
                Comparison(budget, _quality(rows) if whole_run else ERROR, _with_names(rows), setting)
            )
    return comparisons


@dataclass(frozen=True)
class Findings:
    """What was found: one answer for each comparison, and what stands behind it.

    Parameters
    ----------
    answers
        Sentences.
    comparisons
        For each comparison its budget, and the table of :func:`differences_table`.
    notes
        Sentences about whole runs that are not equally private.
    """

    answers: tuple[str, ...] = ()
    comparisons: tuple[tuple[str, pd.DataFrame], ...] = ()
    notes: tuple[str, ...] = ()


def describe(study: Study, setting: str | None = None) -> Findings:
    """The findings of a study, or of one of its settings; empty where no run has finished."""
    comparisons = [comparison for comparison in compare(study) if setting in (None, comparison.setting)]
    return verdict(comparisons)


def verdict(comparisons: Sequence[Comparison]) -> Findings:
    """The answer of each comparison, how all others compare, what is left out, and what more seeds tell."""
    told = [comparison for comparison in comparisons if comparison.best is not None]
    answers = [_answer(comparison) for comparison in told[:MAX_COMPARISONS]]
    if len(told) > MAX_COMPARISONS:
        answers.append(f"{len(told) - MAX_COMPARISONS} more comparisons are in the table of results.")
    seeds = max(
        (comparison.runs.groupby("series")["seed"].nunique().max() for comparison in told), default=MIN_SEEDS
    )
    if seeds < MIN_SEEDS:
        answers.append(
            f"{_count_seeds(seeds).capitalize()} cannot tell a difference from chance: run more, for example "
            "seed=0,1,2,3,4."
        )
    if diverged := dict.fromkeys(name for comparison in comparisons for name in comparison.incomplete):
        have = "has" if len(diverged) == 1 else "have"
        answers.append(f"{join_words(diverged)} {have} runs without a finite result, and no part in this.")
    several = [comparison for comparison in told[:MAX_COMPARISONS] if _has_rivals(comparison)]
    tables = [(comparison.budget, differences_table(comparison)) for comparison in several]
    notes = [
        note
        for comparison in several
        if comparison.measure == ERROR
        for note in _unequal_totals(comparison.candidates)
    ]
    return Findings(tuple(answers), tuple(tables), tuple(notes))


def _has_rivals(comparison: Comparison) -> bool:
    return comparison.candidates.best is not None and len(comparison.complete) > 1


def differences_table(comparison: Comparison) -> pd.DataFrame:
    """How far each series is behind the best one and, where there is one, behind a trusted server.

    A difference is significant if its interval does not contain 0, or 1 for an error that is divided.
    """
    decided = _choose_measure(comparison.candidates)
    references = [(decided, decided.best or "", decided.name(decided.best or ""))]
    if comparison.baseline is not None and comparison.measure != ERROR:
        by_error = comparison.by(ERROR)
        measured = [comparison, *([by_error] if by_error.baseline else [])]
        references += [(compared, comparison.baseline, TRUSTED) for compared in measured]
    columns = {
        f"{_BEHIND[compared.measure]} {words}": {
            rival.series: f"{_amount(rival).replace('-', '−')} ({rival.ends})"
            for rival in compared.differences(reference)
        }
        for compared, reference, words in references
    }
    table = pd.DataFrame(columns, dtype=object).fillna("–")
    return table.rename_axis("mechanism").reset_index()


def _answer(comparison: Comparison) -> str:
    """Which mechanism to use, why, and one number: what it loses to a trusted server, or the next to it."""
    decided = _choose_measure(comparison.candidates)
    best = decided.best
    if best is None or len(comparison.complete) == 1:
        return _single(comparison, best or comparison.best or "")
    rivals = decided.differences(best)
    sure = not rivals or not math.isnan(rivals[0].interval.low)
    opening = f"{comparison.budget}, {'' if sure else 'perhaps '}use {comparison.name(best)}: "
    measured = comparison.decided
    if measured.baseline is not None:
        lost = next(lost for lost in measured.differences(measured.baseline) if lost.series == best)
        return f"{opening}{_loss_of_best(lost, decided.measure)}."
    if not rivals:
        return f"{opening}{_REASONS[decided.measure]}."
    return f"{opening}{_REASONS[decided.measure]}; {_lead_over(rivals[0], decided.measure)}."


_REASONS = {
    ACCURACY: "it has the highest accuracy",
    LOSS: "it has the lowest loss",
    ERROR: "its mean update has the least squared error",
}
_BEHIND = {
    ACCURACY: "points of accuracy below",
    LOSS: "loss above that of",
    ERROR: "squared error ÷ that of",
}
_UNITS = {ERROR: "times its error", ACCURACY: "points", LOSS: "of loss"}


def _loss_of_best(lost: Difference, measure: str) -> str:
    """What the best mechanism loses to a trusted server."""
    if measure == ERROR:
        what = f"the squared error of its mean update is {_amount(lost)} times that of {TRUSTED}"
    elif measure == ACCURACY:
        what = f"it loses {_amount(lost).replace('-', '−')} points of accuracy to {TRUSTED}"
    else:
        what = f"its loss is {_amount(lost).replace('-', '−')} above that of {TRUSTED}"
    tied = not math.isnan(lost.interval.low) and not lost.is_significant
    return f"{what}{', within the noise' if tied else ''} ({_interval(lost)})"


def _lead_over(rival: Difference, measure: str) -> str:
    """How far the next best is behind."""
    amount = f"{_amount(rival)} {_UNITS[measure]}"
    if not math.isnan(rival.interval.low) and not rival.is_significant:
        return f"{rival.series} is within the noise of it ({amount}, {_interval(rival)})"
    verb = {ERROR: "has", ACCURACY: "is", LOSS: "has"}[measure]
    behind = {ERROR: "", ACCURACY: " behind", LOSS: " more"}[measure]
    return f"{rival.series}, the next best, {verb} {amount}{behind} ({_interval(rival)})"


def _interval(difference: Difference) -> str:
    return f"{'' if math.isnan(difference.interval.low) else '95 % interval '}{difference.ends}"


def _choose_measure(candidates: Comparison) -> Comparison:
    """By accuracy or loss if the best is significantly ahead, else by the error where all have one."""
    if candidates.best is None or candidates.measure == ERROR:
        return candidates
    rivals = candidates.differences(candidates.best)
    by_error = candidates.by(ERROR)
    if rivals and not rivals[0].is_significant and set(candidates.complete) <= set(by_error.complete):
        return by_error
    return candidates


def _amount(difference: Difference) -> str:
    value = difference.interval.mean
    if not difference.level:
        return f"{value:.1f}" if abs(value) >= 0.05 else f"{value:z.2f}"
    digits = 0 if value >= 100.0 else 3 if abs(value - 1.0) < 0.01 else 2
    return f"{value:,.{digits}f}"


def _unequal_totals(comparison: Comparison) -> list[str]:
    """A sentence about whole runs, which an equal epsilon for one message does not make equally private."""
    totals = comparison.runs.groupby("series")["total"].mean().loc[comparison.complete]
    least, most = str(totals.idxmin()), str(totals.idxmax())
    if math.isclose(totals[least], totals[most], rel_tol=1e-3) or not np.isfinite(totals).all():
        return []
    first = comparison.runs["statement"].iloc[0]
    low, high = (replace(first, epsilon=float(totals[series])) for series in (least, most))
    return [
        f"Whole runs are not equally private ({first.meaning}): ε is from "
        f"{low.epsilon_number} with {least} to {high.epsilon_number} with {most}."
    ]


def _single(comparison: Comparison, series: str) -> str:
    """One series alone: its result, and that there is nothing to compare it with."""
    values = comparison.runs.loc[comparison.runs["series"] == series, comparison.measure]
    bounds = (0.0, 1.0) if comparison.measure == ACCURACY else (-np.inf, np.inf)
    result = shown_interval(values, bounds=bounds)
    what = {ACCURACY: "an accuracy", LOSS: "a loss", ERROR: "a squared error of the mean update"}
    texts = [
        f"{100 * value:.1f} %" if comparison.measure == ACCURACY else f"{value:.3g}" for value in result[:3]
    ]
    interval = f"95 % interval {texts[1]} to {texts[2]}, " if result.seeds >= MIN_SEEDS else ""
    return (
        f"{comparison.budget}, {comparison.name(series)} has {what[comparison.measure]} of {texts[0]} "
        f"({interval}{_count_seeds(result.seeds)}); there is nothing to compare it with."
    )


def _count_seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def _quality(rows: pd.DataFrame) -> str:
    return ACCURACY if rows[ACCURACY].notna().any() else LOSS


def describe_budget(rows: pd.DataFrame) -> str:
    """The epsilon at which runs are compared, with all that it needs to be understood."""
    own = rows[~rows["baseline"]] if not rows["baseline"].all() else rows
    statements = own["statement"] if own["whole_run"].all() else own["certified"]
    first: PrivacyStatement = replace(statements.iloc[0], epsilon=float(rows["epsilon"].iloc[0]))
    units = dict.fromkeys(str(statement.unit) for statement in statements)
    views = dict.fromkeys(statement.view.words for statement in statements)
    if len(units) == 1 and len(views) > 1 and own["whole_run"].all():
        seen = " or ".join(views)
        return f"{first.figures} ({first.unit}, {seen}, {first.relation})"
    if len(units) == 1:
        return first.brief
    meaning = f"{join_words(units)}, {first.view.words}, {first.relation}"
    return f"{first.figures} for what each mechanism encodes at once ({meaning})"


def _with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, with names that have the bits; series with several bits are as many series."""
    bits = rows["bits"].map(lambda value: f"{value:g} bit" + ("" if value == 1 else "s"))
    names = (rows["series"] + " with " + bits).where(np.isfinite(rows["bits"]), rows["series"])
    several = rows.groupby("series")["bits"].transform("nunique") > 1
    return rows.assign(name=names, series=rows["series"].where(~several, names))
