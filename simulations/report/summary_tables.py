"""The tables of a report: one content as HTML, Markdown, LaTeX and on the terminal."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd

from fl_privquant.accounting import PrivacyStatement, StatedView, Unit, ViewKind
from fl_privquant.statement import REPLACE_ONE
from simulations.config import CENTRAL
from simulations.report.charts import CERTIFIED
from simulations.report.statistics import LEAST_SEEDS, column_interval
from simulations.report.study_data import GROUP, Study
from simulations.report.words import bytes_text, count_text, percent_text, with_interval

LEVELS = {
    "epsilon_client_total_sum": PrivacyStatement.heading(Unit.TOTAL, StatedView(ViewKind.AGGREGATE)),
    "epsilon_client_total": PrivacyStatement.heading(Unit.TOTAL),
    "epsilon_client_total_models": PrivacyStatement.heading(Unit.TOTAL, StatedView(ViewKind.MODELS)),
    "epsilon_client_round_sum": PrivacyStatement.heading(Unit.ROUND, StatedView(ViewKind.AGGREGATE)),
    "epsilon_client_round": PrivacyStatement.heading(Unit.ROUND),
}
"""The levels of what an epsilon can mean besides the certified one, by their column; totals first."""

# A client total above this guarantees hardly anything by itself.
_LARGE_TOTAL = 20.0

NOTES = {
    "bits": "per\u00a0coordinate",
    "MSE of the mean": "per coordinate, over rounds",
    "accuracy, %": "as evaluated, last round",
    "loss": "as evaluated, last round",
    "MB up": "all clients and rounds",
    "MB handshake": "up and down, all clients and rounds",
}
"""What a heading means, for media that have room for a second line."""


@dataclass(frozen=True)
class Table:
    """Rows of text: in each, the cells by their headings, which all rows have in common.

    Parameters
    ----------
    intervals
        Mean, low and high of the result of each row, where they are to be drawn too.
    """

    name: str
    title: str
    caption: str
    rows: tuple[dict[str, str], ...]
    intervals: tuple[tuple[float, float, float], ...] = ()

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of the columns; none where there are no rows."""
        return tuple(self.rows[0]) if self.rows else ()

    @staticmethod
    def is_words(heading: str) -> bool:
        """Whether a column holds words, and is set to the left."""
        return heading in ("mechanism", "setting", "counted by")

    def by_setting(self) -> dict[str, list[dict[str, str]]]:
        """The rows of each setting together, without the column that names it."""
        blocks: dict[str, list[dict[str, str]]] = defaultdict(list)
        for row in self.rows:
            cells = dict(row)
            blocks[cells.pop("setting", "")].append(cells)
        return blocks

    def whiskers(self) -> list[tuple[float, float, float] | None]:
        """The intervals on a scale from 0 to 1 that all rows share, to compare them at a glance."""
        means = [mean for mean, _, _ in self.intervals if math.isfinite(mean)]
        if not means:
            return [None] * len(self.rows)
        room = max(max(means) - min(means), 0.01 * abs(max(means)), 1e-12)
        # Few seeds can have an interval that dwarfs all others: it leaves the scale at both ends.
        lows = [low for _, low, _ in self.intervals if math.isfinite(low)]
        highs = [high for _, _, high in self.intervals if math.isfinite(high)]
        start = max(min(means) - 3 * room, min([*means, *lows]) - 0.1 * room)
        length = min(max(means) + 3 * room, max([*means, *highs]) + 0.1 * room) - start
        intervals: list[tuple[float, float, float] | None] = []
        for mean, low, high in self.intervals:
            ends = (mean, low, high) if math.isfinite(low) else (mean, mean, mean)
            at = [min(1.0, max(0.0, (end - start) / length)) for end in ends]
            intervals.append((at[0], at[1], at[2]) if math.isfinite(mean) else None)
        return intervals

    def markdown(self) -> str:
        """The table in GitHub's Markdown, its caption above."""
        rule = ["---" if self.is_words(heading) else "---:" for heading in self.headings]
        texts = [
            [cell.replace("|", "\\|") for cell in row]
            for row in (self.headings, *map(dict.values, self.rows))
        ]
        lines = [*texts[:1], rule, *texts[1:]]
        return f"{self.caption}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        """The table for LaTeX, with booktabs."""
        text = (
            pd.DataFrame(list(self.rows))
            .map(_latex)
            .rename(columns=_latex)
            .to_latex(
                index=False,
                escape=False,
                column_format="".join("l" if self.is_words(heading) else "r" for heading in self.headings),
                caption=_latex(self.caption),
                label=f"tab:{self.name}",
            )
        )
        return f"% needs \\usepackage{{booktabs}}\n{text}"


@lru_cache(maxsize=1)
def privacy_table(study: Study) -> Table:
    """What a run costs a client in all, what a round costs, and what is certified for one coordinate."""
    levels = _levels(study)
    pure = not any(_largest_delta(study, frame) for _, frame in _groups(study))
    # Neither the bits nor most settings change what is private: such groups are one row.
    merged: dict[tuple[tuple[str, str], ...], list[float]] = defaultdict(list)
    for group, frame in sorted(_groups(study), key=lambda item: _privacy_order(study, item)):
        runs = study.runs_of(group["series"], group["setting"])
        dimensions = sorted(filter(None, {run.provenance.get("dimension") for run in runs}))
        row = {
            **({"setting": group["setting"]} if study.panels else {}),
            "mechanism": group["series"],
            # Clients differ in how often they took part: the largest loss is the one to state.
            **{heading: _level(study, frame, column) for column, heading in levels.items()},
            CERTIFIED: _certified(study, frame),
            **({} if pure else {"δ of rounds and totals": _delta_cell(_largest_delta(study, frame))}),
            "counted by": _method(frame),
            "coordinates": " or ".join(map(count_text, dimensions)) or "–",
            "rounds": f"{frame['round'].max():.0f}",
        }
        merged[tuple(row.items())].append(group["bits"])
    rows = tuple(
        {**dict(row), "bits": ", ".join(dict.fromkeys(map(_bits, bits)))} for row, bits in merged.items()
    )
    honest = study.summary["num_honest"].dropna() if study.runs else pd.Series(dtype=float)
    in_sums = (
        " Aggregate view: somebody who sees no more than sums of codes, with at least "
        f"{honest.min():.0f} honest clients in each."
        if len(honest)
        else ""
    )
    central = (
        " Trusted server: somebody who sees the models, where the server itself sees every update."
        if any(run.trusts_server for run in study.runs)
        else ""
    )
    caption = (
        "A client total covers all updates of the client that was asked most often, a client round one whole "
        "update. Certified ε bounds what is learned about one coordinate from one message. Local view: "
        f"somebody who sees each client's codes.{in_sums}{central} For {REPLACE_ONE}. Counted by: the method "
        "that composes updates to totals, such as pld, numerical privacy loss distributions. All figures are "
        "upper bounds, rounded up" + (", and δ is 0 everywhere." if pure else ".")
    )
    return Table("privacy", "Privacy of each mechanism", caption, rows)


@lru_cache(maxsize=2)
def summary_table(study: Study, short: bool = False) -> Table:
    """The results of each mechanism: mean and interval over seeds; with ``short`` cells for a terminal."""
    rows, intervals = [], []
    totals = {column: heading for column, heading in _levels(study).items() if "total" in column}
    shakes = bool(study.runs) and bool((study.summary["bytes_handshake"] > 0).any())
    accurate = not study.runs or study.summary["accuracy"].notna().any()
    for group, frame in _groups(study):
        mean, low, high, count = column_interval(frame, "accuracy" if accurate else "loss")
        error, error_low, error_high, _ = column_interval(frame, "mean_squared_error_rounds")
        quality = (
            {"accuracy, %": percent_text(mean, low, high)}
            if accurate
            else {"loss": with_interval(mean, low, high)}
        )
        handshake = bytes_text(frame["bytes_handshake"].mean() / 1e6)
        intervals.append((mean, low, high))
        rows.append(
            {
                **({"setting": group["setting"]} if study.varying else {}),
                "mechanism": group["series"],
                **quality,
                "MSE of the mean": with_interval(error, error_low, error_high),
                **{heading: _level(study, frame, column, short) for column, heading in totals.items()},
                CERTIFIED: _certified(study, frame, short),
                "bits": _bits(group["bits"]),
                "MB up": bytes_text(frame["bytes_up"].mean() / 1e6),
                **({"MB handshake": handshake} if shakes else {}),
                "seeds": str(count),
            }
        )
    caption = (
        f"{study.name}. What each ε covers, and its δ, is in the privacy table. "
        + ("Accuracy" if accurate else "Loss")
        + " after the last round and mean squared error of the decoded mean update (per coordinate, averaged "
        f"over rounds): mean {seeds_note(study)}. MB up: megabytes that all clients send in all rounds."
    )
    if shakes:
        caption += (
            " MB handshake: additional traffic of secure aggregation, up and down: keys, shares and lists."
        )
    return Table("summary", "Results of each mechanism", caption, tuple(rows), tuple(intervals))


def large_total(study: Study) -> str:
    """A sentence about the largest client total, where it is so large that it promises next to nothing.

    It is that of the view that a run is about: of sums with secure aggregation, else the local one.
    """
    rows = study.summary.to_dict("records") if study.runs else []
    totals = [
        (row["epsilon_client_total"], row["delta_client_total"], ViewKind.LOCAL)
        if math.isnan(row["epsilon_client_total_sum"])
        else (row["epsilon_client_total_sum"], row["delta_client_total"], ViewKind.AGGREGATE)
        for row in rows
    ]
    epsilon, delta, kind = max(
        (total for total in totals if math.isfinite(total[0])), default=(0.0, 0.0, ViewKind.LOCAL)
    )
    if epsilon <= _LARGE_TOTAL:
        return ""
    largest = PrivacyStatement(epsilon, delta, Unit.TOTAL, StatedView(kind))
    return (
        f"A client total as large as {largest.brief} promises next to nothing for whole updates: it bounds "
        "what all messages of one client reveal together."
    )


def seeds_note(study: Study) -> str:
    """What follows a mean: half of its interval or, where there are few seeds, nothing."""
    note = "± half of the 95 % interval over seeds (Student t)"
    fewest = min((len(frame) for _, frame in _groups(study)), default=LEAST_SEEDS)
    if fewest >= LEAST_SEEDS:
        return note
    return f"{note}, which needs three seeds or more; with fewer the mean stands alone"


def _groups(study: Study) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Runs that differ in their seed only, by setting, then as in the privacy table."""
    if not study.runs:
        return []
    grouped = study.summary.groupby(GROUP, dropna=False, sort=True)
    groups = [(dict(zip(GROUP, key, strict=True)), frame) for key, frame in grouped]
    return sorted(
        groups, key=lambda item: (study.settings.index(item[0]["setting"]), _privacy_order(study, item))
    )


def _privacy_order(study: Study, item: tuple[dict[str, Any], pd.DataFrame]) -> tuple[bool, float, int, float]:
    """The order of rows: mechanisms with privacy first, by epsilon, then the fixed order."""
    group, frame = item
    epsilon, bits = (
        value if math.isfinite(value) else math.inf for value in (group["epsilon"], group["bits"])
    )
    return not frame["private"].all(), epsilon, study.series.index(group["series"]), bits


def _bits(bits: float) -> str:
    return f"{bits:.3g}" if math.isfinite(bits) else "–"


def _levels(study: Study) -> dict[str, str]:
    """The levels that the study has: sums only with secure aggregation, models only with a sampling."""
    return {
        column: heading
        for column, heading in LEVELS.items()
        if not column.endswith(("_sum", "_models")) or (study.runs and study.summary[column].notna().any())
    }


def _certified(study: Study, frame: pd.DataFrame, short: bool = False) -> str:
    """The largest certified epsilon; with its unit, where that is not the one of the heading."""
    certified = [run.certified for run in study.runs if run.name in set(frame["run"])]
    worst = max(certified, key=lambda mechanism: mechanism.epsilon)
    differs = worst.unit is not Unit.COORDINATE and math.isfinite(worst.epsilon)
    return f"{worst.epsilon_cell} ({worst.unit})" if differs else _epsilon(worst, short)


def _epsilon(statement: PrivacyStatement, short: bool) -> str:
    return statement.epsilon_number if short else statement.epsilon_cell


def _method(frame: pd.DataFrame) -> str:
    """How the client totals were counted, where there are any."""
    spent = frame[frame["epsilon_client_total"].map(math.isfinite)]
    methods = {*spent["composition_method"], *spent["composition_method_sum"]}
    return " / ".join(sorted(methods - {"", "nan", "None", "no sums"})) or "–"


def _largest_delta(study: Study, frame: pd.DataFrame) -> float:
    """The largest delta of some runs; that of a trusted server's guarantee is the one of its target."""
    if (frame["mechanism"] == CENTRAL).all():
        return max(float(study.configs[run].get("privacy.delta", 0.0)) for run in frame["run"])
    return float(max(frame["delta_client_total"].fillna(0.0).max(), frame["delta"].max()))


def _delta_cell(delta: float) -> str:
    return PrivacyStatement(0.0, delta, Unit.TOTAL).delta_cell


def _level(study: Study, frame: pd.DataFrame, column: str, short: bool = False) -> str:
    """The cell of a level; with a trusted server the total is for those who see the models."""
    if (frame["mechanism"] == CENTRAL).all():
        if column == "epsilon_client_total_sum":
            targets = [study.configs[run].get("privacy.epsilon", math.inf) for run in frame["run"]]
            trusted = "(trusted)" if short else "(trusted server)"
            return f"{PrivacyStatement(max(targets), 0.0, Unit.TOTAL).epsilon_cell} {trusted}"
        if column == "epsilon_client_round_sum":
            return "–"
    epsilons = frame[column]
    # NaN compares below everything: max() alone would hide a run without a guarantee.
    if epsilons.isna().all():
        return "–"
    worst = math.inf if epsilons.isna().any() else float(epsilons.max())
    return _epsilon(PrivacyStatement(worst, 0.0, Unit.TOTAL), short)


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
        "±": r"$\pm$",
        "×": r"$\times$",
        "∞": r"$\infty$",
        "–": "--",
    }
)
_SUPERSCRIPTS = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
_PLAIN_DIGITS = str.maketrans(_SUPERSCRIPTS, "-0123456789")


def _latex(text: str) -> str:
    """A text for LaTeX: special characters escaped, Greek letters and powers in mathematics."""
    return re.sub(
        f"(10)?([{_SUPERSCRIPTS}]+)",
        lambda match: f"${match[1] or ''}^{{{match[2].translate(_PLAIN_DIGITS)}}}$",
        text.translate(_LATEX),
    )
