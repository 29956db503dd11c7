"""The tables of a report: one content as HTML, Markdown, LaTeX and on the terminal."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import pandas as pd

from simulations.report.charts import UNIT
from simulations.report.statistics import student_interval
from simulations.report.study import GROUP, Study
from simulations.report.words import THIN, bytes_text, delta_text, epsilon_text, percent_text, with_interval

__all__ = ["Table", "privacy_table", "summary_table"]

NOTES = {
    "certified ε": UNIT,
    "δ": "of the certified ε",
    "client total ε": "all coordinates and rounds, local view",
    "client total δ": "of the client total",
    "bits": "a\u00a0coordinate",
    "MSE of the mean": "a coordinate, over rounds",
    "accuracy, %": "test set, last round",
    "loss": "test set, last round",
    "MB up": "all clients and rounds",
}
"""What a heading means, for where there is room for a second line."""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings.

    Parameters
    ----------
    series
        What each row is about.
    intervals
        Mean, low and high of the result of each row, where they are to be drawn too.
    """

    name: str
    title: str
    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    series: tuple[str, ...]
    intervals: tuple[tuple[float, float, float], ...] = ()

    @staticmethod
    def is_words(heading: str) -> bool:
        """Whether a column holds words, and is set to the left."""
        return heading in ("mechanism", "setting", "composed by")

    def by_setting(self) -> list[tuple[str, list[tuple[str, list[tuple[str, str]]]]]]:
        """The rows of each setting together: its series, and its cells under their headings."""
        blocks: dict[str, list[tuple[str, list[tuple[str, str]]]]] = {}
        for series, row in zip(self.series, self.rows, strict=True):
            cells = dict(zip(self.headings, row, strict=True))
            blocks.setdefault(cells.pop("setting", ""), []).append((series, list(cells.items())))
        return list(blocks.items())

    def whiskers(self) -> list[tuple[float, float, float] | None]:
        """The intervals on a scale from 0 to 1 that all rows share, to compare them at a glance."""
        means = [mean for mean, _, _ in self.intervals if math.isfinite(mean)]
        if not means:
            return [None] * len(self.rows)
        room = max(max(means) - min(means), 0.01 * abs(max(means)), 1e-12)
        # Two seeds can have an interval that dwarfs all others: it leaves the scale at both ends.
        lows = [low for _, low, _ in self.intervals if math.isfinite(low)]
        highs = [high for _, _, high in self.intervals if math.isfinite(high)]
        start = max(min(means) - 3 * room, min([*means, *lows]) - 0.1 * room)
        length = min(max(means) + 3 * room, max([*means, *highs]) + 0.1 * room) - start
        found: list[tuple[float, float, float] | None] = []
        for mean, low, high in self.intervals:
            ends = (mean, low, high) if math.isfinite(low) else (mean, mean, mean)
            at = [min(1.0, max(0.0, (end - start) / length)) for end in ends]
            found.append((at[0], at[1], at[2]) if math.isfinite(mean) else None)
        return found

    def markdown(self) -> str:
        """The table in GitHub's Markdown, its caption above."""
        escaped = [[cell.replace("|", "\\|") for cell in row] for row in (self.headings, *self.rows)]
        rule = ["---" if self.is_words(heading) else "---:" for heading in self.headings]
        lines = [escaped[0], rule, *escaped[1:]]
        return f"{self.caption}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        """The table for LaTeX, with booktabs."""
        columns = "".join("l" if self.is_words(heading) else "r" for heading in self.headings)
        body = [" & ".join(map(_latex, row)) + r" \\" for row in self.rows]
        return "\n".join(
            [
                r"% needs \usepackage{booktabs}",
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{_latex(self.caption)}}}",
                rf"  \label{{tab:{self.name}}}",
                rf"  \begin{{tabular}}{{{columns}}}",
                r"    \toprule",
                "    " + " & ".join(map(_latex, self.headings)) + r" \\",
                r"    \midrule",
                *(f"    {line}" for line in body),
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
                "",
            ]
        )


def privacy_table(study: Study) -> Table:
    """What is certified for one coordinate, and what that composes to for a client over a run."""
    pure = not study.runs or not (study.summary[["delta", "delta_client_total"]] > 0).any(axis=None)
    # Neither the bits nor most settings change what is private: such groups are one row.
    merged: dict[tuple[str, ...], list[float]] = {}
    for group, frame in sorted(_groups(study), key=lambda item: _privacy_order(study, item)):
        dimensions = {
            run.provenance.get("dimension") for run in study.runs_of(group["series"], group["setting"])
        }
        row = (
            group["series"],
            epsilon_text(frame["certified_epsilon"].max()),
            *([] if pure else [delta_text(frame["delta"].max())]),
            # Clients differ in how often they took part: the largest loss is the one to state.
            _total(frame["epsilon_client_total"]),
            *([] if pure else [delta_text(frame["delta_client_total"].fillna(0.0).max())]),
            _method(frame),
            " or ".join(f"{value:,}".replace(",", THIN) for value in sorted(filter(None, dimensions))) or "–",
            f"{frame['round'].max():.0f}",
        )
        merged.setdefault(row, []).append(group["bits"])
    rows = [(*row, ", ".join(dict.fromkeys(map(_bits, bits)))) for row, bits in merged.items()]
    headings = (
        *("mechanism", "certified ε", *([] if pure else ["δ"])),
        *("client total ε", *([] if pure else ["client total δ"]), "composed by"),
        *("coordinates", "rounds", "bits"),
    )
    caption = (
        f"Certified ε is {UNIT}: it bounds what whoever sees a client's messages learns about one coordinate "
        "from one of them. Client total ε is for all coordinates and rounds of one client that took part "
        "throughout, local view. ε is rounded up" + (", and δ is 0 everywhere." if pure else ".")
    )
    series = tuple(name for name, *_ in merged)
    return Table("privacy", "Privacy of each mechanism", caption, headings, tuple(rows), series)


def summary_table(study: Study) -> Table:
    """The results of each mechanism: mean and interval over seeds."""
    rows, series, intervals = [], [], []
    accurate = not study.runs or study.summary["accuracy"].notna().any()
    for group, frame in _groups(study):
        mean, low, high, count = student_interval(frame["accuracy" if accurate else "loss"])
        error, error_low, error_high, _ = student_interval(frame["mean_squared_error_rounds"])
        half = (high - low) / 2
        intervals.append((mean, low, high))
        rows.append(
            (
                *([group["setting"]] if study.varying else []),
                group["series"],
                epsilon_text(frame["certified_epsilon"].max()),
                _bits(group["bits"]),
                percent_text(mean, half) if accurate else with_interval(mean, half),
                with_interval(error, (error_high - error_low) / 2),
                bytes_text(frame["bytes_up"].mean() / 1e6),
                _total(frame["epsilon_client_total"]),
                str(count),
            )
        )
        series.append(group["series"])
    headings = (
        *(["setting"] if study.varying else []),
        *("mechanism", "certified ε", "bits"),
        "accuracy, %" if accurate else "loss",
        *("MSE of the mean", "MB up", "client total ε", "seeds"),
    )
    deltas = study.summary["delta"] if study.runs else pd.Series(dtype=float)
    caption = (
        f"{study.name}. Certified ε is {UNIT}"
        + (" (δ is in the privacy table); " if (deltas > 0).any() else "; ")
        + "client total ε is composed over all coordinates and rounds of one client, local view. "
        + ("Accuracy" if accurate else "Loss")
        + " after the last round and mean squared error of the decoded mean update (a coordinate, averaged "
        "over rounds): mean ± half of the 95 % interval over seeds (Student t). "
        "MB up: all clients and rounds together."
    )
    return Table(
        "summary",
        "Results of each mechanism",
        caption,
        headings,
        tuple(rows),
        tuple(series),
        tuple(intervals),
    )


def _groups(study: Study) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Runs that differ in their seed only, by setting, then as in the privacy table."""
    if not study.runs:
        return []
    found = study.summary.groupby(GROUP, dropna=False, sort=True)
    groups = [(dict(zip(GROUP, key, strict=True)), frame) for key, frame in found]
    return sorted(
        groups, key=lambda item: (study.settings.index(item[0]["setting"]), _privacy_order(study, item))
    )


def _privacy_order(study: Study, item: tuple[dict[str, Any], pd.DataFrame]) -> tuple[bool, float, int, float]:
    """What has privacy first, by epsilon; then in the fixed order of mechanisms."""
    group, frame = item
    epsilon, bits = (
        value if math.isfinite(value) else math.inf for value in (group["epsilon"], group["bits"])
    )
    return not frame["private"].all(), epsilon, study.series.index(group["series"]), bits


def _bits(bits: float) -> str:
    return f"{bits:.3g}" if math.isfinite(bits) else "–"


def _method(frame: pd.DataFrame) -> str:
    """How the client total was composed, where there is one."""
    spent = frame[frame["epsilon_client_total"].map(math.isfinite)]
    return " / ".join(sorted(set(spent["composition_method"]) - {"", "nan", "None"})) or "–"


def _total(epsilons: pd.Series) -> str:
    # NaN compares below everything: max() alone would hide a run without a guarantee.
    return epsilon_text(math.inf if epsilons.isna().any() else float(epsilons.max()))


_LATEX = {
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
    "²": "$^2$",
    THIN: r"\,",
}
_PLAIN_DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def _latex(text: str) -> str:
    escaped = "".join(
        _LATEX.get(character, character) for character in re.sub(r"10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", _power, text)
    )
    return escaped.replace("\x00", "$10^{").replace("\x01", "}$")


def _power(match: re.Match[str]) -> str:
    return f"\x00{match[1].translate(_PLAIN_DIGITS)}\x01"
