"""The tables of a report: results by mechanism, what each run guarantees, and pivots for LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from fl_privquant.errors import InvalidSpecError, pluralize
from fl_privquant.statement import PrivacyStatement, StatedView
from simulations.report.runs import Run
from simulations.report.statistics import MIN_SEEDS, Interval, shown_interval
from simulations.report.study import GROUP, Study, join_words
from simulations.report.verdict import ACCURACY, ERROR, LOSS, Comparison, compare

HEADINGS = {
    ACCURACY: "accuracy, %",
    LOSS: "loss",
    ERROR: "squared error",
    "kilobytes": "kB",
    "epsilon": "ε",
}
"""The headings of columns of results."""

PIVOT_KEYS = {"series": "mechanism", "epsilon": "ε", "bits": "bits"}
"""What the rows and the columns of a pivot table can be, and how they are called."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def results_table(study: Study, setting: str) -> pd.DataFrame:
    """The results of one setting as text: a row for each mechanism, with intervals over seeds.

    Where all are compared with each other, the best comes first.
    """
    here = _best_first(study, setting)
    quality = ACCURACY if here[ACCURACY].notna().any() else LOSS
    rows = []
    for _, runs in here.groupby(GROUP, dropna=False, sort=False):
        first, worst = runs.iloc[0], max(runs["statement"], key=lambda each: each.epsilon)
        bounds = (0.0, 1.0) if quality == ACCURACY else (-np.inf, np.inf)
        measured = shown_interval(runs[quality], bounds=bounds)
        rows.append(
            {
                "mechanism": first["series"],
                "bits": f"{first['bits']:g}" if math.isfinite(first["bits"]) else "–",
                HEADINGS[quality]: percent_text(measured) if quality == ACCURACY else number_text(measured),
                HEADINGS[ERROR]: number_text(shown_interval(runs[ERROR], bounds=(0.0, np.inf))),
                HEADINGS["epsilon"]: worst.epsilon_number,
                HEADINGS["kilobytes"]: f"{runs['kilobytes'].mean():.3g}",
                "seeds": str(len(runs)),
            }
        )
        if here["epsilon"].nunique() > 1 and first["epsilon"] > 0:
            designed: PrivacyStatement = replace(first["certified"], epsilon=first["epsilon"])
            rows[-1]["mechanism"] += f", designed for {designed.epsilon_number}"
    table = pd.DataFrame(rows)
    # Where all have the same number of seeds, the caption says it.
    return table.drop(columns="seeds") if table["seeds"].nunique() == 1 else table


def _best_first(study: Study, setting: str) -> pd.DataFrame:
    """The results of a setting; if it is one comparison, in the order of what that is decided by."""
    here = study.results[study.results["setting"] == setting]
    comparisons = [comparison for comparison in compare(study) if comparison.setting == setting]
    if len(comparisons) != 1:
        return here
    measure = comparisons[0].decided.measure
    means = here.groupby(GROUP, dropna=False)[measure].transform("mean")
    order = here.assign(rank=-means if measure == ACCURACY else means, private=~here["private"])
    return here.loc[order.sort_values(["private", "rank"], kind="stable").index]


def results_caption(study: Study, setting: str, measure: str | None = None) -> str:
    """What the columns of :func:`results_table` mean, or one measure; above all what the epsilon is about."""
    here = study.results[study.results["setting"] == setting]
    headings: dict[str, list[str]] = {}
    for row in here[here["private"]].itertuples():
        view = StatedView(row.statement.view.kind)
        word, relation = f"ε at δ = {row.statement.delta_cell}", row.statement.relation
        words = row.statement.heading(row.statement.unit, view, word, relation)
        series = headings.setdefault(words, [])
        series += [row.series] if row.series not in series else []
    # What most mechanisms have needs no list of their names.
    by_count = sorted(headings, key=lambda words: -len(headings[words]))
    epsilons = [
        words if place == 0 else f"for {join_words(headings[words])}: {words}"
        for place, words in enumerate(by_count)
    ]
    counts = here.groupby(GROUP, dropna=False).size()
    seeds = pluralize(int(counts.min()), "seed") if counts.nunique() == 1 else "seeds"
    interval = f"±: half of the 95 % interval, {seeds}"
    if counts.min() < MIN_SEEDS:
        interval = f"Means over {seeds}; an interval takes three or more"
    keys = here["handshake_kilobytes"].max()
    sentences = [
        "; ".join(epsilons),
        "Squared error: of the mean update, per coordinate" if measure in (None, ERROR) else "",
        "" if measure else "kB: sent by a client per round",
        interval,
    ]
    if keys > 0.0 and not measure:
        sentences[2] += f", besides {keys:.3g} kB of keys"
    return ". ".join(filter(None, sentences)) + "."


def privacy_table(study: Study) -> pd.DataFrame:
    """Every statement of every mechanism: the largest ε and δ over its runs, and how they were counted."""
    rows = []
    for (setting, series, _, bits), runs in study.results.groupby(GROUP, dropna=False, sort=False):
        for statement in worst_statements(study.runs_of(runs)):
            rows.append(
                ({"setting": setting} if study.has_panels or len(study.settings) > 1 else {})
                | {
                    "mechanism": series,
                    "bits": f"{bits:g}" if math.isfinite(bits) else "–",
                    "what is protected": str(statement.unit),
                    "what is seen": statement.view.words,
                    "relation": str(statement.relation),
                    "ε": statement.epsilon_cell,
                    "δ": statement.delta_cell,
                    "counted by": statement.method,
                }
            )
    return pd.DataFrame(rows).drop_duplicates(ignore_index=True)


def worst_statements(runs: Sequence[Run]) -> list[PrivacyStatement]:
    """For each unit, kind of view and relation, the statement with the largest figures of all runs."""
    worst: dict[tuple[str, str, str], PrivacyStatement] = {}
    for statement in (statement for run in runs for statement in (*run.statements, *run.beside)):
        key = (statement.unit, statement.view.kind, statement.relation)
        known = worst.get(key, statement)
        largest = max(known, statement, key=lambda each: each.epsilon)
        worst[key] = replace(largest, delta=max(known.delta, statement.delta))
    return list(worst.values())


def pivot_table(results: pd.DataFrame, measure: str, columns: Sequence[str]) -> pd.DataFrame:
    """Means with intervals by mechanism, ε and bits, as LaTeX; bold if significantly better than all others.

    Parameters
    ----------
    results
        The results of one setting.
    measure
        ``accuracy``, ``loss`` or ``error``.
    columns
        The keys that go across the top, of :data:`PIVOT_KEYS`; the others become rows.

    Raises
    ------
    InvalidSpecError
        A key is unknown, or all keys are columns.
    """
    rows = [key for key in PIVOT_KEYS if key not in columns]
    if not set(columns) <= set(PIVOT_KEYS) or not rows:
        raise InvalidSpecError(
            "columns", list(columns), f"; expected some, not all, of {', '.join(PIVOT_KEYS)}"
        )
    beside = ["epsilon", *(["bits"] if "bits" in columns else [])]
    winners: set[str] = set()
    for _, runs in results.groupby(beside, dropna=False):
        winners |= _clear_winner(Comparison("", measure, runs.assign(name=runs["series"])))
    cells = []
    for key, runs in results.groupby(list(PIVOT_KEYS), dropna=False, sort=False):
        interval = shown_interval(runs[measure])
        text = escape_latex(percent_text(interval) if measure == ACCURACY else number_text(interval))
        text = rf"\textbf{{{text}}}" if set(runs["run"]) <= winners else text
        cells.append(
            {"cell": text} | {name: _pivot_text(value) for name, value in zip(PIVOT_KEYS, key, strict=True)}
        )
    frame = pd.DataFrame(cells)
    for key in set(columns) - {"series"}:
        frame[key] = f"{escape_latex(PIVOT_KEYS[key])} = " + frame[key]
    # A key with one value says nothing.
    rows = [key for key in rows if key == "series" or frame[key].nunique() > 1]
    table = frame.pivot_table(
        index=rows, columns=list(columns), values="cell", aggfunc=" / ".join, sort=False
    )
    table = table.fillna("--").rename_axis(columns=[None] * len(columns))
    return table.reset_index(names=[escape_latex(PIVOT_KEYS[row]) for row in rows])


def _pivot_text(value: object) -> str:
    """A mechanism, ε or bits, for LaTeX."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return "--" if text == "nan" else escape_latex(text)


def to_latex(table: pd.DataFrame, caption: str, label: str) -> str:
    """What :func:`pivot_table` made, as a table of LaTeX with booktabs; the caption is plain text."""
    options = {"escape": False, "index": False, "multicolumn_format": "c"}
    text = table.to_latex(caption=escape_latex(caption), label=f"tab:{label}", **options)
    return f"% needs \\usepackage{{booktabs}}\n{text}"


def _clear_winner(comparison: Comparison) -> set[str]:
    """The runs of the series that is significantly better than all others; the baseline does not count."""
    candidates = comparison.candidates
    if candidates.best is None:
        return set()
    rivals = candidates.differences(candidates.best)
    if len(rivals) + 1 < len(candidates.complete) or not rivals:
        return set()
    if not all(rival.is_significant for rival in rivals):
        return set()
    return set(candidates.runs.loc[candidates.runs["series"] == candidates.best, "run"])


def to_markdown(table: pd.DataFrame, caption: str) -> str:
    """A table of text in GitHub's Markdown, its caption above."""
    lines = [table.columns, ["---"] * len(table.columns), *table.to_numpy()]
    rows = [" | ".join(str(cell).replace("|", "\\|") for cell in line) for line in lines]
    return f"{caption}\n\n" + "".join(f"| {row} |\n" for row in rows)


def percent_text(interval: Interval) -> str:
    """An accuracy in per cent with its interval, if there is one.

    >>> percent_text(Interval(0.9, 0.875, 0.925, 3)), percent_text(Interval(0.9, 0.72, 1.0, 3))
    ('90.0 ± 2.5', '90.0 (72.0 to 100.0)')
    """
    mean, low, high = (100.0 * value for value in interval[:3])
    if not math.isfinite(low):
        return f"{mean:.1f}" if math.isfinite(mean) else "–"
    # An interval that was cut at what is possible has no half.
    if not math.isclose(high - mean, mean - low, rel_tol=1e-6, abs_tol=1e-12):
        return f"{mean:.1f} ({low:.1f} to {high:.1f})"
    return f"{mean:.1f} ± {high - mean:.1f}"


def number_text(interval: Interval) -> str:
    """A number with half of its interval; in powers of ten where plain digits would be long.

    >>> number_text(Interval(0.00123, 0.00119, 0.00127, 3)), number_text(Interval(2.5, math.nan, math.nan, 1))
    ('(1.23 ± 0.04) × 10⁻³', '2.50')
    """
    mean, low, high, _ = interval
    if not math.isfinite(mean):
        return "–"
    exponent = 0 if mean == 0.0 or 0.01 <= abs(mean) < 1e4 else math.floor(math.log10(abs(mean)))
    scale = 10.0**exponent
    half = max(high - mean, mean - low) / scale
    text = f"{mean / scale:.2f}" + ("" if math.isnan(half) else f" ± {half:.2f}")
    if not exponent:
        return text
    return f"{text if math.isnan(half) else f'({text})'} × 10{str(exponent).translate(_SUPERSCRIPTS)}"


def escape_latex(text: str) -> str:
    """A text for LaTeX: special characters escaped, Greek letters and powers in mathematics."""
    signs: dict[str, str | int | None] = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "–": "--",
    }
    signs |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
    signs |= {"ε": r"$\varepsilon$", "δ": r"$\delta$", "±": r"$\pm$", "×": r"$\times$", "∞": r"$\infty$"}
    escaped = text.translate(str.maketrans(signs))
    digits = {value: key for key, value in _SUPERSCRIPTS.items()}
    return re.sub("10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda match: f"$10^{{{match[1].translate(digits)}}}$", escaped)
