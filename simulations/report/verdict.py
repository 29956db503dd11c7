"""What a study found, in sentences that are derived from its numbers.

Runs are compared where they solve the same problem under the same privacy budget (:class:`Comparison`), and
the first sentence about each comparison says which mechanism is the best, with how many bits. With a budget
for the whole run that is the one with the highest accuracy; where the seeds cannot tell accuracies apart, the
one whose mean update has the least error. Then follows how much accuracy is lost to a baseline, which is a
trusted server, and how much larger the error of the mean update is than the baseline's. With a budget for one
coordinate and one release, as in the paper, the question is whose mean update has the least error.

Differences are taken between runs of the same seed, which share data, clients and the initial model.
Intervals are Student's, and those of one comparison hold together in 95 % of all cases (Bonferroni): of
several differences that are all due to chance, one would often seem not to be. They take three seeds or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from fl_privquant.accounting import PrivacyStatement, Unit
from simulations.report.statistics import BOUNDS, LEAST_SEEDS, shown_interval
from simulations.report.words import joined, scientific

ACCURACY, LOSS, ERROR = "accuracy", "loss", "error"
NAME = "name"
"""The column of the names of series with their bits."""
KILOBYTES, HANDSHAKE = "kilobytes", "handshake kilobytes"
"""Columns of what a client sends in a round as codes, and of what the handshake of secure aggregation takes
besides, in both directions."""
TOTAL = "client total"
"""The column of the ε of all updates of a client together, in the local view."""

MOST_FINDINGS = 4
"""Comparisons that a verdict speaks of at most."""

_MOST_NAMED = 4
_MOST_POINTS = 100.0
_RUN_MORE = "run more, for example seed=0,1,2,3,4"


@dataclass(frozen=True)
class Difference:
    """How far a series falls behind a reference, over the seeds that both have.

    Parameters
    ----------
    series
        The series that is compared with the reference.
    mean, low, high
        Positive: worse than the reference. Points of accuracy, a difference of losses, or the factor by
        which an error is larger. The ends of the interval are NaN where fewer than three seeds were run.
    level
        The value that means no difference: 0, or a factor of 1.
    seeds
        How many pairs there are.
    intervals
        How many intervals hold together in 95 % of all cases, this one among them.
    """

    series: str
    mean: float
    low: float
    high: float
    level: float
    seeds: int
    intervals: int = 1

    @property
    def is_open(self) -> bool:
        """Whether the interval includes no difference, so that these seeds cannot tell the two apart."""
        return self.low <= self.level <= self.high

    @property
    def half(self) -> float:
        """Half of the interval; for factors, how far its upper end is above the factor itself."""
        return (
            self.high / self.mean if self.level == 1.0 else max(self.high - self.mean, self.mean - self.low)
        )


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs that solve one problem under one privacy budget.

    Parameters
    ----------
    budget
        How a sentence about it begins, such as "At ε = 1 for one coordinate and one release".
    measure
        What they are compared by: ``accuracy``, ``loss`` or ``error`` (of the decoded mean update).
    runs
        One row per run, with the columns ``series``, ``seed`` and that of the measure.
    baseline
        The series that the others are compared with; None, or a series without runs: the best one.
    baseline_words
        The baseline in words.
    """

    budget: str
    measure: str
    runs: pd.DataFrame
    baseline: str | None = None
    baseline_words: str = ""

    @cached_property
    def _has_results(self) -> pd.Series:
        """By series, whether every run has a finite result (a positive one, for errors)."""
        values = self.runs[self.measure].astype(float)
        usable = np.isfinite(values) & ((values > 0.0) if self.measure == ERROR else True)
        return usable.groupby(self.runs["series"], sort=False).all()

    @property
    def complete(self) -> list[str]:
        """The series whose every run has a finite result (a positive one, for errors)."""
        return list(self._has_results.index[self._has_results])

    @property
    def incomplete(self) -> list[str]:
        """The series of which some run diverged, or has no such result."""
        return list(self._has_results.index[~self._has_results])

    @cached_property
    def _results(self) -> pd.DataFrame:
        """The results by seed and by complete series, on the scale of the differences; smaller is better."""
        runs = self.runs[self.runs["series"].isin(self.complete)]
        values = runs.groupby(["seed", "series"])[self.measure].mean().astype(float).unstack()
        return -values if self.measure == ACCURACY else np.log(values) if self.measure == ERROR else values

    @property
    def candidates(self) -> Comparison:
        """The comparison without its baseline, which needs a trusted server."""
        return replace(self, runs=self.runs[self.runs["series"] != self.baseline], baseline=None)

    def name(self, series: str | None) -> str:
        """A series with its bits, where they are known."""
        if NAME not in self.runs:
            return str(series)
        return str(self.runs.loc[self.runs["series"] == series, NAME].iloc[0])

    @property
    def reference(self) -> str | None:
        """The series that the others are compared with; None if no series has results."""
        if not self.complete:
            return None
        if self.baseline in self.complete:
            return self.baseline
        return str(self._results[self.complete].mean().idxmin())

    def differences(self) -> list[Difference]:
        """Every other series against the reference, the closest first; without those that share no seed."""
        intervals = len(self.complete) - 1
        differences = []
        for series in self.complete:
            pairs = (self._results[series] - self._results[self.reference]).dropna()
            if series == self.reference or pairs.empty:
                continue
            mean, low, high, count = shown_interval(pairs, intervals=intervals)
            ends, level = (mean, low, high), 0.0
            if self.measure == ERROR:
                ends, level = (math.exp(mean), math.exp(low), math.exp(high)), 1.0
            elif self.measure == ACCURACY:
                # No two accuracies differ by more.
                low, high = (min(max(100.0 * end, -_MOST_POINTS), _MOST_POINTS) for end in (low, high))
                ends = (100.0 * mean, low, high)
            differences.append(Difference(series, *ends, level, count, intervals))
        return sorted(differences, key=lambda difference: difference.mean)


def verdict(comparisons: Sequence[Comparison]) -> list[str]:
    """The findings of each comparison of a study, and then what its seeds cannot tell apart."""
    told = [comparison for comparison in comparisons if comparison.reference is not None]
    sentences = [finding for comparison in told[:MOST_FINDINGS] for finding in _findings(comparison)]
    if len(told) > MOST_FINDINGS:
        sentences.append(f"{len(told) - MOST_FINDINGS} more comparisons are in the table of results.")
    if told and (resolution := _resolution(told[:MOST_FINDINGS])):
        sentences.append(resolution)
    if diverged := list(dict.fromkeys(name for comparison in comparisons for name in comparison.incomplete)):
        have = "has" if len(diverged) == 1 else "have"
        sentences.append(f"{joined(diverged)} {have} runs without a finite result, and no part in this.")
    return sentences


def _answer(comparison: Comparison) -> str:
    """Which mechanism is the best in accuracy or loss, with how many bits; by its error if seeds are few."""
    candidates = comparison.candidates
    best = candidates.reference
    if best is None:
        return ""
    accuracy = comparison.measure == ACCURACY
    quality, extreme = ("accuracy", "highest") if accuracy else ("loss", "lowest")
    start = f"{comparison.budget}, the best mechanism is"
    rivals = candidates.differences()
    if len(candidates.complete) == 1:
        return f"{comparison.budget}, {candidates.name(best)} is the only mechanism without a trusted server."
    if not rivals:
        return (
            f"{start} perhaps {candidates.name(best)}, by its {quality}; it shares no seed with the others."
        )
    closest = rivals[0]
    if not math.isnan(closest.low) and not closest.is_open:
        return f"{start} {candidates.name(best)}: it has the {extreme} {quality}."
    doubt = f"that of {candidates.name(best)} is the {extreme}, but not by a significant difference"
    if closest.seeds < LEAST_SEEDS:
        doubt = f"{_seeds(closest.seeds)} cannot tell {'accuracies' if accuracy else 'losses'} from chance"
    by_error = replace(candidates, measure=ERROR) if ERROR in candidates.runs else None
    # An exact mean has no part in factors, and would be left out as if it erred most.
    known = by_error is not None and set(candidates.complete) <= set(by_error.complete)
    if by_error is None or not known or not (factors := by_error.differences()):
        return f"{start} perhaps {candidates.name(best)}, by its {quality}; {doubt}."
    least = by_error.name(by_error.reference)
    return (
        f"{start} {least}, by its mean update, which has the least squared error: that of "
        f"{factors[0].series} is {_factor(factors[0].mean)} times as large{_interval(factors[0], True)}. "
        f"{quality.capitalize()} does not decide it: {doubt}."
    )


def _factor(value: float) -> str:
    """A factor with the digits that tell it from 1."""
    return (
        f"{value:,.0f}" if value >= 100.0 else f"{value:.3f}" if abs(value - 1.0) < 0.01 else f"{value:.2f}"
    )


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def _findings(comparison: Comparison) -> list[str]:
    """The answer, what is compared, and errors and sizes of updates where a server is trusted."""
    differences = comparison.differences()
    if not differences:
        return [_single(comparison)]
    named = differences if len(differences) <= _MOST_NAMED else [*differences[:2], differences[-1]]
    left_out = len(differences) - len(named)
    between = f", with {left_out} {'other' if left_out == 1 else 'others'} in between" if left_out else ""
    if comparison.measure == ERROR:
        opening = f"{comparison.name(comparison.reference)} has the least squared error of the mean update; "
        short = [
            f"that of {other.series} {_factor(other.mean)} times{_interval(other)}" for other in named[1:]
        ]
        first = (
            f"that of {named[0].series} is {_factor(named[0].mean)} times as large{_interval(named[0], True)}"
        )
        finding = f"{comparison.budget}, {opening}{joined([first, *short])}{between}."
        return [f"{finding}{_totals(comparison)}"]
    with_baseline = comparison.reference == comparison.baseline
    against = comparison.baseline_words if with_baseline else comparison.reference
    lost = [
        f"{difference.series} {_lost(difference, comparison)}{_interval(difference, place == 0)}"
        for place, difference in enumerate(named)
    ]
    finding = f"Compared with {against}, {joined(lost)}{between}.{_chance(comparison)}"
    errors = _errors(comparison, [difference.series for difference in named])
    return [sentence for sentence in (_answer(comparison), finding, *errors) if sentence]


def _totals(comparison: Comparison) -> str:
    """A sentence about whole runs, which an equal ε for one release does not make equally private."""
    if TOTAL not in comparison.runs:
        return ""
    totals = comparison.runs.groupby("series")[TOTAL].mean().loc[comparison.complete]
    least, most = str(totals.idxmin()), str(totals.idxmax())
    if math.isclose(totals[least], totals[most], rel_tol=1e-3) or not np.isfinite(totals).all():
        return ""
    low, high = (PrivacyStatement(float(totals[series]), 0.0, Unit.TOTAL) for series in (least, most))
    return (
        f" Whole runs are not equally private: all updates of a client together (client total, local view) "
        f"have ε from {low.epsilon_number} with {least} to {high.epsilon_number} with {most}."
    )


def _by_error(comparison: Comparison) -> list[Difference]:
    """By which factors the errors of mean updates exceed the baseline's; none where that is not known."""
    if comparison.reference != comparison.baseline or ERROR not in comparison.runs:
        return []
    by_error = replace(comparison, measure=ERROR)
    return by_error.differences() if by_error.reference == comparison.baseline else []


def _chance(comparison: Comparison) -> str:
    """A sentence about series that seem better than the baseline although their mean updates err no less.

    Errors do not explain such a gain. That is no proof of chance: clips change the length of updates too.
    """
    erring = {factor.series for factor in _by_error(comparison) if factor.mean >= 1.0}
    gains = [other for other in comparison.differences() if other.mean < 0.0 and not other.is_open]
    if not (lucky := [other.series for other in gains if other.series in erring]):
        return ""
    whose = "its" if len(lucky) == 1 else "their"
    return (
        f" Smaller errors do not explain what {joined(lucky)} gained over {comparison.baseline_words}, as "
        f"{whose} mean updates err no less; it may be chance."
    )


def _errors(comparison: Comparison, named: Sequence[str]) -> list[str]:
    """Whose mean updates err how much more than those of the baseline.

    A final accuracy is one number a run, and varies with the last noise; the error of the mean update is
    averaged over all coordinates and rounds, so that few seeds tell smaller differences apart.
    """
    factors = [factor for factor in _by_error(comparison) if factor.series in named]
    if not factors:
        return []
    texts = [
        f"{_factor(factor.mean)} times with {factor.series}{_interval(factor)}" for factor in factors[1:]
    ]
    first = f"{_factor(factors[0].mean)} times that of {comparison.baseline_words} with {factors[0].series}"
    texts = [f"{first}{_interval(factors[0])}", *texts]
    return [f"The squared error of the mean update is {joined(texts)}.{_sizes(comparison, named)}"]


def _sizes(comparison: Comparison, named: Sequence[str]) -> str:
    """What the encoded update of a client takes in a round with each series, where that is known."""
    if KILOBYTES not in comparison.runs:
        return ""
    sizes = comparison.runs.groupby("series")[KILOBYTES].mean()
    first, *others = sorted(named, key=lambda series: sizes[series])
    texts = [f"{sizes[series]:.3g} with {series}" for series in others]
    keys = comparison.runs.loc[comparison.runs["series"].isin(named), HANDSHAKE].max()
    besides = (
        f", and the keys of secure aggregation take {keys:.3g} kB besides, whatever the model"
        if keys > 0.0
        else ""
    )
    plain = f" ({sizes[comparison.baseline]:.3g} without encoding)"
    listed = joined([f"{sizes[first]:.3g} kB with {first}", *texts])
    return f" An encoded update takes {listed}{plain}{besides}."


def _single(comparison: Comparison) -> str:
    """One series alone: its result, and that there is nothing to compare it with."""
    series, measure = comparison.reference, comparison.measure
    values = comparison.runs.loc[comparison.runs["series"] == series, measure]
    mean, low, high, count = shown_interval(values, bounds=BOUNDS.get(measure, (-math.inf, math.inf)))
    what = {ACCURACY: "an accuracy", LOSS: "a loss", ERROR: "a squared error of the mean update"}[measure]
    if measure == ACCURACY:
        mean_text, low_text, high_text = (f"{100 * value:.1f}" for value in (mean, low, high))
        mean_text += " %"
    else:
        mean_text, low_text, high_text = map(scientific, (mean, low, high))
    interval = f"95 % interval {low_text} to {high_text}, " if count >= LEAST_SEEDS else ""
    words = f"{comparison.name(series)} has {what} of {mean_text} ({interval}{_seeds(count)})"
    return f"{comparison.budget}, {words}; there is nothing to compare it with."


def _lost(difference: Difference, comparison: Comparison) -> str:
    """How far a series is behind, as a verb with its object; what is negative is a gain."""
    amount = abs(difference.mean)
    if comparison.measure == ACCURACY:
        return f"{'loses' if difference.mean >= 0.0 else 'gains'} {amount:.1f} points of accuracy"
    return f"{'loses' if difference.mean >= 0.0 else 'gains'} {amount:.3g} of loss"


def _interval(difference: Difference, named: bool = False) -> str:
    """The interval in brackets, of a gain if that is what is told; the first one says what it is."""
    if math.isnan(difference.low):
        return f" ({_seeds(difference.seeds)}, no interval)" if named else ""
    shape = ".2f" if difference.level == 1.0 else ".1f" if difference.high - difference.low >= 0.2 else ".2g"
    ends = (difference.low, difference.high)
    if difference.level == 0.0 and difference.mean < 0.0:
        ends = (-difference.high, -difference.low)
    low, high = (f"{end:z{shape}}".replace("-", "−") for end in ends)
    kind = f"{'simultaneous ' if difference.intervals > 1 else ''}95 % interval "
    return f" ({kind if named else ''}{low} to {high})"


def _resolution(comparisons: Sequence[Comparison]) -> str:
    """Which differences are not significant, and from which size on they would be, pair by pair."""
    stated = [(comparison, comparison.differences()) for comparison in comparisons]
    if not any(differences for _, differences in stated):
        return ""
    known = [
        (comparison, [difference for difference in differences if not math.isnan(difference.low)])
        for comparison, differences in stated
    ]
    known = [(comparison, differences) for comparison, differences in known if differences]
    every = [difference for _, differences in known for difference in differences]
    if not every:
        most = max(difference.seeds for _, differences in stated for difference in differences)
        return f"{_seeds(most).capitalize()} cannot tell a difference from chance: {_RUN_MORE}."
    counts = [difference.seeds for difference in every]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    if not any(difference.is_open for difference in every):
        return f"With {seeds} seeds, all of these differences are significant."
    parts = []
    for comparison, differences in known:
        budget = f"{comparison.budget[:1].lower()}{comparison.budget[1:]}, " if len(known) > 1 else ""
        parts.append(budget + _significance(comparison, differences))
    return f"With {seeds} seeds, {'; '.join(parts)}."


def _significance(comparison: Comparison, differences: Sequence[Difference]) -> str:
    """Which series do not differ significantly from the reference, what that would take, and which do.

    It takes more than half of the interval of each pair: seeds differ more in some series than in others.
    """
    unsure = [difference for difference in differences if difference.is_open]
    if not unsure:
        return "all differences are significant"
    verb = "do" if len(unsure) > 1 else "does"
    if comparison.measure == ERROR:
        needed = joined([f"{difference.half:.3g}" for difference in unsure])
        least = f"factors of more than {needed}" if len(unsure) > 1 else f"a factor of more than {needed}"
    else:
        unit = "points of accuracy" if comparison.measure == ACCURACY else "of loss"
        least = f"more than {joined([f'{difference.half:.2g}' for difference in unsure])} {unit}"
    against = comparison.baseline_words if comparison.reference == comparison.baseline else ""
    names = joined([difference.series for difference in unsure])
    than = against or comparison.reference
    text = f"{names} {verb} not differ significantly from {than}, which would take {least}"
    others = [difference.series for difference in differences if not difference.is_open]
    return f"{text}, while {joined(others)} {'do' if len(others) > 1 else 'does'}" if others else text
