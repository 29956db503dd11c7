"""What a study found, in sentences that are derived from its numbers.

Runs are compared where they solve the same problem at the same epsilon (:class:`Comparison`). With a target
for the whole run the question is who learns best; where the seeds cannot tell accuracies apart, the error of
the mean update decides, which is averaged over coordinates and rounds. With an epsilon for one message the
question is whose mean update errs least.

Differences are taken between runs of the same seed, which share data, clients and the initial model.
Intervals are Student's, and those of one comparison hold together in 95 % of all cases (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from fl_privquant.statement import PrivacyStatement
from simulations.report.measures import ERROR, Measure, count_seeds, quality_of
from simulations.report.statistics import MIN_SEEDS, Interval
from simulations.report.study import Study, join_words

MAX_COMPARISONS = 4
"""Comparisons that a verdict speaks of at most; all are in the tables."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs that solve one problem at one epsilon.

    Parameters
    ----------
    budget
        How a sentence about it begins, such as "At ε = 1 (coordinate release, local view)".
    measure
        What they are compared by; ERROR is that of the decoded mean update.
    runs
        One row per run, with ``series``, ``name`` (the series with its bits), ``seed``, ``baseline``, and the
        measures.
    setting
        The setting of the runs, in words.
    """

    budget: str
    measure: Measure
    runs: pd.DataFrame
    setting: str = ""

    @cached_property
    def complete(self) -> list[str]:
        """The series whose every run has a finite result (a positive one, for errors)."""
        values = self.runs[self.measure.key].astype(float)
        usable = np.isfinite(values) & ((values > 0.0) if self.measure.ratio else True)
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
        return str(self._badness.mean().idxmin()) if self.complete else None

    def name(self, series: str) -> str:
        """A series with its bits, where they are known."""
        return str(self.runs.loc[self.runs["series"] == series, "name"].iloc[0])

    def by(self, measure: Measure) -> Comparison:
        """The same runs, compared by another measure."""
        return replace(self, measure=measure)

    @property
    def decided(self) -> Comparison:
        """The same runs by what the verdict goes by: the error, where accuracies are within the noise."""
        candidates, by_error = self.candidates, self.candidates.by(ERROR)
        if candidates.best is None or not set(candidates.complete) <= set(by_error.complete):
            return self
        closest = next(iter(candidates.differences(candidates.best).values()), None)
        is_clear = closest is None or self.measure.is_significant(closest)
        return self if is_clear else self.by(ERROR)

    def differences(self, reference: str) -> dict[str, Interval]:
        """How much worse each other series is, the closest first; without those that share no seed."""
        pairs = self._badness.sub(self._badness[reference], axis=0).drop(columns=reference)
        intervals = {
            str(series): self.measure.difference(pairs[series].dropna(), len(self.complete) - 1)
            for series in pairs
            if pairs[series].notna().any()
        }
        return dict(sorted(intervals.items(), key=lambda item: item[1].mean))

    @cached_property
    def _badness(self) -> pd.DataFrame:
        """How bad the complete series are, by seed."""
        runs = self.runs[self.runs["series"].isin(self.complete)]
        means = runs.groupby(["seed", "series"])[self.measure.key].mean().astype(float).unstack()
        return pd.DataFrame(self.measure.badness(means))


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
                Comparison(f"Without privacy{words}", quality_of(here), _with_names(here), setting)
            )
        for (whole_run, *_), rows in private.groupby(["whole_run", "relation", "budget_delta", "epsilon"]):
            budget = f"At {describe_budget(rows)}{words}"
            measure = quality_of(rows) if whole_run else ERROR
            comparisons.append(Comparison(budget, measure, _with_names(rows), setting))
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
    """

    answers: tuple[str, ...] = ()
    comparisons: tuple[tuple[str, pd.DataFrame], ...] = ()


def describe(study: Study, setting: str | None = None) -> Findings:
    """The findings of a study, or of one of its settings; empty where no run has finished."""
    return verdict([comparison for comparison in compare(study) if setting in (None, comparison.setting)])


def verdict(comparisons: Sequence[Comparison]) -> Findings:
    """The answer of each comparison, how all others compare, what is left out, and what more seeds tell."""
    told = [comparison for comparison in comparisons if comparison.best is not None]
    answers = [_answer(comparison) for comparison in told[:MAX_COMPARISONS]]
    if len(told) > MAX_COMPARISONS:
        answers.append(f"{len(told) - MAX_COMPARISONS} more comparisons are in the table of results.")
    seeds = max(
        (compared.runs.groupby("series")["seed"].nunique().max() for compared in told), default=MIN_SEEDS
    )
    if seeds < MIN_SEEDS:
        answers.append(
            f"{count_seeds(seeds).capitalize()} cannot tell a difference from chance: run more, for example "
            "seed=0,1,2,3,4."
        )
    if diverged := dict.fromkeys(name for comparison in comparisons for name in comparison.incomplete):
        have = "has" if len(diverged) == 1 else "have"
        answers.append(
            f"{join_words(diverged)} {have} runs without a finite result, and {have} been left out."
        )
    several = [comparison for comparison in told[:MAX_COMPARISONS] if _has_rivals(comparison)]
    return Findings(
        tuple(answers),
        tuple((comparison.budget, differences_table(comparison)) for comparison in several),
    )


def differences_table(comparison: Comparison) -> pd.DataFrame:
    """How far each series is behind the best one and, where there is one, behind a trusted server.

    A difference is significant if its interval does not contain 0, or 1 for an error that is divided.
    """
    decided = comparison.decided.candidates
    references = [(decided, str(decided.best), decided.name(str(decided.best)))]
    if comparison.measure is not ERROR:
        references += [
            (compared, compared.baseline, "a trusted server")
            for compared in (comparison, comparison.by(ERROR))
            if compared.baseline is not None
        ]
    columns = {
        f"{compared.measure.behind} {words}": {
            series: f"{compared.measure.amount(rival)} ({compared.measure.ends(rival)})"
            for series, rival in compared.differences(reference).items()
        }
        for compared, reference, words in references
    }
    table = pd.DataFrame(columns, dtype=object).fillna("–")
    return table.rename_axis("mechanism").reset_index()


def _has_rivals(comparison: Comparison) -> bool:
    return comparison.candidates.best is not None and len(comparison.complete) > 1


def _answer(comparison: Comparison) -> str:
    """Which mechanism to use, why, and one number: what it loses to a trusted server, or the next to it."""
    if not _has_rivals(comparison):
        return _describe_alone(comparison, str(comparison.candidates.best or comparison.best))
    decided = comparison.decided
    measure, best = decided.measure, str(decided.candidates.best)
    rivals = decided.candidates.differences(best)
    rival, closest = next(iter(rivals.items()), ("", None))
    maybe = "perhaps " if closest is not None and not closest.is_stated else ""
    opening = f"{comparison.budget}, {maybe}use {comparison.name(best)}: "
    lost = None if decided.baseline is None else decided.differences(decided.baseline).get(best)
    if lost is not None:
        tied = ", within the noise" if lost.is_stated and not measure.is_significant(lost) else ""
        return f"{opening}{measure.lost.format(measure.amount(lost))}{tied} ({_in_brackets(lost, measure)})."
    if closest is None:
        return f"{opening}{measure.reason}."
    less, ends = measure.less.format(measure.amount(closest)), _in_brackets(closest, measure)
    if closest.is_stated and not measure.is_significant(closest):
        behind = f"{rival} is within the noise of it ({less}, {ends})"
    else:
        behind = f"{rival}, the next best, has {less} ({ends})"
    return f"{opening}{measure.reason}; {behind}."


def _in_brackets(difference: Interval, measure: Measure) -> str:
    return f"{'95 % interval ' if difference.is_stated else ''}{measure.ends(difference)}"


def _describe_alone(comparison: Comparison, series: str) -> str:
    """One series alone: its result, and that there is nothing to compare it with."""
    measure = comparison.measure
    own = comparison.runs[comparison.runs["series"] == series]
    result = measure.result.format(measure.text(own[measure.key]))
    return (
        f"{comparison.budget}, {comparison.name(series)} has {result} ({count_seeds(len(own))}); "
        "there is nothing to compare it with."
    )


def describe_budget(rows: pd.DataFrame) -> str:
    """The epsilon at which runs are compared, with all that it needs to be understood."""
    own = rows[~rows["baseline"]] if not rows["baseline"].all() else rows
    whole_run = own["whole_run"].all()
    statements = own["statement" if whole_run else "certified"]
    first: PrivacyStatement = replace(statements.iloc[0], epsilon=float(rows["epsilon"].iloc[0]))
    units = dict.fromkeys(str(statement.unit) for statement in statements)
    views = dict.fromkeys(statement.view.words for statement in statements)
    if len(units) > 1:
        meaning = f"{join_words(units)}, {first.view.words}, {first.relation}"
        return f"{first.figures} for what each mechanism encodes at once ({meaning})"
    if len(views) > 1 and whole_run:
        return f"{first.figures} ({first.unit}, {' or '.join(views)}, {first.relation})"
    return first.brief


def _with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, with names that have the bits; series with several bits are as many series."""
    bits = rows["bits"].map(lambda value: f"{value:g} bit" + ("" if value == 1 else "s"))
    names = (rows["series"] + " with " + bits).where(np.isfinite(rows["bits"]), rows["series"])
    several = rows.groupby("series")["bits"].transform("nunique") > 1
    return rows.assign(name=names, series=rows["series"].where(~several, names))
