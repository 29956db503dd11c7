"""The tables of a report: results by mechanism, what each run guarantees, and pivots for LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from fl_privquant.errors import InvalidSpecError, pluralize
from fl_privquant.statement import PrivacyStatement, StatedView
from simulations.report.measures import ERROR, Measure, quality_of
from simulations.report.runs import Run
from simulations.report.statistics import MIN_SEEDS
from simulations.report.study import GROUP, Study, join_words
from simulations.report.verdict import Comparison, compare

PIVOT_KEYS = {"series": "mechanism", "epsilon": "ε", "bits": "bits"}
"""What the rows and the columns of a pivot table can be, and how they are called."""


def results_table(study: Study, setting: str) -> pd.DataFrame:
    """The results of one setting as text: a row for each mechanism, with intervals over seeds.

    Where all are compared with each other, the best comes first.
    """
    here = _best_first(study, setting)
    quality = quality_of(here)
    rows = []
    for _, runs in here.groupby(GROUP, dropna=False, sort=False):
        first, worst = runs.iloc[0], max(runs["statement"], key=lambda each: each.epsilon)
        name = first["series"]
        if here["epsilon"].nunique() > 1 and first["epsilon"] > 0:
            designed: PrivacyStatement = replace(first["certified"], epsilon=first["epsilon"])
            name += f", designed for {designed.epsilon_number}"
        rows.append(
            {
                "mechanism": name,
                "bits": _bits_text(first["bits"]),
                quality.heading: quality.text(runs[quality.key]),
                ERROR.heading: ERROR.text(runs[ERROR.key]),
                "ε": worst.epsilon_number,
                "kB": f"{runs['kilobytes'].mean():.3g}",
                "seeds": str(len(runs)),
            }
        )
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
    means = here.groupby(GROUP, dropna=False)[measure.key].transform("mean")
    order = here.assign(public=~here["private"], badness=-means if measure.percent else means)
    return here.loc[order.sort_values(["public", "badness"], kind="stable").index]


def results_caption(study: Study, setting: str, measure: Measure | None = None) -> str:
    """What the columns of :func:`results_table` mean, or one measure; above all what the epsilon is about."""
    here = study.results[study.results["setting"] == setting]
    headings: dict[str, dict[str, None]] = {}
    for series, statement in here.loc[here["private"], ["series", "statement"]].itertuples(index=False):
        view = StatedView(statement.view.kind)
        word = f"ε at δ = {statement.delta_cell}"
        words = statement.heading(statement.unit, view, word, statement.relation)
        headings.setdefault(words, {})[series] = None
    # What most mechanisms have needs no list of their names.
    first, *others = sorted(headings, key=lambda words: -len(headings[words])) or [""]
    epsilons = [first, *(f"for {join_words(headings[words])}: {words}" for words in others)]
    counts = here.groupby(GROUP, dropna=False).size()
    seeds = pluralize(int(counts.min()), "seed") if counts.nunique() == 1 else "seeds"
    if counts.min() < MIN_SEEDS:
        interval = f"Means over {seeds}; an interval takes three or more"
    else:
        interval = f"±: half of the 95 % interval, {seeds}"
    sentences = ["; ".join(epsilons)]
    if measure in (None, ERROR):
        sentences.append("Squared error: of the mean update, per coordinate")
    if measure is None:
        keys = here["handshake_kilobytes"].max()
        keys_text = f", besides {keys:.3g} kB of keys" if keys > 0.0 else ""
        sentences.append(f"kB: sent by a client per round{keys_text}")
    return ". ".join(filter(None, [*sentences, interval])) + "."


def privacy_table(study: Study) -> pd.DataFrame:
    """Every statement of every mechanism: the largest ε and δ over its runs, and how they were counted."""
    rows = []
    for (setting, series, _, bits), results in study.results.groupby(GROUP, dropna=False, sort=False):
        runs = [run for run in study.runs if run.name in set(results["run"])]
        for statement in worst_statements(runs):
            rows.append(
                ({"setting": setting} if len(study.settings) > 1 else {})
                | {
                    "mechanism": series,
                    "bits": _bits_text(bits),
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


def _bits_text(bits: float) -> str:
    return f"{bits:g}" if math.isfinite(bits) else "–"


def to_markdown(table: pd.DataFrame, caption: str) -> str:
    """A table of text in GitHub's Markdown, its caption above."""
    lines = [table.columns, ["---"] * len(table.columns), *table.to_numpy()]
    rows = [" | ".join(str(cell).replace("|", "\\|") for cell in line) for line in lines]
    return f"{caption}\n\n" + "".join(f"| {row} |\n" for row in rows)


def pivot_table(results: pd.DataFrame, measure: Measure, columns: Sequence[str]) -> pd.DataFrame:
    """Means with intervals by mechanism, ε and bits, as LaTeX; bold if significantly better than all others.

    Parameters
    ----------
    results
        The results of one setting.
    measure
        What is shown.
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
        text = escape_latex(measure.text(runs[measure.key]))
        named = {
            name: escape_latex(f"{value:g}" if isinstance(value, float) else value)
            for name, value in zip(PIVOT_KEYS, key, strict=True)
        }
        cells.append(named | {"cell": rf"\textbf{{{text}}}" if set(runs["run"]) <= winners else text})
    frame = pd.DataFrame(cells).replace("nan", "--")
    for key in set(columns) - {"series"}:
        frame[key] = f"{escape_latex(PIVOT_KEYS[key])} = " + frame[key]
    # A key with one value says nothing.
    rows = [key for key in rows if key == "series" or frame[key].nunique() > 1]
    table = frame.pivot_table(
        index=rows, columns=list(columns), values="cell", aggfunc=" / ".join, sort=False
    )
    table = table.fillna("--").rename_axis(columns=[None] * len(columns))
    return table.reset_index(names=[escape_latex(PIVOT_KEYS[row]) for row in rows])


def _clear_winner(comparison: Comparison) -> set[str]:
    """The runs of the series that is significantly better than all others; the baseline does not count."""
    candidates = comparison.candidates
    rivals = {} if candidates.best is None else candidates.differences(candidates.best)
    if not rivals or len(rivals) + 1 < len(candidates.complete):
        return set()
    if not all(map(candidates.measure.is_significant, rivals.values())):
        return set()
    return set(candidates.runs.loc[candidates.runs["series"] == candidates.best, "run"])


def to_latex(table: pd.DataFrame, caption: str, label: str) -> str:
    """What :func:`pivot_table` made, as a table of LaTeX with booktabs; the caption is plain text."""
    options = {"escape": False, "index": False, "multicolumn_format": "c"}
    text = table.to_latex(caption=escape_latex(caption), label=f"tab:{label}", **options)
    return f"% needs \\usepackage{{booktabs}}\n{text}"


def escape_latex(text: str) -> str:
    """A text for LaTeX: special characters escaped, Greek letters and signs in mathematics."""
    signs = {sign: f"\\{sign}" for sign in "&%$#_{}"}
    signs |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    signs |= {"ε": r"$\varepsilon$", "δ": r"$\delta$", "±": r"$\pm$", "÷": r"$\div$", "∞": r"$\infty$"}
    return "".join(signs.get(character, character) for character in text)
